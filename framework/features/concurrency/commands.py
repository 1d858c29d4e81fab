"""``jobs limits``: show concurrency limits with their slots and waiting jobs; set, clear and sweep them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import click

from framework.admin.statistics import queue_names
from framework.all_settings import load
from framework.command_line import EXIT_FAILED
from framework.errors import FrameworkError
from framework.execute.admission import assign_free_slots
from framework.features.concurrency.admin import LimitReport, read_limits
from framework.features.concurrency.limit_state import (
    LimitOverride,
    SlotHolder,
    clear_override,
    read_slot_holders,
    set_override,
)
from framework.features.concurrency.portions import forget_shard
from framework.process.identity import operator_name
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import (
    check_reason,
    confirm,
    json_option,
    modules_option,
    rate_option,
    reason_and_duration_options,
    shard_option,
    yes_option,
)
from framework.terminal.output import echo, refuse_unknown, reports_errors
from framework.terminal.project import load_project, print_load_error
from framework.terminal.shards import ShardCommand, ShardTable, recorded
from framework.text import decode_escaped, format_age, format_count, format_duration


@click.group("limits", cls=DefaultShowGroup)
def limits() -> None:
    """Show, set and clear concurrency limits.

    A limit is named by a class, or as queue/NAME. Without a command the limits are shown.
    """


@limits.command("show")
@click.argument("name", required=False)
@modules_option
@shard_option
@json_option
@reports_errors
def show(name: str | None, *, modules: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """Show every limit that processes have evaluated, or the limit NAME with the jobs in its slots.

    Limits at which jobs wait come first.
    """
    on = ShardCommand(names)
    found = on.read(lambda shard: _read(shard, name))
    if name is not None and not found:
        _check_known(on, name, modules)
    slots = on.read(lambda shard: _holders(shard, name))
    none = f"No limit{'' if name is None else f' of {name}'} is known: no job with a limit has run"
    on.show(_Limits().of(found, none), _Slots().of(slots), as_json=as_json)
    on.exit_if_unanswered()


@limits.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("limit", type=click.IntRange(-1, 1_000_000), metavar="N")
@reason_and_duration_options
@rate_option
@modules_option
@shard_option
@json_option
@reports_errors
def set_(
    name: str,
    limit: int,
    *,
    reason: str,
    lasts_s: float,
    rate: float | None,
    modules: Sequence[str],
    names: Sequence[str],
    as_json: bool,
) -> None:
    """Run at most N jobs of NAME, a class or queue/NAME, at a time.

    The value overrides that of the application. 0 means no limit, -1 runs no job.

    It holds for every process at once; for a class or queue without any limit before, within some seconds.
    """
    check_reason(reason)
    on = ShardCommand(names)
    _check_known(on, name, modules)
    by = operator_name()
    effect = "no limit" if limit == 0 else "no job runs" if limit < 0 else f"at most {limit:,} at a time"

    def act(shard: Shard) -> list[_LimitChange]:
        set_override(shard.client, name, LimitOverride(limit, server_time(shard.client) + lasts_s, reason, by))
        return [_assign_free_slots(shard, name, rate, f"{effect}, for {format_duration(lasts_s)}; ")]

    _apply_to_shards(on, act, as_json=as_json)


@limits.command("clear")
@click.argument("name")
@rate_option
@modules_option
@shard_option
@json_option
@reports_errors
def clear(name: str, *, rate: float | None, modules: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """Remove the override that `limits set` gave NAME, so that the application's limit holds again."""
    on = ShardCommand(names)
    _check_known(on, name, modules)

    def act(shard: Shard) -> list[_LimitChange]:
        there = clear_override(shard.client, name)
        message = "the application's limit holds; " if there else "nothing was set; "
        return [_assign_free_slots(shard, name, rate, message)]

    _apply_to_shards(on, act, as_json=as_json)


