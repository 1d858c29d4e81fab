"""Start the children of a group by exec, reap and restart them, and forward signals.

The supervisor notices the death of a child at once (``wait``), reports it to the lease manager, and starts the next process.
Any process of the shard then recovers the jobs. The supervisor knows nothing about jobs and never waits for Redis.
"""

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from framework.cluster.child import LONGEST_START_BACKOFF_S, Child, ChildEvent, ChildSpec, OnEvent
from framework.command_line import EXIT_CONFIGURATION
from framework.process.events import ProcessEvents
from framework.process.health_server import Answer, HealthAnswer, json_answer
from framework.process.heartbeat import PeriodicTask
from framework.process.shared_state import ProcessState
from framework.process.signals import DRAIN, QUIET, STOP_NOW, SWEEP
from framework.recover.reaper import FailureDetector, mark_dead
from framework.store.script import RENEW_CHILDREN
from framework.supervised_threads import SupervisedThread
from framework.telemetry.shared_counts import GroupCounts
from framework.timings import STANDARD, Timings
from framework.wire import keys

_STOP_POLL_S = 0.02

KILL_MARGIN_S = 2.0
"""The time after a child's own deadline until it is killed: a job may have made it ignore signals."""

_CLEAN = (0, -signal.SIGTERM, -STOP_NOW)
"""The exit statuses of a clean stop; a child that had not yet installed its handlers ends by the signal itself."""


CHILD_EVENTS = "application_worker_child_events_total"
_COUNTED_KINDS = ("started", "died", "failed", "stuck", "killed", "memory")


