"""How long one process has known Redis to be up: what lets it tell the dead from the cut off.

After an outage longer than the lease every lease has run out while everybody lives. Whoever sweeps first would take back
every job that runs. So a process takes nobody for dead before it has itself been beating, without a gap, for one lease
and one beat: until then whoever lives has found its way back, at whatever time it was. Redis's clock is what counts, so a
clock that jumps, or a replica's that differs, is a gap too. A process whose parent saw it die needs no grace.
"""

import time

_MISSED_BEATS = 2
"""So many periods without a beat are a gap: an outage that may have cost somebody its lease is longer."""


class Grace:
    """Fed by one thread's beats, asked by any."""

    def __init__(self, lease_s: float, beat_s: float) -> None:
        self.lease_s = lease_s
        self.gap_s = _MISSED_BEATS * beat_s
        self.grace_s = lease_s + beat_s
        self._seen = (0.0, 0.0, 0.0)

    @property
    def since(self) -> float:
        """Since when there was no gap, in seconds of Redis's clock; 0 before the first beat."""
        return self._seen[1]

    def beat(self, at: float, *, held: bool) -> float:
        """Redis answered at ``at`` of its clock, and our lease was ``held`` or had lapsed; return the seconds since the last beat."""
        last, since, _ = self._seen
        step = at - last
        self._seen = (at, since if held and 0 <= step <= self.gap_s else at, time.monotonic())
        return step

    def horizon(self) -> float:
        """Whoever beat last before this, in seconds of Redis's clock, may be dead; below 0 while only the retired are."""
        last, since, seen = self._seen
        now = last + time.monotonic() - seen
        return now - self.lease_s if last and now - since >= self.grace_s else -1.0

    def arguments(self) -> list[str]:
        """What the script ``examine`` asks: last beat, since when without a gap, longest gap, grace."""
        last, since, _ = self._seen
        return [f"{last:.6f}", f"{since:.6f}", f"{self.gap_s:g}", f"{self.grace_s:g}"]
