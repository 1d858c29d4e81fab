"""The options that select jobs of a set, and the message for a class that no job there has."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from framework.admin.entry_plan import JobSetKind
from framework.admin.job_filter import JobFilter
from framework.admin.shard_job_set import ShardJobSet
from framework.exit_codes import EXIT_FAILED
from framework.messages import did_you_mean
from framework.shard.shard import Shard
from framework.terminal.options import DurationOption
from framework.terminal.output import echo
from framework.terminal.shards import ShardCommand, progress_reporter


# Click alone keeps the last of several values: the command would act on other jobs than its words say.
def _one_value(context: click.Context, option: click.Parameter, values: Sequence[Any]) -> Any:
    """Return the value of an option; one that is given twice is wrong usage."""
    if len(values) > 1:
        raise click.UsageError(f"{option.opts[0]} is given {len(values)} times: give it once.", context)
    return values[0] if values else None


def _once(*names: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, multiple=True, callback=_one_value, **attributes)


_OPTIONS = (
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
)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a filter; the command passes their values to ``read_filter``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_filter(criteria: Mapping[str, Any]) -> JobFilter:
    """Return the filter of the options; an empty or incomplete one is wrong usage."""
    for name, value in criteria.items():
        if value == "":
            option = {"worker": "class", "older_than": "older-than"}.get(name, name)
            raise click.UsageError(f"--{option} is empty: leave it out, or give a value.")
    return JobFilter(
        criteria["worker"] or "",
        criteria["queue"] or "",
        criteria["error"] or "",
        criteria["tag"] or "",
        _context(criteria["context"]),
        criteria["older_than"] or 0.0,
        criteria["text"] or "",
    )


def _context(facts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for fact in facts:
        name, equals, value = fact.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--context {fact!r}: write K=V, such as --context user=ann")
        found[name] = value
    return found


def refuse_absent_class(on: ShardCommand, kind: JobSetKind, wanted: JobFilter) -> None:
    """End with status 1 and the nearest name if no job of the set has the class of the filter. For a filter that selected nothing."""
    if not wanted.cls:
        return
    seen = Counter[str]()

    def read(shard: Shard) -> None:
        for record in ShardJobSet(shard, kind, on.settings).matching(JobFilter(), progress_reporter(shard.name)):
            seen.update({record.worker, record.display_class})

    for _ in on.each(read):
        pass
    if wanted.cls not in seen:
        near = did_you_mean(wanted.cls, [name for name, _ in seen.most_common() if name])
        echo(f"no job in {kind} has the class {wanted.cls!r}{near}", err=True)
        sys.exit(EXIT_FAILED)
