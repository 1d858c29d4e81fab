"""The concurrency limits of one shard: what holds now and who says so, who has the slots, who waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import redis

from framework.admin.search import text
from framework.admin.times import clock
from framework.process.parked import Parked, indexed, measure
from framework.store.script import RESUME
from framework.wire import keys
from framework.wire.job import moment

Source: TypeAlias = Literal["application", "operators", "throttled", "nobody"]

_UNKNOWN_S = 365 * 86_400
"""A look by an operator is no reason to let go of a limit that no process knows."""

_STEP = 100
_GREATEST = 1e12  # epoch seconds, or jobs


@dataclass(frozen=True, slots=True)
class Holder:
    """One slot: of a job that runs in a process, or (``identity`` is empty) was handed over and has not begun."""

    identity: str
    jid: str
    left_s: float
    """Until it is free whatever happens; below 0, it is as soon as anybody looks."""


@dataclass(frozen=True, slots=True)
class Override:
    """The operators' word: times are epoch seconds, ``until`` ``None`` for no end."""

    limit: int
    until: float | None
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit. ``limit`` is what holds: 0 none, below 0 nobody runs, ``None`` nobody has said anything."""

    name: str
    limit: int | None
    source: Source
    application: int | None
    until: float | None
    """When what holds ends by itself: an override, or throttling."""
    override: Override | None
    share: int
    """Most slots of one scope, 0 for no such limit."""
    running: int
    waiting: Parked | None

    @property
    def full(self) -> bool:
        """Whether a job that comes now has to wait for a slot."""
        return self.limit is not None and self.limit != 0 and self.running >= self.limit

    @property
    def shown(self) -> str:
        """Slots taken, of how many."""
        if self.limit is None or self.limit == 0:
            return f"{self.running}, no limit"
        return f"{self.running}/{self.limit}" if self.limit > 0 else f"{self.running}, paused ({self.limit})"


def read_limits(client: "redis.Redis", now: float, names: Sequence[str] | None = None) -> list[Limit]:
    """Return every limit of the shard, or the named ones: those that most wait at first. Raises redis errors."""
    places = [place for place in indexed(client) if place.kind == "waiting" and (names is None or place.name in names)]
    waiting = {parked.name: parked for parked in measure(client, places)}
    if names is None:
        known: Any = client.smembers(keys.LIMITS)
        names = sorted({text(key).removeprefix(keys.limit("")) for key in known} | set(waiting))
    pipeline: Any = client.pipeline(transaction=False)
    for name in names:
        pipeline.hgetall(keys.limit(name))
        pipeline.zcard(keys.limit(name) + ":running")
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    found = [
        _limit(name, replies[2 * index], replies[2 * index + 1], waiting.get(name), now)
        for index, name in enumerate(names)
    ]
    return sorted(found, key=lambda limit: (limit.waiting.since if limit.waiting else now, limit.name))


def holders(client: "redis.Redis", name: str, now: float, scope: str = "") -> list[Holder]:
    """Return the slots of a limit, or of one scope of it, those that are free first among them. Raises redis errors."""
    found: Any = client.zrange(keys.limit(name) + ":running", 0, -1, withscores=True)
    if scope and found:
        scopes: Any = client.hmget(keys.limit(name) + ":scopes", [member for member, _ in found])
        found = [slot for slot, its in zip(found, scopes, strict=True) if its is not None and text(its) == scope]
    return [_holder(text(member), moment(expiry) - now) for member, expiry in found]


def override(client: "redis.Redis", name: str, chosen: Override) -> None:
    """The operators' word stands over the application's from now on; slots that are free by it are handed out. Redis errors."""
    fields = {
        "override": str(chosen.limit),
        "override_until": "" if chosen.until is None else f"{chosen.until:.6f}",
        "override_reason": chosen.reason,
        "override_by": chosen.by,
    }
    pipeline: Any = client.pipeline()
    pipeline.hset(keys.limit(name), mapping=fields)
    pipeline.sadd(keys.LIMITS, keys.limit(name))
    pipeline.execute()


def clear_override(client: "redis.Redis", name: str) -> bool:
    """The application's word stands again; return whether there was another. Raises redis errors."""
    fields = ("override", "override_until", "override_reason", "override_by")
    return bool(client.hdel(keys.limit(name), *fields))


def hand_out(client: "redis.Redis", name: str) -> tuple[int, int]:
    """Free the slots that nobody renews and hand over what is free; return the jobs handed over and the slots freed.

    Only what the limit allows: this is what each end of a job does, and a look of every process from time to time. After an outage
    no slot counts as given up before beats have come through for a while.
    Raises redis errors: what was handed over is in its queue.
    """
    handed = freed = 0
    running = keys.limit(name) + ":running"
    while True:
        now = clock(client)
        stale: Any = client.zcount(running, "-inf", now)
        reply: Any = RESUME(client, [keys.limit(name)], ["", "0", str(_STEP), str(_UNKNOWN_S)])
        left: Any = client.zcount(running, "-inf", now)
        handed += int(reply[0])
        freed += max(0, stale - left)
        if int(reply[0]) < _STEP and stale - left < _STEP:
            return handed, freed


def _limit(name: str, fields: Any, running: Any, waiting: Parked | None, now: float) -> Limit:
    pairs = cast("dict[bytes, bytes]", fields) if isinstance(fields, dict) else {}
    said = {text(key): text(value) for key, value in pairs.items()}
    application, chosen = _number(said.get("limit")), _override(said)
    current, current_until = _number(said.get("current")), _time(said.get("current_until")) or 0.0
    limit, until = application, None
    source: Source = "nobody" if application is None else "application"
    if chosen is not None and (chosen.until is None or chosen.until > now):
        limit, source, until = chosen.limit, "operators", chosen.until
    elif current is not None and current_until > now and 0 < current < (application or 0):
        limit, source, until = current, "throttled", current_until
    count = running if isinstance(running, int) else 0
    return Limit(name, limit, source, application, until, chosen, _number(said.get("share")) or 0, count, waiting)


def _override(said: dict[str, str]) -> Override | None:
    limit = _number(said.get("override"))
    if limit is None:
        return None
    return Override(
        limit, _time(said.get("override_until")), said.get("override_reason", ""), said.get("override_by", "")
    )


def _holder(member: str, left_s: float) -> Holder:
    identity, _, jid = member.partition(" ")
    return Holder(identity, jid, left_s)


def _number(value: str | None) -> int | None:
    seconds = _time(value)
    return None if seconds is None else int(seconds)


def _time(value: str | None) -> float | None:
    try:
        number = float(value or "nan")
    except ValueError:
        return None
    return number if abs(number) <= _GREATEST else None
