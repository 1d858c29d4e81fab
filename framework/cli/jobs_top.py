"""``jobs top``: the jobs of a place by class, queue, error, tag or a field of their context, the largest groups first."""

from collections.abc import Sequence
from typing import Any

import click

from framework.admin.groups import CONTEXT, GROUPINGS, PLACES, QUEUE_PLACE, GroupCount, JobGroup, JobGroups
from framework.admin.job_queue import unknown_queue_message
from framework.admin.queue_reader import is_known, known_queues
from framework.errors import UnknownNameError
from framework.shard.shard import Shard
from framework.terminal.jobs import PlaceOption, filter_options, read_filter
from framework.terminal.options import ChoiceOption, json_option, shard_option
from framework.terminal.output import echo, reports_errors
from framework.terminal.shards import ShardCommand, progress_reporter
from framework.text import format_count


class _GroupingOption(ChoiceOption):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if str(value).startswith(CONTEXT) and value != CONTEXT:
            return str(value)
        return super().convert(value, param, ctx)


@click.command("top")
@click.argument("place", type=PlaceOption(PLACES), metavar="PLACE")
@click.option(
    "--by",
    type=_GroupingOption((*GROUPINGS, f"{CONTEXT}NAME")),
    default=GROUPINGS[0],
    show_default=True,
    metavar="GROUPING",
    help=f"Group by {', '.join(GROUPINGS)}, or by a field of the context, such as {CONTEXT}user.",
)
@click.option("--exact", is_flag=True, help="Read every job, also where more than 10,000 are on a shard.")
@click.option(
    "--limit", type=click.IntRange(1), default=10, show_default=True, help="Show at most this number of groups."
)
@filter_options
@shard_option
@json_option
@reports_errors
def top(*, place: str, by: str, exact: bool, limit: int, names: Sequence[str], as_json: bool, **criteria: Any) -> None:
    """Count the jobs of PLACE by class, queue, error, tag or a field of their context.

    PLACE is queue:NAME, queues (all of them), scheduled, retry, dead, interrupted, held or running. Errors are grouped by their
    class, and by their message without numbers and ids. Where a shard has more than 10,000 jobs, the numbers are estimated from a
    sample: BETWEEN has their bounds, which contain the true number in 95 of 100 samples.

    Status 1: the queue is unknown, or a shard does not answer.
    """
    wanted, on = read_filter(criteria), ShardCommand(names)
    if place.startswith(QUEUE_PLACE):
        _check_queue(on, place.removeprefix(QUEUE_PLACE))
    count = GroupCount(place, by, wanted, on.settings, exact=exact)

    def read(shard: Shard) -> None:
        count.read(shard, progress_reporter(shard.name))

    answered = [shard for shard, _ in on.each(read)]
    found = count.result(limit)
    if as_json:
        on.print_json(_fields(found))
    elif answered:
        _show(on, found, is_filtered=bool(wanted))
    on.exit_if_unanswered()


def _check_queue(on: ShardCommand, queue: str) -> None:
    """Raise UnknownNameError if each shard answers, and none knows the queue."""
    known = [is_there for _, is_there in on.each(lambda shard: is_known(shard, queue))]
    if not any(known) and not on.unanswered:
        raise UnknownNameError(
            unknown_queue_message(queue, {name for _, names in on.each(known_queues) for name in names})
        )


def _fields(found: JobGroups) -> dict[str, Any]:
    return {
        "place": found.place,
        "by": found.by,
        "total": found.total,
        "examined": found.examined,
        "is_estimate": found.is_estimate,
        "groups": [one._asdict() for one in found.groups],
        "further": found.further,
        "unseen_at_most": found.unseen_at_most,
        "short_by": found.short_by,
    }


def _show(on: ShardCommand, found: JobGroups, *, is_filtered: bool) -> None:
    empty = f"No job in {found.place} matches" if is_filtered else f"No job is in {found.place}"
    heading, bounds = found.by.upper().replace("CONTEXT:", "CONTEXT "), ("BETWEEN",) if found.is_estimate else ()
    rows = [
        (one.name, _number_text(one, found), *_bounds_text(one, found), _share_text(one, found), one.example or "-")
        for one in found.groups
    ]
    on.print_table((heading, "JOBS", *bounds, "SHARE", "EXAMPLE"), rows, empty)
    if found.further:
        echo(f"and {format_count(found.further, 'further group')}: --limit shows more")
    if found.is_estimate:
        echo(
            f"Estimated from {found.examined:,} of {found.total:,} jobs; a group that was not seen has at most "
            f"{format_count(found.unseen_at_most, 'job')}. --exact counts all."
        )
    if found.short_by:
        echo(f"There are too many groups to count each: a number may be too small by {found.short_by:,}.")


def _number_text(one: JobGroup, found: JobGroups) -> str:
    return f"{'~' if found.is_estimate else ''}{one.jobs:,}"


def _bounds_text(one: JobGroup, found: JobGroups) -> Sequence[str]:
    return (f"{one.low:,} and {one.high:,}",) if found.is_estimate else ()


def _share_text(one: JobGroup, found: JobGroups) -> str:
    return f"{100 * one.jobs / found.total:.1f} %" if found.total else "-"
