"""Check the use of databases: freshness of reads, deferral, deleted records, transactions."""

import ast

from framework.devtools.lint.classes import ClassIndex, SourceClass, is_handler
from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches, match_at
from framework.devtools.lint.rules.pushing import PUSHES

_LOOK_UPS = frozenset({"get_one", "get_object_or_404"})
_EXACTLY_ONE = frozenset({"one", "scalar_one"})
_NARROWING = frozenset({"filter", "filter_by", "where", "get"})
_BEGINNINGS = ("atomic", "begin", "begin_nested")


_UNSCHEDULED = ("none", "debounce", "accumulate")
"""The strategies that leave scheduled jobs alone."""


def _consistency(worker: SourceClass, _: ClassIndex) -> Matches:
    declared = worker.attribute("data_consistency")
    if declared is None and worker.complete:
        yield from match_at(worker.location_of("data_consistency"), "{} does not declare how fresh its reads must be")
    elif declared is not None and declared.value == "always":
        yield from match_at(worker.location_of("data_consistency"), "{} sends every read to the primary database")


def _scheduled_duplicates(worker: SourceClass, _: ClassIndex) -> Matches:
    declared, consistency = worker.attribute("deduplicate"), worker.value("data_consistency")
    if declared is None or consistency not in ("sticky", "delayed") or not isinstance(declared.expression, ast.Call):
        return
    words = [word.arg for word in declared.expression.keywords]
    if "including_scheduled" not in words and None not in words and _strategy(declared.expression) not in _UNSCHEDULED:
        message = (
            f"{{}} has data_consistency {consistency!r} and does not declare whether scheduled jobs count as duplicates"
        )
        yield from match_at(worker.location_of("deduplicate"), message)


def _strategy(call: ast.Call) -> object:
    given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "strategy")]
    return given[0].value if given and isinstance(given[0], ast.Constant) else None


def _no_deferral(worker: SourceClass, _: ClassIndex) -> Matches:
    if worker.value("urgency") in ("low", "throttled") and worker.value("defer_on_health") is None:
        message = f"{{}} has urgency {worker.value('urgency')!r} and runs while its database is unhealthy"
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
                message = f"this push is in the transaction that begins in line {manager.lineno}"
                yield Match(site.module, site.node, message)
                return


RULES = (
    LintRule(
        code="SEW005",
        name="data-consistency",
        summary="A worker does not declare `data_consistency`, or declares `always`.",
        fix="declare data_consistency = 'sticky', or 'delayed' where lateness does not matter; suppress 'always' with "
        "its reason",
        why="`always` keeps replicas idle and the primary busy. It was GitLab's silent default: when the primary ran "
        "short, engineers reviewed hundreds of classes one by one. `sticky` costs a worker nothing: it reads from "
        "a replica that has caught up, and from the primary after the first write.",
        bad="""
from framework import ApplicationWorker, DeferOnHealth


class CountWorker(ApplicationWorker):  # here
    feature_category = "global_search"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")

    def perform(self) -> None: ...
""",
        good="""
from framework import ApplicationWorker, DeferOnHealth


class CountWorker(ApplicationWorker):
    feature_category = "global_search"
    data_consistency = "delayed"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")

    def perform(self) -> None: ...
""",
        check_worker=_consistency,
    ),
    LintRule(
        code="SEW006",
        name="scheduled-duplicates",
        summary="`sticky` or `delayed` is combined with a `Deduplicate(...)` without `including_scheduled`.",
        fix="declare including_scheduled=True or False in Deduplicate(...)",
        why="Such a job is often rescheduled until its replica has caught up, so duplicates often meet a scheduled "
        "job. `True` may drop the job with the newer data; `False` lets both run.",
        bad="""
from framework import Deduplicate
from workers.base import TeamWorker


class MirrorWorker(TeamWorker):
    data_consistency = "delayed"
    deduplicate = Deduplicate("until_executed")  # here

    def perform(self) -> None: ...
""",
        good="""
from framework import Deduplicate
from workers.base import TeamWorker


class MirrorWorker(TeamWorker):
    data_consistency = "delayed"
    deduplicate = Deduplicate("until_executed", including_scheduled=True)

    def perform(self) -> None: ...
""",
        check_worker=_scheduled_duplicates,
    ),
    LintRule(
        code="SEW007",
        name="deferral",
        summary="A worker of urgency `low` or `throttled` has no `defer_on_health`.",
        fix="declare defer_on_health = DeferOnHealth(...), or None with a suppression that says why its database is "
        "safe from it",
        why="Background work that could wait keeps a database from recovering. GitLab demands a deferral of every "
        "class of low urgency, or the reason why it needs none: it calls no database, or repairs the very fault.",
        bad="""
from workers.base import TeamWorker


class PurgeWorker(TeamWorker):
    urgency = "throttled"
    concurrency_limit = 4
    defer_on_health = None  # here

    def perform(self) -> None: ...
""",
        good="""
from framework import DeferOnHealth
from workers.base import TeamWorker


class PurgeWorker(TeamWorker):
    urgency = "throttled"
    concurrency_limit = 4
    defer_on_health = DeferOnHealth(database="main", tables=("notes",))

    def perform(self) -> None: ...


class ThumbnailWorker(TeamWorker):
    defer_on_health = None  # SEW007: reads and writes files only

    def perform(self) -> None: ...
""",
        check_worker=_no_deferral,
    ),
    LintRule(
        code="SEW014",
        name="missing-record",
        summary="`perform` looks up a record by its argument with a method that raises when there is none.",
        fix="use the form that returns None and return, or raise Discard: a deleted record needs no job",
        why="The record may be deleted between push and run. The error then causes 25 retries and an alert for the "
        "engineer on call.",
        bad="""
from sqlalchemy import select

from workers.base import TeamWorker
from workers.rows import connection, users


class WelcomeWorker(TeamWorker):
    def perform(self, user_id: int) -> None:
        connection().execute(select(users).where(users.c.id == user_id)).one()  # here
""",
        good="""
from sqlalchemy import select

from workers.base import TeamWorker
from workers.rows import connection, users


class WelcomeWorker(TeamWorker):
    def perform(self, user_id: int) -> None:
        user = connection().execute(select(users).where(users.c.id == user_id)).one_or_none()
        if user is None:
            return
""",
        check_call=_missing_record,
    ),
    LintRule(
        code="SEW030",
        name="push-in-transaction",
        summary="A job is pushed inside of a database transaction: `atomic()`, `begin()`, `begin_nested()`.",
        fix="push after the block, or from a callback after the commit",
        why="The job may start before the commit and find no row, or the transaction is rolled back. Both happen once "
        "in a thousand times, and never on a developer's machine.",
        bad="""
from sqlalchemy import Engine

from workers.orders import ShipWorker, insert_order


def order(engine: Engine) -> None:
    with engine.begin() as connection:
        insert_order(connection, 42)
        ShipWorker.perform_async(42)  # here
""",
        good="""
from sqlalchemy import Engine

from workers.orders import ShipWorker, insert_order


def order(engine: Engine) -> None:
    with engine.begin() as connection:
        insert_order(connection, 42)
    ShipWorker.perform_async(42)
""",
        check_call=_in_transaction,
    ),
)
