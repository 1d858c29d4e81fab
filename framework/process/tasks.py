"""Do the periodic work of one worker process: the lease, the record, the sweep, the policies, the due jobs."""

from itertools import islice
from typing import cast

from framework.execute.slots import renew_slots
from framework.process.components import ProcessComponents
from framework.process.eviction_check import EvictionCheck
from framework.process.heartbeat import HOOKS_LIMIT_S, PeriodicTask
from framework.process.signals import SignalQueue, accepted_signals
from framework.recover.reaper import jittered
from framework.store.script import END_PAUSES
from framework.telemetry import logs
from framework.telemetry.counters import counters
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.json import loads_object

_PAUSE_KEYS = [keys.PAUSED, keys.PAUSE_ENDS]
# The difference between the host's clock and Redis's clock from which a warning is due.
_MAX_SKEW_S = 2.0

_MOST_LISTED = 20
"""Running jobs that the line about lost data lists."""


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
        self._own = [
            PeriodicTask(one.name, one.step, timings.sweep_period_s, events, client=upkeep, limit_s=HOOKS_LIMIT_S)
            for one in components.parts.tasks
        ]
        self.others = [
            PeriodicTask("record", self._write_record, timings.record_period_s, events, client=upkeep),
            self.sweep,
            self._policies,
            self._poller,
            *self._own,
            PeriodicTask("unserved", components.unserved.step, timings.sweep_period_s, events, limit_s=HOOKS_LIMIT_S),
        ]
        """The tasks that end before the last jobs do; the lease is renewed until these have been pushed back."""

    def start(self) -> None:
        """Start every task, the lease first."""
        self.lease.start()
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
        if lease.lapsed:
            events.lease_lost()
        if lease.data_loss is not None:
            events.data_lost(*lease.data_loss, self._running_jobs())
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
            for task in (self.sweep, self._policies, self._poller, *self._own):
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
