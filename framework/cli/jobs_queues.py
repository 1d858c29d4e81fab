"""``jobs queues``, ``pause-queue``, ``unpause-queue``, ``clear``, ``jobs held``: show the queues, act on one, and show held jobs."""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from framework.admin.held_jobs import ALERT_COUNT, HeldJobs, measure_held
from framework.admin.held_set import PurgeResult, purge
from framework.admin.job_queue import clear_matching, matching_jobs, unknown_queue_message
from framework.admin.job_record import JobFilter, JobQuota
from framework.admin.process_list import read_running
from framework.admin.queue_actions import pause_queue, unpause_queue
from framework.admin.queue_reader import QueueState, is_known, known_queues, read_queues
from framework.admin.search import list_held_stores
from framework.command_line import EXIT_FAILED, command
from framework.errors import UnknownNameError
from framework.fetch.blocks import packed_jobs, true_size
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.jobs import bulk_filter_options, read_filter, refuse_absent_class
from framework.terminal.options import (
    DURATION_HELP,
    REASON_HELP,
    DurationOption,
    confirm,
    dry_run_option,
    json_option,
    modules_option,
    rate_option,
    shard_option,
    time_limit_option,
    yes_option,
)
from framework.terminal.output import echo, refuse_unknown, reports_errors
from framework.terminal.project import refuse_unknown_class
from framework.terminal.shards import ShardCommand, progress_reporter, recorded
from framework.text import format_age, format_count, format_duration
from framework.wire import keys

_HEADINGS = ("SHARD", "QUEUE", "JOBS", "LATENCY", "PAUSED", "PROCESSES")

T = TypeVar("T")


@click.command("queues")
@click.argument("queues_", nargs=-1, metavar="[QUEUE]...")
@shard_option
@json_option
@reports_errors
def queues(queues_: Sequence[str], *, names: Sequence[str], as_json: bool) -> None:
    """Show every queue, or each QUEUE: its jobs, its latency, its pause, its processes.

    LATENCY is for how long the next job to run has waited. PROCESSES serve the queue; a quiet process serves none.

    Status 1: a QUEUE is unknown, or a shard does not answer.
    """
    on = ShardCommand(names)
    found = [row for _, rows in on.each(_read_queues) for row in rows]
    if not on.unanswered:
        known = {state.name for state, _ in found}
        refuse_unknown(queues_, known, lambda name, _: unknown_queue_message(name, known), status=EXIT_FAILED)
    shown = [(state, served) for state, served in found if not queues_ or state.name in queues_]
    if as_json:
        on.print_json({"queues": [{**state._asdict(), "processes": served} for state, served in shown]})
    else:
        rows = [
            (
                state.shard,
                state.name,
                f"{state.size:,}" + (f" ({format_count(state.keys, 'key')})" if state.keys else ""),
                format_duration(state.latency) if state.size else "-",
                "yes" if state.paused else "-",
                str(served),
            )
            for state, served in shown
        ]
        on.print_table(_HEADINGS, rows, "There is no queue")
    on.exit_if_unanswered()


def _read_queues(shard: Shard) -> list[tuple[QueueState, int]]:
    """Return the queues of a shard and those that its processes serve, each with the number of these processes."""
    serving = [process.queues for process in read_running(shard) if not process.is_quiet]
    names = sorted({*known_queues(shard)})
    counts = {name: sum(name in queues for queues in serving) for name in names}
    return [(state, counts[state.name]) for state in read_queues(shard, names)]


@click.command("pause-queue")
@click.argument("queue", metavar="QUEUE")
@click.option("--reason", default="", help=REASON_HELP)
@click.option("--for", "lasts_s", type=DurationOption(), help=DURATION_HELP)
@shard_option
@reports_errors
def pause_queue_(queue: str, *, reason: str, lasts_s: float | None, names: Sequence[str]) -> None:
    """Let no process fetch jobs from QUEUE; they wait there, and pushes go on.

    The pause ends after --for, or by `jobs unpause-queue`. Sidekiq without Pro ignores it. `jobs paused` and `jobs explain` show the
    operator and the reason.

    Status 1: no shard knows the queue, or a shard does not answer.
    """
    on = ShardCommand(names)
    lasts = "" if lasts_s is None else f", for {format_duration(lasts_s)} from now on"
    pause = recorded(lambda one: pause_queue(one.client, queue, lasts_s, reason.strip()))
    for shard, changed in _act_on(on, queue, pause):
        echo(f"{shard}: {queue} is paused{lasts}" if changed else f"{shard}: {queue} was paused before{lasts}")
    on.exit_if_unanswered()


