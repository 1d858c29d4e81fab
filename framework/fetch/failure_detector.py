"""When the silent are dead: what tells a process that died from one that was cut off from Redis, like everybody.

After an outage longer than the lease every lease has run out while everybody lives. Whoever sweeps first would take back
every job that runs. So nobody is taken for dead before beats, of whomever, have come through without a gap for one lease
and one beat: until then whoever lives has found its way back. Redis itself keeps since when that is so
(``keys.STEADY_SINCE``, renewed by each beat, gone after a gap), so a process that has just started knows as much as an old one.
A process whose parent saw it die needs no grace.
"""

import time

_MISSED_HEARTBEATS = 2
"""So many periods without a beat are a gap: an outage that may have cost somebody its lease is longer."""


# Decision 28: failure detection waits 18 s after an outage.
class FailureDetector:
    """The limits, and Redis's clock as one observer's beats have seen it. Fed by one thread, asked by any."""

    def __init__(self, lease_s: float, heartbeat_s: float) -> None:
        self.lease_s = lease_s
        self.max_gap_s = _MISSED_HEARTBEATS * heartbeat_s
        self.required_steady_s = lease_s + heartbeat_s
        self._observed = (0.0, 0.0, 0.0)

    @property
    def steady_since(self) -> float:
        """Since when this observer has seen no gap, in seconds of Redis's clock; 0 before the first beat."""
        return self._observed[1]

    def record_heartbeat(self, at: float, *, lease_held: bool) -> float:
        """Redis answered at ``at`` of its clock, and our lease was ``held`` or had lapsed; return the seconds since the last beat."""
        last, since, _ = self._observed
        step = at - last
        self._observed = (at, since if lease_held and 0 <= step <= self.max_gap_s else at, time.monotonic())
        return step

    def dead_before(self) -> float:
        """Whoever beat last before this, in seconds of Redis's clock, is to be examined; below 0 while only the retired are."""
        last, _, seen = self._observed
        return last + time.monotonic() - seen - self.lease_s if last else -1.0
