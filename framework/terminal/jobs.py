"""The options that select jobs of a set, and the rows of jobs in a table and in JSON."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

import click

from framework.admin.entries import JobSetKind
from framework.admin.groups import QUEUE_PLACE
from framework.admin.held_set import HeldRecord
from framework.admin.job_record import JobFilter, JobRecord, job_filter
from framework.admin.shard_job_set import SetRecord, ShardJobSet
from framework.command_line import EXIT_FAILED
from framework.shard.shard import Shard
from framework.terminal.options import ChoiceOption, DurationOption
from framework.terminal.output import echo
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import did_you_mean, format_age, format_duration


# Click alone keeps the last of several values: the command would act on other jobs than its words say.
def _one_value(context: click.Context, option: click.Parameter, values: Sequence[Any]) -> Any:
    """Return the value of an option; one that is given twice is wrong usage."""
    if len(values) > 1:
        raise click.UsageError(f"{option.opts[0]} is given {len(values)} times: give it once.", context)
    return values[0] if values else None


def _once(*names: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, multiple=True, callback=_one_value, **attributes)


_OPTIONS: Sequence[Callable[..., Any]] = (
    _once("--class", "worker", metavar="NAME", help="Select jobs of this class."),
    _once("--queue", metavar="NAME", help="Select jobs of this queue."),
    _once("--error", metavar="TEXT", help="Select jobs whose error has this class, or this text in its message."),
    _once("--tag", metavar="TEXT", help="Select jobs with this tag."),
    click.option(
        "--context",
        metavar="K=V",
        multiple=True,
        help="Select jobs with this field of their context, such as user=ann. Repeatable.",
    ),
    _once(
        "--older-than",
        type=DurationOption(),
        help="Select jobs that have been in their place for longer than this: 90s, 15m, 2h, 1d or 1h30m.",
    ),
    _once(
        "--text", metavar="TEXT", help="Select jobs whose stored payload has this text; * stands for any characters."
    ),
    *(
        click.option(
            f"--not-{name}", metavar=metavar, multiple=True, help=f"Leave out jobs that --{name} selects. Repeatable."
        )
        for name, metavar in (("class", "NAME"), ("queue", "NAME"), ("error", "TEXT"), ("tag", "TEXT"))
    ),
    _once(
        "--percent",
        type=click.FloatRange(0, 100, min_open=True),
        help="Select this share of the jobs, by their ids: the same jobs at every call.",
    ),
)
_COUNT = _once("--count", type=click.IntRange(1), help="Select at most this number of jobs, in no order.")


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a filter; the command passes their values to ``read_filter``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def bulk_filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a filter, and ``--count``, for a command that changes the selected jobs."""
    return filter_options(_COUNT(command))


def read_filter(criteria: Mapping[str, Any]) -> JobFilter:
    """Return the filter of the options; an empty or incomplete one is wrong usage."""
    for name, value in criteria.items():
        if value == "" or (isinstance(value, tuple) and "" in value):
            option = {"worker": "class"}.get(name, name.replace("_", "-"))
            raise click.UsageError(f"--{option} is empty: leave it out, or give a value.")
    wanted = job_filter(
        cls=criteria["worker"],
        queue=criteria["queue"],
        error=criteria["error"],
        tag=criteria["tag"],
        context=_context(criteria["context"]),
        older_than=criteria["older_than"],
        not_cls=criteria["not_class"],
        not_queue=criteria["not_queue"],
        not_error=criteria["not_error"],
        not_tag=criteria["not_tag"],
        percent=criteria["percent"],
        count=criteria.get("count"),
    )
    return replace(wanted, text=criteria["text"] or "")


