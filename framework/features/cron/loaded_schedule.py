"""Find the entries of the schedule for the commands: those of the configuration, and those that were added at run time."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from framework.all_settings import Settings
from framework.cron.added import AddedEntries
from framework.cron.entries import CronEntry, collect_entries
from framework.cron.states import CronStates, Snapshot
from framework.declare.declaration import Declaration
from framework.exit_codes import EXIT_FAILED
from framework.push.protection import open_protection
from framework.route.router import Router
from framework.shard.shard import Shard
from framework.terminal.output import echo, refuse_unknown
from framework.terminal.project import load_project
from framework.terminal.shards import ShardCommand

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadedSchedule:
    """The configured entries of the project, and the shard of each."""

    settings: Settings
    router: Router
    entries: Mapping[str, CronEntry]
    shards: Mapping[str, str]

    def states(self, shard: Shard) -> CronStates:
        """Return the states of the entries on a shard."""
        return CronStates(shard.client, self.settings.cron.application, open_protection(self.settings).state)

    def shard_of(self, declaration: Declaration) -> str:
        """Return the shard of the jobs of a class."""
        return self.router.route(declaration).shard

    def added_on(self, shard: str) -> AddedEntries:
        """Return the reader of the entries that were added at run time on a shard."""
        return AddedEntries(self.settings, shard, self.shard_of)

    def find(self, name: str) -> tuple[CronEntry, ShardCommand]:
        """Return the entry of this name, and the command on its shard; end with status 1 if there is none."""
        configured = self.entries.get(name)
        if configured is not None:
            return configured, ShardCommand([self.shards[name]], "cron")
        on = ShardCommand([], "cron")
        known = [*self.entries]
        for shard, added in on.each(lambda one: self.states(one).read_added()):
            known += added
            if name not in added:
                continue
            found = self.added_on(shard).usable_entry(name, added[name])
            if isinstance(found, str):
                echo(f"{shard}: the entry {name} was added at run time and cannot be used here: {found}", err=True)
                sys.exit(EXIT_FAILED)
            return found, ShardCommand([shard], "cron")
        on.exit_if_unanswered()
        refuse_unknown([name], known, lambda one, near: f"no entry is named {one!r}{near}", status=EXIT_FAILED)
        raise AssertionError("unreachable")

    def each(self, name: str, step: Callable[[CronStates, CronEntry], T]) -> Sequence[tuple[str, T]]:
        """Run the step on the shard of an entry; end with status 1 if the shard does not answer, after ``step``."""
        entry, on = self.find(name)
        found = list(on.each(lambda one: step(self.states(one), entry)))
        on.exit_if_unanswered()
        return found


def load_schedule(modules: Sequence[str]) -> LoadedSchedule:
    """Load the project and its configured entries.

    Raises:
        ConfigurationError, DeclarationError: the project is invalid, and no process would boot.
    """
    project = load_project(modules)
    entries = collect_entries(project.settings)
    shards = {name: project.router.route(one.declaration).shard for name, one in entries.items()}
    return LoadedSchedule(project.settings, project.router, entries, shards)


def with_order(entry: CronEntry, snapshot: Snapshot) -> CronEntry:
    """Return the entry with the operators' order applied."""
    order = snapshot.orders.get(entry.name)
    return entry if order is None else entry.ordered(order)
