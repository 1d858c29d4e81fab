"""Replacing children that serve, one by one: the successor first, and only when it serves does the other finish its jobs.

So at every moment as many take jobs as before, and there is at most one process more. A successor that does not come up ends
the whole, and those that serve go on. Nothing here waits: ``step`` is called several times a second, by one thread.
"""

import math
import signal
import time
from collections.abc import Mapping

from framework.cluster.child import Child, ChildEvent, ChildSpec, OnEvent
from framework.cluster.supervisor import KILL_MARGIN_S, Supervisor

READY_TIMEOUT_S = 90.0
"""How long a successor may take until it serves: a worker waits 60 s for its Redis, and its imports take their time."""

DRAIN_TIMEOUT_S = 3_600.0
"""How long the jobs of a child that is replaced may go on; then they are told to stop as at any end."""


class Rollout:
    """Replaces children of ``group``: all of them (``begin``), or one (``replace``)."""

    def __init__(self, group: Supervisor, on_event: OnEvent, *, drain_timeout_s: float, timeout_s: float) -> None:
        self._group = group
        self._on_event = on_event
        self._drain_timeout_s = drain_timeout_s
        self._timeout_s = timeout_s
        self._replace_started_before = -math.inf
        """Every child that was started before is to be replaced."""
        self._specs: Mapping[str, ChildSpec] = {}
        """What is to run from now on under a name; a name that is missing goes on as it was."""
        self._requested: dict[Child, bool] = {}
        """Single children that are, and whether that is urgent."""
        self._replacement: tuple[Child, Child, bool] | None = None
        """A child, its successor that does not serve yet, and whether it is urgent."""
        self._waiting_since = 0.0
        """Since when whoever was started last is waited for."""
        self._draining_since: dict[Child, float] = {}
        """When those that leave were told to."""
        self._drain_ended_at: dict[Child, float] = {}
        """When those of them that took too long were told to stop."""
        self.aborted = False
        """Whether the last one has ended early."""

    @property
    def rolling(self) -> bool:
        """Whether a replacement of all is under way, the last one's jobs included."""
        return self._replace_started_before > -math.inf

    def begin(self, specs: Mapping[str, ChildSpec] | None = None) -> None:
        """Replace every child that runs now. During a replacement: those that it has replaced already, too."""
        self._specs = specs or {}
        self._replace_started_before = time.monotonic()
        self._group.quiet = self.aborted = False

    def replace(self, child: Child, *, urgent: bool = False) -> bool:
        """Replace this one; tell whether that is news.

        ``urgent``: it does not wait until another's jobs have ended, and its own get the ordinary deadline only.
        """
        if child.draining:
            return urgent and self._end_drain(child)
        known = self._requested.get(
            child, self._replacement[2] if self._replacement is not None and self._replacement[0] is child else None
        )
        if known is None or (urgent and not known):
            if self._replacement is not None and self._replacement[0] is child:
                self._replacement = (*self._replacement[:2], urgent)
            else:
                self._requested[child] = urgent
            return True
        return False

    def cancel(self) -> None:
        """Replace nobody any more; those that leave already do."""
        self._replace_started_before = -math.inf
        self._requested.clear()
        if self._replacement is not None and self._replacement[1].process is not None:
            self._replacement[1].process.send_signal(signal.SIGTERM)
        self._replacement = None

    def step(self) -> None:
        """Do what can be done now."""
        self._end_overdue_drains()
        if self._replacement is not None:
            self._await_successor(*self._replacement)
        elif (child := self._next()) is not None:
            self._start(child)
        elif not (self._pending() or self._draining() or self._not_ready()):
            self._replace_started_before = -math.inf

    def _next(self) -> Child | None:
        children = self._group.children
        self._requested = {child: urgent for child, urgent in self._requested.items() if child in children}
        first_urgent = next((child for child, urgent in self._requested.items() if urgent), None)
        if first_urgent is not None or self._draining():
            return first_urgent
        return next(iter(self._requested), None) or self._next_of_all()

    def _next_of_all(self) -> Child | None:
        """Who is to be replaced next: first those that do not serve, as the new code may be their cure."""
        ailing = self._not_ready()
        if ailing:  # whoever came up and fell again: the next would be ruined as well
            if time.monotonic() - self._waiting_since > READY_TIMEOUT_S:
                self._abort(ailing[0])
            return None
        self._waiting_since = time.monotonic()
        return min(self._pending(), key=lambda child: child.ready, default=None)

    def _pending(self) -> list[Child]:
        return [child for child in self._group.children if child.started_at < self._replace_started_before]

    def _not_ready(self) -> list[Child]:
        """The new ones of a replacement of all that do not serve."""
        return [
            child
            for child in self._group.children
            if self.rolling and child.started_at >= self._replace_started_before and not child.ready
        ]

    def _draining(self) -> list[Child]:
        return [child for child in self._group.standby if child.draining]

    def _start(self, child: Child) -> None:
        urgent = self._requested.pop(child, False)
        successor = self._group.start_standby(child, self._specs.get(child.name, child.spec))
        if successor.process is None:
            self._abort(successor)
            return
        self._replacement = (child, successor, urgent)
        self._waiting_since = time.monotonic()

    def _await_successor(self, old: Child, new: Child, urgent: bool) -> None:  # noqa: FBT001 - one of three that belong together
        if new.ready:
            self._replacement = None
            self._waiting_since = time.monotonic()
            self._group.replace(old, new)
            if urgent:
                self._end_drain(old)
        elif new.process is None:
            self._abort(new)
        elif time.monotonic() - self._waiting_since > READY_TIMEOUT_S:
            new.process.kill()
            self._abort(new)

    def _abort(self, new: Child) -> None:
        """Whoever serves goes on as before."""
        self._replacement = None
        self._replace_started_before = -math.inf
        self._requested.clear()
        self.aborted = True
        self._on_event(ChildEvent("not_ready", new.name, new.spec.shard, new.pid, new.status))

    def _end_overdue_drains(self) -> None:
        now = time.monotonic()
        leaving = self._draining()
        self._draining_since = {child: self._draining_since.get(child, now) for child in leaving}
        self._drain_ended_at = {child: at for child, at in self._drain_ended_at.items() if child in leaving}
        for child in leaving:
            if now - self._draining_since[child] >= self._drain_timeout_s:
                self._end_drain(child)
            if now - self._drain_ended_at.get(child, math.inf) > self._timeout_s + KILL_MARGIN_S and child.process:
                child.process.kill()

    def _end_drain(self, child: Child) -> bool:
        """Set the ordinary deadline to the jobs of one that leaves; tell whether that is news."""
        if child in self._drain_ended_at or child.process is None:
            return False
        now = time.monotonic()
        self._drain_ended_at[child] = now
        waited_s = int(now - self._draining_since.get(child, now))
        self._on_event(ChildEvent("overdue", child.name, child.spec.shard, child.pid, waited_s))
        child.process.send_signal(signal.SIGTERM)
        return True
