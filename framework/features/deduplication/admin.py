"""Read and delete deduplication locks of one shard: owner, time left, duplicates dropped."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import redis
from redis.client import Pipeline
from redis.exceptions import ResponseError

from framework.admin.access import Answers, ask
from framework.admin.search import PAGE
from framework.admin.statistics import OnProgress, ignore_progress
from framework.async_twin import async_twin
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.job import timestamp
from framework.wire.json import stored_count


@dataclass(frozen=True, slots=True)
class HeldLock:
    """One lock. ``left_s`` is ``None`` for a lock without an expiry, which no script of the framework writes."""

    key: str
    worker: str
    jid: str
    since: float | None
    left_s: float | None
    duplicates: int


@dataclass(slots=True)
class LockCount:
    """The locks of one class on a shard; ``oldest`` is the time at which the oldest was taken."""

    worker: str
    locks: int = 0
    duplicates: int = 0
    oldest: float | None = None


def count_locks(client: "redis.Redis", on_progress: OnProgress) -> list[LockCount]:
    """Return the locks of the shard by class, the oldest first. Raises redis errors."""
    found: dict[str, LockCount] = {}
    for held in scan_locks(client, on_progress):
        count = found.setdefault(held.worker, LockCount(held.worker))
        count.locks += 1
        count.duplicates += held.duplicates
        if held.since is not None:
            count.oldest = held.since if count.oldest is None else min(count.oldest, held.since)
    return sorted(found.values(), key=lambda count: count.oldest or 0.0)


def scan_locks(client: "redis.Redis", on_progress: OnProgress) -> Iterator[HeldLock]:
    """Yield every lock that exists during the whole scan, in pages. Raises redis errors."""
    cursor, scanned = 0, 0
    while True:
        reply: Any = client.scan(cursor, match=f"{keys.LOCKS}*", count=PAGE, _type="hash")
        cursor, page = reply
        yield from read_locks(client, page)
        scanned += PAGE
        on_progress(keys.LOCKS, scanned)
        if not cursor:
            return


def find_lock(client: "redis.Redis", key: str) -> HeldLock | None:
    return next(read_locks(client, [key.encode()]), None)


def delete_lock(client: "redis.Redis", held: HeldLock) -> bool:
    """Delete the lock if the same job still owns it; return whether it did. Raises redis errors."""

    def remove(pipeline: "Pipeline") -> None:
        owner: Any = pipeline.hget(held.key, "jid")
        pipeline.multi()
        if owner is not None and decode_escaped(owner) == held.jid:
            pipeline.delete(held.key)

    return client.transaction(remove, held.key) == [1]


def read_locks(client: "redis.Redis", page: list[bytes]) -> Iterator[HeldLock]:
    """Yield the locks of these keys; without those that have expired. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=False)
    for key in page:
        pipeline.hgetall(key)
        pipeline.pttl(key)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for index, key in enumerate(page):
        fields, left_ms = replies[2 * index], replies[2 * index + 1]
        # Expired meanwhile, or not a lock.
        if isinstance(fields, ResponseError) or b"jid" not in fields:
            continue
        text = {
            decode_escaped(name): decode_escaped(value) for name, value in cast("dict[bytes, bytes]", fields).items()
        }
        yield HeldLock(
            decode_escaped(key),
            text.get("class", ""),
            text["jid"],
            timestamp(text.get("since")),
            left_ms / 1_000 if left_ms > 0 else None,
            stored_count(text.get("duplicates")),
        )


def locks(shard: str | None = None, *, cls: str | None = None) -> Answers[list[HeldLock]]:
    """Return the deduplication locks, or those of one class by its wire name. Reads every lock of a shard, in pages.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(
        shard,
        lambda one: [held for held in scan_locks(one.client, ignore_progress) if cls is None or held.worker == cls],
    )


alocks = async_twin(locks)
