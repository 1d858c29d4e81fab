"""Share code between ``batches`` and ``workflows``. A group of jobs is a batch or a workflow, on one shard, with an id."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

import click

from framework.declare.batch_port import BatchStatus
from framework.declare.workflow_port import WorkflowStatus
from framework.exit_codes import EXIT_FAILED
from framework.shard.shard import Shard
from framework.terminal.options import confirm
from framework.terminal.output import echo
from framework.terminal.shards import ShardCommand

Status = TypeVar("Status", BatchStatus, WorkflowStatus)


@dataclass(frozen=True, slots=True)
class GroupKind(Generic[Status]):
    """A kind of groups of jobs, and how its groups are read and shown."""

    noun: str
    """In messages: ``batch``, ``workflow``."""
    command: str
    """The command of the kind, and the key of its list in JSON."""
    id_prefix: str
    is_id: Callable[[str], bool]
    list_all: Callable[[Shard], Iterable[Status]]
    find: Callable[[Shard, str], Status | None]
    headings: Sequence[str]
    row: Callable[[Status], Sequence[str]]
    why_unknown: str
    """Ends the message for an id that no shard has."""

    def print_list(self, names: Sequence[str], *, as_json: bool) -> None:
        """Print the groups of the shards, the newest first; end with status 1 if a shard does not answer."""
        on = ShardCommand(names, self.command)
        found = [one for _, page in on.each(lambda shard: list(self.list_all(shard))) for one in page]
        found.sort(key=lambda one: -one.created_at)
        if as_json:
            on.print_json({self.command: [asdict(one) for one in found]})
        else:
            on.print_table(self.headings, [self.row(one) for one in found], f"There is no {self.noun}")
        on.exit_if_unanswered()

    def change(
        self,
        group_id: str,
        names: Sequence[str],
        step: Callable[[Shard, Status], bool],
        *,
        yes: bool,
        question: Callable[[Status], str],
        done: str,
    ) -> None:
        """Ask the operator once, then change the group on each shard that has it.

        ``step`` changes it on a shard, and returns whether the shard still had it. Ends with status 1 if no shard has the group, or
        a shard does not answer.
        """
        self.check_id(group_id)
        on = ShardCommand(names, self.command)
        found = {name: one for name, one in on.each(lambda shard: self.find(shard, group_id)) if one is not None}
        for one in found.values():
            confirm(question(one), yes=yes)
        for name, changed in on.each(lambda shard: shard.name in found and step(shard, found[shard.name])):
            if changed:
                echo(f"{name}: the {self.noun} {group_id} {done}")
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
