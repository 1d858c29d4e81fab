"""Check pushes: context, bulk and await."""

import ast

from framework.devtools.lint.rule import CallSite, LintRule, Match, Matches

_ONE = ("perform_async", "perform_in", "perform_at")
_MANY = ("perform_bulk", "perform_bulk_in", "perform_bulk_for", "perform_bulk_stream")
_NOT_AWAITABLE = (*_ONE, *_MANY, "perform_with_capacity")
_BY_NAME = "framework.enqueue"
_TWINS = {f"a{name}": name for name in (*_ONE, *_MANY)}
"""Awaitable method -> its twin."""

PUSHES = frozenset({*_ONE, *_MANY, *_TWINS})
"""The methods that write jobs to Redis."""


def _plain_name(site: CallSite) -> str | None:
    """Return the called method; of an awaitable push, its twin."""
    return _TWINS.get(site.method or "", site.method)


def _has_context(site: CallSite) -> bool:
    if site.keyword("context") is not None:
        return True
    receiver = site.receiver
    while isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
        if receiver.func.attr == "set" and any(word.arg in ("context", None) for word in receiver.keywords):
            return True
        receiver = receiver.func.value
    return any(_is_bound(site.module.dotted(manager.func)) for manager in site.context_managers())


def _is_bound(name: str | None) -> bool:
    return name is not None and name.startswith("framework.") and name.endswith("context.bound")


def _cron_context(site: CallSite) -> Matches:
    if _plain_name(site) in _ONE and site.worker is not None and site.worker.is_cron and not _has_context(site):
        yield Match(
            site.module,
            site.node,
            f"{site.worker.name} is pushed by a schedule, and the job it pushes here has no context",
        )


def _bulk_context(site: CallSite) -> Matches:
    if _plain_name(site) in _MANY and not _has_context(site):
        yield Match(site.module, site.node, f"{site.method} pushes many jobs that log lines cannot distinguish")


def _one_by_one(site: CallSite) -> Matches:
    if _plain_name(site) not in _ONE:
        return
    outer = site.module.parents.get(site.node)
    if isinstance(outer, ast.Await):
        outer = site.module.parents.get(outer)
    loop = site.module.parents.get(outer) if isinstance(outer, ast.Expr) else None
    alone = isinstance(loop, ast.For) and loop.body == [outer] and not loop.orelse
    if alone or isinstance(outer, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        yield Match(site.module, site.node, "this loop pushes its jobs one by one, with a round trip each")


def _awaited(site: CallSite) -> Matches:
    if not isinstance(site.module.parents.get(site.node), ast.Await):
        return
    name = site.method
    if site.module.dotted(site.node.func) == _BY_NAME:
        yield Match(site.module, site.node, "enqueue is no coroutine: it pushes before the await. Its twin is aenqueue")
    elif name == "perform_inline":
        yield Match(site.module, site.node, "perform_inline is no coroutine: the job runs before the await")
    elif name in _NOT_AWAITABLE:
        yield Match(site.module, site.node, f"{name} is no coroutine: it pushes before the await. Its twin is a{name}")


RULES = (
    LintRule(
        code="SEW002",
        name="cron-context",
        summary="A worker of the namespace `cronjob` pushes a job without a context.",
        fix="push inside `with bound(project=...)`, or through set(context={...})",
        why="A job inherits the context (user, project, request) of its caller, and a schedule has none. The logs "
        "then do not show whose job failed.",
        bad="""
from workers.base import TeamWorker
from workers.invites import CloseInviteWorker


class ExpireInvitesWorker(TeamWorker):
    queue_namespace = "cronjob"
    retry = False

    def perform(self) -> None:
        oldest = 42
        CloseInviteWorker.perform_async(oldest)  # here
""",
        good="""
from framework.context import bound
from workers.base import TeamWorker
from workers.invites import CloseInviteWorker


class ExpireInvitesWorker(TeamWorker):
    queue_namespace = "cronjob"
    retry = False

    def perform(self) -> None:
        oldest = 42
        with bound(invite=oldest):
            CloseInviteWorker.perform_async(oldest)
""",
        check_call=_cron_context,
    ),
    LintRule(
        code="SEW003",
        name="bulk-context",
        summary="A bulk push has no context.",
        fix="use perform_bulk_for(..., context=lambda one: {...}), or set(context={...}) or `with bound(...)` for one "
        "context of all jobs",
        why="Only a context shows which customer's job of ten thousand hangs, and the bulk push knows it for all "
        "jobs. GitLab allows only the bulk methods with contexts.",
        bad="""
from workers.invites import CloseInviteWorker


def close_all(invites: list[int]) -> None:
    CloseInviteWorker.perform_bulk([(invite,) for invite in invites])  # here
""",
        good="""
from workers.invites import CloseInviteWorker


def close_all(project: str, invites: list[int]) -> None:
    CloseInviteWorker.set(context={"project": project}).perform_bulk([(invite,) for invite in invites])
""",
        check_call=_bulk_context,
    ),
    LintRule(
        code="SEW028",
        name="push-loop",
        summary="A loop does nothing but push.",
        fix="use perform_bulk_for(...): a thousand jobs per round trip",
        why="Ten thousand pushes are ten thousand round trips, seconds in which the job holds its slot; in bulk they "
        "are ten. A bulk push that fails halfway names the pushed jobs; a loop does not.",
        bad="""
from workers.invites import CloseInviteWorker


def close_all(invites: list[int]) -> None:
    for invite in invites:
        CloseInviteWorker.perform_async(invite)  # here
""",
        good="""
from workers.invites import CloseInviteWorker


def close_all(invites: list[int]) -> None:
    CloseInviteWorker.perform_bulk_for(
        invites,
        arguments=lambda invite: CloseInviteWorker.arguments(invite),
        context=lambda invite: {"invite": invite},
    )
""",
        check_call=_one_by_one,
    ),
    LintRule(
        code="SEW038",
        name="awaited-push",
        summary="A coroutine awaits a push that is no coroutine.",
        fix="write `await Worker.aperform_async(...)`, or leave out the await",
        why="The push has been made when the `await` fails with a `MisuseError`: a caller that tries again pushes a second job.",
        bad="""
from workers.invites import CloseInviteWorker


async def close(invite: int) -> None:
    await CloseInviteWorker.perform_async(invite)  # here
""",
        good="""
from workers.invites import CloseInviteWorker


async def close(invite: int) -> None:
    await CloseInviteWorker.aperform_async(invite)
""",
        check_call=_awaited,
    ),
)
