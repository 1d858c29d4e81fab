"""Check the code of ``perform`` (sleeps, calls without timeout, swallowed errors) and forbidden uses, as of internal modules."""

import ast
import re
from collections.abc import Mapping

from framework.devtools.lint.classes import ClassIndex
from framework.devtools.lint.module import Module
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches
from framework.devtools.lint.workspace import FRAMEWORK

_DEADLINES: Mapping[str, int | None] = {
    **dict.fromkeys(
        f"requests.{verb}" for verb in ("delete", "get", "head", "options", "patch", "post", "put", "request")
    ),
    "urllib.request.urlopen": 2,
    "http.client.HTTPConnection": 2,
    "http.client.HTTPSConnection": 2,
    "smtplib.SMTP": 3,
    "smtplib.SMTP_SSL": 4,
    "imaplib.IMAP4": 2,
    "ftplib.FTP": 4,
    "socket.create_connection": 1,
}
"""Calls without a default timeout -> the position of their timeout argument (None: only a keyword)."""
_CATCH_ALL = frozenset({"Exception", "BaseException"})
_FLOW_CONTROL = _CATCH_ALL | {"framework.errors.FlowControl"}
_FRAMEWORK_ERROR = _CATCH_ALL | {"framework.FrameworkError", "framework.errors.FrameworkError"}
_SWALLOWED_BY = {
    "RetryLater": _FLOW_CONTROL,
    "Discard": _FLOW_CONTROL,
    "BusinessError": _FRAMEWORK_ERROR,
    "RetryError": _FRAMEWORK_ERROR,
}
"""Exceptions by which a job controls its outcome -> the handlers that swallow each."""


def _sleep(site: CallSite) -> Matches:
    if site.worker is not None and site.name == "time.sleep":
        yield Match(site.module, site.node, f"{site.worker.name} holds a slot while it sleeps")


def _no_deadline(site: CallSite) -> Matches:
    if site.name is None or site.name not in _DEADLINES:
        return
    position = _DEADLINES[site.name]
    by_name = any(word.arg in ("timeout", None) for word in site.node.keywords)
    spread = any(isinstance(argument, ast.Starred) for argument in site.node.args)
    if not by_name and not spread and (position is None or len(site.node.args) <= position):
        yield Match(site.module, site.node, f"{site.name} without a timeout may wait for ever")


def _swallowed(module: Module, classes: ClassIndex) -> Matches:
    for node in module.tries:
        worker = classes.worker_around(module, node)
        if worker is None:
            continue
        for handler in node.handlers:
            names = _caught(module, handler)
            if _raises(handler):
                continue
            if names & {"", "BaseException"}:
                yield Match(module, handler, f"{worker.name} catches Shutdown here, so its process does not stop")
                break
            order = _raised_flow_control(module, node)
            if order is not None and names & _SWALLOWED_BY[order]:
                yield Match(module, handler, f"this handler swallows the {order} that is raised above")
                break
            if order is not None and any(name.endswith(f".{order}") for name in names):
                break


def _caught(module: Module, handler: ast.ExceptHandler) -> set[str]:
    """Return the dotted names that a handler catches; an empty name for all exceptions."""
    if handler.type is None:
        return {""}
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {name for part in parts if (name := module.dotted(part)) is not None}


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def _raised_flow_control(module: Module, node: ast.Try) -> str | None:
    """Return the flow control exception that the body of a try raises, unless a handler of the same try raises it again."""
    passed = {
        name.rpartition(".")[2] for handler in node.handlers if _raises(handler) for name in _caught(module, handler)
    }
    for statement in node.body:
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Raise) and inner.exc is not None:
                raised = inner.exc.func if isinstance(inner.exc, ast.Call) else inner.exc
                name = module.dotted(raised) or ""
                last = name.rpartition(".")[2]
                if name.startswith("framework.") and last in _SWALLOWED_BY and last not in passed:
                    return last
    return None


