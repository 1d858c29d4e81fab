"""The components of one worker process, which ``framework.wiring`` builds and the launcher runs, and their periodic tasks."""

import json
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, cast

import redis
from redis.exceptions import RedisError

from framework.execute.admission import renew_slots
from framework.fetch.queues import QueueOrder
from framework.process.capsules import Capsules
from framework.process.events import EvictionCheck, ProcessEvents
from framework.process.heartbeat import HOOKS_LIMIT_S, PeriodicTask, ProcessLease
from framework.process.metrics import SidekiqMetrics
from framework.process.orders import OrderReader
from framework.process.push_back import PushBack
from framework.process.record import ProcessRecord
from framework.process.shared_state import SharedState
from framework.process.signals import SignalQueue, accepted_signals
from framework.process.title import Title
from framework.process.unserved import UnservedWatch
from framework.process.worker_parts import ProcessContext, WorkerParts
from framework.recover.reaper import Reaper, jittered
from framework.schedule.poller import Poller
from framework.store.script import END_PAUSES
from framework.telemetry import logs
from framework.telemetry.counters import counters
from framework.text import decode_escaped
from framework.timings import Timings
from framework.wire import keys
from framework.wire.json import loads_object

_PAUSE_KEYS = [keys.PAUSED, keys.PAUSE_ENDS]

# The difference between the host's clock and Redis's clock from which a warning is due.
_MAX_SKEW_S = 2.0

_MOST_LISTED = 20
"""Running jobs that the line about lost data lists."""


class Closeable(Protocol):
    """A client or a pool of channels."""

    def close(self) -> None:
        """Close the connections."""


class BlockingQueues:
    """The blocking queues of a process. Without any, a check costs nothing.

    A blocking queue has jobs while one waits in it, or runs in a process of the shard. Then the process fetches no jobs of the
    queues behind it in the order of its capsule; without a strict order, of no other queue of the capsule that does not block.
    """

    def __init__(
        self,
        client: "redis.Redis",
        names: Collection[str],
        orders: Sequence[QueueOrder],
        capsules: Capsules,
    ) -> None:
        self._client = client
        self._capsules = capsules
        self._behind = _queues_behind(names, orders)

    def blocked(self) -> set[str]:
        """Return the queues that wait now. Raises redis errors."""
        if not self._behind:
            return set()
        busy = {unit.queue for unit in self._capsules.running()} & self._behind.keys()
        busy |= self._with_waiting_jobs(self._behind.keys() - busy)
        if busy != self._behind.keys():
            busy |= self._running_elsewhere() & self._behind.keys()
        return {name for queue in busy for name in self._behind[queue]}

    def _with_waiting_jobs(self, names: Collection[str]) -> set[str]:
        pipeline: Any = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.exists(keys.queue(name))
        return {name for name, found in zip(names, pipeline.execute(), strict=True) if found}

    def _running_elsewhere(self) -> set[str]:
        """Return the queues of the running jobs in the records of all processes."""
        listed = cast("set[bytes]", self._client.smembers(keys.PROCESSES))
        pipeline: Any = self._client.pipeline(transaction=False)
        for identity in listed:
            pipeline.hgetall(keys.work(decode_escaped(identity))[0])
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        # A key of another type has no jobs.
        records = [cast("dict[bytes, bytes]", one) for one in replies if isinstance(one, dict)]
        return {queue for record in records for entry in record.values() if (queue := _queue_of(entry))}


@dataclass
class ProcessComponents:
    """The components of one process, built by ``framework.wiring``."""

    process: ProcessContext
    capsules: Capsules
    blocking: BlockingQueues
    lease: ProcessLease
    record: ProcessRecord
    metrics: SidekiqMetrics
    title: Title
    poller: Poller
    reaper: Reaper
    parts: WorkerParts
    """What is read again and done every few seconds, by features and the core."""
    push_back: PushBack
    poll_interval_s: float
    timeout_s: float
    supervisor: int | None
    """The process id of the supervisor, ``None`` without one."""
    shared_state: SharedState
    unserved: UnservedWatch
    orders: OrderReader
    connections: Sequence[Closeable] = ()
    """The clients and channels of the components."""

    @property
    def events(self) -> ProcessEvents:
        return self.process.events

    @property
    def timings(self) -> Timings:
        return self.process.timings

    def close(self) -> None:
        """Close every connection, after the end of all threads. A process of its own ends instead."""
        self.capsules.close()
        for one in self.connections:
            one.close()


