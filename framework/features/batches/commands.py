"""``application-worker batches``: list batches of jobs, show one, cancel or delete it. Workflows have the same commands.

A group of jobs is a batch or a workflow, on one shard, with an id.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import click

from framework.command_line import EXIT_FAILED
from framework.features.batches.batch import BatchStatus
from framework.features.batches.store import change_batch, find_batch, list_batches, scan_members
from framework.shard.shard import Shard
from framework.terminal.groups import CommandGroup
from framework.terminal.options import confirm, json_option, shard_option, yes_option
from framework.terminal.output import echo, echo_lines, reports_errors
from framework.terminal.shards import ShardCommand
from framework.text import format_count, format_time
from framework.wire.job import BID_PREFIX, is_bid

Status = TypeVar("Status")

_TIMES = ("created", "complete", "success", "death", "finished", "invalidated", "cancelled", "expires")
# Ids of `show`; the rest is counted.
_SHOWN_JIDS = 20

GroupAction: TypeAlias = Literal["cancel", "delete"]


class GroupChange(NamedTuple):
    """A command that changes one group."""

    action: GroupAction
    question: str
    """The begin of the question to the operator, before the description of the group."""
    done: str
    help: str


class GroupCommands(ABC, Generic[Status]):
    """The commands of one kind of groups, and how its groups are read and shown."""

    noun: ClassVar[str]
    """In messages: ``batch``, ``workflow``."""
    command: ClassVar[str]
    """The command of the kind, and the key of its list in JSON."""
    id_prefix: ClassVar[str]
    headings: ClassVar[Sequence[str]]
    why_unknown: ClassVar[str]
    """Ends the message for an id that no shard has."""

    @abstractmethod
    def is_id(self, text: str) -> bool:
        """Return whether a text may be the id of a group."""

    @abstractmethod
    def list_all(self, shard: Shard) -> Iterable[Status]:
        """Yield the groups of a shard. Raises redis errors."""

    @abstractmethod
    def find(self, shard: Shard, group_id: str) -> Status | None:
        """Return a group, ``None`` if the shard does not have it. Raises redis errors."""

    @abstractmethod
    def change(self, shard: Shard, group_id: str, action: GroupAction) -> bool:
        """Change a group; return whether the shard still has it."""

    @abstractmethod
    def row(self, one: Status) -> Sequence[str]:
        """Return the cells of a group below ``headings``."""

    @abstractmethod
    def describe(self, one: Status) -> str:
        """Return the end of a question about a group, behind its id."""

    def make(self, text: str, list_text: str, changes: Sequence[GroupChange]) -> click.Group:
        made = CommandGroup(self.command, help=text, context_settings={"help_option_names": ["-h", "--help"]})

        @made.command("list", help=list_text)
        @shard_option
        @json_option
        @reports_errors
        def list_all(*, names: Sequence[str], as_json: bool) -> None:
            self._print_list(names, as_json=as_json)

        for one in changes:
            made.add_command(self._change_command(one))
        return made

    def _change_command(self, one: GroupChange) -> click.Command:
        @click.command(one.action, help=one.help)
        @click.argument("group_id", metavar=self.noun.upper())
        @yes_option
        @shard_option
        @reports_errors
        def change(group_id: str, *, yes: bool, names: Sequence[str]) -> None:
            self._change_on(group_id, one, names, yes=yes)

        return change

    def _print_list(self, names: Sequence[str], *, as_json: bool) -> None:
        on = ShardCommand(names, self.command)
        found: list[Any] = [one for _, page in on.each(lambda shard: list(self.list_all(shard))) for one in page]
        found.sort(key=lambda one: -one.created_at)
        if as_json:
            on.print_json({self.command: [asdict(one) for one in found]})
        else:
            on.print_table(self.headings, [self.row(one) for one in found], f"There is no {self.noun}")
        on.exit_if_unanswered()

    def _change_on(self, group_id: str, to: GroupChange, names: Sequence[str], *, yes: bool) -> None:
        """Ask the operator once, then change the group on each shard that has it."""
        self.check_id(group_id)
        on = ShardCommand(names, self.command)
        found = {name: one for name, one in on.each(lambda shard: self.find(shard, group_id)) if one is not None}
        for one in found.values():
            confirm(f"{to.question} the {self.noun} {group_id} {self.describe(one)}?", yes=yes)
        for name, changed in on.each(lambda shard: shard.name in found and self.change(shard, group_id, to.action)):
            if changed:
                echo(f"{name}: the {self.noun} {group_id} {to.done}")
        on.exit_if_unanswered()
        self.exit_if_unknown(group_id, known=bool(found))

    def check_id(self, group_id: str) -> None:
        """End the command with status 2 if the text cannot be an id of the kind."""
        if not self.is_id(group_id):
            begins = f"it begins with {self.id_prefix!r}; {self.command} list shows the ids"
            raise click.UsageError(f"{group_id!r} is no id of a {self.noun}: {begins}.")

    def exit_if_unknown(self, group_id: str, *, known: bool) -> None:
        """End the command with status 1 if no shard has the group."""
        if not known:
            echo(f"no shard has the {self.noun} {group_id}: {self.why_unknown}", err=True)
            sys.exit(EXIT_FAILED)


class _BatchCommands(GroupCommands[BatchStatus]):
    noun = "batch"
    command = "batches"
    id_prefix = BID_PREFIX
    headings = ("SHARD", "BATCH", "STATE", "TOTAL", "PENDING", "FAILURES", "DEAD", "REMOVED", "DESCRIPTION")
    why_unknown = "it was deleted, has expired, or never had jobs"

    def is_id(self, text: str) -> bool:
        return is_bid(text)

    def list_all(self, shard: Shard) -> Iterator[BatchStatus]:
        return list_batches(shard)

    def find(self, shard: Shard, group_id: str) -> BatchStatus | None:
        return find_batch(shard, group_id)

    def change(self, shard: Shard, group_id: str, action: GroupAction) -> bool:
        return bool(change_batch(shard, group_id, action))

    def row(self, one: BatchStatus) -> Sequence[str]:
        counts = (one.total, one.pending, one.failures, one.dead, one.removed)
        return one.shard, one.bid, _state(one), *(f"{count:,}" for count in counts), one.description or "-"

    def describe(self, one: BatchStatus) -> str:
        return f"with {format_count(one.pending, 'pending job')}"


_BATCHES = _BatchCommands()

batches = _BATCHES.make(
    """List batches of jobs, show one, cancel or delete it.

    Code makes them with framework.batches.Batch.
    """,
    "List all batches, the newest first.",
    (
        GroupChange(
            "cancel",
            "Cancel the jobs of",
            "is cancelled",
            """Cancel the jobs of a batch and of its nested ones.

            Jobs that wait do not start any more, and running jobs are asked to end. Processes see this within five seconds. The
            events `complete` and `finished` happen when all jobs have ended.

            Status 1: no shard has the batch, or a shard does not answer.
            """,
        ),
        GroupChange(
            "delete",
            "Delete",
            "is deleted; its jobs stay",
            """Delete the state of a batch: its jobs still run, and no callback of it is enqueued any more.

            Status 1: no shard has the batch, or a shard does not answer.
            """,
        ),
    ),
)


@batches.command("show")
@click.argument("bid", metavar="BATCH")
@shard_option
@json_option
@reports_errors
def show(bid: str, *, names: Sequence[str], as_json: bool) -> None:
    """Show one batch: its counts, its events, and the ids of failed and dead jobs.

    Status 1: no shard has the batch, or a shard does not answer.
    """
    _BATCHES.check_id(bid)
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
    _BATCHES.exit_if_unknown(bid, known=bool(found))


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
