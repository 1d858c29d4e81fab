"""Check the use of shared resources: external calls, limits, retries, queues, and random values."""

import ast
from collections.abc import Iterator

from framework.devtools.lint.classes import ClassIndex, SourceClass
from framework.devtools.lint.module import Module
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches, match_at
from framework.devtools.lint.rules.pushing import PUSHES
from framework.devtools.lint.workspace import UNKNOWN
from framework.typeguards import short_repr

_CLIENTS = (
    "requests.", "httpx.", "aiohttp.", "urllib3.", "urllib.request.", "http.client.", "smtplib.", "ftplib.", "imaplib.",
    "poplib.", "xmlrpc.client.",
)  # fmt: skip
_CLIENT_PACKAGES = frozenset(client.partition(".")[0] for client in _CLIENTS)
_RANDOM = ("random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "numpy.random.")
_MAX_CRON_RETRIES = 3


def _random(worker: SourceClass, _: ClassIndex) -> Matches:
    for attribute, declared in worker.own_attributes.items():
        for node in _calls_at_class_creation(declared.expression):
            name = worker.module.dotted(node.func) or ""
            if name.startswith(_RANDOM):
                yield Match(worker.module, node, f"{worker.name}.{attribute} has another random value in every process")


def _calls_at_class_creation(expression: ast.expr | None) -> Iterator[ast.Call]:
    """Yield the calls that run when the class is created, so not those in a lambda."""
    todo: list[ast.AST] = [expression] if expression is not None else []
    for node in todo:
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))


def _own_queue(worker: SourceClass, _: ClassIndex) -> Matches:
    declared = worker.attribute("queue")
    if declared is not None and declared.value is not None:
        yield from match_at(worker.location_of("queue"), "{} names its queue, which no routing rule can change")


def _queue_of_push(site: CallSite) -> Matches:
    outer = site.module.parents.get(site.node)
    pushes = isinstance(outer, ast.Attribute) and outer.attr in PUSHES
    if site.method == "set" and site.keyword("queue") is not None and pushes:
        yield Match(site.module, site.node, "this push names a queue, which no routing rule can change")


