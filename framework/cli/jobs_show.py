"""``jobs show``: show everything that a shard stores of one job."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from framework.admin.job_record import JobRecord
from framework.admin.search import JobLocation, search
from framework.command_line import remedy_command
from framework.exit_codes import EXIT_FAILED
from framework.shard.shard import Shard
from framework.terminal.jobs import job_fields
from framework.terminal.options import check_jids, json_option, shard_option
from framework.terminal.output import echo, echo_lines, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import decode_escaped, format_time
from framework.types import Payload
from framework.wire.job import timestamp

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
    on.exit_if_unanswered()
    if not found:
        echo(
            f"no key of {' and '.join(on.answered)} holds the job {jid}; {remedy_command('jobs', 'explain', jid)} says more",
            err=True,
        )
        sys.exit(EXIT_FAILED)


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
