"""``jobs deferred``: show the jobs that a policy deferred, and make them due."""

from collections.abc import Sequence

import click

from framework.features.deferral.admin import Deferral, run_sooner, summarize_deferrals
from framework.shard.shard import Shard
from framework.terminal.groups import DefaultShowGroup
from framework.terminal.options import json_option, modules_option, shard_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.project import refuse_unknown_class
from framework.terminal.shards import ShardCommand, ShardTable, progress_reporter, recorded
from framework.text import format_age, format_count, format_duration, format_times

_DEFAULT_RATE = 100.0


@click.group("deferred", cls=DefaultShowGroup)
def deferred() -> None:
    """Show the jobs that a policy deferred, and make them due.

    These jobs wait in the schedule set. Without a command they are counted, as by `show`.
    """


@deferred.command("show")
@click.argument("worker", required=False, metavar="[CLASS]")
@modules_option
@shard_option
@json_option
@reports_errors
def show_deferred(worker: str | None, *, modules: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """Count the deferred jobs of each class, or of CLASS, by the policy that deferred them. The oldest come first."""
    on = ShardCommand(names)

    def read(shard: Shard) -> list[Deferral]:
        found = summarize_deferrals(shard.client, progress_reporter(shard.name))
        return [one for one in found if worker in (None, one.worker)]

    found = on.read(read)
    none = f"No job{'' if worker is None else f' of {worker}'} is deferred"
    on.show(_Deferred().of(found, none), as_json=as_json)
    on.exit_if_unanswered()
    if worker is not None and not found:
        refuse_unknown_class(worker, modules)


@deferred.command("run-now")
@click.argument("worker", metavar="CLASS")
@click.option("--count", type=click.IntRange(1), help="Make at most this number due on each shard.")
@click.option("--percent", type=click.IntRange(1, 100), help="Make this percentage due on each shard.")
@click.option(
    "--rate",
    type=click.FloatRange(0.001),
    default=_DEFAULT_RATE,
    show_default=True,
    help="Make this number due per second.",
)
@modules_option
@shard_option
@json_option
@reports_errors
def run_deferred_now(
    worker: str,
    *,
    count: int | None,
    percent: int | None,
    rate: float,
    modules: Sequence[str],
    names: Sequence[str],
    as_json: bool,
) -> None:
    """Make the deferred jobs of CLASS due, at --rate per second.

    The policy that deferred them decides again when they are fetched, and may defer them again.
    """
    if count is not None and percent is not None:
        raise click.UsageError("--count and --percent exclude each other: give one of them.")
    on = ShardCommand(names)

    def act(shard: Shard) -> tuple[int, int]:
        report_progress = progress_reporter(shard.name)
        there = sum(one.jobs for one in summarize_deferrals(shard.client, report_progress) if one.worker == worker)
        most = there if count is None and percent is None else count or -(-there * (percent or 0) // 100)
        return (run_sooner(shard.client, worker, most, rate, report_progress) if there else 0), there

    done = list(on.each(recorded(act, lambda moved: moved[0])))
    if as_json:
        on.print_json({"run_now": [{"shard": shard, "jobs": moved, "of": there} for shard, (moved, there) in done]})
    else:
        for shard, (moved, there) in done:
            last = f", the last in {format_duration(moved / rate)}" if moved else ""
            verb = "becomes" if moved == 1 else "become"
            echo(f"{shard}: {moved:,} of {format_count(there, 'deferred job')} of {worker} {verb} due{last}")
    on.exit_if_unanswered()
    if not any(there for _, (_, there) in done):
        refuse_unknown_class(worker, modules)


class _Deferred(ShardTable[Deferral]):
    field = "deferred"
    headings = ("CLASS", "BY", "JOBS", "OLDEST", "MOST OFTEN", "NEXT IN")

    def row(self, one: Deferral, now: float) -> Sequence[str]:
        due = format_duration(one.next_due - now) if one.next_due > now else "due"
        return one.worker, one.by, f"{one.jobs:,}", format_age(now, one.oldest), format_times(one.max_deferrals), due
