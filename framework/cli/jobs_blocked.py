"""``jobs held``, ``paused``, ``deferred``, ``counters``: what waits behind a valve, how much, since when, and letting it out."""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import click

from framework.admin.deferred import Deferral, run_sooner, summarize_deferrals
from framework.admin.held_jobs import ALERT_COUNT, HeldJobs, measure_held
from framework.admin.limits import assign_free_slots, read_limits
from framework.admin.pauses import PauseSummary, read_pauses
from framework.admin.purge import PurgeResult, purge
from framework.admin.search import display_name, list_held_stores
from framework.admin.times import format_age, format_duration, server_time
from framework.cli.errors import reports_errors
from framework.cli.groups import DefaultShowGroup
from framework.cli.jobs_flags import refuse_unknown_class
from framework.cli.options import DurationOption, json_option, modules_option, shard_option
from framework.cli.shards import ShardCommand, progress_reporter
from framework.cli.terminal import echo, echo_whole
from framework.command_line import command
from framework.exit_codes import EXIT_FAILED
from framework.shard.shard import Shard
from framework.telemetry.context import META_PREFIX
from framework.telemetry.counters import series_name
from framework.telemetry.visible import visible
from framework.wire import keys

_HELD_HEADINGS = ("SHARD", "PLACE", "CLASS OR LIMIT", "JOBS", "OLDEST", "LOOK, AND RELEASE")
_PAUSED_HEADINGS = ("SHARD", "WHAT", "NAME", "BY", "ENDS IN", "JOBS", "OLDEST", "REASON")
_DEFERRED_HEADINGS = ("SHARD", "CLASS", "BY", "JOBS", "OLDEST", "MOST OFTEN", "NEXT IN")
_RELEASE_COMMANDS = {"waiting": "limits", "paused": "paused"}
_DEFAULT_RATE = 100.0
_DEFAULT_TIME_LIMIT_S = 30.0
_LIMIT_GAUGE = "sidekiq_concurrency_limit"
_SERIES = re.compile(r"[a-z_:][\w:]*(?:\{(?:[a-z_]\w*=\"(?:[^\"\\\n]|\\[\\\"n])*\",?)*\})?", re.ASCII | re.IGNORECASE)
"""What Prometheus reads as a counter: one line that it does not read would cost all the others."""


@click.group("held", cls=DefaultShowGroup)
def held() -> None:
    """Show and drop the jobs that wait behind a limit or a pause, in no queue.

    Without a command they are shown; the status is for cron or a monitor.
    """


