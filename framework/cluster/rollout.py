"""Replace running children one by one: start the successor first, and drain the old child when the successor serves.

The number of children that fetch jobs never falls, and there is at most one additional process. A successor that
does not become ready aborts the rolling restart, and the other children go on. Nothing here waits: one thread calls ``step``
several times a second.
"""

import math
import signal
import time
from collections.abc import Mapping

from framework.cluster.child import Child, ChildEvent, ChildSpec, OnEvent
from framework.cluster.supervisor import KILL_MARGIN_S, Supervisor
from framework.timings import STANDARD, Timings

DRAIN_TIMEOUT_S = 3_600.0
"""How long the jobs of a replaced child may run before the child stops with the usual deadline."""


class Rollout:
    """Replace all children of ``group`` (``begin``), or one of them (``replace``)."""

    def __init__(
        self,
        group: Supervisor,
        on_event: OnEvent,
        *,
        drain_timeout_s: float,
        timeout_s: float,
        timings: Timings = STANDARD,
    ) -> None:
        self._group = group
        self._on_event = on_event
        self._drain_timeout_s = drain_timeout_s
        self._timeout_s = timeout_s
        self._ready_timeout_s = timings.ready_timeout_s
        self._replace_started_before = -math.inf
        """Every child that was started before this time is replaced."""
        self._specs: Mapping[str, ChildSpec] = {}
        """The new specs by name; a child whose name is missing keeps its spec."""
        self._requested: dict[Child, bool] = {}
        """Single children to replace, and whether each is urgent."""
        self._replacement: tuple[Child, Child, bool] | None = None
        """A child, its successor that does not serve yet, and whether the replacement is urgent."""
        self._waiting_since = 0.0
        """Since when the last started successor is awaited."""
        self._draining_since: dict[Child, float] = {}
        """When each replaced child began to drain."""
        self._drain_ended_at: dict[Child, float] = {}
        """When the supervisor ended the drain of a child that took too long."""
        self.aborted = False
        """Whether the last rolling restart was aborted."""

    @property
    def rolling(self) -> bool:
        """Whether a rolling restart is in progress, including the last child's drain."""
        return self._replace_started_before > -math.inf

    def begin(self, specs: Mapping[str, ChildSpec] | None = None) -> None:
        """Start to replace every running child; during a rolling restart, start again with all of them."""
        self._specs = specs or {}
        self._replace_started_before = time.monotonic()
        self._group.quiet = self.aborted = False

    def replace(self, child: Child, *, urgent: bool = False) -> bool:
        """Request the replacement of one child; return whether the request is new.

        An ``urgent`` replacement does not wait until another child has drained, and gives its own jobs the usual deadline only.
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
        """Cancel all further replacements; children that drain continue to drain."""
        self._replace_started_before = -math.inf
        self._requested.clear()
        if self._replacement is not None and self._replacement[1].process is not None:
            self._replacement[1].process.send_signal(signal.SIGTERM)
        self._replacement = None

    def step(self) -> None:
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
        """Return the next child of a rolling restart: first one that does not serve, as the new code may repair it."""
        not_ready = self._not_ready()
        # A new child that served and failed again: replacing the next one would break it too.
        if not_ready:
            if time.monotonic() - self._waiting_since > self._ready_timeout_s:
                self._abort(not_ready[0])
            return None
        self._waiting_since = time.monotonic()
        return min(self._pending(), key=lambda child: child.ready, default=None)

    def _pending(self) -> list[Child]:
        return [child for child in self._group.children if child.started_at < self._replace_started_before]

    def _not_ready(self) -> list[Child]:
        """Return the new children of a rolling restart that do not serve."""
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

    def _await_successor(self, old: Child, new: Child, urgent: bool) -> None:  # noqa: FBT001 - the fields of ``_replacement``
        if new.ready:
            self._replacement = None
            self._waiting_since = time.monotonic()
            self._group.replace(old, new)
            if urgent:
                self._end_drain(old)
        elif new.process is None:
            self._abort(new)
        elif time.monotonic() - self._waiting_since > self._ready_timeout_s:
            new.process.kill()
            self._abort(new)

    def _abort(self, new: Child) -> None:
        """Abort the rolling restart; the children that serve go on."""
        self._replacement = None
        self._replace_started_before = -math.inf
        self._requested.clear()
        self.aborted = True
        self._on_event(ChildEvent("not_ready", new.name, new.spec.shard, new.pid, new.status))

    def _end_overdue_drains(self) -> None:
        now = time.monotonic()
        draining = self._draining()
        self._draining_since = {child: self._draining_since.get(child, now) for child in draining}
        self._drain_ended_at = {child: at for child, at in self._drain_ended_at.items() if child in draining}
        for child in draining:
            if now - self._draining_since[child] >= self._drain_timeout_s:
                self._end_drain(child)
            if now - self._drain_ended_at.get(child, math.inf) > self._timeout_s + KILL_MARGIN_S and child.process:
                child.process.kill()

    def _end_drain(self, child: Child) -> bool:
        """Set the usual deadline for the jobs of a draining child; return whether that is new."""
        if child in self._drain_ended_at or child.process is None:
            return False
        now = time.monotonic()
        self._drain_ended_at[child] = now
        waited_s = int(now - self._draining_since.get(child, now))
        self._on_event(ChildEvent("overdue", child.name, child.spec.shard, child.pid, waited_s))
        child.process.send_signal(signal.SIGTERM)
        return True
