"""What a job asks of a database: how fresh its reads are, when it waits, records that are gone, transactions."""

import ast

from framework.devtools.lint.classes import ClassIndex, SourceClass, is_handler
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches, match_at
from framework.devtools.lint.rules.pushing import PUSHES

_LOOK_UPS = frozenset({"get_one", "get_object_or_404"})
_EXACTLY_ONE = frozenset({"one", "scalar_one"})
_NARROWING = frozenset({"filter", "filter_by", "where", "get"})
_BEGINNINGS = ("atomic", "begin", "begin_nested")


def _consistency(worker: SourceClass, _: ClassIndex) -> Matches:
    said = worker.attribute("data_consistency")
    if said is None and worker.complete:
        yield from match_at(worker.location_of("data_consistency"), "{} does not say how fresh its reads must be")
    elif said is not None and said.value == "always":
        yield from match_at(worker.location_of("data_consistency"), "{} sends every read to the primary database")


def _scheduled_duplicates(worker: SourceClass, _: ClassIndex) -> Matches:
    said, consistency = worker.attribute("deduplicate"), worker.value("data_consistency")
    if said is None or consistency not in ("sticky", "delayed") or not isinstance(said.expression, ast.Call):
        return
    words = [word.arg for word in said.expression.keywords]
    if "including_scheduled" not in words and None not in words and _strategy(said.expression) != "none":
        message = (
            f"{{}} has data_consistency {consistency!r} and does not say whether scheduled jobs count as duplicates"
        )
        yield from match_at(worker.location_of("deduplicate"), message)


def _strategy(call: ast.Call) -> object:
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "strategy")]
    return given[0].value if given and isinstance(given[0], ast.Constant) else None


