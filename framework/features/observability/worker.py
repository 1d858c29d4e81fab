"""Make the series of a worker process with zero, and set its gauges."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from framework.declare import port, registry
from framework.execute.stats import RunningJobs
from framework.feature import Late
from framework.features.observability.observer import observer
from framework.features.observability.settings import ObservabilitySettings
from framework.features.observability.tally import UNKNOWN, Tally, labels_of
from framework.fetch.unit_of_work import UnitOfWork
from framework.process.record import resident_bytes
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.push.client import Client
from framework.shard.shard import Shard
from framework.wire.footprint import LARGE_PAYLOAD
from framework.wire.json import loads_object

# Only a process with `fleet.reporter` loads it.
if TYPE_CHECKING:
    from framework.features.observability.reporter import ReporterLease

_SHARDS: "Late[Callable[[Client], Sequence[Shard]]]" = Late("framework.features.observability.worker:shards_of")
_LEASE: "Late[type[ReporterLease]]" = Late("framework.features.observability.reporter:ReporterLease")


def worker_part(process: ProcessContext) -> WorkerPart:
    settings = ObservabilitySettings.of(process.settings)
    tally = observer(settings)
    # A process without /metrics counts nothing, and reports nothing.
    if tally is None:
        return WorkerPart()
    lease = [_LEASE.load()(process).renew] if settings.fleet.reporter else []
    tally.shard = process.shard.name
    served = {name for plan in process.plans for name in plan.order.names}
    ran: set[tuple[str, str]] = set()
    for worker in registry.workers():
        declaration = worker.declaration()
        route = process.router.route(declaration)
        for shard in process.router.shards_of(declaration):
            tally.declare(declaration, route.queue, shard)
        if tally.shard in process.router.shards_of(declaration) and route.queue in served:
            tally.declare_runs(declaration, route.queue)
            ran.add((declaration.wire_name, route.queue))
    gauges = ProcessGauges(tally, process, ran)
    tally.sample.append(gauges.set)
    # A supervisor reads what the process wrote last.
    return WorkerPart(refresh=gauges.set, periodic=(gauges.set, *lease))


def shards_of(client: Client) -> Sequence[Shard]:
    """Return the shards to which this process pushes."""
    return list(client.shards.values())


class ProcessGauges:
    """The gauges of a worker process."""

    def __init__(self, tally: Tally, process: ProcessContext, ran: set[tuple[str, str]]) -> None:
        """``ran`` are the classes with their queues whose running jobs have not been written yet: each is at zero."""
        self._tally = tally
        self._process = process
        self._slots = sum(plan.slots for plan in process.plans)
        self._lock = threading.Lock()
        self._ran = ran

    def set(self) -> None:
        """Write the current values. Safe from any thread."""
        with self._lock:
            self._set()

    def _set(self) -> None:
        tally, pid, state = self._tally, self._tally.pid, self._process.shared_state
        running = Counter(map(_class_and_queue, _units(self._process.runs)))
        # A class that neither runs nor ran at the last call has the right value.
        for worker, queue in self._ran | running.keys():
            labels = (*labels_of(worker, queue, tally.shard), pid)
            tally.set_gauge("sidekiq_running_jobs", running[worker, queue], *labels)
        self._ran = set(running)
        tally.set_gauge("sidekiq_concurrency", self._slots, pid)
        tally.set_gauge("application_worker_processes", 1)
        tally.set_gauge("application_worker_resident_bytes", resident_bytes(os.getpid()), pid)
        for shard in port.current().service(_SHARDS):
            tally.set_gauge("application_worker_circuit_open", int(shard.circuit_open), shard.name, pid)
        own, now = (tally.shard, pid), time.monotonic()
        tally.set_gauge("application_worker_redis_round_trip_seconds", self._process.absent.round_trip_s, *own)
        for name, at in (("fetch", state.fetched_at), ("heartbeat", state.heartbeat_at)):
            if at:
                tally.set_gauge(f"application_worker_{name}_age_seconds", now - at, *own)


def _units(runs: RunningJobs) -> list[UnitOfWork]:
    return [unit for unit, _ in runs.running().values()]


def _class_and_queue(unit: UnitOfWork) -> tuple[str, str]:
    known = unit.payload_without_args
    if known is None:
        known = loads_object(unit.data) if len(unit.data) < LARGE_PAYLOAD else {}
    worker = registry.find(str(known.get("class", "")))
    return (UNKNOWN if worker is None else worker.declaration().wire_name), unit.queue
