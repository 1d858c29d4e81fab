"""``jobs queues``, ``pause-queue``, ``unpause-queue``, ``clear``: show the queues, and act on one of them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import click

from framework.admin.job_queue import unknown_queue_message
from framework.admin.process_list import read_running
from framework.admin.queue_actions import clear_queue
from framework.admin.queue_pause import pause_queue, unpause_queue
from framework.admin.queue_reader import QueueState, is_known, known_queues, read_queues
from framework.errors import UnknownNameError
from framework.exit_codes import EXIT_FAILED
from framework.shard.shard import Shard
from framework.terminal.options import (
    DURATION_HELP,
    REASON_HELP,
    DurationOption,
    confirm,
    json_option,
    shard_option,
    yes_option,
)
from framework.terminal.output import echo, refuse_unknown, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import format_count, format_duration
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
    for shard, changed in _act_on(on, queue, lambda one: pause_queue(one.client, queue, lasts_s, reason.strip())):
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
    for shard, changed in _act_on(on, queue, lambda one: unpause_queue(one.client, queue, reason.strip())):
        echo(f"{shard}: {queue} is no longer paused" if changed else f"{shard}: {queue} was not paused")
    on.exit_if_unanswered()


@click.command("clear")
@click.argument("queue", metavar="QUEUE")
@yes_option
@shard_option
@json_option
@reports_errors
def clear(queue: str, *, yes: bool, names: Sequence[str], as_json: bool) -> None:
    """Drop the jobs that are in QUEUE now, without running them.

    They leave the queue at once, and are then dropped in steps, each with its lock and its slots; the state of a tracked job becomes
    discarded. If the command is ended in between, a worker process puts the rest back within a minute; run it again to go on.

    Status 1: no shard knows the queue, or a shard does not answer.
    """
    on = ShardCommand(names)
    sizes = dict(_act_on(on, queue, lambda one: int(one.client.llen(keys.queue(queue)))))
    if not yes:
        where = " and ".join(f"{size:,} on {shard}" for shard, size in sizes.items())
        confirm(f"Drop the jobs of {queue} ({where})? They never run.", yes=False)
    cleared = on.each(
        lambda one: clear_queue(one.client, queue, _reporter(one.name, queue)) if one.name in sizes else None
    )
    done = {shard: dropped for shard, dropped in cleared if dropped is not None}
    if as_json:
        on.print_json({"queue": queue, "dropped": done})
    else:
        for shard, dropped in done.items():
            echo(f"{shard}: {format_count(dropped, 'job')} of {queue} {'is' if dropped == 1 else 'are'} dropped")
    on.exit_if_unanswered()


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
