"""Call the application's handlers of lifecycle events, so that none can stop or block the process.

The handlers of an event run in one daemon thread. The main thread waits for those of startup, shutdown and exit, within limits.
"""

import threading
import time
from functools import partial

from framework.lifecycle import OVERDUE_S, LifecycleEvent, LifecycleHandler, lifecycle_handlers
from framework.process.events import ProcessEvents
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit

# In reverse, as Sidekiq does it: what was opened last is closed first.
_REVERSED = ("quiet", "shutdown", "exit", "follower")
_ONCE = ("startup", "quiet", "shutdown", "exit")
# Events in turns: the handlers of one wait for those of the other.
_TURNS: dict[LifecycleEvent, LifecycleEvent] = {"leader": "follower", "follower": "leader"}
# An event waits this long for the handlers of the event before, so that a handler of shutdown sees what one of quiet has done.
_TURN_S = 1.0


class LifecycleEvents:
    """The lifecycle events of one process. Without handlers an event costs nothing."""

    def __init__(self, events: ProcessEvents) -> None:
        self._events = events
        self._log = logs.logger()
        self._rate_limit = LogRateLimit(60.0)
        self._threads: dict[LifecycleEvent, SupervisedThread] = {}
        self._started_at: dict[LifecycleEvent, float] = {}
        self._last: SupervisedThread | None = None
        self._firing = threading.Lock()
        """Events are fired by several threads, and no thread can be waited for before it has started."""

    def fire(self, event: LifecycleEvent) -> bool:
        """Start the handlers of ``event``, unless they run or the event has happened and happens once. Does not wait.

        Return False if those of its last call still run, so that nothing was started.
        """
        handlers = list(lifecycle_handlers[event])
        if not handlers:
            return True
        with self._firing:
            return self._start(event, handlers)

    def _start(self, event: LifecycleEvent, handlers: list[LifecycleHandler]) -> bool:
        if event in self._threads and event in _ONCE:
            return True
        running = self._threads.get(event)
        if running is not None and running.is_alive():
            self._check_overdue(event)
            return False
        if event in _REVERSED:
            handlers.reverse()
        thread = SupervisedThread(event, self._call, event, handlers, self._before(event), elastic=True)
        self._started_at[event] = time.monotonic()
        try:
            thread.start()
        # The system cannot start another thread.
        except RuntimeError as error:
            self._failed(event, error)
            return True
        self._threads[event] = thread
        if event in _ONCE:
            self._last = thread
        return True

    def _before(self, event: LifecycleEvent) -> SupervisedThread | None:
        """Return the thread whose handlers come before those of ``event``."""
        other = _TURNS.get(event)
        return self._last if other is None else self._threads.get(other)

    def running(self, event: LifecycleEvent) -> bool:
        """Return whether handlers of ``event`` run."""
        thread = self._threads.get(event)
        return thread is not None and thread.is_alive()

    def join(self, event: LifecycleEvent, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` for the handlers of ``event``; return whether they have ended."""
        thread = self._threads.get(event)
        if thread is not None:
            thread.join(max(0.0, timeout_s))
        return not self.running(event)

    def abandon(self, event: LifecycleEvent) -> None:
        """Report handlers that have not returned in time, if there are any."""
        if self.running(event):
            self._log.error(
                f"handlers of {event} have not returned in time, and the process continues without them. Make them faster, or "
                "start a thread in them",
                event_name="hook.timeout",
                hook=f"{event} handler",
                waited_s=round(time.monotonic() - self._started_at[event], 3),
            )

    def _check_overdue(self, event: LifecycleEvent) -> None:
        if time.monotonic() - self._started_at[event] > OVERDUE_S and self._rate_limit.hit(event):
            self.abandon(event)

    def _call(self, event: LifecycleEvent, handlers: list[LifecycleHandler], before: SupervisedThread | None) -> None:
        if before is not None:
            before.join(_TURN_S)
        for handler in handlers:
            try:
                handler()
            except BaseException as error:  # noqa: BLE001 - an error of a handler must not end the process
                self._failed(event, error)

    def _failed(self, event: LifecycleEvent, error: BaseException) -> None:
        what = f"{event} handler"
        self._log.error(
            "a handler of a lifecycle event raised an error; the process continues. Correct it",
            event_name="hook.failed",
            hook=what,
            error=error,
        )
        capture = partial(self._events.tracker.capture, error, {"component": what}, what)
        self._events.handlers.guard("error tracker", capture)
