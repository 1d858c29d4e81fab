"""Bound the interruptions of a job.

There are two counts. ``interrupted_count`` (GitLab's field): the job still ran at the deadline of its process, which counts
the stop itself (``process/push_back.py``). ``aw_death_count``: the process died while the job ran, which the reaper finds
out. A retry resets neither, and each ends the job when it reaches the limit (decision 155).
"""

from dataclasses import dataclass

from framework.declare import registry
from framework.types import Payload
from framework.wire.job import count_of

MAX_INTERRUPTIONS = 3
"""Default limit of either count (GitLab's); the class or ``max_retries_after_interruption`` may set another."""


@dataclass(frozen=True, slots=True)
class InterruptionLimit:
    """The limit of either count: that of the class, else the setting. A negative limit means none."""

    setting: int = MAX_INTERRUPTIONS

    def for_payload(self, payload: Payload) -> int:
        """Return the limit of a job; without its class, the setting."""
        worker = registry.find(str(payload.get("class")))
        own: int | None = None if worker is None else worker.declaration().max_retries_after_interruption
        return self.setting if own is None else own

    def reached(self, payload: Payload, count: str) -> bool:
        """Return whether this field of the payload has reached the limit, so that the job ends."""
        return 0 <= self.for_payload(payload) <= count_of(payload, count)
