"""The groups of processes that serve the same queues: their slots, and those that are needed. Operators quiet or stop a group."""

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from framework.admin.process_list import ProcessSignal, WorkerProcess, read_running, send_signal
from framework.features.observability.fleet import FleetReader
from framework.features.observability.settings import ObservabilitySettings
from framework.features.observability.shard_watch import NeededSlots, RoutedClasses, classes_by_shard
from framework.pages.forms import Form
from framework.pages.shard_action import FormAt, RowAction
from framework.pages.table import Column, Rows, TablePage
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_count

_NAMED_QUEUES = 3
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes of a shard that serve the queues of a group of ``fleet.queue_groups``; without one, the same queues."""

    name: str
    queues: Sequence[str]
    processes: Sequence[WorkerProcess]
    needed: int
    """The slots that its queues need to keep their targets."""


class GroupRows(Rows[ProcessGroup]):
    """The groups of a shard. It remembers the last readings, from which the needed slots follow."""

    noun = "group"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needed: dict[str, NeededSlots] = {}
        self._reader: FleetReader | None = None

    def read(self, view: View, shard: Shard) -> Iterable[ProcessGroup]:
        """Return the groups of a shard."""
        installation = view.installation
        groups = ObservabilitySettings.of(installation.settings).fleet.queue_groups
        with self._lock:
            # Its parts read the routes and the schedule from files, once.
            reader = self._reader = self._reader or FleetReader(installation.settings)
        reading = reader.read(shard.name, shard.client, only_load=True)
        with self._lock:
            if shard.name not in self._needed:
                self._needed[shard.name] = NeededSlots(_classes(view, shard.name), groups)
            slots = self._needed[shard.name].note(reading)
        return groups_of(read_running(shard), groups, slots)

    def name_of(self, one: ProcessGroup) -> str:
        """Return the name."""
        return one.name

    def facts(self, one: ProcessGroup) -> Facts:
        """Return the sums of its processes."""
        listed = one.processes
        starts = [each.started_at for each in listed if each.started_at is not None]
        return {
            "processes": len(listed),
            "quiet": sum(1 for each in listed if each.is_quiet),
            "slots": sum(each.slots for each in listed if not each.is_quiet),
            "busy": sum(each.busy for each in listed),
            "needed": one.needed,
            "rss_bytes": sum(each.rss_kb for each in listed) * 1024,
            "largest_bytes": max((each.rss_kb for each in listed), default=0) * 1024,
            "versions": ", ".join(sorted({each.version for each in listed if each.version})),
            "started_at": min(starts, default=None),
            "queues": ", ".join(one.queues),
        }


class SignalGroup(RowAction[ProcessGroup]):
    """Leave a signal for each process of a group."""

    signal: ClassVar[ProcessSignal]
    follows: ClassVar[str]

    def __init__(self, rows: GroupRows) -> None:
        self.rows = rows

    def shown(self, at: FormAt, one: ProcessGroup) -> str:
        """Return what would be asked."""
        busy = sum(each.busy for each in one.processes)
        processes = format_count(len(one.processes), "process")
        return Sentence(
            "{name} on {shard}: {processes}, {jobs} running",
            name=one.name,
            shard=at.shard.name,
            processes=processes,
            jobs=format_count(busy, "job", "is"),
        )

    def effect(self, form: Form) -> str:  # noqa: ARG002 - of ShardAction
        """Return what follows."""
        return self.follows

    def change(self, at: FormAt, one: ProcessGroup) -> int:
        """Ask each process that reads signals, and return their number."""
        listed = [each.identity for each in one.processes if not each.embedded]
        return sum(send_signal(at.shard.client, identity, self.signal) for identity in listed)

    def done(self, count: int) -> str:
        """Return how many were asked."""
        return Sentence("{processes} asked; each reads it within ten seconds", processes=format_count(count, "process"))


class QuietGroup(SignalGroup):
    """Let all processes of a group fetch no more jobs."""

    name = "quiet"
    label = "Quiet"
    record = "jobs quiet"
    signal = "TSTP"
    follows = Sentence("All processes of the group fetch no more jobs, and end the jobs that they run.")


class StopGroup(SignalGroup):
    """Let all processes of a group end."""

    name = "stop"
    label = "Stop"
    record = "jobs stop"
    signal = "TERM"
    follows = Sentence(
        "All processes of the group fetch no more jobs, give running jobs their timeout, and end. What has not ended runs again. "
        "A supervisor starts other processes for them."
    )


class GroupsPage(TablePage[ProcessGroup]):
    """Show the groups with the most missing slots first."""

    name = "groups"
    path = "/groups"
    title = "Process groups"
    menu = "work"
    mends = ("few_slots", "unserved")
    heading = "Group"
    most = 30
    columns = (
        Column("Processes", "processes", "count"),
        Column("Quiet", "quiet", "count"),
        Column("Busy", "busy", "count"),
        Column("Slots", "slots", "count"),
        Column("Slots needed", "needed", "count"),
        Column("Memory", "rss_bytes", "bytes"),
        Column("The largest", "largest_bytes", "bytes"),
        Column("Version", "versions"),
        Column("Started", "started_at", "time"),
        Column("Queues", "queues", "code"),
    )
    about = (
        "A group of the setting fleet.queue_groups, or else the processes of the same queues. The needed slots keep the queueing "
        "targets. While the page is open they follow from the runs of the last minute, at first from the waiting jobs alone."
    )
    empty = "No process is running, and no queue needs one."

    def __init__(self) -> None:
        self.rows = GroupRows()
        self.actions = (QuietGroup(self.rows), StopGroup(self.rows))

    def order(self, row: Facts) -> Any:
        """Return the most missing slots first."""
        return row["slots"] - row["needed"], row["name"], row["shard"]


def groups_of(
    processes: Iterable[WorkerProcess], groups: Mapping[str, Sequence[str]], slots: Mapping[str, int]
) -> list[ProcessGroup]:
    """Return the groups of these processes, and those groups and queues without a process that need slots.

    A process belongs to the group of which it serves most queues. ``slots`` are the needed ones by group; a queue of no group is a
    group of its own.
    """
    members: dict[str, tuple[Sequence[str], list[WorkerProcess]]] = {
        name: (queues, []) for name, queues in groups.items() if slots.get(name)
    }
    for one in processes:
        name, queues = _group_of(one, groups)
        members.setdefault(name, (queues, []))[1].append(one)
    grouped = {queue for queues in groups.values() for queue in queues}
    served = {queue for queues, listed in members.values() if listed for queue in queues} | groups.keys()
    unserved = [queue for queue, needed in slots.items() if needed and queue not in served]
    members |= {queue: ([queue], []) for queue in unserved}
    return [
        ProcessGroup(
            name,
            queues,
            listed,
            slots.get(name, 0) if name in groups else sum(slots.get(one, 0) for one in queues if one not in grouped),
        )
        for name, (queues, listed) in members.items()
    ]


def _group_of(one: WorkerProcess, groups: Mapping[str, Sequence[str]]) -> tuple[str, Sequence[str]]:
    served = set(one.queues)
    shares = {name: len(served.intersection(queues)) for name, queues in groups.items()}
    best = max(shares, key=lambda name: shares[name], default="")
    if best and shares[best]:
        return best, groups[best]
    named = ", ".join(one.queues[:_NAMED_QUEUES])
    if len(one.queues) > _NAMED_QUEUES:
        # Other sets may begin with the same queues.
        digest = hashlib.sha256("\n".join(one.queues).encode()).hexdigest()[:_DIGITS]
        named += f" and {len(one.queues) - _NAMED_QUEUES} more ({digest})"
    return named or "no queue", one.queues


def _classes(view: View, shard: str) -> RoutedClasses:
    installation = view.installation
    declarations = installation.classes.declarations or {}
    if installation.router is None:
        return RoutedClasses(())
    own = [one for name, one in declarations.items() if name == one.wire_name]
    return classes_by_shard(installation.router, own).get(shard, RoutedClasses(()))
