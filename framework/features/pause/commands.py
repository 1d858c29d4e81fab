"""``jobs pause``, ``resume`` and ``paused``: hold the jobs of a class, return them to their queues, show what is paused."""

from collections.abc import Sequence

import click

from framework.admin.queue_actions import PauseRecord, note_pause, read_pause_log
from framework.features.flags.class_commands import set_flag_on_shards
from framework.features.flags.flag import pause_flag
from framework.features.flags.redis_flags import unset_flag
from framework.features.pause.admin import PauseSummary, read_pauses
from framework.features.pause.admission import ResumeResult, resume
from framework.shard.shard import Shard
from framework.terminal.options import (
    REASON_HELP,
    json_option,
    modules_option,
    rate_option,
    reason_and_duration_options,
    shard_option,
)
from framework.terminal.output import echo, reports_errors
from framework.terminal.project import refuse_unknown_class, resolve_class
from framework.terminal.shards import ShardCommand, ShardTable, recorded
from framework.text import format_age, format_count, format_duration, format_time


@click.command("pause")
@click.argument("worker", metavar="CLASS")
@reason_and_duration_options
@modules_option
@shard_option
@reports_errors
def pause(worker: str, *, reason: str, lasts_s: float, modules: Sequence[str], names: Sequence[str]) -> None:
    """Hold the jobs of CLASS when they are fetched, until the pause ends.

    A held job keeps its arguments, id, retries, context and lock. Any class can be paused, also one without pause_control.
    """
    on, name = ShardCommand(names), resolve_class(worker, modules)

    def note(shard: Shard) -> None:
        note_pause(shard.client, "pause", name, reason.strip())

    set_flag_on_shards(on, pause_flag(name), 100, reason, lasts_s, f"jobs of {name} are held", then=note)
    on.exit_if_unanswered()


@click.command("resume")
@click.argument("worker", metavar="CLASS")
@click.option("--reason", default="", help=REASON_HELP)
@rate_option
@modules_option
@shard_option
@reports_errors
def resume_(worker: str, *, reason: str, rate: float | None, modules: Sequence[str], names: Sequence[str]) -> None:
    """End the pause of CLASS and return its held jobs to their queues.

    The jobs keep their order and are the next to run. `jobs paused --history` shows the operator and the reason.

    The command works for removed classes too. Jobs that a strategy pauses stay held until the strategy ends the pause.
    """
    on = ShardCommand(names)

    def act(shard: Shard) -> tuple[bool, ResumeResult]:
        ended = unset_flag(shard.client, pause_flag(worker))
        if ended:
            note_pause(shard.client, "resume", worker, reason.strip())
        # This command may not know the class: only processes that know it can say whether a strategy pauses it.
        return ended, resume(shard.client, worker, b"", class_known=False, rate=rate)

    found = False
    for shard, (ended, done) in on.each(recorded(act, lambda result: result[1].moved)):
        found = found or ended or done.paused or bool(done.moved + done.blocked)
        echo(f"{shard}: {_result_text(worker, done, ended=ended)}")
    on.exit_if_unanswered()
    if not found:
        refuse_unknown_class(worker, modules)


def _result_text(worker: str, done: ResumeResult, *, ended: bool) -> str:
    parts = ["the pause has ended" if ended else f"no operator had paused {worker}"]
    if done.paused:
        parts.append(
            "a strategy keeps it paused, its breaker is open, or an operator paused it again: its jobs stay held"
        )
    else:
        parts.append(
            f"{format_count(done.moved, 'held job', 'is')} back in {'its queue' if done.moved == 1 else 'their queues'}"
        )
    if done.blocked:
        parts.append(f"{format_count(done.blocked, 'job', 'stays')} held, because the keys of the queues are not lists")
    return "; ".join(parts)


@click.command("paused")
@click.option("--history", is_flag=True, help="Show the last pauses and their ends by operators, the last one first.")
@shard_option
@json_option
@reports_errors
def paused(*, history: bool, names: Sequence[str], as_json: bool) -> None:
    """Show the paused queues and classes.

    The queues are those of Sidekiq's set. The table has the operator, the end, the reason, and the number of jobs.
    """
    on = ShardCommand(names)
    if history:
        _show_history(on, as_json=as_json)
    else:
        on.show_all(_Pauses(), lambda shard: read_pauses(shard.client), "Nothing is paused", as_json=as_json)


def _show_history(on: ShardCommand, *, as_json: bool) -> None:
    found = on.read(lambda shard: read_pause_log(shard.client))
    # As a table: the last one first.
    shown = found if as_json else sorted(found, key=lambda row: -row.one.at)
    on.show(_History().of(shown, "No operator has paused anything"), as_json=as_json)
    on.exit_if_unanswered()


class _Pauses(ShardTable[PauseSummary]):
    field = "paused"
    headings = ("WHAT", "NAME", "BY", "ENDS IN", "JOBS", "OLDEST", "REASON")

    def row(self, one: PauseSummary, now: float) -> Sequence[str]:
        ends, age = "-" if one.until is None else format_duration(one.until - now), format_age(now, one.since)
        return one.kind, one.name, one.by or "-", ends, f"{one.jobs:,}", age, one.reason or "-"


class _History(ShardTable[PauseRecord]):
    field = "history"
    headings = ("TIME", "ACTION", "NAME", "BY", "REASON")

    def row(self, one: PauseRecord, _now: float) -> Sequence[str]:
        return format_time(one.at), one.action, one.name, one.by, one.reason or "-"
