"""Find keys that must not be left when all jobs are done and all processes gone (docs/reference/keys.md, column
"Census").
"""

import re
import time
from typing import Any, cast

from redis import Redis

REGISTRY = "aw:processes"
_LIMITS = "aw:limits"
_ALWAYS = re.compile(
    r"queues|aw:limits(:shared)?|aw:portions|aw:limiters|aw:counters|aw:flags|aw:batch_events|stat:(processed|failed)(:\d{4}-\d{2}-\d{2})?"
)
"""Names of keys that stay: each is bounded. The events of batches wait for a worker process, which logs them."""
_ENDS_BY_ITSELF = (
    (re.compile(r"aw:steady_since|aw:lease:.+|aw:pause_strategy:.+|[^:]+:\d+:[^:]+(:work|:workers|-signals)?"), 60),
    (re.compile(r"aw:portions_turn"), 5),
    (re.compile(r"aw:portions:.+"), 30 * 86_400),
    (re.compile(r"aw:held_alert"), 300),
    # The last report of the memory, and the lease of a process that was killed while it measured.
    (re.compile(r"aw:memory"), 360),
    (re.compile(r"aw:memory_watcher"), 180),
    (re.compile(r"aw:memory_pressure"), 180),
    (re.compile(r"aw:deferred_release:.*"), 30),
    (re.compile(r"aw:push:.+"), 600),
    (re.compile(r"aw:result_calls:.+"), 60),
    (re.compile(r"aw:result:.+"), 3_600),
    (re.compile(r"aw:status:.+"), 3_600),
    (re.compile(r"aw:profiles|aw:profile:.+"), 86_400),
    (re.compile(r"aw:limiter:[^:]+"), 90 * 86_400),
    # The place of a process that was killed inside of the block is free after the limiter's lock_timeout.
    (re.compile(r"aw:limiter:[^:]+:.*"), 5),
    (re.compile(r"aw:waits:.+\|\d{6}\|\d{1,2}:\d"), 8 * 3_600),
    (re.compile(r"(j\||aw:urgencies:)\d{6,8}\|\d{1,2}:\d{1,2}|(h\|)?.+-\d{1,2}-\d{1,2}:\d{1,2}"), 3 * 86_400),
)
"""Names of keys that expire, and the most seconds until then; the first match decides."""
_FORGOTTEN_S = 50
"""The seconds until a dead process is unregistered: 39 s after its last heartbeat, by the next sweep of any process."""


def leaks(client: Redis) -> list[str]:
    """Return the keys that should not exist, with the reason; empty when all is well."""
    found: list[str] = []
    known = {f"aw:process:{name}" for name, _ in registered(client)}
    known |= {name.decode() for name in cast("set[bytes]", client.smembers(_LIMITS))}
    for key in sorted(name.decode(errors="backslashreplace") for name in client.scan_iter(count=1000)):
        if _ALWAYS.fullmatch(key) or key in known:
            continue
        if key == REGISTRY:
            found += [f"{REGISTRY} still knows {name}, silent for {age:.0f} s" for name, age in silent(client)]
        elif key == "processes":
            found += _nameless(client)
        elif not _ends_soon(key, cast("int", client.ttl(key))):
            found.append(f"{key} ({_size(client, key)})")
    return found


def _ends_soon(key: str, ttl_s: int) -> bool:
    """Return whether the key expires in the time of its kind; Redis replies -2 for one that has just expired."""
    if ttl_s == -2:
        return True
    allowed_s = next((most_s for name, most_s in _ENDS_BY_ITSELF if name.fullmatch(key)), -1)
    return 0 <= ttl_s <= allowed_s


def set_aside(client: Redis) -> dict[str, int]:
    """Return how many jobs are in which set: none of the jobs here failed."""
    counts = {key: int(client.zcard(key)) for key in ("retry", "schedule", "dead", "interrupted")}
    return {key: count for key, count in counts.items() if count}


def silent(client: Redis) -> list[tuple[str, float]]:
    """Return the processes that should have been unregistered, and the seconds since their last heartbeat."""
    return [(name, age) for name, age in registered(client) if age > _FORGOTTEN_S]


def registered(client: Redis) -> list[tuple[str, float]]:
    """Return the registered processes and the seconds since their last heartbeat, or their known death."""
    seconds, micros = cast("tuple[int, int]", client.time())
    now = seconds + micros / 1e6
    members = cast("list[tuple[bytes, float]]", client.zrange(REGISTRY, 0, -1, withscores=True))
    # Below 0: its parent saw it die then.
    return [(name.decode(errors="backslashreplace"), now - abs(heartbeat)) for name, heartbeat in members]


def settle(client: Redis, patience_s: float, alive: int) -> None:
    """Wait until only the ``alive`` processes are registered; they unregister the dead ones."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and len(registered(client)) > alive:
        time.sleep(0.2)


def _nameless(client: Redis) -> list[str]:
    """Return the names in `processes` whose record has expired: 60 s dead, and never unregistered."""
    names = cast("set[bytes]", client.smembers("processes"))
    return [f"processes still names {name.decode()}" for name in sorted(names) if not client.exists(name)]


def _size(client: Redis, key: str) -> str:
    kind = cast("bytes", client.type(key)).decode()
    counts: dict[str, Any] = {"list": client.llen, "zset": client.zcard, "set": client.scard, "hash": client.hlen}
    return f"{kind} of {counts[kind](key)}" if kind in counts else kind
