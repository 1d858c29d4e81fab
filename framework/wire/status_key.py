"""Define the status of a tracked job in Redis: one word under its own key, which expires.

A job is tracked if its payload has ``status_expiration`` (GitLab's field). In GitLab a missing key means completed, so that
unknown and expired jobs read as completed and failed ones as running. Here each state has a word, and no word is ``unknown``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, overload

from framework.process_clock import process_clock
from framework.types import Jid, JobState, Payload
from framework.wire import keys
from framework.wire.waiters import kept_state_s

STATUS_EXPIRATION = "status_expiration"
"""Field of a payload: the seconds that a state is kept after its last write."""

MAX_TTL_S = 1 << 40
"""The largest TTL in seconds: in milliseconds it is well within Redis's limit."""

LastStatus: TypeAlias = tuple[str, str, str]
"""The status that the end of a job writes: key, state and seconds."""

StatusCommand: TypeAlias = tuple[Any, ...]
"""The Redis command that writes a state; its second element is the key."""

_STATES_BY_PROGRESS: tuple[JobState, ...] = (
    "unknown",
    "queued",
    "retrying",
    "running",
    "discarded",
    "expired",
    "cancelled",
    "failed",
    "completed",
)
_RANKS = {state.encode(): rank for rank, state in enumerate(_STATES_BY_PROGRESS)}


class TrackedJob(NamedTuple):
    """Hold the id of a tracked job and the seconds that its state is kept after each change."""

    jid: Jid
    ttl_s: int
    wait_s: int = 0
    """The seconds that a state is kept at least before the end: a result is asked for by its id, however long the job waits."""

    def command(self, state: JobState, *, delay_s: float = 0.0) -> StatusCommand:
        """Return the command that writes ``state``. The status of a waiting job cannot expire before ``delay_s`` is over."""
        return ("SET", keys.status(self.jid), state, "EX", self.lifetime_s(delay_s))

    def last_status(self, state: JobState) -> "LastStatus":
        """Return the state that the acknowledgement of an ended job writes (``parts/release.lua``): key, state and seconds."""
        return (keys.status(self.jid), state, str(self.ttl_s))

    def queued_command(self, at: float | None) -> StatusCommand:
        """Return the command for a job that waits in its queue, or until ``at`` in epoch seconds of Redis's clock."""
        if at is None:
            return self.command("queued")
        expires_at = math.ceil(process_clock.to_server(at)) + self.lifetime_s(0)
        return ("SET", keys.status(self.jid), "queued", "EXAT", min(MAX_TTL_S, expires_at))

    def delayed_command(self, delay_s: float) -> StatusCommand:
        """Return the command for a job that waits ``delay_s`` by Redis's clock."""
        return self.command("queued", delay_s=delay_s)

    def lifetime_s(self, delay_s: float) -> int:
        """Return the TTL in seconds of a state written now by a job that then waits ``delay_s``."""
        return min(MAX_TTL_S, math.ceil(delay_s) + max(self.ttl_s, self.wait_s))


class QueuedCommands(Sequence[StatusCommand]):
    """The commands ``queued_command(None)`` of many tracked jobs with one lifetime. A command is made only when it is read."""

    __slots__ = ("jids", "ttl_s")

    def __init__(self, jids: Sequence[Jid], ttl_s: int) -> None:
        self.jids, self.ttl_s = jids, ttl_s
        """The ids, all of one length as ``generate_jids`` returns them; the seconds that the states are kept."""

    def __len__(self) -> int:
        return len(self.jids)

    @overload
    def __getitem__(self, index: int) -> StatusCommand: ...
    @overload
    def __getitem__(self, index: slice) -> "QueuedCommands": ...
    def __getitem__(self, index: int | slice) -> "StatusCommand | QueuedCommands":
        if isinstance(index, slice):
            return QueuedCommands(self.jids[index], self.ttl_s)
        return TrackedJob(self.jids[index], self.ttl_s).queued_command(None)

    def packed(self, pack: Callable[[StatusCommand], bytes]) -> bytes:
        """Return all commands as ``pack`` encodes one: the first is encoded, and the other ids put in place of its id.

        A command costs 0.4 us with a call of ``pack`` for each, and less than 0.1 us so.
        """
        if not self.jids:
            return b""
        before, _, behind = pack(self[0]).partition(self.jids[0].encode())
        return before + (behind + before).join(map(str.encode, self.jids)) + behind


def tracked_job(payload: Payload) -> TrackedJob | None:
    """Return the tracked job of a payload, or ``None`` if it is untracked or another writer's values are invalid."""
    ttl_s = payload.get(STATUS_EXPIRATION)
    # Almost every job: for what it waits is of no use then.
    if ttl_s is None:
        return None
    jid = payload.get("jid")
    if type(ttl_s) is not int or not 0 < ttl_s <= MAX_TTL_S:
        if not isinstance(ttl_s, int | float) or isinstance(ttl_s, bool) or not ttl_s > 0:
            return None
        ttl_s = math.ceil(min(ttl_s, MAX_TTL_S))
    return TrackedJob(jid, ttl_s, kept_state_s(payload)) if isinstance(jid, str) and jid else None


def most_advanced(found: Iterable[bytes | None]) -> JobState:
    """Return the most advanced state among shards: a job may begin on one shard and continue on another."""
    return _STATES_BY_PROGRESS[max((_RANKS.get(word, 0) for word in found if word is not None), default=0)]