def _no_deferral(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("urgency") in ("low", "throttled") and worker.value("defer_on_health") is None:
        message = f"{{}} is of urgency {worker.value('urgency')!r} and goes on while its database is unwell"
        yield from match_at(worker.location_of("defer_on_health"), message)


def _missing_record(site: CallSite) -> Matches:
    function = site.function
    if site.worker is None or function is None or not is_handler(function.name) or not _looks_up(site):
        return
    parameters = {argument.arg for argument in (*function.args.posonlyargs, *function.args.args)} - {"self"}
    asked = {node.id for node in ast.walk(site.node) if isinstance(node, ast.Name)} & parameters
    guarded = any(isinstance(outer, ast.Try) and outer.handlers for outer in site.enclosing_nodes())
    if asked and not guarded:
        yield Match(site.module, site.node, f"{site.worker.name} fails when the record of {min(asked)!r} is gone")


def _looks_up(site: CallSite) -> bool:
    func, receiver = site.node.func, site.receiver
    name = func.id if isinstance(func, ast.Name) else site.method
    if name in _LOOK_UPS:
        return True
    if name == "get":
        return isinstance(receiver, ast.Attribute) and receiver.attr == "objects"
    methods = {node.attr for node in ast.walk(func) if isinstance(node, ast.Attribute)}
    return (
        name in _EXACTLY_ONE and bool(methods & _NARROWING) and not methods & {"count", "sum", "min", "max", "exists"}
    )


def _in_transaction(site: CallSite) -> Matches:
    if site.method in PUSHES:
        for manager in site.context_managers():
            if isinstance(manager.func, ast.Attribute) and manager.func.attr in _BEGINNINGS:
                message = f"this push stands in the transaction that begins in line {manager.lineno}"
                yield Match(site.module, site.node, message)
                return


RULES = (
    LintRule(
        code="SEW005",
        name="data-consistency",
        summary="A worker does not declare `data_consistency`, or says `always`.",
        fix="say data_consistency = 'sticky', or 'delayed' where lateness does not matter; waive 'always' with its reason",
        why="`always` keeps replicas idle and the primary busy. GitLab had it as a silent default: hundreds of "
        "classes had to be looked at one by one when the primary ran short. `sticky` reads from a replica that has caught up "
        "and goes to the primary with the first write, so it costs a worker nothing.",
        bad='''
from framework import ApplicationWorker, DeferOnHealth


class CountWorker(ApplicationWorker):  # here
    """Count the rows of a project."""

    feature_category = "global_search"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from framework import ApplicationWorker, DeferOnHealth


class CountWorker(ApplicationWorker):
    """Count the rows of a project."""

    feature_category = "global_search"
    data_consistency = "delayed"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")

    def perform(self, project_id: int) -> None: ...
''',
        check_worker=_consistency,
    ),
    LintRule(
        code="SEW006",
        name="scheduled-duplicates",
        summary="`sticky` or `delayed` together with `Deduplicate(...)` that does not say `including_scheduled`.",
        fix="say including_scheduled=True or False in Deduplicate(...)",
        why="Such a job may be put off until its replica has caught up. Whether a job that waits in the schedule makes a new one "
        "a duplicate is then no rare case but the usual one, and the answer differs: True may drop the job that carries the "
        "newer data, False lets both run.",
        bad='''
from framework import Deduplicate
from workers.base import TeamWorker


class MirrorWorker(TeamWorker):
    """Fetch a mirror, one at a time."""

    data_consistency = "delayed"
    deduplicate = Deduplicate("until_executed")  # here

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from framework import Deduplicate
from workers.base import TeamWorker


class MirrorWorker(TeamWorker):
    """Fetch a mirror, one at a time."""

    data_consistency = "delayed"
    deduplicate = Deduplicate("until_executed", including_scheduled=True)

    def perform(self, project_id: int) -> None: ...
''',
        check_worker=_scheduled_duplicates,
    ),
    LintRule(
        code="SEW007",
        name="deferral",
        summary="A worker of urgency `low` or `throttled` has no `defer_on_health`.",
        fix="say defer_on_health = DeferOnHealth(...), or None with a waiver that says why its database is safe from it",
        why="Background work is what keeps a database from recovering: it can wait, and does not. GitLab demands a deferral of "
        "every class of low urgency, or the reason why it needs none (it calls no database, or mends the very fault).",
        bad='''
from workers.base import TeamWorker


class PurgeWorker(TeamWorker):
    """Delete what a project left behind."""

    urgency = "throttled"
    concurrency_limit = 4
    defer_on_health = None  # here

    def perform(self, project_id: int) -> None: ...
''',
        good='''
from framework import DeferOnHealth
from workers.base import TeamWorker


class PurgeWorker(TeamWorker):
    """Delete what a project left behind."""

    urgency = "throttled"
    concurrency_limit = 4
    defer_on_health = DeferOnHealth(database="main", tables=("notes",))

    def perform(self, project_id: int) -> None: ...


class ThumbnailWorker(TeamWorker):
    """Draw the small picture of a large one."""

    defer_on_health = None  # SEW007: reads and writes files only

    def perform(self, picture_id: int) -> None: ...
''',
        check_worker=_no_deferral,
    ),
    LintRule(
        code="SEW014",
        name="missing-record",
        summary="`perform` looks up a record by its argument with a method that raises when there is none.",
        fix="take the form that returns None and return, or raise Discard: what is deleted needs no job",
        why="Between push and run anything may be deleted. A look-up that raises turns every deleted user into 25 retries and a page "
        "for the engineer on call, for a job that is no longer needed.",
        bad='''
from sqlalchemy import select

from workers.base import TeamWorker
from workers.rows import connection, users


class WelcomeWorker(TeamWorker):
    """Send the first mail."""

    def perform(self, user_id: int) -> None:
        connection().execute(select(users).where(users.c.id == user_id)).one()  # here
''',
        good='''
from sqlalchemy import select

from workers.base import TeamWorker
from workers.rows import connection, users


class WelcomeWorker(TeamWorker):
    """Send the first mail."""

    def perform(self, user_id: int) -> None:
        user = connection().execute(select(users).where(users.c.id == user_id)).one_or_none()
        if user is None:
            return
''',
        check_call=_missing_record,
    ),
    LintRule(
        code="SEW030",
        name="push-in-transaction",
        summary="A push inside of a database transaction: `atomic()`, `begin()`, `begin_nested()`.",
        fix="push after the block, or from a callback after the commit",
        why="The job may begin before the commit, and finds no row; or the transaction is rolled back, and the job is about nothing. "
        "Both happen once in a thousand times, and never on a developer's machine.",
        bad='''
from sqlalchemy import Engine, text

from workers.base import TeamWorker


class ShipWorker(TeamWorker):
    """Ship one order."""

    def perform(self, order_id: int) -> None: ...


def order(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders (id) VALUES (42)"))
        ShipWorker.perform_async(42)  # here
''',
        good='''
from sqlalchemy import Engine, text

from workers.base import TeamWorker


class ShipWorker(TeamWorker):
    """Ship one order."""

    def perform(self, order_id: int) -> None: ...


def order(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders (id) VALUES (42)"))
    ShipWorker.perform_async(42)
''',
        check_call=_in_transaction,
    ),
)