class Supervisor:
    """Keep one process per spec running until ``stop``. ``leases`` receives each death before the successor starts."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        leases: "GroupLeases",
        on_event: OnEvent | None = None,
        counts: GroupCounts | None = None,
    ) -> None:
        self.counts = counts
        """The counts of the children; ``None`` if they have no reader."""
        self.children = [Child(spec, counts) for spec in specs]
        self.standby: list[Child] = []
        """Successors that do not serve yet, and replaced children that finish their jobs."""
        self.quiet = False
        """Whether the group fetches no more jobs; a child that dies then is not restarted."""
        self.unclean = False
        """Whether a child did not end cleanly at the stop."""
        self._leases = leases
        self._tell: OnEvent = on_event or _ignore
        # The series are there before their first event: a rate needs the zero.
        for kind in _COUNTED_KINDS:
            self.count(kind, 0)
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread: SupervisedThread | None = None
        self._configuration_refused = False

    def count(self, kind: str, amount: int = 1) -> None:
        """Count an event of a child for ``/metrics``."""
        if self.counts is not None:
            self.counts.add(CHILD_EVENTS, kind, amount)

    def _on_event(self, event: ChildEvent) -> None:
        self.count(event.kind)
        self._tell(event)

    @property
    def failure(self) -> int | None:
        """The exit status with which the group must stop, or ``None``.

        The status is 1 when the lease manager has failed, and 78 when a child's first start found the configuration invalid, which
        no restart repairs. A later start is tried again: the other children go on with the configuration that they have read.
        """
        if self._configuration_refused:
            return EXIT_CONFIGURATION
        return 1 if self._leases.failed else None

    @property
    def running(self) -> int:
        return sum(child.process is not None for child in self.children)

    @property
    def all(self) -> list[Child]:
        return [*self.children, *self.standby]

    @property
    def stopping(self) -> bool:
        """Whether the end has begun."""
        return self._stopping.is_set()

    def start(self) -> None:
        with self._lock:
            for child in self.children:
                self._start(child)
        self._leases.start(self)

    def poll(self) -> None:
        """Collect the dead and start their successors when their back-off is over. Call it several times a second."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._reap_standby()
            for child in self.children:
                status = child.reap()
                if status is not None:
                    self._on_exit(child, status)
                if self._configuration_refused:
                    return
                if self.quiet:
                    self._send_quiet(child)
                elif child.process is None and time.monotonic() >= child.start_after:
                    child.restarts += 1
                    self._start(child)

    def run_in_thread(self, period_s: float = 0.1) -> None:
        """Call ``poll`` each ``period_s`` from a thread of its own until ``stop``."""

        def loop() -> None:
            while not self._stopping.wait(period_s):
                self.poll()

        self._thread = SupervisedThread("supervisor", loop)
        self._thread.start()

    def start_standby(self, child: Child, spec: ChildSpec) -> Child:
        """Start a process that may replace ``child``; the returned child has no process when the start failed."""
        with self._lock:
            successor = Child(spec, self.counts)
            successor.restarts = child.restarts + 1
            self._start(successor)
            if successor.process is not None:
                self.standby.append(successor)
            return successor

    def replace(self, child: Child, successor: Child) -> None:
        """Put the successor in the place of ``child``, and make ``child`` drain its jobs and end."""
        with self._lock:
            self.children[self.children.index(child)] = successor
            self.standby.remove(successor)
            if child.process is not None:
                child.draining = True
                self.standby.append(child)
                child.process.send_signal(DRAIN)
            self._on_event(ChildEvent("replaced", child.name, child.spec.shard, child.pid))

    def forward(self, number: int, shard: str | None = None) -> None:
        """Send a signal to every child, or to the children of one shard."""
        with self._lock:
            for child in self.all:
                if child.process is not None and child.process.poll() is None and shard in (None, child.spec.shard):
                    child.process.send_signal(number)

    def live_pids(self, shard: str) -> dict[str, int]:
        """Return the process ids of a shard's children by identity, without the ended ones."""
        with self._lock:
            return {child.identity: child.pid for child in self.all if child.pid and child.spec.shard == shard}

    def kill_stuck(self, identity: str, silent_s: int) -> None:
        """Kill a live child that has sent no heartbeat for ``silent_s``; its successor starts as after any death."""
        with self._lock:
            for child in self.all:
                if child.identity == identity and child.process is not None and child.process.poll() is None:
                    self._on_event(ChildEvent("stuck", child.name, child.spec.shard, child.pid, silent_s))
                    child.process.kill()

    def stop(self, timeout_s: float = 25.0, stop_now: Callable[[], bool] | None = None) -> None:
        """End every child: send TERM, wait ``timeout_s`` and a margin, then send KILL. It may be called twice.

        ``stop_now`` is polled while waiting; once it returns true, the children are asked to stop without waiting for jobs.
        """
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.forward(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s + KILL_MARGIN_S
        forwarded = False
        while self._any_left() and time.monotonic() < deadline:
            if stop_now is not None and stop_now() and not forwarded:
                forwarded = True
                self.forward(STOP_NOW)
                deadline = min(deadline, time.monotonic() + KILL_MARGIN_S)
            time.sleep(_STOP_POLL_S)
        for child in self.all:
            if child.process is not None:
                child.process.kill()
                child.process.wait()
                self._ended(child, "killed")
        self._leases.stop()

    def reap_adopted(self) -> None:
        """Reap adopted processes; only for a process that has no children except the group's.

        Process 1 of a container, and a sub-reaper, adopts processes whose parent has died; they stay zombies until it reaps them.
        """
        own = {child.pid for child in self.all}
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in own:
                    return
                os.waitpid(found.si_pid, 0)

    def _any_left(self) -> bool:
        self._reap_standby()
        for child in self.children:
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, "stopped")
        return any(child.process is not None for child in self.all)

    def _reap_standby(self) -> None:
        with self._lock:
            for child in self.standby.copy():
                if child.process is not None and (status := child.process.poll()) is not None:
                    self._ended(
                        child, "stopped" if self.stopping else "drained" if child.draining and not status else "died"
                    )
                    self.standby.remove(child)

    def _ended(self, child: Child, kind: str) -> None:
        pid, status = child.clear_process()
        self._on_event(ChildEvent(kind, child.name, child.spec.shard, pid, status))
        self._kill_orphans(child, pid)
        if status != 0:
            self._leases.mark_dead(child.spec.shard, child.identity)
        if self.stopping and status not in _CLEAN:
            self.unclean = True

    def _start(self, child: Child) -> None:
        try:
            child.start()
        # No memory, no process table entry, no log folder: the next try may do better.
        except OSError as error:
            child.plan_restart(failed=True, longest_s=LONGEST_START_BACKOFF_S)
            self._on_event(ChildEvent("failed", child.name, child.spec.shard, 0, error.errno))
        else:
            self._on_event(ChildEvent("started", child.name, child.spec.shard, child.pid))

    def _send_quiet(self, child: Child) -> None:
        """Send QUIET to a child that may have missed it because it was still starting."""
        if child.process is not None and child.shared_state.state is ProcessState.READY:
            child.process.send_signal(QUIET)

    def _on_exit(self, child: Child, status: int) -> None:
        self._configuration_refused = self._configuration_refused or (
            status == EXIT_CONFIGURATION and child.restarts == 0
        )
        pid = int(child.identity.rsplit(":", 2)[1])
        self._on_event(ChildEvent("died", child.name, child.spec.shard, pid, status))
        self._kill_orphans(child, pid)
        self._leases.mark_dead(child.spec.shard, child.identity)

    def _kill_orphans(self, child: Child, pid: int) -> None:
        """Kill the rest of a dead child's process group: its jobs run again, and no process waits for the old ones."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
            self._on_event(ChildEvent("orphans_killed", child.name, child.spec.shard, pid))


def _ignore(_event: ChildEvent) -> None:
    """Ignore an event."""


class GroupHealth:
    """Answer the health checks of a group: whether it needs a restart (liveness), and whether each queue is served (readiness).

    A live process is not enough: a child serves when Redis accepts its heartbeats and answers its fetches. The answers come from
    memory, so a request sends no command to Redis. The supervisor's loop calls ``note_loop`` in each iteration.
    """

    def __init__(self, group: Supervisor, timings: Timings = STANDARD) -> None:
        self._group = group
        self._timings = timings
        self._loop_at = time.monotonic()

    @property
    def answers(self) -> Mapping[str, Answer]:
        return {"/liveness": self.liveness, "/readiness": self.readiness}

    def note_loop(self) -> None:
        self._loop_at = time.monotonic()

    def liveness(self, _accept: str = "") -> HealthAnswer:
        """Return whether a restart is not needed: the loop and at least half of the running children respond."""
        limits, loop_age_s = self._timings, time.monotonic() - self._loop_at
        running = [child for child in self._group.all if child.pid]
        stuck = [child.name for child in running if _silent_s(child) > limits.stuck_s]
        reasons: list[str] = []
        if loop_age_s > limits.loop_limit_s:
            reasons.append(f"the supervisor's loop has not run for {loop_age_s:.0f} s")
        if 2 * len(stuck) > len(running):
            reasons.append(f"stuck for more than {limits.stuck_s:g} s: {', '.join(stuck)}")
        return self._answer(reasons)

    def readiness(self, _accept: str = "") -> HealthAnswer:
        """Return whether each group of queues has a child that fetches jobs."""
        reasons = [f"no process fetches the jobs of {name}" for name in self.unserved_groups()]
        if self._group.stopping:
            reasons.insert(0, "stopping")
        return self._answer(reasons)

    def unserved_groups(self) -> list[str]:
        """Return the groups of queues that no child serves."""
        served: dict[str, bool] = {}
        for child in self._group.children:
            name = f"{child.spec.shard}: {','.join(child.spec.queues)}"
            served[name] = served.get(name, False) or child.serves(self._timings)
        return [name for name, is_served in served.items() if not is_served]

    def _answer(self, reasons: list[str]) -> HealthAnswer:
        children = [_child_status(child, self._timings) for child in self._group.all]
        age_s = round(time.monotonic() - self._loop_at, 3)
        status = "unavailable" if reasons else "ok"
        shown = {"status": status, "reasons": reasons, "loop_age_s": age_s, "children": children}
        return json_answer(shown, well=not reasons)


def _silent_s(child: Child) -> float:
    return time.monotonic() - max(child.shared_state.main_thread_at, child.started_at)


def _child_status(child: Child, timings: Timings) -> dict[str, Any]:
    now, state, runs = time.monotonic(), child.shared_state, bool(child.pid)
    return {
        "name": child.name,
        "pid": child.pid or None,
        "shard": child.spec.shard,
        "queues": list(child.spec.queues),
        "state": state.state.name.lower() if runs else "dead",
        "busy": state.busy if runs else 0,
        "fetches": child.serves(timings),
        "heartbeat_age_s": round(now - state.heartbeat_at, 3) if runs and state.heartbeat_at else None,
        "fetch_age_s": round(now - state.fetched_at, 3) if runs and state.fetched_at else None,
        "restarts": child.restarts,
    }


_FINAL_STEP_S = 2.0


# Decision 3: the supervisor manages leases, and workers take jobs back.
class ChildLeases:
    """Renew the leases of a supervisor's live children on one shard, and remove those of the dead.

    A child whose job holds the interpreter (C code that keeps the GIL) works but sends no heartbeat, so the supervisor renews its
    lease up to a limit. Beyond the limit the child counts as stuck: the supervisor kills it, and its jobs are recovered. A child
    that was stopped (SIGSTOP, a debugger) does not work: its lease expires, and other processes recover its jobs.

    The class has its own thread and connection, so that a shard that hangs delays neither other shards nor restarts.
    """

    def __init__(
        self,
        shard: str,
        client: "redis.Redis",
        events: ProcessEvents,
        timings: Timings = STANDARD,
    ) -> None:
        self._shard = shard
        self._client = client
        self._timings = timings
        self._failure_detector = FailureDetector(timings.lease_s, timings.child_renewal_period_s)
        self._group: Supervisor | None = None
        self._dead: deque[str] = deque()
        self._redis_was_away = False
        self._task = PeriodicTask(
            f"leases of {shard}", self.step, timings.child_renewal_period_s, events, client=client
        )

    def start(self, group: Supervisor) -> None:
        self._group = group
        self._task.start()

    def mark_dead(self, identity: str) -> None:
        """Queue the removal of a dead child's lease, and make the other children of the shard sweep afterwards."""
        self._dead.append(identity)
        self._task.run_now()

    def stop(self) -> None:
        """Stop, after the removal of the last dead children's leases if Redis answers."""
        self._task.stop(_FINAL_STEP_S)
        with contextlib.suppress(RedisError, OSError):
            self._mark_all_dead()

    def step(self) -> None:
        """Remove the leases of dead children, then renew the late ones of live children. Raises redis errors."""
        was_away, self._redis_was_away = self._redis_was_away, True
        if self._mark_all_dead() and self._group is not None:
            self._group.forward(SWEEP, self._shard)
        self._renew(revive=was_away)
        self._redis_was_away = False

    def _mark_all_dead(self) -> int:
        marked = 0
        while self._dead:
            # Removed from the list only after Redis has answered, so that a failed step tries it again.
            mark_dead(self._client, self._dead[0])
            self._dead.popleft()
            marked += 1
        return marked

    def _renew(self, *, revive: bool) -> None:
        if self._group is None:
            return
        living = [identity for identity, pid in self._group.live_pids(self._shard).items() if can_run(pid)]
        if not living:
            return
        now, *silences = self._request_renewal(living, revive=revive)
        self._failure_detector.record_heartbeat(float(now), lease_held=True)
        # When the supervisor was frozen, its children were too, so only the time that it has observed counts.
        watched_s = int(float(now) - self._failure_detector.steady_since)
        for identity, silent_s in zip(living, silences, strict=True):
            if min(silent_s, watched_s) >= self._timings.silence_limit_s:
                self._group.kill_stuck(identity, min(silent_s, watched_s))

    def _request_renewal(self, identities: list[str], *, revive: bool) -> list[Any]:
        reply: Any = RENEW_CHILDREN(
            self._client,
            [keys.REGISTRY, *map(keys.lease, identities)],
            [
                self._timings.lease_ms,
                self._timings.late_heartbeat_s,
                self._timings.silence_limit_s,
                f"{self._failure_detector.steady_since:.6f}",
                int(revive),
                *identities,
            ],
        )
        return list(reply)


class GroupLeases:
    """The leases of all children of a group: per shard, ``ChildLeases`` and the events that its thread reports to."""

    def __init__(self, by_shard: Mapping[str, tuple[ChildLeases, ProcessEvents]]) -> None:
        self._by_shard = by_shard

    @property
    def failed(self) -> bool:
        """Whether the thread of a shard has ended by an error."""
        return any(events.died.is_set() for _, events in self._by_shard.values())

    def start(self, group: Supervisor) -> None:
        """Start, after the children have been started."""
        for leases, _ in self._by_shard.values():
            leases.start(group)

    def mark_dead(self, shard: str, identity: str) -> None:
        """Queue the removal of a dead child's lease, so that its jobs can be recovered. Returns at once."""
        self._by_shard[shard][0].mark_dead(identity)

    def stop(self) -> None:
        """Stop, after all children have ended; may wait for Redis, within the deadlines of its commands."""
        for leases, _ in self._by_shard.values():
            leases.stop()


def can_run(pid: int) -> bool:
    """Return whether a process has neither ended nor been stopped; true where the system does not report it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("T", "t", "Z", "X")
    except (OSError, IndexError):
        return True
