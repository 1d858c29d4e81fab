"""Read the rate limiters of one shard, with what is used of each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import redis

from framework.admin.access import Answers, ask
from framework.async_twin import async_twin
from framework.errors import PayloadError
from framework.features.limiters import keys
from framework.features.limiters.store import READ
from framework.text import decode_escaped
from framework.wire.json import loads_object, stored_count

_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class LimiterState:
    """One rate limiter. ``used`` is that of calls without a key; each key has a limit of its own."""

    name: str
    kind: str
    limit: float
    """The limit in force."""
    declared: float
    """The limit of the code."""
    used: float
    interval_s: float | None
    resized_by: str
    resized_reason: str
    taken: int
    """Calls that were admitted, since the limiter is in use."""
    waited: int
    """Those of them that had to wait."""
    refused: int
    """Calls that were not admitted at their first try, each once, however often it tried again."""
    reclaimed: int
    """Locks that ended because their block took longer than ``lock_timeout``, or its process died."""


def read_limiters(client: "redis.Redis") -> list[LimiterState]:
    """Return the limiters in use, sorted by name. Raises redis errors."""
    members = cast("list[bytes]", client.zrange(keys.NAMES, 0, -1))
    names = sorted(decode_escaped(member) for member in members)
    found = (read_limiter(client, name) for name in names)
    return [one for one in found if one is not None]


def read_limiter(client: "redis.Redis", name: str) -> LimiterState | None:
    """Return one limiter, ``None`` for an unknown one. Raises redis errors."""
    raw = cast("Mapping[bytes, bytes]", client.hgetall(keys.limiter(name)))
    facts = {decode_escaped(field): decode_escaped(value) for field, value in raw.items()}
    try:
        rule = loads_object(facts.get("rule", "").encode())
    except PayloadError:
        return None
    reply: list[bytes] = READ(client, [keys.limiter(name), keys.state(name, "")], [""])
    if not reply:
        return None
    used, limit = map(float, reply)
    counts = {count: stored_count(facts.get(count)) for count in ("taken", "waited", "refused", "reclaimed")}
    in_force = limit != rule["limit"]
    return LimiterState(
        name,
        rule["kind"],
        limit,
        rule["limit"],
        used,
        rule.get("interval_s"),
        facts.get("resized_by", "") if in_force else "",
        facts.get("resized_reason", "") if in_force else "",
        **counts,
    )


def used_keys(client: "redis.Redis", name: str) -> Iterator[tuple[str, float]]:
    """Yield each key of a limiter with what is used of it, in no order. Looks through the keys of the shard. Raises redis errors."""
    prefix = keys.state(name, "")
    for state in cast("Iterator[bytes]", client.scan_iter(match=f"{prefix}?*", count=_PAGE)):
        reply: list[Any] = READ(client, [keys.limiter(name), state], [""])
        if reply and float(reply[0]) > 0:
            yield decode_escaped(state).removeprefix(prefix), float(reply[0])


def limiters(shard: str | None = None) -> Answers[list[LimiterState]]:
    """Return the rate limiters in use, by name, with what is used and their counts.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_limiters(one.client))


alimiters = async_twin(limiters)