_OTHER_SYSTEMS = frozenset({"arq", "celery", "dramatiq", "huey", "procrastinate", "rq", "taskiq"})
_CLIENTS = re.compile(
    r"redis\.(asyncio\.)?(cluster\.|client\.)?(Strict)?(Redis(Cluster)?|ConnectionPool|from_url)(\.from_url)?"
)
_COMMANDS = frozenset(
    {
        "blmove", "blpop", "brpop", "delete", "expire", "hdel", "hget", "hgetall", "hset", "lindex", "linsert", "llen", "lmove",
        "lpop", "lpush", "lrange", "lrem", "lset", "ltrim", "rename", "rpop", "rpoplpush", "rpush", "sadd", "scard", "smembers",
        "srem", "unlink", "zadd", "zcard", "zincrby", "zpopmin", "zrange", "zrangebyscore", "zrem", "zremrangebyscore", "zscan",
    }
)  # fmt: skip
_KEYS = re.compile(r"queue:.*|aw:.*|stat:.*|(queues|schedule|retry|dead|interrupted|processes|paused)")

_ROOT_FUNCTIONS = ("background", "boot")
"""The functions that `framework` itself exports."""


def _other_base(module: Module, classes: ClassIndex) -> Matches:
    for node in module.all_classes:
        one = classes.get(module, node)
        used = classes.worker_around(module, node.body[0]) is not None
        if one.complete and not used and node.name.endswith("Worker") and "perform" in one.methods:
            yield Match(module, node, f"{node.name} has a perform but is no ApplicationWorker")
    for statement, name in module.imported:
        if name.partition(".")[0] in _OTHER_SYSTEMS:
            yield Match(module, statement, f"{name.partition('.')[0]} is another job system")


def _internals(module: Module, _: ClassIndex) -> Matches:
    for statement, name in module.imported:
        steps = name.split(".")
        if steps[0] != FRAMEWORK or len(steps) == 1:
            continue
        inner = ".".join(steps[1:])
        if not is_public(inner) and not steps[1][:1].isupper() and steps[1] not in _ROOT_FUNCTIONS:
            yield Match(module, statement, f"{name} is internal to the framework and may change with any release")


def _job_keys(site: CallSite) -> Matches:
    if site.method in _COMMANDS and site.node.args and not _in_sharding_scope(site):
        key = _literal_prefix(site.node.args[0])
        if key is not None and _KEYS.fullmatch(key):
            yield Match(site.module, site.node, f"{site.method} on the key {key!r}, which holds jobs")


def _in_sharding_scope(site: CallSite) -> bool:
    names = (site.module.dotted(manager.func) for manager in site.context_managers())
    return any(name is not None and name.startswith("framework.sharding.") for name in names)


def _literal_prefix(expression: ast.expr) -> str | None:
    if isinstance(expression, ast.JoinedStr) and expression.values:
        expression = expression.values[0]
    return expression.value if isinstance(expression, ast.Constant) and isinstance(expression.value, str) else None


def _own_client(site: CallSite) -> Matches:
    if site.name is not None and _CLIENTS.fullmatch(site.name):
        words = (node.value for node in ast.walk(site.node) if isinstance(node, ast.Constant))
        if "REDIS_URL" in words:
            yield Match(site.module, site.node, "this call opens its own connection to the Redis of the jobs")


