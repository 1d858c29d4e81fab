"""``application-worker batches``: list batches of jobs, show one, cancel or delete it. Workflows have the same commands.

A group of jobs is a batch or a workflow, on one shard, with an id.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import click

from framework.features.batches.batch import BatchStatus
from framework.features.batches.store import change_batch, find_batch, list_batches, scan_members
from framework.shard.shard import Shard
from framework.terminal.groups import CommandGroup
from framework.terminal.options import json_option, shard_option, yes_option
from framework.terminal.output import echo_lines, reports_errors
from framework.terminal.shards import ChangeWords, NamedTable, ShardCommand
from framework.text import format_count, format_time
from framework.wire.job import BID_PREFIX, is_bid

Status = TypeVar("Status", bound=Any)

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


class GroupCommands(NamedTable[Status]):
    """The commands of one kind of groups. ``field`` is also their name."""

    noun: ClassVar[str]
    """In messages: ``batch``, ``workflow``."""
    id_prefix: ClassVar[str]
    why_unknown: ClassVar[str]
    """Ends the message for an id that no shard has."""

    @abstractmethod
    def is_id(self, text: str) -> bool:
        """Return whether a text may be the id of a group."""

    @abstractmethod
    def list_all(self, shard: Shard) -> Iterable[Status]:
        """Yield the groups of a shard. Raises redis errors."""

    @abstractmethod
    def change_group(self, shard: Shard, group_id: str, action: GroupAction) -> bool:
        """Change a group; return whether the shard still has it."""

    @abstractmethod
    def details(self, shard: Shard, one: Status, /) -> tuple[Mapping[str, Any], Iterable[str]]:
        """Return the JSON of one group that its list does not have, and its lines. Raises redis errors."""

    def make(self, text: str, list_text: str, changes: Sequence[GroupChange]) -> click.Group:
        made = CommandGroup(self.field, help=text, context_settings={"help_option_names": ["-h", "--help"]})

        @made.command("list", help=list_text)
        @shard_option
        @json_option
        @reports_errors
        def list_all(*, names: Sequence[str], as_json: bool) -> None:
            on = ShardCommand(names, self.field)
            found = sorted(on.read(self.list_all), key=lambda row: -row.one.created_at)
            on.show(self.of(found, f"There is no {self.noun}"), as_json=as_json)
            on.exit_if_unanswered()

        for one in changes:
            made.add_command(self._change_command(one))
        return made

    def show_command(self, name: str, text: str) -> click.Command:
        @click.command(name, help=text)
        @click.argument("group_id", metavar=self.noun.upper())
        @shard_option
        @json_option
        @reports_errors
        def show(group_id: str, *, names: Sequence[str], as_json: bool) -> None:
            on = self._open(group_id, names)
            found = [one for _, one in on.each(lambda shard: self._look(shard, group_id)) if one is not None]
            if as_json:
                on.print_json({"found": [{**self.facts(one), **more} for one, more, _ in found]})
            else:
                for _, _, lines in found:
                    echo_lines(lines)
            on.exit_unless(found, self._unknown(group_id))

        return show

    def _change_command(self, to: GroupChange) -> click.Command:
        @click.command(to.action, help=to.help)
        @click.argument("group_id", metavar=self.noun.upper())
        @yes_option
        @shard_option
        @reports_errors
        def change(group_id: str, *, yes: bool, names: Sequence[str]) -> None:
            on, group = self._open(group_id, names), f"the {self.noun} {group_id}"
            words = ChangeWords(
                f"{to.question} {group}", f"{group} {to.done}", f"{group} is gone", self._unknown(group_id)
            )
            self.change(on, group_id, lambda shard, _: self.change_group(shard, group_id, to.action), words, yes=yes)

        return change

    def _look(self, shard: Shard, group_id: str) -> tuple[Status, Mapping[str, Any], Iterable[str]] | None:
        one = self.find(shard, group_id)
        return None if one is None else (one, *self.details(shard, one))

    def _open(self, group_id: str, names: Sequence[str]) -> ShardCommand:
        """Return the command on the shards; end it with status 2 if the text cannot be an id of the kind."""
        if not self.is_id(group_id):
            begins = f"it begins with {self.id_prefix!r}; {self.field} list shows the ids"
            raise click.UsageError(f"{group_id!r} is no id of a {self.noun}: {begins}.")
        return ShardCommand(names, self.field)

    def _unknown(self, group_id: str) -> str:
        return f"no shard has the {self.noun} {group_id}: {self.why_unknown}"


class _BatchCommands(GroupCommands[BatchStatus]):
    noun = "batch"
    field = "batches"
    id_prefix = BID_PREFIX
    headings = ("BATCH", "STATE", "TOTAL", "PENDING", "FAILURES", "DEAD", "REMOVED", "DESCRIPTION")
    why_unknown = "it was deleted, has expired, or never had jobs"

    def is_id(self, text: str) -> bool:
        return is_bid(text)

    def list_all(self, shard: Shard) -> Iterator[BatchStatus]:
        return list_batches(shard)

    def find(self, shard: Shard, name: str) -> BatchStatus | None:
        return find_batch(shard, name)

    def change_group(self, shard: Shard, group_id: str, action: GroupAction) -> bool:
        return bool(change_batch(shard, group_id, action))

    def row(self, one: BatchStatus, _now: float) -> Sequence[str]:
        counts = (one.total, one.pending, one.failures, one.dead, one.removed)
        return one.bid, _state(one), *(f"{count:,}" for count in counts), one.description or "-"

    def question_end(self, _shard: Shard, one: BatchStatus) -> str:
        return f"with {format_count(one.pending, 'pending job')}"

    def details(self, shard: Shard, one: BatchStatus) -> tuple[Mapping[str, Any], Iterable[str]]:
        failed = list(islice(scan_members(shard.client, one.bid, "failed"), _SHOWN_JIDS))
        dead = list(islice(scan_members(shard.client, one.bid, "dead"), _SHOWN_JIDS))
        return {"failed_jids": failed, "dead_jids": dead}, _lines(one, failed, dead)


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


batches.add_command(
    _BATCHES.show_command(
        "show",
        """Show one batch: its counts, its events, and the ids of failed and dead jobs.

        Status 1: no shard has the batch, or a shard does not answer.
        """,
    )
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