@held.command("show")
@click.option(
    "--alert-after",
    type=DurationOption(),
    help="End with status 1 when a job waits for longer. Default: the setting held_alert_after.",
)
@click.option(
    "--alert-above",
    type=click.IntRange(1),
    default=ALERT_COUNT,
    show_default=True,
    help="End with status 1 when so many wait in one place.",
)
@shard_option
@json_option
@reports_errors
def show_held(*, alert_after: float | None, alert_above: int, names: Sequence[str], as_json: bool) -> None:
    """Show every place of held jobs, the oldest first.

    It says how many there are, how old the oldest is, and how to release them.

    Status 1: one is older than --alert-after, more than --alert-above wait in one place, or a shard does not answer.
    """
    on = ShardCommand(names)
    most_s = on.settings.held_alert_after if alert_after is None else alert_after
    found = [(shard, now, one) for shard, (now, read) in on.each(_read_held) for one in read]
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
@click.option("--class", "worker", metavar="NAME", help="Only jobs of this class.")
@click.option("--user", metavar="VALUE", help="Only jobs with this meta.user.")
@click.option("--project", metavar="VALUE", help="Only jobs with this meta.project.")
@click.option("--meta", "meta", metavar="NAME=VALUE", multiple=True, help="Only jobs with this meta.NAME. Repeatable.")
@click.option(
    "--time-limit",
    "budget_s",
    type=DurationOption(),
    default=_DEFAULT_TIME_LIMIT_S,
    help="Stop after so long. Default: 30s.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@modules_option
@shard_option
@json_option
@reports_errors
def drop_held(
    *,
    worker: str | None,
    user: str | None,
    project: str | None,
    meta: Sequence[str],
    budget_s: float,
    dry_run: bool,
    yes: bool,
    modules: Sequence[str],
    names: Sequence[str],
    as_json: bool,
) -> None:
    """Drop held jobs for good.

    Those are dropped that match all that is given: a class, and facts of their context.

    Status 1: the time was up before every held job was looked at (run it again), or a shard does not answer.
    """
    wanted = _drop_filter(worker, user, project, meta)
    if not (dry_run or yes):
        said = ", ".join(f"{name}={value}" for name, value in wanted.items())
        click.confirm(f"Drop every held job with {said}? They never run.", abort=True, err=True)
    on = ShardCommand(names)
    deadline = time.monotonic() + budget_s
    done: list[tuple[str, PurgeResult]] = []
    for shard, (purged, limits) in on.each(
        lambda shard: purge(shard.client, wanted, deadline, progress_reporter(shard.name), dry_run=dry_run)
    ):
        for name in limits:
            assign_free_slots(on.shards[shard].client, name)
        done.append((shard, purged))
    if as_json:
        on.print_json(
            {"wanted": wanted, "dry_run": dry_run, "purged": [{"shard": shard, **asdict(one)} for shard, one in done]}
        )
    else:
        rows = [
            (shard, f"{one.matched:,}", f"{one.dropped:,}", "yes" if one.completed else "no: run it again")
            for shard, one in done
        ]
        on.print_table(("SHARD", "MATCHING", "DROPPED", "COMPLETED"), rows, "")
    on.exit_if_unanswered()
    if not all(one.completed for _, one in done):
        sys.exit(EXIT_FAILED)
    if worker is not None and not any(one.matched for _, one in done):
        held_now = on.each(lambda shard: {place.name for place in list_held_stores(shard.client)})
        if not any(worker in names_there for _, names_there in held_now):
            refuse_unknown_class(worker, modules)


def _drop_filter(worker: str | None, user: str | None, project: str | None, meta: Sequence[str]) -> dict[str, str]:
    named = {"class": worker, "meta.user": user, "meta.project": project}
    wanted = {name: value for name, value in named.items() if value is not None}
    for fact in meta:
        name, equals, value = fact.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--meta {fact!r}: write NAME=VALUE, such as --meta caller_id=GET:/orders")
        wanted[META_PREFIX + name.removeprefix(META_PREFIX)] = value
    if not wanted:
        raise click.UsageError(
            "Say which jobs: --class, --user, --project or --meta NAME=VALUE; all that are given must match."
        )
    return wanted


@click.command("paused")
@shard_option
@json_option
@reports_errors
def paused(*, names: Sequence[str], as_json: bool) -> None:
    """Show the queues and classes that are paused.

    Queues are those of Sidekiq's set. Of a class it says who paused it, until when, and how many jobs wait.
    """
    on = ShardCommand(names)
    found = [(shard, now, one) for shard, (now, read) in on.each(_read_pauses) for one in read]
    if as_json:
        on.print_json({"paused": [{"shard": shard, **asdict(one)} for shard, _, one in found]})
    else:
        rows = [_pause_row(shard, now, one) for shard, now, one in found]
        on.print_table(_PAUSED_HEADINGS, rows, "Nothing is paused")
    on.exit_if_unanswered()


@click.group("deferred", cls=DefaultShowGroup)
def deferred() -> None:
    """Show and release the jobs that a policy put off.

    They wait in the schedule set. Without a command they are shown.
    """


@deferred.command("show")
@click.argument("worker", required=False, metavar="[CLASS]")
@modules_option
@shard_option
@json_option
@reports_errors
def show_deferred(worker: str | None, *, modules: Sequence[str], names: Sequence[str], as_json: bool) -> None:
    """Count the put-off jobs of each class, or of CLASS, by what put them off. The oldest come first."""
    on = ShardCommand(names)
    read = on.each(
        lambda shard: (server_time(shard.client), summarize_deferrals(shard.client, progress_reporter(shard.name)))
    )
    found = [(shard, now, one) for shard, (now, some) in read for one in some if worker in (None, one.worker)]
    if as_json:
        on.print_json({"deferred": [{"shard": shard, **asdict(one)} for shard, _, one in found]})
    else:
        rows = [_deferred_row(shard, now, one) for shard, now, one in found]
        on.print_table(_DEFERRED_HEADINGS, rows, f"No job{'' if worker is None else f' of {worker}'} is put off")
    on.exit_if_unanswered()
    if worker is not None and not found:
        refuse_unknown_class(worker, modules)


@deferred.command("run-now")
@click.argument("worker", metavar="CLASS")
@click.option("--count", type=click.IntRange(1), help="Release at most so many on each shard.")
@click.option("--percent", type=click.IntRange(1, 100), help="Release so many in a hundred on each shard.")
@click.option(
    "--rate", type=click.FloatRange(0.001), default=_DEFAULT_RATE, show_default=True, help="Release so many a second."
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
    """Make put-off jobs of CLASS due from now on.

    They come at --rate a second, so that they do not all come back at once.

    What put them off is asked again when they come: while it still holds, they are put off again.
    """
    if count is not None and percent is not None:
        raise click.UsageError("--count and --percent both say how many: give one of them.")
    on = ShardCommand(names)

    def act(shard: Shard) -> tuple[int, int]:
        tell = progress_reporter(shard.name)
        there = sum(one.jobs for one in summarize_deferrals(shard.client, tell) if one.worker == worker)
        most = there if count is None and percent is None else count or -(-there * (percent or 0) // 100)
        return (run_sooner(shard.client, worker, most, rate, tell) if there else 0), there

    done = list(on.each(act))
    if as_json:
        on.print_json({"run_now": [{"shard": shard, "jobs": moved, "of": there} for shard, (moved, there) in done]})
    else:
        for shard, (moved, there) in done:
            last = f", the last in {format_duration(moved / rate)}" if moved else ""
            echo(f"{shard}: {moved:,} of {there:,} put-off jobs of {worker} become due{last}")
    on.exit_if_unanswered()
    if not any(there for _, (_, there) in done):
        refuse_unknown_class(worker, modules)


@click.command("counters")
@shard_option
@reports_errors
def counters(*, names: Sequence[str]) -> None:
    """Print the counters and gauges of the policies in Prometheus' text format.

    They are what policies have counted, and how full the limits and the places of held jobs are.

    Counters are summed over the shards; gauges are per shard. Meant for a textfile collector: one reporter for the whole fleet.
    """
    on = ShardCommand(names)
    total = Counter[str]()
    gauges: dict[str, float] = {}
    for shard, (counts, full) in on.each(lambda one: (_read_counters(one), list(_read_gauges(one)))):
        total.update(counts)
        gauges |= {series_name(name, {**labels, "shard": shard}): value for name, labels, value in full}
    for kind, series in (("counter", total), ("gauge", gauges)):
        for name, group in groupby(sorted(series), lambda one: one.partition("{")[0]):
            echo_whole([f"# TYPE {name} {kind}", *(f"{_escaped(one)} {series[one]}" for one in group)])
    on.exit_if_unanswered()


def _escaped(series: str) -> str:
    """Return the series with a backslash more before what the terminal layer would escape: Prometheus reads only its own escapes."""
    if series.isprintable():
        return series
    return "".join(char if char.isprintable() else visible(char).replace("\\", "\\\\") for char in series)


def _read_held(shard: Shard) -> tuple[float, list[HeldJobs]]:
    return server_time(shard.client), measure_held(
        shard.client, [place.as_held_jobs() for place in list_held_stores(shard.client)]
    )


def _read_pauses(shard: Shard) -> tuple[float, list[PauseSummary]]:
    return server_time(shard.client), read_pauses(shard.client)


def _read_counters(shard: Shard) -> dict[str, int]:
    counts: Any = shard.client.hgetall(keys.COUNTERS)
    read = ((display_name(series), count) for series, count in counts.items())
    return {series: int(count) for series, count in read if count.isdigit() and _SERIES.fullmatch(series)}


def _read_gauges(shard: Shard) -> Iterator[tuple[str, dict[str, str], float]]:
    """GitLab's gauges of a limit, and for each place of held jobs how many and how old."""
    now = server_time(shard.client)
    for limit in read_limits(shard.client, now):
        worker = {"worker": limit.name}
        yield f"{_LIMIT_GAUGE}_current_concurrent_jobs", worker, limit.running
        yield f"{_LIMIT_GAUGE}_queue_jobs", worker, limit.waiting.jobs if limit.waiting else 0
        if limit.application is not None:
            yield f"{_LIMIT_GAUGE}_max_concurrent_jobs", worker, limit.application
        if limit.limit is not None:
            yield f"{_LIMIT_GAUGE}_current_limit", worker, limit.limit
    for one in _read_held(shard)[1]:
        place = {"place": one.kind, "worker": one.name}
        yield "held_jobs", place, one.jobs
        yield "held_oldest_job_age_seconds", place, round(max(0.0, now - one.since), 3)


def _pause_row(shard: str, now: float, one: PauseSummary) -> Sequence[str]:
    ends = "-" if one.until is None else format_duration(one.until - now)
    return (
        shard,
        one.kind,
        one.name,
        one.by or "-",
        ends,
        f"{one.jobs:,}",
        format_age(now, one.since),
        one.reason or "-",
    )


def _deferred_row(shard: str, now: float, one: Deferral) -> Sequence[str]:
    due = format_duration(one.next_due - now) if one.next_due > now else "due"
    return shard, one.worker, one.by, f"{one.jobs:,}", format_age(now, one.oldest), f"{one.max_deferrals:,} times", due
