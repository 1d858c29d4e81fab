"""``ledger``: find jobs that Redis has lost, by the database of tasks, and enqueue them again."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click
from redis.exceptions import RedisError

from framework.command_line import EXIT_FAILED, EXIT_UNREACHABLE
from framework.errors import ShardUnavailableError, TaskDatabaseError, TaskTablesError
from framework.features.tasks.access import current, load_part
from framework.terminal.groups import CommandGroup
from framework.terminal.options import confirm, json_option, yes_option
from framework.terminal.output import columns, echo, echo_json, echo_lines, reports_errors
from framework.text import format_age, format_count, visible

if TYPE_CHECKING:
    from framework.features.tasks.ledger import Ledger, LostJob

P = ParamSpec("P")
R = TypeVar("R")

_HEADINGS = ("EVENT", "JID", "CLASS", "QUEUE", "SHARD", "STATE", "CHANGED", "PAYLOAD")
_HOUR_S = 3_600.0

_grace_option = click.option(
    "--grace",
    "grace_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Leave out jobs whose events changed within the last SECONDS.",
)
_since_option = click.option(
    "--since",
    "since_h",
    metavar="HOURS",
    type=click.FloatRange(0, 8_760),
    default=24.0,
    show_default=True,
    help="Include jobs that the leader has given up as deleted within the last HOURS.",
)


def _reports_outage(command: Callable[P, R]) -> Callable[P, R]:
    """End a command with status 75 if Redis or the database does not answer."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except TaskTablesError:
            raise
        except (TaskDatabaseError, ShardUnavailableError, RedisError) as error:
            echo(error, err=True)
            sys.exit(EXIT_UNREACHABLE)

    return run


@click.group("ledger", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def ledger() -> None:
    """Compare the database of tasks with Redis, and enqueue recorded jobs again that Redis has lost.

    Only jobs that were pushed under the setting tasks.ledger (keep or heal) can be enqueued again.
    """


@ledger.command("diff")
@_grace_option
@_since_option
@click.option(
    "--limit", type=click.IntRange(0, 100_000), default=50, show_default=True, help="Show at most this number of jobs."
)
@json_option
@reports_errors
@_reports_outage
def diff(*, grace_s: float, since_h: float, limit: int, as_json: bool) -> None:
    """List the jobs that wait by their events, and that no key of Redis has.

    Status 1: there are some. Status 75: Redis or the database does not answer, so it is not known.
    """
    found = _lost(_open(grace_s), since_h)
    kept = sum(one.has_payload for one in found)
    if as_json:
        echo_json({"lost": len(found), "with_payload": kept, "jobs": [one.as_json() for one in found[:limit]]})
    elif found:
        echo_lines(columns([_HEADINGS, *map(_row, found[:limit])]))
        echo(f"{format_count(len(found), 'job', 'is')} lost; {kept:,} of them can be enqueued again.")
    else:
        echo("No job is lost.")
    if found:
        sys.exit(EXIT_FAILED)


@ledger.command("heal")
@_grace_option
@_since_option
@yes_option
@json_option
@reports_errors
@_reports_outage
def heal(*, grace_s: float, since_h: float, yes: bool, as_json: bool) -> None:
    """Enqueue the lost jobs again, each with its id, as it was pushed.

    Jobs that were deleted by hand come back too: see the list of `ledger diff` first.

    Status 1: some have no payload, and are still lost. Status 75: Redis or the database does not answer; run it again.
    """
    opened = _open(grace_s)
    found = _lost(opened, since_h)
    if found:
        kept = sum(one.has_payload for one in found)
        confirm(f"Enqueue {kept:,} of {format_count(len(found), 'lost job')} again?", yes=yes)
    healed = opened.heal(found)
    if as_json:
        echo_json({"lost": len(found), **healed.as_json()})
    elif not found:
        echo("No job is lost.")
    else:
        echo(
            f"{format_count(healed.enqueued, 'job', 'is')} enqueued again; not enqueued: {healed.cancelled:,} of cancelled tasks, "
            f"{healed.moved:,} that changed meanwhile, {healed.without_payload:,} without a payload."
        )
    if healed.without_payload:
        sys.exit(EXIT_FAILED)


def _open(grace_s: float) -> "Ledger":
    access = current()
    opened: Ledger = load_part("ledger").Ledger(
        access.shards, access.store.database, access.settings.size_limit, grace_s=grace_s
    )
    return opened


def _lost(opened: "Ledger", since_h: float) -> "list[LostJob]":
    return [one for name in current().shards for one in opened.lost(name, given_up_s=since_h * _HOUR_S)]


def _row(job: "LostJob") -> Sequence[str]:
    return (
        str(job.id),
        job.jid,
        visible(job.worker),
        visible(job.queue),
        job.shard,
        job.state,
        format_age(time.time(), job.changed_at),
        "kept" if job.has_payload else "-",
    )