@click.command("unpause-queue")
@click.argument("queue", metavar="QUEUE")
@click.option("--reason", default="", help=REASON_HELP)
@shard_option
@reports_errors
def unpause_queue_(queue: str, *, reason: str, names: Sequence[str]) -> None:
    """End the pause of QUEUE.

    Status 1: no shard knows the queue, or a shard does not answer.
    """
    on = ShardCommand(names)
    unpause = recorded(lambda one: unpause_queue(one.client, queue, reason.strip()))
    for shard, changed in _act_on(on, queue, unpause):
        echo(f"{shard}: {queue} is no longer paused" if changed else f"{shard}: {queue} was not paused")
    on.exit_if_unanswered()


@click.command("clear")
@click.argument("queue_name", metavar="QUEUE")
@bulk_filter_options
@rate_option
@dry_run_option
@yes_option
@shard_option
@json_option
@reports_errors
def clear(
    queue_name: str,
    *,
    rate: float | None,
    dry_run: bool,
    yes: bool,
    names: Sequence[str],
    as_json: bool,
    **criteria: Any,
) -> None:
    """Drop the jobs that are in QUEUE now, or those that options select, without running them.

    The jobs leave the queue at once. They are then dropped in steps, each with its lock and its slots; the state of a tracked job
    becomes discarded. Jobs that are not selected go back, the oldest first; a job that is pushed meanwhile may overtake them. If
    the command is ended in between, a worker process puts the rest back within a minute; run it again to go on.

    Status 1: no shard knows the queue, none of its jobs has the class of --class, or a shard does not answer.
    """
    wanted, on = read_filter(criteria), ShardCommand(names)
    sizes, quota = on.settings.size_limit, JobQuota(wanted)

    def count(shard: Shard) -> int:
        if not wanted:
            length = shard.client.llen(keys.queue(queue_name))
            return true_size(int(length), queue_name, packed_jobs(shard.client))
        found = matching_jobs(shard, queue_name, wanted, sizes, progress_reporter(shard.name))
        return sum(1 for _ in quota.of(found))

    # The number is for the question: without one, the shards that know the queue are all that is needed.
    counts = dict(_act_on(on, queue_name, (lambda _: 0) if yes and not dry_run else count))
    done = counts
    if not dry_run:
        if not yes:
            where = " and ".join(f"{number:,} on {shard}" for shard, number in counts.items())
            confirm(
                f"Drop the jobs of {queue_name}{f' with {wanted}' if wanted else ''} ({where})? They never run.",
                yes=False,
            )
        left = JobQuota(wanted)

        def drop(shard: Shard) -> int | None:
            report = _reporter(shard.name, queue_name)
            if shard.name not in counts:
                return None
            return clear_matching(shard, queue_name, wanted, left, sizes, report, rate)

        done = {shard: dropped for shard, dropped in on.each(recorded(drop)) if dropped is not None}
    if as_json:
        on.print_json({"queue": queue_name, "dry_run": dry_run, "dropped": done})
    else:
        for shard, dropped in done.items():
            are = "would be" if dry_run else "is" if dropped == 1 else "are"
            echo(f"{shard}: {format_count(dropped, 'job')} of {queue_name} {are} dropped")
    on.exit_if_unanswered()
    if not any(done.values()):
        refuse_absent_class(
            on,
            queue_name,
            wanted,
            lambda shard, some: matching_jobs(shard, queue_name, some, sizes, progress_reporter(shard.name)),
        )


def _reporter(shard: str, queue: str) -> Callable[[int], None]:
    report = progress_reporter(shard)
    return lambda dropped: report(keys.queue(queue), dropped)


def _act_on(on: ShardCommand, queue: str, step: Callable[[Shard], T]) -> Iterator[tuple[str, T]]:
    """Yield the result of the step on each shard that knows the queue.

    Raises:
        UnknownNameError: each shard answered, and none knows it.
    """
    found = [(shard, done) for shard, done in on.each(lambda one: [step(one)] if is_known(one, queue) else []) if done]
    if not found and not on.unanswered:
        known: Collection[str] = {name for _, names in on.each(known_queues) for name in names}
        raise UnknownNameError(unknown_queue_message(queue, set(known)))
    return ((shard, result) for shard, (result,) in found)


_HELD_HEADINGS = ("SHARD", "PLACE", "CLASS OR LIMIT", "JOBS", "OLDEST", "LOOK, AND RELEASE")
_RELEASE_COMMANDS = {"waiting": "limits", "paused": "paused"}


@click.group("held", cls=DefaultShowGroup)
def held() -> None:
    """Show and drop the jobs that a limit or a pause holds outside of their queues.

    Without a command these jobs are shown. The exit status is for cron or a monitor.
    """