@limits.command("sweep")
@click.argument("name", required=False)
@rate_option
@modules_option
@shard_option
@json_option
@reports_errors
def sweep(name: str | None, *, rate: float | None, modules: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """Free the slots of NAME, or of every limit, that no process renews.

    Waiting jobs get the free slots.

    Processes do the same after each job and every few seconds. The limit stays the same: to run more jobs, use `limits set`.
    """
    on = ShardCommand(names)
    if name is not None:
        _check_known(on, name, modules)

    def act(shard: Shard) -> list[_LimitChange]:
        return [_assign_free_slots(shard, limit.name, rate) for limit in _read(shard, name)]

    _apply_to_shards(on, act, as_json=as_json)


@limits.command("forget")
@click.argument("shard")
@click.argument("name", required=False)
@yes_option
@reports_errors
def forget(shard: str, name: str | None, *, yes: bool) -> None:
    """Give the slots that SHARD has of limits on all shards, or of the limit NAME, to the other shards.

    Only for a shard that is gone for good: jobs that still run there are counted no more.
    """
    meta = load().roles.meta
    if meta is None:
        raise click.UsageError(
            "no limit holds on all shards: the setting roles of config/redis.yml names no shard for meta"
        )
    confirm(f"Give the slots that {shard} has to the other shards", yes=yes)
    on = ShardCommand([meta])

    def act(one: Shard) -> str:
        forgotten = forget_shard(one.client, shard, name)
        if not forgotten:
            return f"{shard} has no slots of {name or 'limits on all shards'}"
        return f"{format_count(forgotten, 'slot')} of {shard} can go to other shards"

    on.tell(act)


class _LimitChange(NamedTuple):
    name: str
    message: str
    handed_over: int
    freed: int


def _assign_free_slots(shard: Shard, name: str, rate: float | None, message: str = "") -> _LimitChange:
    return _LimitChange(name, message, *assign_free_slots(shard.client, name, rate))


def _apply_to_shards(on: ShardCommand, act: Callable[[Shard], list[_LimitChange]], *, as_json: bool) -> None:
    changes = _Changes().of(on.read(recorded(act, lambda found: sum(one.handed_over for one in found))))
    if as_json:
        on.show(changes, as_json=True)
    else:
        for shard, text in changes.rows:
            echo(f"{shard}: {text}")
    on.exit_if_unanswered()


def _read(shard: Shard, name: str | None = None) -> list[LimitReport]:
    read = read_limits(shard.client, server_time(shard.client))
    return [limit for limit in read if name in (None, limit.name)]


def _holders(shard: Shard, name: str | None) -> list[SlotHolder]:
    return [] if name is None else read_slot_holders(shard.client, name, server_time(shard.client))


def _check_known(on: ShardCommand, name: str, modules: Sequence[str] = ()) -> None:
    """Refuse a name that is no known limit, no worker class and no ``queue/NAME`` of a known queue."""
    known = {found.one.name for found in on.read(_read)}
    known |= {f"queue/{found.one}" for found in on.read(_queues)}
    if name not in known:
        known |= _workers(on, modules)
        if name not in known:
            # A shard that did not answer may know the name.
            on.exit_if_unanswered()
        refuse_unknown([name], known, _unknown_limit_message, status=EXIT_FAILED)


def _queues(shard: Shard) -> set[str]:
    return {decode_escaped(name) for name in queue_names(shard.client)}


def _workers(on: ShardCommand, modules: Sequence[str]) -> set[str]:
    try:
        return set(load_project(modules or on.settings.workers_module).workers)
    except FrameworkError as error:
        print_load_error("", error)
        return set()


def _unknown_limit_message(name: str, hint: str) -> str:
    return f"no limit, worker class or queue (queue/NAME) is named {name!r}{hint}"


def _source_text(now: float, limit: LimitReport) -> Iterator[str]:
    ends = f" for {format_duration(limit.until - now)} more" if limit.until is not None else ""
    yield f"{limit.source}{ends}"
    if limit.source == "operators" and limit.override is not None:
        yield f"{limit.override.by}: {limit.override.reason}"
    if limit.source in ("operators", "throttled") and limit.application is not None:
        yield f"the application sets {limit.application}"


class _Limits(ShardTable[LimitReport]):
    field = "limits"
    headings = ("LIMIT", "SLOTS", "SET BY", "WAITING", "OLDEST")

    def row(self, limit: LimitReport, now: float) -> Sequence[str]:
        waiting = limit.waiting
        return (
            limit.name,
            limit.usage,
            "; ".join(_source_text(now, limit)),
            f"{waiting.jobs:,}" if waiting else "0",
            format_age(now, waiting.since if waiting else None),
        )

    def facts(self, limit: LimitReport) -> Mapping[str, Any]:
        waiting = limit.waiting
        return {
            "name": limit.name,
            "limit": limit.limit,
            "set_by": limit.source,
            "application": limit.application,
            "until": limit.until,
            "override": None if limit.override is None else asdict(limit.override),
            "share": limit.share,
            "on_all_shards": limit.whole,
            "running": limit.running,
            "waiting": waiting.jobs if waiting else 0,
            "waiting_scopes": waiting.scopes if waiting else 0,
            "oldest_since": waiting.since if waiting else None,
        }


class _Slots(ShardTable[SlotHolder]):
    field = "slots"
    headings = ("PROCESS", "JID", "SLOT ENDS IN")

    def row(self, holder: SlotHolder, _now: float) -> Sequence[str]:
        ends = format_duration(holder.left_s) if holder.left_s > 0 else "expired: free after the next heartbeats"
        return holder.identity or "(handed over, not started)", holder.jid, ends


class _Changes(ShardTable[_LimitChange]):
    field = "limits"

    def row(self, one: _LimitChange, _now: float) -> Sequence[str]:
        handed = f"{format_count(one.handed_over, 'waiting job')} handed over"
        were = "was" if one.freed == 1 else "were"
        return (f"{one.name}: {one.message}{handed}, {format_count(one.freed, 'slot')} freed that {were} not renewed",)

    def facts(self, one: _LimitChange) -> Mapping[str, Any]:
        return {"name": one.name, "handed_over": one.handed_over, "freed": one.freed}
