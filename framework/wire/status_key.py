"""What is kept of a tracked job beside its payload: its state, a word under a key of its own that expires.

A job is tracked when its payload has ``status_expiration`` (GitLab's field). There, a missing key means completed, so that what
is unknown or expired reads as completed, and what failed as running; here each state has its word, and no word is ``unknown``.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

from framework.types import Jid, JobState, Payload
from framework.wire import keys

STATUS_EXPIRATION = "status_expiration"
"""Field of a payload: how many seconds a state is kept after it was last written."""

MAX_TTL_S = 1 << 40
"""What Redis takes as a time, in milliseconds, with room to spare."""

StatusCommand: TypeAlias = tuple[Any, ...]
"""The command that writes a state; its second word is the key."""

_STATES_BY_PROGRESS: tuple[JobState, ...] = (
    "unknown",
    "queued",
    "retrying",
    "running",
    "discarded",
    "failed",
    "completed",
)
_RANKS = {state.encode(): rank for rank, state in enumerate(_STATES_BY_PROGRESS)}


class TrackedJob(NamedTuple):
    """A job whose state is kept, and for how many seconds after its last change."""

    jid: Jid
    ttl_s: int

    def command(self, state: JobState, *, delay_s: float = 0.0) -> StatusCommand:
        """Return the command that writes ``state``; a job that waits cannot expire before it may go on."""
        return ("SET", keys.status(self.jid), state, "EX", self.lifetime_s(delay_s))

    def queued_command(self, at: float | None) -> StatusCommand:
        """Return the command that says it waits in its queue, or until ``at``, epoch seconds of Redis's clock, which decides."""
        if at is None:
            return self.command("queued")
        return ("SET", keys.status(self.jid), "queued", "EXAT", min(MAX_TTL_S, math.ceil(at) + self.ttl_s))

    def delayed_command(self, delay_s: float) -> StatusCommand:
        """Return the command that says it waits for so long, by Redis's clock."""
        return self.command("queued", delay_s=delay_s)

    def lifetime_s(self, delay_s: float) -> int:
        """Return for how many seconds a state holds that is written now, by a job that then waits ``waits_s``."""
        return min(MAX_TTL_S, math.ceil(delay_s) + self.ttl_s)


def tracked_job(payload: Payload) -> TrackedJob | None:
    """Return what says that a job is tracked; ``None`` when it is not, or when another writer put no time or id there."""
    kept, jid = payload.get(STATUS_EXPIRATION), payload.get("jid")
    if not isinstance(kept, int | float) or isinstance(kept, bool) or not kept > 0:
        return None
    return TrackedJob(jid, math.ceil(min(kept, MAX_TTL_S))) if isinstance(jid, str) and jid else None


def most_advanced(found: Iterable[bytes | None]) -> JobState:
    """Return the most advanced of the states that shards have of one job: it may have begun on one and gone on on another."""
    return _STATES_BY_PROGRESS[max((_RANKS.get(word, 0) for word in found if word is not None), default=0)]