@held.command("show")
@click.option(
    "--alert-after",
    type=DurationOption(),
    help="End with status 1 when a job is held for longer than this. Default: the setting held_alert_after.",
)
@click.option(
    "--alert-above",
    type=click.IntRange(1),
    default=ALERT_COUNT,
    show_default=True,
    help="End with status 1 when one place holds more jobs than this.",
)
@shard_option
@json_option
@reports_errors
def show_held(*, alert_after: float | None, alert_above: int, names: Sequence[str], as_json: bool) -> None:
    """Show every place of held jobs, the oldest first.

    For each place it shows the number of jobs, the age of the oldest, and the command that releases them.

    Status 1: a job is older than --alert-after, a place holds more than --alert-above, or a shard does not answer.
    """
    on = ShardCommand(names)
    most_s = on.settings.held_alert_after if alert_after is None else alert_after
    found = [(shard, now, one) for shard, (now, read) in on.each(read_held) for one in read]
    found.sort(key=lambda row: row[2].since - row[1])
    late = [(shard, one) for shard, now, one in found if now - one.since > most_s or one.jobs > alert_above]
    if as_json:
        on.print_json(
            {"held": [{"shard": shard, **one._asdict(), "oldest_s": now - one.since} for shard, now, one in found]}
        )
    else:
        rows = [
            (
                shard,
                one.kind,
                one.name,
                f"{one.jobs:,}",
                format_age(now, one.since),
                command(f"jobs {_RELEASE_COMMANDS[one.kind]}"),
            )
            for shard, now, one in found
        ]
        on.print_table(_HELD_HEADINGS, rows, "No job is held")
    on.exit_if_unanswered()
    for shard, one in late:
        echo(
            f"ALERT {shard}: {one.kind} {one.name}: older than {format_duration(most_s)}, or above {alert_above:,}",
            err=True,
        )
    if late:
        sys.exit(EXIT_FAILED)


@held.command("drop")
@bulk_filter_options
@rate_option
@time_limit_option
@dry_run_option
@yes_option
@modules_option
@shard_option
@json_option
@reports_errors
def drop_held(
    *,
    rate: float | None,
    budget_s: float,
    dry_run: bool,
    yes: bool,
    modules: Sequence[str],
    names: Sequence[str],
    as_json: bool,
    **criteria: Any,
) -> None:
    """Drop held jobs without running them.

    A job is dropped when it matches every option. The command shows their number and asks.

    Status 1: the time limit ended before every held job was scanned (run it again), or a shard does not answer.
    """
    wanted = read_filter(criteria)
    if not wanted:
        raise click.UsageError("Give options that select jobs: the command drops those that match all of them.")
    on = ShardCommand(names)
    if not (dry_run or yes):
        total = sum(one.matched for _, one in _purge(on, wanted, budget_s, rate, dry_run=True))
        if total:
            confirm(f"Drop {format_count(total, 'held job')} with {wanted}? They never run.", yes=False)
    done = _purge(on, wanted, budget_s, rate, dry_run=dry_run)
    if as_json:
        on.print_json(
            {
                "wanted": str(wanted),
                "dry_run": dry_run,
                "purged": [{"shard": shard, **asdict(one)} for shard, one in done],
            }
        )
    else:
        rows = [
            (shard, f"{one.matched:,}", f"{one.dropped:,}", "yes" if one.completed else "no: run it again")
            for shard, one in done
        ]
        on.print_table(("SHARD", "MATCHING", "DROPPED", "COMPLETED"), rows, "")
    on.exit_unless(all(one.completed for _, one in done))
    if wanted.cls and not any(one.matched for _, one in done):
        held_now = on.each(lambda shard: {place.name for place in list_held_stores(shard.client)})
        if not any(wanted.cls in names_there for _, names_there in held_now):
            refuse_unknown_class(wanted.cls, modules)


def _purge(
    on: ShardCommand, wanted: JobFilter, budget_s: float, rate: float | None, *, dry_run: bool
) -> list[tuple[str, PurgeResult]]:
    deadline, quota, sizes = time.monotonic() + budget_s, JobQuota(wanted), on.settings.size_limit

    def step(shard: Shard) -> PurgeResult:
        report = progress_reporter(shard.name)
        return purge(shard, wanted, sizes, deadline, report, quota=quota, dry_run=dry_run, rate=rate)

    return list(on.each(step if dry_run else recorded(step, lambda one: one.dropped)))


def read_held(shard: Shard) -> tuple[float, list[HeldJobs]]:
    """Return the time of Redis, and the held jobs of each limit and class."""
    return server_time(shard.client), measure_held(
        shard.client, [place.as_held_jobs() for place in list_held_stores(shard.client)]
    )
