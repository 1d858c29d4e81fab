"""Read what the shard of a job keeps for its caller, and its profile: for ``jobs explain``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import ResponseError

from framework.shard.profile_store import JobProfile, read_profile
from framework.wire import keys
from framework.wire.answers import CallEnd, read_answer
from framework.wire.stored_state import UNSIGNED_STATE, result_place


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The stored answer of a called job: how the job ended, and for how many seconds the answer is kept from now on."""

    end: str
    """``done``, or the word for an end without a result."""
    reason: str
    kept_s: float

    def as_json(self) -> Mapping[str, Any]:
        """Return the answer for a command's JSON. The value is not in it: it may be large, or secret."""
        return {"end": self.end, "reason": self.reason or None, "kept_s": self.kept_s}


def read_kept_answer(client: "redis.Redis", jid: str) -> KeptAnswer | None:
    """Return the stored answer of a job, ``None`` if there is none. Raises redis errors."""
    pipeline: Any = client.pipeline()
    pipeline.get(keys.result(jid))
    pipeline.pttl(keys.result(jid))
    try:
        data, left_ms = pipeline.execute()
    except ResponseError:
        # Another program has written a key of another type.
        return None
    if data is None:
        return None
    try:
        # Only the words are shown: the caller checks the signature.
        found = read_answer(UNSIGNED_STATE.open(result_place(jid), data))
    except Exception:  # noqa: BLE001 - the process of an isolated job may have sent anything
        found = CallEnd("refused", reason="the stored answer cannot be read")
    reason = f"{found.error_class}: {found.reason}" if found.error_class else found.reason
    return KeptAnswer(found.word, reason, max(0.0, left_ms / 1_000))


def find_profile(client: "redis.Redis", shard: str, jid: str) -> JobProfile | None:
    """Return the facts of the kept profile of a job, without the page; ``None`` if there is none. Raises redis errors."""
    try:
        return read_profile(client, shard, jid, with_page=False)
    except ResponseError:
        return None
