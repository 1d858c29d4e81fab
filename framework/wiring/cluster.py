"""Build the supervisor of a group, which renews and removes its children's leases."""

from collections.abc import Sequence

from framework import timings
from framework.all_settings import Settings
from framework.cluster.child import ChildSpec, OnEvent
from framework.cluster.supervisor import KILL_MARGIN_S, ChildLeases, GroupLeases, Supervisor
from framework.process.events import DEATH_LIMIT_S, ProcessEvents
from framework.shard.shard import Shard
from framework.shard.shards import open_shards
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.supervised_threads import report_to
from framework.telemetry.shared_counts import GroupCounts


def open_supervisor(
    settings: Settings,
    specs: Sequence[ChildSpec],
    timeout_s: float,
    on_event: OnEvent | None = None,
    counts: GroupCounts | None = None,
) -> Supervisor:
    """Return a supervisor of ``specs``, not started. Another child recovers the jobs of a dead child at once.

    ``timeout_s``: the time that running jobs have at the stop. ``counts``: where the children count, if the cluster serves metrics.
    """
    shards = open_shards(settings, role="supervisor")
    by_shard = {name: _open_leases(shards[name]) for name in sorted({spec.shard for spec in specs})}
    leases = GroupLeases(by_shard)
    # The other threads of the supervisor, such as the one of the health server, end it too.
    for _, events in list(by_shard.values())[:1]:
        report_to(events.component_died)
    for _, events in by_shard.values():
        # The children end first.
        events.death_limit_s = timeout_s + KILL_MARGIN_S + DEATH_LIMIT_S
    return Supervisor(specs, leases=leases, on_event=on_event, counts=counts)


def _open_leases(shard: Shard) -> tuple[ChildLeases, ProcessEvents]:
    events = ProcessEvents(shard.name, user=shard.endpoint.user)
    client = shard.open_client("leases", read_timeout_s=COMMAND_TIMEOUT_S)
    return ChildLeases(shard.name, client, events, timings.current()), events