class FetchWatch:
    """Find a capsule in which no thread fetches. Call ``check`` about once per ``period_s``."""

    def __init__(self, capsules: Capsules, period_s: float) -> None:
        self._fetchers = {one.plan.name: one.fetcher for one in capsules}
        self._active_at = dict.fromkeys(self._fetchers, 0.0)
        self._silent_s = dict.fromkeys(self._fetchers, 0.0)
        self._longest_s = 2 * period_s
        self._checked_at = time.monotonic()

    def check(self, limit_s: float) -> str | None:
        """Return the name of a capsule whose fetcher has done nothing for longer than ``limit_s``, or ``None``."""
        # Two periods at most count between two checks, so that a suspended machine does not look like a stuck fetcher.
        now = time.monotonic()
        passed_s, self._checked_at = min(self._longest_s, now - self._checked_at), now
        for name, fetcher in self._fetchers.items():
            before, self._active_at[name] = self._active_at[name], fetcher.active_at
            self._silent_s[name] = self._silent_s[name] + passed_s if self._active_at[name] == before else 0.0
            if self._silent_s[name] > limit_s:
                return name
        return None


def _queues_behind(names: Collection[str], orders: Sequence[QueueOrder]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for order in orders:
        for position, name in enumerate(order.names):
            if name in names:
                behind = order.names[position + 1 :] if order.mode == "strict" else order.names
                waiting = {one for one in behind if order.mode == "strict" or one not in names} - {name}
                found[name] = found.get(name, frozenset()) | waiting
    return {name: waiting for name, waiting in found.items() if waiting}


def _queue_of(entry: bytes) -> str:
    try:
        content: Any = json.loads(entry)
    except ValueError:
        return ""
    queue = cast("dict[str, Any]", content).get("queue") if isinstance(content, dict) else None
    return queue if isinstance(queue, str) else ""


class ProcessTasks:
    """The periodic tasks of one process, each in a thread of its own. Signals from dashboards go to ``signals``."""

    def __init__(self, components: ProcessComponents, signals: SignalQueue) -> None:
        self._components = components
        self._lifecycle = components.process.lifecycle
        self._signals = signals
        self._log = logs.logger()
        self._paused: list[str] = []
        self._blocked: list[str] = []
        events = components.events
        upkeep, timings = components.record.client, components.timings
        self._timings = timings
        self._eviction = EvictionCheck(upkeep, events, timings)
        self.lease = PeriodicTask(
            "lease", self._renew_lease, timings.heartbeat_period_s, events, client=components.lease.client
        )
        self.sweep = PeriodicTask(
            "reaper", self._sweep, timings.sweep_period_s, events, client=upkeep, limit_s=HOOKS_LIMIT_S
        )
        self._policies = PeriodicTask(
            "policies", self._maintain_policies, timings.sweep_period_s, events, client=upkeep, limit_s=HOOKS_LIMIT_S
        )
        self._poller = PeriodicTask(
            "poller", self._poll, components.poll_interval_s, events, client=upkeep, limit_s=HOOKS_LIMIT_S
        )
        self._orders = PeriodicTask("orders", components.orders.step, timings.orders_period_s, events, client=upkeep)
        self._own = [
            PeriodicTask(one.name, one.step, timings.sweep_period_s, events, client=upkeep, limit_s=HOOKS_LIMIT_S)
            for one in components.parts.tasks
        ]
        self.others = [
            PeriodicTask("record", self._write_record, timings.record_period_s, events, client=upkeep),
            self._orders,
            self.sweep,
            self._policies,
            self._poller,
            *self._own,
            PeriodicTask("unserved", components.unserved.step, timings.sweep_period_s, events, limit_s=HOOKS_LIMIT_S),
        ]
        """The tasks that end before the last jobs do; the lease is renewed until these have been pushed back."""

    def start(self) -> None:
        """Start every task, the lease first.

        The poller pushes due jobs, and asks for flags: they are read before it starts.
        """
        self.lease.start()
        # The periodic tasks try both again.
        with suppress(RedisError, OSError):
            self.read_pauses()
            self._components.parts.refresh()
        for task in self.others:
            task.start()

    def stop_others(self) -> None:
        """End every task but the lease."""
        # Ask all tasks first: while Redis hangs, each step lasts until its timeout.
        for task in self.others:
            task.request_stop()
        for task in self.others:
            task.stop()
        for one in self._components.parts.tasks:
            one.end()

    def _renew_lease(self) -> None:
        lease, events = self._components.lease, self._components.events
        lease.renew()
        self._components.shared_state.note_heartbeat()
        self._components.record.clock_s = lease.skew_s
        if lease.lapsed:
            events.lease_lost()
        if lease.data_loss is not None:
            events.data_lost(*lease.data_loss, self._running_jobs())
            self._components.record.lost_at = time.time() - lease.skew_s
        if abs(lease.skew_s) >= _MAX_SKEW_S:
            events.clock_skewed(lease.skew_s)

    def _running_jobs(self) -> list[str]:
        """Return class and id of jobs that run in this process, the first few."""
        units = islice(self._components.record.runs.running().values(), _MOST_LISTED)
        payloads = [loads_object(unit.data) for unit, _ in units]
        return [f"{payload.get('class')} {payload.get('jid')}" for payload in payloads]

    def update_title(self) -> None:
        """Show in ``ps`` what the process record says."""
        record = self._components.record
        runs = record.runs
        state = (
            "stopping"
            if runs.stopping
            else "draining"
            if runs.interrupted
            else "quiet"
            if self._components.process.quiet
            else ""
        )
        self._components.title.show(len(runs.running()), record.slots, state)

    def _check_absent_keys(self) -> None:
        """Run the tasks that skip absent keys, if one of these exists now: its period counts from here, not from their next step."""
        if self._components.process.absent.check(self._components.record.client):
            for task in (self._orders, self.sweep, self._policies, self._poller, *self._own):
                task.run_now()

    def _write_record(self) -> None:
        self.update_title()
        # Before the writes, which Redis may refuse.
        self._check_absent_keys()
        requested = self._components.record.heartbeat()
        for number in () if self._components.record.embedded else accepted_signals(requested):
            self._signals.put(number)
        if self._components.record.take_appeared():
            self._lifecycle.fire("heartbeat")
        self._lifecycle.fire("beat")
        self.read_pauses()
        components = self._components
        renew_slots(components.record.client, components.capsules.running(), self._timings.slot_ttl_s)
        counters.flush(self._components.record.client)
        self._components.metrics.flush_if_due()
        self._eviction.check()

    def read_pauses(self) -> None:
        """Skip the queues that are paused now, and those that wait for a blocking queue. Raises redis errors."""
        paused, blocked = self._read_paused(), sorted(self._components.blocking.blocked())
        if (paused, blocked) == (self._paused, self._blocked):
            return
        self._components.capsules.pause({*paused, *blocked})
        if paused != self._paused:
            self._log.info("the process does not fetch from paused queues", event_name="queues.paused", queues=paused)
        if blocked != self._blocked:
            self._log.info(
                "the process does not fetch from queues behind a blocking queue that has jobs",
                event_name="queues.blocked",
                queues=blocked,
            )
        self._paused, self._blocked = paused, blocked

    def _read_paused(self) -> list[str]:
        if not self._components.process.absent.may_exist(keys.PAUSED):
            return self._paused
        client = self._components.record.client
        members = cast("set[bytes]", client.smembers(keys.PAUSED))
        self._components.process.absent.note(keys.PAUSED, found=bool(members))
        # Also after the last pause: it may have left an end that must not end a later one.
        if members or self._paused:
            ended: list[bytes] = END_PAUSES(client, _PAUSE_KEYS, [])
            members = members.difference(ended)
        return sorted(map(decode_escaped, members))

    def _sweep(self) -> float:
        try:
            self._components.reaper.sweep(own=self._components.process.identity)
        # Broken keys of a dead process must not prevent the reconciliation of this process's own list.
        finally:
            self._components.capsules.reconcile()
        return jittered(self._timings.sweep_period_s)

    def _maintain_policies(self) -> float:
        self._components.parts.refresh()
        for step in self._components.parts.periodic:
            step()
        # Never longer than the period: it is the documented time until a process knows a cancellation.
        return min(jittered(self._timings.sweep_period_s), self._timings.sweep_period_s)

    def _poll(self) -> float:
        return self._components.poller.step()