def _urgent_external(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("urgency") != "high":
        return
    call = next(_calls_out(worker), None)
    if worker.value("has_external_dependencies") is True:
        yield from match_at(worker.location_of("urgency"), "{} has urgency 'high' and depends on external services")
    elif call is not None and worker.attribute("has_external_dependencies") is None:
        yield from match_at(
            worker.location_of("urgency"), f"{{}} has urgency 'high' and calls {call[1]} (line {call[0].lineno})"
        )


def _undeclared_external(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.complete and worker.attribute("has_external_dependencies") is None and worker.value("urgency") != "high":
        for node, name, module in _calls_out(worker):
            yield Match(module, node, f"{worker.name} calls {name} and does not declare has_external_dependencies")
            return


def _calls_out(worker: SourceClass) -> Iterator[tuple[ast.Call, str, Module]]:
    """Yield calls of network clients in the worker's methods, and in functions of the same file that they call."""
    for owner in worker.mro:
        module = owner.module
        if _CLIENT_PACKAGES.isdisjoint(name.partition(".")[0] for _, name in module.imported):
            continue
        reached: set[str] = set()
        todo: list[ast.AST] = list(owner.methods.values())
        for root in todo:
            for node in ast.walk(root):
                name = module.dotted(node.func) if isinstance(node, ast.Call) else None
                if isinstance(node, ast.Call) and name is not None and name.startswith(_CLIENTS):
                    yield node, name, module
                if isinstance(node, ast.Name) and node.id in module.functions and node.id not in reached:
                    reached.add(node.id)
                    todo.append(module.functions[node.id])


def _no_limit(worker: SourceClass, _: ClassIndex) -> Matches:
    limit, share = worker.value("concurrency_limit"), worker.value("max_concurrency_limit_percentage")
    if worker.value("max_running_jobs") is not None:
        # A limited capacity worker is limited by this attribute.
        return
    reasons = (
        (worker.value("has_external_dependencies") is True, "waits for external services"),
        (worker.value("resource_boundary") == "memory", "is bound by memory"),
        (worker.value("urgency") == "throttled", "is throttled"),
    )
    reason = next((text for holds, text in reasons if holds), None)
    if reason is not None and limit in (None, 0) and limit is not UNKNOWN and share is None:
        yield from match_at(
            worker.location_of("concurrency_limit"), f"{{}} {reason} and may take every slot of its shard"
        )


def _cron_retries(worker: SourceClass, _: ClassIndex) -> Matches:
    retry = worker.value("retry")
    if worker.is_cron and worker.value("retry_for") is None and retry is not False:
        if retry is True:
            yield from match_at(worker.location_of("retry"), "{} is pushed by a schedule and retried for three weeks")
        elif isinstance(retry, int) and retry > _MAX_CRON_RETRIES:
            yield from match_at(
                worker.location_of("retry"), f"{{}} is pushed by a schedule and retried {short_repr(retry)} times"
            )


RULES = (
    LintRule(
        code="SEW004",
        name="random-declaration",
        summary="A class attribute, above all a schedule, has a random value.",
        fix="write one value; to spread load, declare spread for a cron entry, or push with perform_in(random...) from perform",
        why="Each process and each deploy computes another value. A random schedule skips or doubles runs at "
        "every restart, so GitLab forbids it.",
        bad="""
import random

from workers.base import TeamWorker


class ReportWorker(TeamWorker):
    retry_for = random.randint(60, 3600)  # here

    def perform(self) -> None: ...
""",
        good='''
import random

from workers.base import TeamWorker


class ReportWorker(TeamWorker):
    """Call home once a day, at a minute of its own."""

    retry_for = 3600

    def perform(self, site_id: int, now: bool = False) -> None:
        if not now:
            self.perform_in(random.randint(0, 3600), site_id, now=True)
''',
        check_worker=_random,
    ),
    LintRule(
        code="SEW009",
        name="own-queue",
        summary="A class or a push names its queue.",
        fix="leave the queue to config/routing.yml: declare what the job is (urgency, tags, resource_boundary) and "
        "let a rule match it",
        why="The platform team moves classes between processes by editing rules, at night if need be. A queue in the "
        "class overrides every rule, so the class cannot be moved away from an incident.",
        bad="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    queue = "indexing"  # here

    def perform(self) -> None: ...


def reindex_now(project_id: int) -> None:
    ReindexWorker.set(queue="urgent").perform_async(project_id)  # here
""",
        good="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    tags = ("indexing",)

    def perform(self) -> None: ...
""",
        check_worker=_own_queue,
        check_call=_queue_of_push,
    ),
    LintRule(
        code="SEW019",
        name="urgent-external",
        summary="A worker of urgency `high` calls external services.",
        fix="use urgency 'low', or split the job: one that is urgent, one that calls",
        why="High urgency promises a start and an end within 10 seconds. A job that waits for an external server "
        "cannot keep that, and holds a slot of jobs that must. Declared, the class is refused at import; this "
        "rule also finds undeclared calls.",
        bad="""
import httpx

from workers.base import TeamWorker


class NotifyWorker(TeamWorker):
    urgency = "high"  # here

    def perform(self, hook_id: int) -> None:
        httpx.post(f"https://hooks.example.com/{hook_id}")
""",
        good="""
import httpx

from workers.base import TeamWorker


class NotifyWorker(TeamWorker):
    has_external_dependencies = True
    concurrency_limit = 20

    def perform(self, hook_id: int) -> None:
        httpx.post(f"https://hooks.example.com/{hook_id}")
""",
        check_worker=_urgent_external,
    ),
    LintRule(
        code="SEW020",
        name="undeclared-external",
        summary="A worker calls a network client and does not declare `has_external_dependencies`.",
        fix="declare has_external_dependencies = True; False, where the service is your own",
        why="By this attribute, routing rules separate jobs that wait for third parties, so that a slow service "
        "blocks only its own queue. The rule sees calls in the class and in functions of its file.",
        bad="""
import smtplib

from workers.base import TeamWorker


class MailWorker(TeamWorker):
    def perform(self, mail_id: int) -> None:
        smtplib.SMTP("mail.example.com", timeout=10)  # here
""",
        good="""
import smtplib

from workers.base import TeamWorker


class MailWorker(TeamWorker):
    has_external_dependencies = True
    concurrency_limit = 10

    def perform(self, mail_id: int) -> None:
        smtplib.SMTP("mail.example.com", timeout=10)
""",
        check_worker=_undeclared_external,
    ),
    LintRule(
        code="SEW021",
        name="concurrency-limit",
        summary="A worker that is throttled, bound by memory or dependent on others has no concurrency limit.",
        fix="declare concurrency_limit = N or max_concurrency_limit_percentage; None with a suppression that says why "
        "all may run at once",
        why="Many jobs of such a class at once take every slot: memory runs out, the other service answers 429, and "
        "all other classes of the queue wait. Only the author knows the limit.",
        bad='''
from workers.base import TeamWorker


class RenderWorker(TeamWorker):  # here
    """Draw a poster, for which it needs two gigabytes."""

    resource_boundary = "memory"

    def perform(self) -> None: ...
''',
        good='''
from workers.base import TeamWorker


class RenderWorker(TeamWorker):
    """Draw a poster, for which it needs two gigabytes."""

    resource_boundary = "memory"
    concurrency_limit = 4

    def perform(self) -> None: ...
''',
        check_worker=_no_limit,
    ),
    LintRule(
        code="SEW024",
        name="cron-retries",
        summary="A worker of the namespace `cronjob` is retried more than three times.",
        fix="declare retry = False: the next scheduled run is the retry (GitLab); up to 3 for a daily schedule",
        why="Default retries last three weeks. A failing job of every minute soon has a thousand copies, which all "
        "run when the fault is repaired.",
        bad="""
from workers.base import TeamWorker


class ExpireInvitesWorker(TeamWorker):  # here
    queue_namespace = "cronjob"

    def perform(self) -> None: ...
""",
        good="""
from workers.base import TeamWorker


class ExpireInvitesWorker(TeamWorker):
    queue_namespace = "cronjob"
    retry = False

    def perform(self) -> None: ...
""",
        check_worker=_cron_retries,
    ),
)
