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

LONGEST_S = 1 << 40
"""What Redis takes as a time, in milliseconds, with room to spare."""

Mark: TypeAlias = tuple[Any, ...]
"""The command that writes a state; its second word is the key."""

_ADVANCING: tuple[JobState, ...] = ("unknown", "queued", "retrying", "running", "discarded", "failed", "completed")
_RANKS = {state.encode(): rank for rank, state in enumerate(_ADVANCING)}


class Tracked(NamedTuple):
    """A job whose state is kept, and for how many seconds after its last change."""

    jid: Jid
    kept_s: int

    def mark(self, state: JobState, *, waits_s: float = 0.0) -> Mark:
        """Return the command that writes ``state``; a job that waits cannot expire before it may go on."""
        return ("SET", keys.status(self.jid), state, "EX", self.lifetime_s(waits_s))

    def mark_queued(self, at: float | None) -> Mark:
        """Return the command that says it waits in its queue, or until ``at``, epoch seconds of Redis's clock, which decides."""
        if at is None:
            return self.mark("queued")
        return ("SET", keys.status(self.jid), "queued", "EXAT", min(LONGEST_S, math.ceil(at) + self.kept_s))

    def mark_delayed(self, delay_s: float) -> Mark:
        """Return the command that says it waits for so long, by Redis's clock."""
        return self.mark("queued", waits_s=delay_s)

    def lifetime_s(self, waits_s: float) -> int:
        """Return for how many seconds a state holds that is written now, by a job that then waits ``waits_s``."""
        return min(LONGEST_S, math.ceil(waits_s) + self.kept_s)


def tracked(payload: Payload) -> Tracked | None:
    """Return what says that a job is tracked; ``None`` when it is not, or when another writer put no time or id there."""
    kept, jid = payload.get(STATUS_EXPIRATION), payload.get("jid")
    if not isinstance(kept, int | float) or isinstance(kept, bool) or not kept > 0:
        return None
    return Tracked(jid, math.ceil(min(kept, LONGEST_S))) if isinstance(jid, str) and jid else None


def merged(found: Iterable[bytes | None]) -> JobState:
    """Return the most advanced of the states that shards have of one job: it may have begun on one and gone on on another."""
    return _ADVANCING[max((_RANKS.get(word, 0) for word in found if word is not None), default=0)]
