"""Decide when a silent process is dead.

After an outage longer than a lease every lease has expired although every process is alive, so expiry alone proves nothing.
A process counts as dead only if (a) its lease expired and (b) heartbeats, from any process, have arrived without a gap for
one lease plus one heartbeat period (18 s). Redis stores the start of that period (``keys.STEADY_SINCE``), so a new process
needs no warm-up. Exception: a parent that saw its child exit marks the child dead at once (decision 28).
"""

import time

_MISSED_HEARTBEATS = 2
"""So many periods without a heartbeat are a gap: an outage as long may have cost a process its lease."""


class FailureDetector:
    """The limits, and Redis's clock as seen by one observer's heartbeats. One thread writes, any thread reads."""

    def __init__(self, lease_s: float, heartbeat_s: float) -> None:
        self.lease_s = lease_s
        self.max_gap_s = _MISSED_HEARTBEATS * heartbeat_s
        self.required_steady_s = lease_s + heartbeat_s
        # One tuple, replaced as a whole, so that a reader in another thread never sees parts of two heartbeats.
        self._observed = (0.0, 0.0, 0.0)
        """Last heartbeat and start of the steady period, by Redis's clock, and the last heartbeat by the monotonic clock."""

    @property
    def steady_since(self) -> float:
        """The start of the period without a gap, in seconds of Redis's clock; 0 before the first heartbeat."""
        return self._observed[1]

    def record_heartbeat(self, at: float, *, lease_held: bool) -> float:
        """Record a heartbeat at ``at`` of Redis's clock; return the seconds since the last one.

        A lease that had expired (``lease_held`` false) counts as a gap.
        """
        last, since, _ = self._observed
        step = at - last
        self._observed = (at, since if lease_held and 0 <= step <= self.max_gap_s else at, time.monotonic())
        return step

    def dead_before(self) -> float:
        """Return the time of Redis's clock before which a last heartbeat means an expired lease; -1 before the first heartbeat."""
        last, _, seen = self._observed
        return last + time.monotonic() - seen - self.lease_s if last else -1.0
