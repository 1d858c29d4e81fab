"""``jobs list``: show the jobs of a queue, a sorted set, or the held jobs; ``jobs show``: show what a shard stores of one job."""

import heapq
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import click

from framework.admin.entries import SET_KEYS, JobSetKind
from framework.admin.groups import HELD, QUEUE_PLACE
from framework.admin.held_set import HeldRecord, held_records
from framework.admin.job_queue import QueuedJob, matching_jobs, unknown_queue_message
from framework.admin.job_record import JobFilter, JobRecord
from framework.admin.queue_reader import is_known, known_queues, next_jobs, read_queues
from framework.admin.search import JobLocation, search
from framework.admin.shard_job_set import NEWEST_FIRST, SetRecord, ShardJobSet
from framework.command_line import remedy_command
from framework.errors import UnknownNameError
from framework.shard.shard import Shard
from framework.store.connect import server_time
from framework.terminal.jobs import (
    HEADINGS,
    PlaceOption,
    arguments_text,
    filter_options,
    held_row,
    job_fields,
    jobs_of_set,
    read_filter,
    refuse_absent_class,
    set_row,
)
from framework.terminal.options import check_jids, json_option, shard_option
from framework.terminal.output import echo, echo_lines, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import decode_escaped, format_age, format_time
from framework.types import Payload
from framework.wire.job import timestamp

_QUEUE_HEADINGS = ("SHARD", "JID", "CLASS", "WAITS FOR", "ARGUMENTS")


class _QueueView:
    def __init__(self, on: ShardCommand, queue: str, wanted: JobFilter, most: int) -> None:
        self._on = on
        self._queue = queue
        self._wanted = wanted
        self._most = most

    def read(self, shard: Shard) -> tuple[float, int, list[QueuedJob]] | None:
        """Return the time, the number of matching jobs, and the next to run of them; ``None`` for an unknown queue."""
        if not is_known(shard, self._queue):
            return None
        now = server_time(shard.client)
        if not self._wanted:
            size = sum(one.size for one in read_queues(shard, [self._queue]))
            return now, size, [self._job(shard, data) for _, data in next_jobs(shard.client, self._queue, self._most)]
        count, last = 0, deque[QueuedJob](maxlen=self._most)
        for job in self.matching(shard, self._wanted):
            count += 1
            last.append(job)
        return now, count, list(reversed(last))

    def matching(self, shard: Shard, wanted: JobFilter) -> Iterator[QueuedJob]:
        return matching_jobs(shard, self._queue, wanted, self._on.settings.size_limit, progress_reporter(shard.name))

    def _job(self, shard: Shard, data: bytes) -> QueuedJob:
        return QueuedJob(shard.name, data, self._on.settings.size_limit, self._queue)


def list_queue(on: ShardCommand, queue: str, wanted: JobFilter, most: int, *, as_json: bool) -> None:
    """Print the matching jobs of a queue, the next to run of each shard first, at most ``most`` of each.

    Raises:
        UnknownNameError: each shard answered, and none knows the queue.
    """
    view = _QueueView(on, queue, wanted, most)
    found = [(shard, read) for shard, read in on.each(view.read) if read is not None]
    if not found and not on.unanswered:
        known = {name for _, names in on.each(known_queues) for name in names}
        raise UnknownNameError(unknown_queue_message(queue, known))
    total = sum(count for _, (_, count, _) in found)
    if as_json:
        jobs = [{**job_fields(job), "waits_in": queue} for _, (_, _, jobs) in found for job in jobs]
        on.print_json({"place": f"queue:{queue}", "total": total, "jobs": jobs})
    else:
        rows = [
            (
                shard,
                job.jid or "-",
                job.display_class or "(malformed)",
                format_age(now, job.enqueued_at),
                arguments_text(job),
            )
            for shard, (now, _, jobs) in found
            for job in jobs
        ]
        on.print_table(_QUEUE_HEADINGS, rows, f"No job in {queue} matches" if wanted else f"The queue {queue} is empty")
        if total > len(rows):
            echo(f"and {total - len(rows):,} more: --most shows more")
    if not total and not on.unanswered:
        refuse_absent_class(on, queue, wanted, view.matching)


