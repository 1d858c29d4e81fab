"""Run the periodic tasks of a process (lease, record, reaper, policies, poller), each in its own thread; hold the lease.

The lease has a connection of its own, so that a heartbeat never waits behind a bulk push or a slow record.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import redis
from redis.exceptions import RedisError, ResponseError

from framework.process.events import ProcessEvents
from framework.recover.reaper import FailureDetector, unregister
from framework.store.script import HEARTBEAT, MARK_DEAD
from framework.supervised_threads import SupervisedThread, supervised_threads
from framework.timings import STANDARD, Timings, backoff_s
from framework.wire import keys
from framework.wire.keys import capsule_field

STEP_LIMIT_S = 60.0
"""The longest step of a task that only calls Redis: every read has a deadline of seconds."""

HOOKS_LIMIT_S = 300.0
"""The longest step of a task that also calls the application's code: client middleware (poller), hooks (reaper)."""

NO_CAPSULES: Mapping[str, int] = MappingProxyType({})
# Two texts of one time may differ in the last digit.
_SAME_TIME_S = 0.001
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 2.0


class PeriodicTask:
    """Call ``step`` at once and then every ``period_s``, or after the number of seconds that it returns, until stopped.

    After a redis error the task drops the connections of ``client``, so that the address is resolved again (a failover shows
    as READONLY or LOADING on a connection that works), and retries the step with a growing back-off. Any other error is the
    framework's own and ends the process (requirement R4 of ``docs/internals/reliability.md``). ``start`` and ``stop`` may be called
    twice.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        period_s: float,
        events: ProcessEvents,
        *,
        client: "redis.Redis | None" = None,
        limit_s: float = STEP_LIMIT_S,
    ) -> None:
        self.name = name
        self.limit_s = limit_s
        self.steps = 0
        """The number of step starts and step ends so far: odd while a step runs."""
        self._step = step
        self._period_s = period_s
        self._events = events
        self._client = client
        self._stopping = False
        self._wake = threading.Event()
        self._failures = 0
        self._thread: SupervisedThread | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is None:
            thread = SupervisedThread(self.name, self._run, on_death=self._events.component_died)
            thread.start()
            self._thread = thread

    def run_now(self) -> None:
        """Run the next step now instead of at the end of the period. Safe from any thread."""
        self._wake.set()

    def request_stop(self) -> None:
        """Ask the task to end after its current step, without waiting."""
        self._stopping = True
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the task after its current step and wait for its thread."""
        self.request_stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self.steps += 1
            pause_s = self._run_step()
            self.steps += 1
            if not self._stopping:
                self._wake.wait(pause_s)

    def _run_step(self) -> float:
        try:
            chosen = self._step()
        except (RedisError, OSError) as error:
            self._failures += 1
            self._events.redis_failed(self.name, error)
            if self._client is not None:
                # Connections in use belong to other threads, which notice the failure themselves.
                self._client.connection_pool.disconnect(inuse_connections=False)
            # 50 ms to 2 s; the jitter spreads the processes of a shard after an outage.
            return backoff_s(self._failures, _FIRST_BACKOFF_S, _LONGEST_BACKOFF_S, jitter=0.5)
        if self._failures:
            self._failures = 0
            self._events.redis_answered(self.name)
        return self._period_s if chosen is None else chosen


class StuckError(Exception):
    """A step has run for longer than any legitimate step."""


@dataclass(slots=True)
class _TaskProgress:
    steps: int = 0
    stuck_s: float = 0.0


Watched: TypeAlias = PeriodicTask | SupervisedThread
"""Both have a name, a limit and the number of step starts and ends so far."""


class Watchdog:
    """Find the task or thread whose step hangs. Call ``check`` about once per ``period_s`` from a thread that never blocks for long.

    Between two checks, two periods count at most: a process that was frozen, or whose interpreter a C function held, does
    not look like one that hangs.
    """

    def __init__(self, tasks: Sequence[PeriodicTask], period_s: float = 1.0) -> None:
        self._tasks = tasks
        self._progress: dict[Watched, _TaskProgress] = {}
        self._longest_s = 2 * period_s
        self._checked_at = time.monotonic()

    def check(self) -> Watched | None:
        """Return a task or a thread whose current step has lasted longer than its ``limit_s``, or ``None``."""
        now = time.monotonic()
        passed = min(self._longest_s, now - self._checked_at)
        self._checked_at = now
        watched_now: list[Watched] = [*self._tasks, *supervised_threads()]
        self._progress = {one: self._progress.get(one) or _TaskProgress() for one in watched_now}
        for task, watched in self._progress.items():
            steps = task.steps
            watched.stuck_s = watched.stuck_s + passed if steps % 2 and steps == watched.steps else 0.0
            watched.steps = steps
            if watched.stuck_s > task.limit_s:
                return task
        return None


class DataLoss(NamedTuple):
    """What is known of lost data: this process has written at ``written_at`` (epoch seconds by Redis's clock), and Redis has the
    state of ``restored_at``, or, if that is ``None``, does not know the process at all."""

    written_at: float
    restored_at: float | None