PUBLIC_MODULES: Mapping[str, str] = {
    "active_job": "exchange jobs with Rails: push an Active Job by its name (`enqueue`), read a wrapped one (`unwrap`)",
    "admin": "look at jobs, queues and processes on the shards, and act on them: the data API",
    "batches": "jobs whose common end matters: `Batch`, with callbacks",
    "breaker": "when the jobs of a class are held: `BreakAfter`",
    "context": "context of requests and jobs (`bound`, `current`): the cause of a job, passed on to the jobs that it pushes",
    "databases": "the application's databases: choose the server that this job reads from, note its writes",
    "embedding": "a worker inside of another Python process: `EmbeddedWorker`",
    "enumerators": "items of iterable workers with their cursors: lists, SQL rows, CSV and .xlsx files, Redis sets and hashes",
    "errors": "every error of the framework, with its fields",
    "extending": "features of an application's own: `Feature`, and the types of its parts",
    "flags": "feature flags of the application: `enabled`, `set`, `clear`, `all`",
    "handlers": "error and death handlers: `on_error`, `on_death`",
    "health": "your own indicators for `defer_on_health`: `register`, and their answers",
    "integrations.flask": "Flask: `install` runs jobs in an application context, and binds the context of requests",
    "integrations.sqlalchemy": "SQLAlchemy: `install` closes the sessions of jobs, and lets pushes wait for the commit",
    "integrations.starlette": "Starlette and FastAPI: `lifespan`, which boots, and `RequestContext`, an ASGI middleware",
    "job_options": "options of your own that travel with jobs, for your middlewares: `declare_option`",
    "leader": "whether this process leads: `is_leader`, and when it begins and ends: `on_leader`, `on_follower`",
    "limiter": "rate limiters: `concurrent`, `bucket`, `window`, `leaky`, `points`, `unlimited`",
    "lease": "exclusive leases: `Lease`, held by one holder at a time over all processes",
    "lifecycle": "events of a worker process: `on_startup`, `on_quiet`, `on_shutdown`, `on_exit`, `on_heartbeat`, `on_beat`, "
    "`on_leader`, `on_follower`",
    "metrics": "`/metrics` of a process that pushes: `asgi_app`, `wsgi_app`, `metrics_text`",
    "middleware": "middlewares around pushes and runs: the chains `client` and `server`",
    "pause": "your own strategies for `pause_control`: `register`",
    "sharding": "the Redis of a worker's jobs for application code: `router`, `allow_unrouted`",
    "status": "the state of a tracked job, by its id",
    "tasks": "many jobs of one purpose in SQL: `Task`, their progress, failures and messages; `story` of one job",
    "tasks.http": "tasks over HTTP and JSON: `tasks_app`, a Starlette application, and `TaskScope`",
    "testing": "tests of workers and pushes: `fake`, `inline`, `real`, assertions, checks of all workers",
    "throttling": "your own load signals, which lower concurrency limits: `register`",
    "transactions": "pushes inside of database transactions: `skipping_transaction_check`, `add_source`",
    "types": "types for annotations: `Json`, `Payload`, `Jid` and the words of attributes",
    "workflows": "steps that follow each other, each a batch: `Workflow`, `WorkflowRun`",
}
"""Module within ``framework`` -> its purpose. The names that `framework` itself exports are public too."""


def is_public(inner: str) -> bool:
    """Return whether ``framework.<inner>`` is a public module, or a name inside of one."""
    return any(inner == one or inner.startswith(f"{one}.") for one in PUBLIC_MODULES)


