"""Read and override the concurrency limits of one shard: the limit in force, its source, and its slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import redis

from framework.store.script import write_when_full
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.job import clamp_time
from framework.wire.json import stored_count

LimitSource: TypeAlias = Literal["application", "operators", "throttled", "portion", "unset"]
"""The source of the limit in force: ``portion`` if this shard uses a part of a limit that holds on all shards together."""

# The largest valid number, of epoch seconds or of jobs.
_MAX_NUMBER = 1e12


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """One slot: of a job that runs in a process, or (``identity`` is empty) reserved for a job that has not begun."""

    identity: str
    jid: str
    left_s: float
    """Seconds until the slot expires; negative for a slot that the next sweep frees."""


@dataclass(frozen=True, slots=True)
class LimitOverride:
    """An override by operators. Times are epoch seconds; ``until`` is ``None`` for no end."""

    limit: int
    until: float | None
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit. ``limit`` is the value in force: 0 for none, negative for a pause, ``None`` if no source defines one."""

    name: str
    limit: int | None
    source: LimitSource
    application: int | None
    until: float | None
    """When an override or throttling ends by itself."""
    override: LimitOverride | None
    share: int
    """The maximum of slots for one scope, 0 for no maximum."""
    running: int
    whole: int | None
    """The limit of all shards together, of which ``limit`` is the portion of this shard (negative: none)."""

    @property
    def is_full(self) -> bool:
        """Return whether a job that arrives now has to wait for a slot."""
        return self.limit is not None and self.limit != 0 and self.running >= self.limit

    @property
    def usage(self) -> str:
        if self.limit is None or self.limit == 0:
            return f"{self.running}, no limit"
        if self.whole is not None:
            return f"{self.running}/{max(0, self.limit)} here of {self.whole} on all shards"
        return f"{self.running}/{self.limit}" if self.limit > 0 else f"{self.running}, paused ({self.limit})"


def read_limit_states(client: "redis.Redis", now: float, names: Sequence[str]) -> list[LimitState]:
    """Return the state of the named limits. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(keys.limit(name))
        pipeline.zcard(keys.limit(name) + ":running")
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    return [limit_state(name, replies[2 * index], replies[2 * index + 1], now) for index, name in enumerate(names)]


def slots_of_scope(client: "redis.Redis", name: str, scope: str) -> int:
    """Return how many slots of a limit a scope uses. Raises redis errors."""
    held: Any = client.hget(keys.limit(name) + ":scope_slots", scope)
    return stored_count(held)


def read_slot_holders(client: "redis.Redis", name: str, now: float, scope: str = "", most: int = 0) -> list[SlotHolder]:
    """Return the slots of a limit, or of one scope of it, those that expire first in front. Raises redis errors.

    ``most`` are the slots that are read; 0 for all.
    """
    found: Any = client.zrange(keys.limit(name) + ":running", 0, most - 1, withscores=True)
    if scope and found:
        scopes: Any = client.hmget(keys.limit(name) + ":scopes", [member for member, _ in found])
        found = [
            slot for slot, its in zip(found, scopes, strict=True) if its is not None and decode_escaped(its) == scope
        ]
    return [_holder(decode_escaped(member), clamp_time(expiry) - now) for member, expiry in found]


def read_slot_expiries(client: "redis.Redis", names: Sequence[str], members: Sequence[str]) -> list[tuple[str, float]]:
    """Return the limits at which one of these members has a slot, with the epoch seconds at which the last one expires.

    A limit whose key has another type has no slots. Raises redis errors.
    """
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.zmscore(keys.limit(name) + ":running", members)
    expiries: list[tuple[str, float]] = []
    for name, reply in zip(names, pipeline.execute(raise_on_error=False), strict=True):
        scores = cast("list[float | None]", reply) if isinstance(reply, list) else []
        found = [score for score in scores if score is not None]
        if found:
            expiries.append((name, clamp_time(max(found))))
    return expiries


# Overrides always expire: one that is set at night is easily forgotten.
def set_override(client: "redis.Redis", name: str, new: LimitOverride) -> None:
    """Set an override of the application's limit. Raises redis errors."""
    fields = {
        "override": str(new.limit),
        "override_until": "" if new.until is None else f"{new.until:.6f}",
        "override_reason": new.reason,
        "override_by": new.by,
    }
    written = (word for pair in fields.items() for word in pair)
    write_when_full(client, ("HSET", keys.limit(name), *written), ("SADD", keys.LIMITS, keys.limit(name)))


def clear_override(client: "redis.Redis", name: str) -> bool:
    """Remove the override; return whether there was one. Raises redis errors."""
    fields = ("override", "override_until", "override_reason", "override_by")
    return bool(client.hdel(keys.limit(name), *fields))


def limit_state(name: str, fields: Any, running: Any, now: float) -> LimitState:
    """Return the state of a limit from its HASH and the number of its slots in use; anything else counts as empty."""
    pairs = cast("dict[bytes, bytes]", fields) if isinstance(fields, dict) else {}
    stored = {decode_escaped(key): decode_escaped(value) for key, value in pairs.items()}
    application, chosen = _number(stored.get("limit")), _override(stored)
    current, current_until = _number(stored.get("current")), _time(stored.get("current_until")) or 0.0
    limit, until = application, None
    source: LimitSource = "unset" if application is None else "application"
    if chosen is not None and (chosen.until is None or chosen.until > now):
        limit, source, until = chosen.limit, "operators", chosen.until
    elif current is not None and current_until > now and 0 < current < (application or 0):
        limit, source, until = current, "throttled", current_until
    count = running if isinstance(running, int) else 0
    whole = None
    if stored.get("limit", "").startswith("+") and limit is not None and limit > 0:
        # As in `parts/slots.lua`.
        slots, _, till = stored.get("portion", "").partition(" ")
        portion = _number(slots) or 0
        whole = limit
        limit = min(limit, portion) if portion > 0 and (not till or (_time(till) or 0.0) >= now) else -1
        if limit != whole:
            source = "portion"
    return LimitState(name, limit, source, application, until, chosen, _number(stored.get("share")) or 0, count, whole)


def _override(fields: dict[str, str]) -> LimitOverride | None:
    limit = _number(fields.get("override"))
    if limit is None:
        return None
    return LimitOverride(
        limit, _time(fields.get("override_until")), fields.get("override_reason", ""), fields.get("override_by", "")
    )


def _holder(member: str, left_s: float) -> SlotHolder:
    identity, _, jid = member.partition(" ")
    return SlotHolder(identity, jid, left_s)


def _number(value: str | None) -> int | None:
    seconds = _time(value)
    return None if seconds is None else int(seconds)


def _time(value: str | None) -> float | None:
    try:
        number = float(value or "nan")
    except ValueError:
        return None
    return number if abs(number) <= _MAX_NUMBER else None