PLACES = (*SET_KEYS, HELD)
_DEFAULT_MOST = 25


@click.command("list")
@click.argument("place", type=PlaceOption(PLACES), metavar="PLACE")
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
    if place.startswith(QUEUE_PLACE):
        list_queue(on, place.removeprefix(QUEUE_PLACE), wanted, most, as_json=as_json)
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
        refuse_absent_class(on, kind, wanted, jobs_of_set(on, kind))


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


_SHOWN = frozenset({"class", "args", "queue", "jid", "error_class", "error_message", "error_backtrace", "compressed"})
"""Fields that have a line of their own."""

_TIMES = ("created_at", "enqueued_at", "failed_at", "retried_at")


@click.command("show")
@click.argument("jid")
@shard_option
@json_option
@reports_errors
def show(*, jid: str, names: Sequence[str], as_json: bool) -> None:
    """Show the job JID: its place, class, arguments, error with backtrace, and every other field.

    Compressed arguments are decompressed, and encrypted ones hidden. Every key that may hold the job is scanned in pages.

    Status 1: no key has the job, or a shard does not answer.
    """
    check_jids([jid])
    on = ShardCommand(names)
    found: list[tuple[JobLocation, JobRecord]] = []

    def look(shard: Shard) -> None:
        places = search(shard.client, jid, progress_reporter(shard.name))
        found.extend((one, JobRecord(shard.name, one.data, on.settings.size_limit)) for one in places)

    for _ in on.each(look):
        pass
    if as_json:
        on.print_json({"jid": jid, "found": [_fields(*one) for one in found]})
    else:
        for number, one in enumerate(found):
            echo_lines([*([""] if number else []), *record_lines(one[1], one[0])])
    more = f"{remedy_command('jobs', 'explain', jid)} says more"
    on.exit_unless(found, f"no key of {' and '.join(on.answered)} holds the job {jid}; {more}")


def record_lines(one: JobRecord, place: JobLocation | None = None) -> Iterator[str]:
    """Yield the lines that show a job: its class, its place if it is known, its arguments, its error and all other fields."""
    yield f"{one.jid or '(no jid)'}: {one.display_class or '(malformed)'} on {one.shard}"
    for name, text in (*_headlines(place, one), *_fields_of(one.payload)):
        yield f"  {name:<14} {text}"
    if not one.payload:
        yield f"  bytes          {one.text}"


def _headlines(place: JobLocation | None, one: JobRecord) -> Iterator[tuple[str, str]]:
    if place is not None:
        yield "place", _place_text(place)
    if one.queue:
        yield "queue", one.queue
    if one.problem is not None:
        yield "malformed", one.problem
    if place is not None and place.score is not None:
        yield "due" if place.store.kind in ("scheduled", "retry") else "since", format_time(place.score)
    yield "arguments", json.dumps(one.display_args, ensure_ascii=False)
    if one.error_class or one.error_message:
        yield "error", f"{one.error_class}: {one.error_message}"
    yield from (("", line) for line in one.error_backtrace)


def _fields_of(payload: Payload) -> Iterator[tuple[str, str]]:
    """Yield the fields that have no line of their own: times as text, others as JSON."""
    for name, value in payload.items():
        moment = timestamp(value) if name in _TIMES else None
        if moment is not None:
            yield name, format_time(moment)
        elif name not in _SHOWN:
            yield name, json.dumps(value, ensure_ascii=False)


def _place_text(place: JobLocation) -> str:
    name = f" {place.store.name}" if place.store.name else ""
    return f"{place.store.kind}{name}, number {place.position:,} of {place.total:,} ({decode_escaped(place.store.key)})"


def _fields(place: JobLocation, one: JobRecord) -> dict[str, Any]:
    where = {"place": place.store.kind, "name": place.store.name, "key": decode_escaped(place.store.key)}
    return {
        **job_fields(one),
        **where,
        "position": place.position,
        "of": place.total,
        "score": place.score,
        "error_backtrace": one.error_backtrace,
        "payload": {name: value for name, value in one.payload.items() if name != "args"},
    }
