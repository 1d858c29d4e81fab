"""Build the supervisor of a group, which renews and removes its children's leases."""

from collections.abc import Sequence

from framework import timings
from framework.cluster.child import ChildSpec, OnEvent
from framework.cluster.child_leases import ChildLeases
from framework.cluster.supervisor import Supervisor
from framework.process.events import ProcessEvents
from framework.settings.model import Settings
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.wiring.client import open_shards


def open_supervisor(settings: Settings, specs: Sequence[ChildSpec], on_event: OnEvent | None = None) -> Supervisor:
    """Return a supervisor of ``specs``, not started. Another child recovers the jobs of a dead child at once."""
    return Supervisor(specs, leases=_ShardLeases(settings, sorted({spec.shard for spec in specs})), on_event=on_event)


class _ShardLeases:
    """The lease manager of a group: one ``ChildLeases`` per shard, each with its own thread and connection."""

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        shards = open_shards(settings, role="supervisor")
        self._events = {name: ProcessEvents(name, user=shards[name].endpoint.user) for name in names}
        self._by_shard = {
            name: ChildLeases(
                name,
                shards[name].open_client("leases", read_timeout_s=COMMAND_TIMEOUT_S),
                self._events[name],
                timings.current(),
            )
            for name in names
        }

    @property
    def failed(self) -> bool:
        return any(events.died.is_set() for events in self._events.values())

    def start(self, group: Supervisor) -> None:
        for leases in self._by_shard.values():
            leases.start(group)

    def mark_dead(self, shard: str, identity: str) -> None:
        self._by_shard[shard].mark_dead(identity)

    def stop(self) -> None:
        for leases in self._by_shard.values():
            leases.stop()
