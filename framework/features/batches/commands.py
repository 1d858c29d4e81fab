"""``application-worker batches``: list batches of jobs, show one, cancel or delete it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice

import click

from framework.admin.batch_set import change_batch, find_batch, list_batches
from framework.declare.batch_port import BatchStatus
from framework.features.batches.group_commands import GroupKind
from framework.shard.groups import scan_members
from framework.shard.shard import Shard
from framework.terminal.groups import CommandGroup
from framework.terminal.options import json_option, shard_option, yes_option
from framework.terminal.output import echo_lines, reports_errors
from framework.terminal.shards import ShardCommand
from framework.text import format_count, format_time
from framework.wire.batch_fields import BatchAction, is_bid

_HEADINGS = ("SHARD", "BATCH", "STATE", "TOTAL", "PENDING", "FAILURES", "DEAD", "REMOVED", "DESCRIPTION")
_TIMES = ("created", "complete", "success", "death", "finished", "invalidated", "cancelled", "expires")
# Ids of `show`; the rest is counted.
_SHOWN_JIDS = 20


@click.group("batches", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def batches() -> None:
    """List batches of jobs, show one, cancel or delete it.

    Code makes them with framework.batches.Batch.
    """


@batches.command("list")
@shard_option
@json_option
@reports_errors
def list_all(*, names: Sequence[str], as_json: bool) -> None:
    """List all batches, the newest first."""
    _KIND.print_list(names, as_json=as_json)


@batches.command("show")
@click.argument("bid", metavar="BATCH")
@shard_option
@json_option
@reports_errors
def show(bid: str, *, names: Sequence[str], as_json: bool) -> None:
    """Show one batch: its counts, its events, and the ids of failed and dead jobs.

    Status 1: no shard has the batch, or a shard does not answer.
    """
    _KIND.check_id(bid)
    on = ShardCommand(names, "batches")

    def look(shard: Shard) -> tuple[BatchStatus, list[str], list[str]] | None:
        status = find_batch(shard, bid)
        if status is None:
            return None
        failed, dead = scan_members(shard.client, bid, "failed"), scan_members(shard.client, bid, "dead")
        return status, list(islice(failed, _SHOWN_JIDS)), list(islice(dead, _SHOWN_JIDS))

    found = [one for _, one in on.each(look) if one is not None]
    if as_json:
        shown = [{**asdict(status), "failed_jids": failed, "dead_jids": dead} for status, failed, dead in found]
        on.print_json({"found": shown})
    else:
        for one in found:
            echo_lines(_lines(*one))
    on.exit_if_unanswered()
    _KIND.exit_if_unknown(bid, known=bool(found))


@batches.command("cancel")
@click.argument("bid", metavar="BATCH")
@yes_option
@shard_option
@reports_errors
def cancel(bid: str, *, yes: bool, names: Sequence[str]) -> None:
    """Cancel the jobs of a batch and of its nested ones.

    Jobs that wait do not start any more, and running jobs are asked to end. Processes see this within five seconds. The events
    `complete` and `finished` happen when all jobs have ended.

    Status 1: no shard has the batch, or a shard does not answer.
    """
    _change(bid, "cancel", names, yes=yes, question="Cancel the jobs of", done="is cancelled")


@batches.command("delete")
@click.argument("bid", metavar="BATCH")
@yes_option
@shard_option
@reports_errors
def delete(bid: str, *, yes: bool, names: Sequence[str]) -> None:
    """Delete the state of a batch: its jobs still run, and no callback of it is enqueued any more.

    Status 1: no shard has the batch, or a shard does not answer.
    """
    _change(bid, "delete", names, yes=yes, question="Delete", done="is deleted; its jobs stay")


def _change(bid: str, action: BatchAction, names: Sequence[str], *, yes: bool, question: str, done: str) -> None:
    _KIND.change(
        bid,
        names,
        lambda shard, one: change_batch(shard, one.bid, action),
        yes=yes,
        question=lambda one: f"{question} the batch {bid} with {format_count(one.pending, 'pending job')}?",
        done=done,
    )


def _state(one: BatchStatus) -> str:
    if one.cancelled_at is not None:
        return "cancelled"
    if one.open:
        return "open"
    if one.succeeded:
        return "succeeded"
    if one.finished:
        return "finished"
    return "complete" if one.complete else "pending"


def _row(one: BatchStatus) -> Sequence[str]:
    counts = (one.total, one.pending, one.failures, one.dead, one.removed)
    return one.shard, one.bid, _state(one), *(f"{count:,}" for count in counts), one.description or "-"


def _lines(one: BatchStatus, failed: list[str], dead: list[str]) -> Iterator[str]:
    yield f"{one.bid} on {one.shard}: {_state(one)}{f', {one.description}' if one.description else ''}"
    yield (
        f"  jobs      {one.total:,} in total, {one.pending:,} pending, {one.failures:,} failed, {one.dead:,} dead, "
        f"{one.removed:,} removed"
    )
    if one.parent:
        yield f"  nested in {one.parent}"
    if one.children:
        yield f"  nested    {format_count(one.children, 'batch')}"
    for name in _TIMES:
        at = getattr(one, f"{name}_at")
        if at is not None:
            yield f"  {name:<11} {format_time(at)}"
    for title, jids, count in (("failed", failed, one.failures - one.dead), ("dead", dead, one.dead)):
        if jids:
            more = f" and {count - len(jids):,} more" if count > len(jids) else ""
            yield f"  {title:<11} {' '.join(jids)}{more}"


_KIND = GroupKind(
    noun="batch",
    command="batches",
    id_prefix="aw-",
    is_id=is_bid,
    list_all=list_batches,
    find=find_batch,
    headings=_HEADINGS,
    row=_row,
    why_unknown="it was deleted, has expired, or never had jobs",
)
