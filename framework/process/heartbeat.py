"""Loops beside the fetcher: the lease, the process record, the sweep, the poller. Each has a thread and its own client.

A lease must not queue behind a bulk push or a slow record, so it beats from a connection of its own.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import redis
from redis.exceptions import RedisError

from framework.fetch.call import LEASE_MS
from framework.fetch.failure_detector import FailureDetector
from framework.fetch.reaper import UNREGISTER_AFTER_S, unregister
from framework.store.script import HEARTBEAT, MARK_DEAD
from framework.wire import keys

LEASE_PERIOD_S = 3.0
RECORD_PERIOD_S = 5.0
SWEEP_PERIOD_S = 5.0

STEP_LIMIT_S = 60.0
"""Longest step of a loop that only talks to Redis: every read has a deadline of seconds."""

HOOKS_LIMIT_S = 300.0
"""Longest step of a loop that also calls the application's code: client middlewares (poller), hooks (reaper)."""

_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 2.0


class PeriodicTaskEvents(Protocol):
    """What a loop tells."""

    def redis_failed(self, component: str, error: BaseException) -> None:
        """Redis did not answer, or refused; the loop goes on."""

    def redis_answered(self, component: str) -> None:
        """Redis answers again."""

    def component_died(self, component: str, error: BaseException) -> None:
        """The loop ended by an error of its own: the process must end."""


class PeriodicTask:
    """Calls ``step`` at once and then each ``period_s``, or after the seconds it returns, until stopped.

    After a redis error the connections of ``client`` are dropped, so that its address is looked up anew (a failover shows as
    READONLY or LOADING on a connection that works), and the step is tried again, soon at first. Any other error is the
    framework's own and ends the process (design, promise 4). ``start`` and ``stop`` may be called twice.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        period_s: float,
        events: PeriodicTaskEvents,
        *,
        client: "redis.Redis | None" = None,
        limit_s: float = STEP_LIMIT_S,
    ) -> None:
        self.name = name
        self.limit_s = limit_s
        self.steps = 0
        """Begins and ends of steps so far: odd while one is under way."""
        self._step = step
        self._period_s = period_s
        self._events = events
        self._client = client
        self._stopping = False
        self._wake = threading.Event()
        self._failures = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def run_now(self) -> None:
        """Take the next step now instead of at the end of the pause. Safe from any thread."""
        self._wake.set()

    def request_stop(self) -> None:
        """Let the loop end after its current step; ``stop`` waits for that."""
        self._stopping = True
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop after its current step and wait for that."""
        self.request_stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                self.steps += 1
                pause_s = self._run_step()
                self.steps += 1
                if not self._stopping:
                    self._wake.wait(pause_s)
        except BaseException as error:  # noqa: BLE001 - a dead loop must not go unseen
            self._events.component_died(self.name, error)

    def _run_step(self) -> float:
        try:
            chosen = self._step()
        except (RedisError, OSError) as error:
            self._failures += 1
            self._events.redis_failed(self.name, error)
            if self._client is not None:
                # Those in use belong to other threads, which find out by themselves.
                self._client.connection_pool.disconnect(inuse_connections=False)
            return backoff_s(self._failures)
        if self._failures:
            self._failures = 0
            self._events.redis_answered(self.name)
        return self._period_s if chosen is None else chosen


def backoff_s(failures: int) -> float:
    """Return the pause after so many failures in a row: from 50 ms to 2 s, less up to a half, so that a fleet is spread."""
    longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(failures, 10))
    return longest * random.uniform(0.5, 1.0)


class StuckError(Exception):
    """A step has been under way for longer than any legitimate one."""


@dataclass(slots=True)
class _TaskProgress:
    steps: int = 0
    stuck_s: float = 0.0


class Watchdog:
    """Finds the loop whose step hangs, asked about once in ``period_s`` by a thread that does nothing long.

    Time passes only from look to look, at most two periods at a time: a process that was frozen, or whose interpreter a C
    function held, is not taken for one that hangs.
    """

    def __init__(self, tasks: Sequence[PeriodicTask], period_s: float = 1.0) -> None:
        self._watched = [(loop, _TaskProgress()) for loop in tasks]
        self._longest_s = 2 * period_s
        self._checked_at = time.monotonic()

    def check(self) -> PeriodicTask | None:
        """Return a loop whose present step has lasted longer than its ``limit_s``, or ``None``."""
        now = time.monotonic()
        passed = min(self._longest_s, now - self._checked_at)
        self._checked_at = now
        for loop, watched in self._watched:
            steps = loop.steps
            watched.stuck_s = watched.stuck_s + passed if steps % 2 and steps == watched.steps else 0.0
            watched.steps = steps
            if watched.stuck_s > loop.limit_s:
                return loop
        return None


class Lease:
    """The proof that this process lives: as long as it is renewed nobody touches the working list."""

    def __init__(
        self,
        client: "redis.Redis",
        identity: str,
        slots: int,
        failure_detector: FailureDetector,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self.client = client
        self._identity = identity
        self._failure_detector = failure_detector
        self._keys = [keys.lease(identity), keys.REGISTRY, keys.process(identity), keys.STEADY_SINCE]
        self._arguments = [identity, lease_ms, slots, int(failure_detector.max_gap_s * 1000)]
        self.lapsed = False
        """Whether the last beat found that the lease had run out, so that others may have taken what was in the working list."""
        self.unregistered = False
        """Whether Redis did not know us at the last beat, although nobody can have struck us off: it has lost data."""
        self.skew_s = 0.0
        """How far this host's clock is ahead of Redis's (below 0: behind), at least, as the last beat has shown."""

    def is_held(self) -> bool:
        """Before the first beat: whether a process of the same identity lives. Raises redis errors."""
        return bool(self.client.exists(self._keys[0]))

    def renew(self) -> bool:
        """Renew and tell ``grace``; return whether it had been held without a gap. Raises redis errors.

        A parent may have renewed it meanwhile; after a whole lease without a beat of ours it counts as lost all the same.
        """
        sent_at = time.time()
        reply: Any = HEARTBEAT(self.client, self._keys, self._arguments)
        held, now, new, steady = cast("tuple[int, bytes, int, int]", reply)
        self.lapsed = not held
        self.skew_s = max(0.0, sent_at - float(now)) + min(0.0, time.time() - float(now))
        first = not self._failure_detector.steady_since
        silent_s = self._failure_detector.record_heartbeat(float(now), lease_held=bool(held))
        # In order, others strike off who was silent for long, and only while beats come through.
        self.unregistered = bool(new) and not first and (silent_s < UNREGISTER_AFTER_S or not steady)
        return silent_s <= self._failure_detector.lease_s and bool(held)

    def release(self, *, list_is_empty: bool = True) -> None:
        """Give it up at the end of the process, after everything has been given back. Raises redis errors.

        A process whose list still holds a job (the reply of its fetch was lost), or may yet receive one (``list_is_empty`` false:
        a parked call was given up without an answer), stays registered: others find it there at once.
        """
        MARK_DEAD(self.client, [keys.lease(self._identity), keys.REGISTRY], [self._identity])
        if list_is_empty:
            unregister(self.client, self._identity, after_s=0)
