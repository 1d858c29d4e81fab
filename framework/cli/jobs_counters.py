"""``jobs counters``: print counters and gauges of the policies for Prometheus."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import click

from framework.admin.queue_reader import waiting_by_level
from framework.cli.jobs_held import read_held
from framework.features.concurrency.admin import read_limits
from framework.shard.shard import Shard
from framework.store.clock import server_time
from framework.telemetry.counters import series_name
from framework.telemetry.visible import visible
from framework.terminal.options import shard_option
from framework.terminal.output import echo_whole, reports_errors
from framework.terminal.shards import ShardCommand
from framework.text import decode_escaped
from framework.wire import keys

_LIMIT_GAUGE = "sidekiq_concurrency_limit"
# A line that Prometheus cannot read makes it refuse all others.
_SERIES = re.compile(r"[a-z_:][\w:]*(?:\{(?:[a-z_]\w*=\"(?:[^\"\\\n]|\\[\\\"n])*\",?)*\})?", re.ASCII | re.IGNORECASE)
"""A counter as Prometheus reads it."""


@click.command("counters")
@shard_option
@reports_errors
def counters(*, names: Sequence[str]) -> None:
    """Print the counters and gauges of the policies in Prometheus' text format.

    The gauges are the running and waiting jobs of each limit, the number and age of held jobs, and the waiting jobs of each
    level of queues with priorities.

    Counters are summed over the shards; gauges are per shard. Run it at one place, for example for a textfile collector.
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
    """Return the series with its unprintable characters escaped once more, because Prometheus reads only its own escapes."""
    if series.isprintable():
        return series
    return "".join(char if char.isprintable() else visible(char).replace("\\", "\\\\") for char in series)


def _read_counters(shard: Shard) -> dict[str, int]:
    counts: Any = shard.client.hgetall(keys.COUNTERS)
    read = ((decode_escaped(series), count) for series, count in counts.items())
    return {series: int(count) for series, count in read if count.isdigit() and _SERIES.fullmatch(series)}


def _read_gauges(shard: Shard) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield GitLab's gauges of each limit, the number and age of the held jobs of each place, and the waiting jobs of each level."""
    now = server_time(shard.client)
    for limit in read_limits(shard.client, now):
        worker = {"worker": limit.name}
        yield f"{_LIMIT_GAUGE}_current_concurrent_jobs", worker, limit.running
        yield f"{_LIMIT_GAUGE}_queue_jobs", worker, limit.waiting.jobs if limit.waiting else 0
        if limit.application is not None:
            yield f"{_LIMIT_GAUGE}_max_concurrent_jobs", worker, limit.application
        if limit.limit is not None:
            yield f"{_LIMIT_GAUGE}_current_limit", worker, limit.limit
    for one in read_held(shard)[1]:
        place = {"place": one.kind, "worker": one.name}
        yield "held_jobs", place, one.jobs
        yield "held_oldest_job_age_seconds", place, round(max(0.0, now - one.since), 3)
    for (queue, level), jobs in waiting_by_level(shard.client).items():
        yield "waiting_jobs", {"queue": queue, "priority": level}, jobs