def _context(facts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for fact in facts:
        name, equals, value = fact.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--context {fact!r}: write K=V, such as --context user=ann")
        found[name] = value
    return found


class PlaceOption(ChoiceOption):
    """A place of jobs: one of the given, or ``queue:NAME``."""

    def __init__(self, places: Sequence[str]) -> None:
        super().__init__((f"{QUEUE_PLACE}NAME", *places))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the place; any name of a queue will do."""
        if str(value).startswith(QUEUE_PLACE) and value != QUEUE_PLACE:
            return str(value)
        return super().convert(value, param, ctx)


_SAMPLE = 10_000

MatchingJobs: TypeAlias = Callable[[Shard, JobFilter], Iterable[JobRecord]]
"""Return the jobs of a place that match."""


def jobs_of_set(on: ShardCommand, kind: JobSetKind) -> MatchingJobs:
    """Return how the jobs of a set are read."""
    return lambda shard, wanted: ShardJobSet(shard, kind, on.settings).matching(wanted, progress_reporter(shard.name))


def refuse_absent_class(on: ShardCommand, place: str, wanted: JobFilter, matching: MatchingJobs) -> None:
    """End with status 1 if no job of the place has the class of the filter. For a filter that selected nothing.

    The nearest name is that of one of the first jobs there: to decode a million takes seconds.
    """
    if not wanted.cls:
        return
    seen, only_class = Counter[str](), JobFilter(cls=wanted.cls)

    def read(shard: Shard) -> None:
        if wanted != only_class and any(True for _ in matching(shard, only_class)):
            seen[wanted.cls] += 1
            return
        for record in islice(matching(shard, JobFilter()), _SAMPLE):
            seen.update({record.worker, record.display_class})

    for _ in on.each(read):
        pass
    if wanted.cls not in seen:
        near = did_you_mean(wanted.cls, [name for name, _ in seen.most_common() if name])
        echo(f"no job in {place} has the class {wanted.cls!r}{near}", err=True)
        sys.exit(EXIT_FAILED)


_MAX_TEXT = 60

HEADINGS: Mapping[str, Sequence[str]] = {
    "scheduled": ("SHARD", "JID", "CLASS", "QUEUE", "DUE IN", "ARGUMENTS"),
    "retry": ("SHARD", "JID", "CLASS", "QUEUE", "RUNS IN", "FAILURES", "ERROR"),
    "dead": ("SHARD", "JID", "CLASS", "QUEUE", "DEAD FOR", "ERROR"),
    "interrupted": ("SHARD", "JID", "CLASS", "QUEUE", "THERE FOR", "ERROR"),
    "held": ("SHARD", "JID", "CLASS", "QUEUE", "HELD BY", "FOR", "ARGUMENTS"),
}
"""The headings of the table of each place."""


def set_row(one: SetRecord, now: float) -> Sequence[str]:
    first = (one.shard, one.jid or "-", one.display_class or "(malformed)", one.queue or "-")
    match one.kind:
        case "scheduled":
            return *first, format_due(one.score, now), arguments_text(one)
        case "retry":
            failures = "-" if one.retry_count is None else f"{one.retry_count + 1:,}"
            return *first, format_due(one.score, now), failures, error_text(one)
        case "dead" | "interrupted":
            return *first, format_age(now, one.score), error_text(one)


def held_row(one: HeldRecord, now: float) -> Sequence[str]:
    by = f"{'limit' if one.kind == 'waiting' else 'pause of'} {one.held_by}"
    return (
        *(one.shard, one.jid or "-", one.display_class or "(malformed)", one.queue or "-", by),
        *(format_age(now, one.since), arguments_text(one)),
    )


def format_due(due: float, now: float) -> str:
    return format_duration(due - now) if due > now else "due"


def arguments_text(one: JobRecord) -> str:
    """Return the arguments, cut to fit a table; or the reason why they cannot be read."""
    return _cut(one.problem or json.dumps(one.display_args, ensure_ascii=False))


def error_text(one: JobRecord) -> str:
    """Return the class and message of the error, cut to fit a table."""
    parts = [part for part in (one.error_class, one.error_message) if part]
    return _cut(": ".join(parts) or one.problem or "-")


def job_fields(one: JobRecord) -> dict[str, Any]:
    """Return the job's fields for other programs; times are epoch seconds."""
    found: dict[str, Any] = {
        "shard": one.shard,
        "jid": one.jid,
        "class": one.display_class,
        "queue": one.queue,
        "args": one.display_args,
        "tags": one.tags,
        "context": one.context,
        "created_at": one.created_at,
        "enqueued_at": one.enqueued_at,
        "failed_at": one.failed_at,
        "retry_count": one.retry_count,
        "error_class": one.error_class,
        "error_message": one.error_message,
        "problem": one.problem,
    }
    if isinstance(one, SetRecord):
        found |= {"place": one.kind, "due": one.due, "since": one.since}
    if isinstance(one, HeldRecord):
        found |= {"place": one.kind, "held_by": one.held_by, "since": one.since}
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
