"""``jobs stats``: show counters and sizes of the shards."""

import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from framework.admin.access import Answers
from framework.admin.statistics import MOST_DAYS, ShardStats, Stats, read_history, read_stats, sum_stats
from framework.feature import all_features
from framework.terminal.options import SecondsOption, json_option, shard_option
from framework.terminal.output import clear_screen, echo, reports_errors
from framework.terminal.shards import ShardCommand

_HEADINGS = ("SHARD", *(one.name.upper() for one in fields(ShardStats)))
_DAY_HEADINGS = ("DAY", "PROCESSED", "FAILED")
_TOTAL = "total"


@click.command("stats")
@click.option("--watch", is_flag=True, help="Show the figures again and again, with the runs per second, until Ctrl-C.")
@click.option(
    "--every",
    "period_s",
    type=SecondsOption(),
    default=2.0,
    show_default=True,
    help="The seconds between two outputs, with --watch.",
)
@click.option("--days", type=click.IntRange(1, MOST_DAYS), help="Show the runs of each of the last days (UTC) instead.")
@shard_option
@json_option
@reports_errors
def stats(*, watch: bool, period_s: float, days: int | None, names: Sequence[str], as_json: bool) -> None:
    """Show the counters and sizes of each shard.

    PROCESSED counts runs, failed ones included. HELD are jobs that a limit or a pause holds outside of their queues. Below the
    table stand the breakers that are open.

    Status 1: a shard does not answer.
    """
    if watch and days is not None:
        raise click.UsageError("--watch and --days exclude each other: the days change once a day.")
    on = ShardCommand(names)
    if days is not None:
        _show_days(on, days, as_json=as_json)
    elif watch:
        _watch(on, max(0.1, period_s), as_json=as_json)
    else:
        _show(on, *_read(on), as_json=as_json)
    on.exit_if_unanswered()


def _read(on: ShardCommand) -> tuple[Stats, Sequence[tuple[str, str]]]:
    """Return the figures, and what features hold back: each with its shard."""
    readers = [one.notices.load() for one in all_features() if one.notices is not None]
    stats = sum_stats(Answers(dict(on.each(read_stats))))
    notices = on.each(lambda shard: [notice for read in readers for notice in read(shard.client)])
    return stats, [(shard, notice) for shard, found in notices for notice in found]


def _show(on: ShardCommand, found: Stats, notices: Sequence[tuple[str, str]], rate: str = "", *, as_json: bool) -> None:
    total = {one.name: getattr(found, one.name) for one in fields(ShardStats)}
    if as_json:
        shown: dict[str, Any] = {"total": total, "shards": {name: asdict(one) for name, one in found.shards.items()}}
        shown["notices"] = [{"shard": shard, "notice": notice} for shard, notice in notices]
        on.print_json({**shown, **({"runs_per_second": float(rate)} if rate else {})})
        return
    rows = [(name, *(f"{count:,}" for count in asdict(one).values())) for name, one in found.shards.items()]
    if len(rows) > 1:
        rows.append((_TOTAL, *(f"{count:,}" for count in total.values())))
    heading, cells = (("RUNS/S",), (rate,)) if rate else ((), ())
    padded = [(*row, *(cells if row is rows[-1] else ("",) * len(cells))) for row in rows]
    on.print_table((*_HEADINGS, *heading), padded, "")
    for shard, notice in notices:
        echo(f"{shard}: {notice}")


def _watch(on: ShardCommand, period_s: float, *, as_json: bool) -> None:
    before: tuple[float, int] | None = None
    try:
        while True:
            on.unanswered.clear()
            (found, notices), now = _read(on), time.monotonic()
            rate = "" if before is None else f"{max(0, found.processed - before[1]) / (now - before[0]):.1f}"
            if not as_json:
                clear_screen()
            _show(on, found, notices, rate, as_json=as_json)
            before = now, found.processed
            time.sleep(period_s)
    except KeyboardInterrupt:
        return


def _show_days(on: ShardCommand, days: int, *, as_json: bool) -> None:
    today = datetime.now(UTC).date()
    dates = [today - timedelta(days=back) for back in range(days)]
    found = dict(on.each(lambda shard: read_history(shard, dates)))
    counts = [
        (str(day), sum(one[day].processed for one in found.values()), sum(one[day].failed for one in found.values()))
        for day in dates
    ]
    if as_json:
        on.print_json({"days": [dict(zip(("day", "processed", "failed"), row, strict=True)) for row in counts]})
    elif found:
        on.print_table(_DAY_HEADINGS, [(day, f"{processed:,}", f"{failed:,}") for day, processed, failed in counts], "")
