"""Loops beside the fetcher: the lease, the process record, the sweep, the poller. Each has a thread and its own client.

A lease must not queue behind a bulk push or a slow record, so it beats from a connection of its own.
"""

import threading
from collections.abc import Callable
from typing import Protocol

import redis
from redis.exceptions import RedisError

from framework.fetch.fetcher import LEASE_MS
from framework.store.script import BEAT, FORGET
from framework.wire import keys

LEASE_PERIOD_S = 3.0
RECORD_PERIOD_S = 5.0
SWEEP_PERIOD_S = 5.0


class LoopEvents(Protocol):
    """What a loop tells."""

    def redis_failed(self, component: str, error: BaseException) -> None:
        """Redis did not answer; the loop goes on."""

    def component_died(self, component: str, error: BaseException) -> None:
        """The loop ended by an error of its own: the process must end."""


class Loop:
    """Calls ``step`` at once and then each ``period_s`` until stopped. ``start`` and ``stop`` may be called twice.

    Redis errors are told and survived; any other error is the framework's own and ends the process (design, promise 4).
    """

    def __init__(self, name: str, step: Callable[[], float | None], period_s: float, events: LoopEvents) -> None:
        self.name = name
        self._step = step
        self._period_s = period_s
        self._events = events
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def ask_to_stop(self) -> None:
        """Let the loop end after its current step; ``stop`` waits for that."""
        self._stopping.set()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop after its current step and wait for that."""
        self.ask_to_stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            pause_s = 0.0
            while not self._stopping.wait(pause_s):
                pause_s = self._once()
        except BaseException as error:  # noqa: BLE001 - a dead loop must not go unseen
            self._events.component_died(self.name, error)

    def _once(self) -> float:
        try:
            chosen = self._step()
        except (RedisError, OSError) as error:
            self._events.redis_failed(self.name, error)
            return min(1.0, self._period_s)
        return self._period_s if chosen is None else chosen


class Lease:
    """The proof that this process lives: as long as it is renewed nobody touches the working list."""

    def __init__(self, client: "redis.Redis", identity: str) -> None:
        self._client = client
        self._identity = identity
        self._keys = [keys.lease(identity), keys.REGISTRY]

    def beat(self) -> bool:
        """Renew; tell whether it had been held without a gap. Raises redis errors."""
        return bool(BEAT(self._client, self._keys, [self._identity, LEASE_MS]))

    def drop(self) -> None:
        """Give it up at the end of the process, after everything has been given back. Raises redis errors.

        A process whose list still holds a job (the reply of its fetch was lost) stays registered: others find it there.
        """
        self._client.delete(keys.lease(self._identity))
        FORGET(
            self._client,
            [keys.lease(self._identity), keys.working(self._identity), keys.REGISTRY],
            [self._identity, 0],
        )
