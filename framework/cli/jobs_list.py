"""``jobs list``: show the jobs of a place: a queue, a sorted set, or the held jobs."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import click

from framework.admin.entry_plan import SET_KEYS, JobSetKind
from framework.admin.job_filter import JobFilter
from framework.admin.job_record import JobRecord
from framework.admin.purge import HeldRecord, held_records
from framework.admin.shard_job_set import NEWEST_FIRST, SetRecord, ShardJobSet
from framework.cli.queue_listing import list_queue
from framework.shard.shard import Shard
from framework.store.clock import server_time
from framework.terminal.jobs import (
    HEADINGS,
    filter_options,
    held_row,
    job_fields,
    read_filter,
    refuse_absent_class,
    set_row,
)
from framework.terminal.options import ChoiceOption, json_option, shard_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter

HELD = "held"
PLACES = (*SET_KEYS, HELD)
_QUEUE_PREFIX = "queue:"
_DEFAULT_MOST = 25


class _PlaceOption(ChoiceOption):
    """queue:NAME, or one of the other places."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the place."""
        if str(value).startswith(_QUEUE_PREFIX) and value != _QUEUE_PREFIX:
            return str(value)
        return super().convert(value, param, ctx)


@click.command("list")
@click.argument("place", type=_PlaceOption((f"{_QUEUE_PREFIX}NAME", *PLACES)), metavar="PLACE")
@filter_options
@click.option(
    "--most",
    type=click.IntRange(1),
    default=_DEFAULT_MOST,
    show_default=True,
    help="Show at most this number of jobs.",
)
@shard_option
@json_option
@reports_errors
def list_jobs(*, place: str, most: int, names: Sequence[str], as_json: bool, **criteria: Any) -> None:
    """List the jobs of PLACE: queue:NAME, scheduled, retry, dead, interrupted or held.

    The next job to run comes first; of dead and interrupted jobs, the one that came last. With options only the jobs that
    match all of them are listed.

    Status 1: the queue is unknown, no job there has the class of --class, or a shard does not answer.
    """
    wanted, on = read_filter(criteria), ShardCommand(names)
    if place.startswith(_QUEUE_PREFIX):
        list_queue(on, place.removeprefix(_QUEUE_PREFIX), wanted, most, as_json=as_json)
    elif place == HELD:
        _list_held(on, wanted, most, as_json=as_json)
    else:
        _list_set(on, cast("JobSetKind", place), wanted, most, as_json=as_json)
    on.exit_if_unanswered()


def _list_set(on: ShardCommand, kind: JobSetKind, wanted: JobFilter, most: int, *, as_json: bool) -> None:
    newest_first = kind in NEWEST_FIRST

    def read(shard: Shard) -> tuple[float, int, list[SetRecord]]:
        jobs = ShardJobSet(shard, kind, on.settings)
        if not wanted:
            return server_time(shard.client), jobs.size(), list(islice(jobs.ordered(), most))
        counted = _Counted(jobs.matching(wanted, progress_reporter(shard.name)))
        first = heapq.nlargest if newest_first else heapq.nsmallest
        found = first(most, counted, key=lambda one: one.score)
        return server_time(shard.client), counted.count, found

    answers = list(on.each(read))
    total = sum(count for _, (_, count, _) in answers)
    rows = [(one, now) for _, (now, _, found) in answers for one in found]
    rows.sort(key=lambda row: row[0].score, reverse=newest_first)
    _show(on, kind, rows[:most], total, [set_row(*row) for row in rows[:most]], filtered=bool(wanted), as_json=as_json)
    if not total and not on.unanswered:
        refuse_absent_class(on, kind, wanted)


def _list_held(on: ShardCommand, wanted: JobFilter, most: int, *, as_json: bool) -> None:
    def read(shard: Shard) -> tuple[float, int, list[HeldRecord]]:
        pages = held_records(shard, wanted, on.settings.size_limit, progress_reporter(shard.name))
        counted = _Counted(one for _, _, found in pages for one in found)
        oldest = heapq.nsmallest(most, counted, key=lambda one: one.since)
        return server_time(shard.client), counted.count, oldest

    answers = list(on.each(read))
    total = sum(count for _, (_, count, _) in answers)
    rows = sorted(((one, now) for _, (now, _, found) in answers for one in found), key=lambda row: row[0].since)
    _show(on, HELD, rows[:most], total, [held_row(*row) for row in rows[:most]], filtered=bool(wanted), as_json=as_json)


class _Counted(Iterable[Any]):
    """Count the items while they are read, so that a long set is read once and never held whole."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self.count += 1
            yield item


def _show(
    on: ShardCommand,
    place: str,
    found: Sequence[tuple[JobRecord, float]],
    total: int,
    rows: Sequence[Sequence[str]],
    *,
    filtered: bool,
    as_json: bool,
) -> None:
    if as_json:
        on.print_json({"place": place, "total": total, "jobs": [job_fields(one) for one, _ in found]})
        return
    on.print_table(HEADINGS[place], rows, f"No job in {place} matches" if filtered else f"No job is in {place}")
    if total > len(found):
        echo(f"and {total - len(found):,} more: --most shows more")