RULES = (
    LintRule(
        code="SEW025",
        name="sleep",
        summary="A worker calls `time.sleep`.",
        fix="raise RetryLater(delay), or push the rest with perform_in",
        why="A sleeping job occupies its slot: ten jobs that sleep a minute stop a process of ten slots for a minute. "
        "A deploy has to wait for them or interrupt them.",
        bad="""
import time

from workers.base import TeamWorker


class PollWorker(TeamWorker):
    def perform(self, export_id: int) -> None:
        time.sleep(30)  # here
""",
        good="""
from framework import RetryLater
from workers.base import TeamWorker


class PollWorker(TeamWorker):
    def perform(self, export_id: int) -> None:
        raise RetryLater(30, f"export {export_id} is not there yet")
""",
        check_call=_sleep,
    ),
    LintRule(
        code="SEW026",
        name="deadline",
        summary="A network call without a timeout may wait for ever.",
        fix="pass a timeout in seconds",
        why="A server that accepts and never answers keeps one slot after the other, until the queue stops without a "
        "single error. The framework cannot interrupt a thread that waits in C code.",
        bad="""
import urllib.request

from workers.base import TeamWorker


class FetchWorker(TeamWorker):
    has_external_dependencies = True
    concurrency_limit = 10

    def perform(self, page_id: int) -> None:
        urllib.request.urlopen(f"https://pages.example.com/{page_id}")  # here
""",
        good="""
import urllib.request

from workers.base import TeamWorker


class FetchWorker(TeamWorker):
    has_external_dependencies = True
    concurrency_limit = 10

    def perform(self, page_id: int) -> None:
        urllib.request.urlopen(f"https://pages.example.com/{page_id}", timeout=10)
""",
        check_call=_no_deadline,
    ),
    LintRule(
        code="SEW027",
        name="swallowed",
        summary="A handler in a worker swallows `Shutdown`, or the RetryLater, Discard or BusinessError that is raised "
        "above it.",
        fix="catch only the expected errors, or end the handler with raise",
        why="The framework raises `Shutdown`, a BaseException, in jobs when the process stops; if it is swallowed, "
        "the process is killed at its deadline and the job runs again. RetryLater and Discard are Exceptions: "
        "under `except Exception` they have no effect.",
        bad="""
from framework import Discard
from workers.base import TeamWorker


class ImportWorker(TeamWorker):
    def perform(self, file_id: int) -> None:
        try:
            if file_id < 0:
                raise Discard("no such file")
        except Exception:  # here
            self.logger.info("went wrong")
        try:
            self.logger.info("importing", file_id=file_id)
        except BaseException:  # here
            self.logger.info("went wrong")
""",
        good="""
from framework import Discard
from workers.base import TeamWorker


class ImportWorker(TeamWorker):
    def perform(self, file_id: int) -> None:
        if file_id < 0:
            raise Discard("no such file")
        try:
            self.logger.info("importing", file_id=file_id)
        except OSError:
            self.logger.info("went wrong")
""",
        check_module=_swallowed,
    ),
    LintRule(
        code="SEW008",
        name="application-worker",
        summary="A class `...Worker` with a `perform` is no ApplicationWorker, or a file imports another job system's "
        "library.",
        fix="subclass framework.ApplicationWorker",
        why="Such a class is in no registry, routing rule or log. It looks like a worker in a review, but its jobs do "
        "not run, or run in a second system without monitoring.",
        bad="""
class ReindexWorker:  # here
    def perform(self) -> None: ...
""",
        good="""
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    def perform(self) -> None: ...
""",
        check_module=_other_base,
    ),
    LintRule(
        code="SEW010",
        name="job-keys",
        summary="A Redis command uses a key of the job data model outside of a route.",
        fix="use framework.sharding: with router.via(TheWorker) as pool",
        why="Rules distribute jobs over several Redis servers. Another connection reads the wrong server, and a write "
        "that bypasses the scripts may lose jobs.",
        bad="""
from redis import Redis

client = Redis()


def waiting() -> object:
    return client.llen("queue:reindex")  # here
""",
        good="""
from framework.sharding import router
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):
    def perform(self) -> None: ...


def waiting() -> object:
    with router.via(ReindexWorker) as pool:
        return pool.llen(f"queue:{ReindexWorker.route().queue}")
""",
        check_call=_job_keys,
    ),
    LintRule(
        code="SEW011",
        name="internals",
        summary="A file imports an internal module of the framework.",
        fix="import from framework or its public modules: " + ", ".join(PUBLIC_MODULES),
        why="Internal names and arguments change with any release. A push that bypasses the router goes to the wrong "
        "shard, without limits, checks and log lines (GitLab had this with mails).",
        bad="""
from framework.store.connect import open_client  # here
""",
        good="""
from framework.sharding import router
""",
        check_module=_internals,
    ),
    LintRule(
        code="SEW012",
        name="own-client",
        summary="A file opens its own Redis client on `REDIS_URL`, the Redis of the jobs.",
        fix="use the pool of framework.sharding; for your own data, use another Redis and variable",
        why="A cache must evict, but the Redis of jobs must not: caches and locks there push jobs out of memory. The "
        "framework's limits, circuit breaker and failover do not cover such a connection.",
        bad="""
import os

from redis import Redis

cache = Redis.from_url(os.environ["REDIS_URL"])  # here
""",
        good="""
import os

from redis import Redis

cache = Redis.from_url(os.environ["CACHE_URL"])
""",
        check_call=_own_client,
    ),
)