def _rollback(written_at: float, found_at: float) -> DataLoss | None:
    """Return the loss if Redis has an older heartbeat of the process than its last one, as after the restore of a snapshot.

    A process that its parent has marked as dead has a time below 0.
    """
    return DataLoss(written_at, found_at) if 0 < found_at < written_at - _SAME_TIME_S else None


class ProcessLease:
    """The lease of this process: while it is renewed, no other process touches its working lists.

    ``slots`` counts those of all capsules; ``capsules`` are the further ones with theirs.
    """

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        slots: int,
        failure_detector: FailureDetector,
        timings: Timings = STANDARD,
        capsules: Mapping[str, int] = NO_CAPSULES,
    ) -> None:
        self.client = client
        self._identity = identity
        self._capsules = tuple(capsules)
        self._failure_detector = failure_detector
        self._unregister_after_s = timings.unregister_after_s
        self._keys = [keys.lease(identity), keys.REGISTRY, keys.process(identity), keys.STEADY_SINCE]
        self._arguments: list[str | int] = [identity, timings.lease_ms, slots, int(failure_detector.max_gap_s * 1000)]
        for name, own_slots in capsules.items():
            self._arguments += [capsule_field(name), own_slots]
        self.lapsed = False
        """Whether the last heartbeat found the lease expired, so that other processes may have recovered the working list."""
        self.data_loss: DataLoss | None = None
        """Set if Redis has lost data, as the last heartbeat has found out."""
        self._registered_at = 0.0
        self.skew_s = 0.0
        """The least difference between the host's clock and Redis's at the last heartbeat (below 0: the host is behind)."""

    def is_held(self) -> bool:
        """Return, before the first heartbeat, whether a live process has the same identity. Raises redis errors."""
        return bool(self.client.exists(self._keys[0]))

    def renew(self) -> bool:
        """Send a heartbeat; return whether the lease has been held without a gap. Raises redis errors.

        The supervisor may have renewed the lease meanwhile; after a whole lease time without a heartbeat of this process the
        lease counts as lost nevertheless.
        """
        sent_at = time.time()
        reply: Any = HEARTBEAT(self.client, self._keys, self._arguments)
        held, now, new, steady, before = cast("tuple[int, bytes, int, int, bytes]", reply)
        self.lapsed = not held
        self.skew_s = max(0.0, sent_at - float(now)) + min(0.0, time.time() - float(now))
        first = not self._failure_detector.steady_since
        silent_s = self._failure_detector.record_heartbeat(float(now), lease_held=bool(held))
        # Other processes remove one from the registry only after a long silence and while heartbeats arrive steadily.
        if new and not first and (silent_s < self._unregister_after_s or not steady):
            self.data_loss = DataLoss(self._registered_at, None)
        else:
            self.data_loss = _rollback(self._registered_at, float(before or 0))
        self._registered_at = float(now)
        return silent_s <= self._failure_detector.lease_s and bool(held)

    def release(self, *, list_is_empty: bool = True) -> None:
        """Release the lease at the end of the process, after the push-back. Raises redis errors.

        The process stays in the registry, where others find it at once, when a working list holds a job (the reply of a fetch
        was lost) or may still receive one (``list_is_empty`` is false: a blocking move was abandoned without an answer).
        """
        MARK_DEAD(self.client, [keys.lease(self._identity), keys.REGISTRY], [self._identity])
        if list_is_empty:
            unregister(self.client, self._identity, 0, self._capsules)


# A Redis list is cheap at its ends only; removing a job from the middle walks through the list. So the queue becomes the working
# list of an identity that belongs to the queue, and its jobs are worked on in pages from there. Like every working list it
# has a lease: if the command dies, the reapers of the shard's processes put the rest back in order (``restore``). The same command,
# run again or at the same time, uses the same list and continues.


# The queue is renamed first, one step for any length: a removal in the middle of a list walks through it, and a rotation that is
# interrupted leaves the youngest jobs in front.
class QueueAside:
    """One queue of a shard, set aside; ``key`` is the list with its jobs, ``lease_key`` its lease."""

    def __init__(self, client: "redis.Redis", queue: str, timings: Timings) -> None:
        self.queue = queue
        self._client = client
        self._timings = timings
        identity = keys.migration_identity(queue)
        self.key = keys.working(identity)
        self.lease_key = keys.lease(identity)
        detector = FailureDetector(timings.lease_s, timings.heartbeat_period_s)
        self._lease = ProcessLease(client, identity, 0, detector, timings)
        self._renewed_at = 0.0

    def take(self) -> bool:
        """Set the queue aside; return false if jobs of it are set aside already, which come first. Raises redis errors."""
        # Registered before the rename: if this process dies in between, only an empty identity is left, which others
        # unregister.
        self.renew()
        try:
            return bool(self._client.renamenx(keys.queue(self.queue), self.key))
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return not self._client.exists(self.key)

    def renew(self) -> None:
        """Renew the lease. Raises redis errors."""
        self._lease.renew()
        self._renewed_at = time.monotonic()

    def renew_when_due(self) -> None:
        """Renew the lease once in each period of the heartbeat. Raises redis errors."""
        if time.monotonic() - self._renewed_at > self._timings.heartbeat_period_s:
            self.renew()

    def release(self) -> None:
        """End the lease: no job is left. Raises redis errors."""
        self._lease.release()
