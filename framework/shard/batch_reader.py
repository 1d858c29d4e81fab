"""Read the batches of one shard."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import redis

from framework.declare.batch_port import BatchStatus, KeptResult
from framework.errors import BatchError
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.batch_fields import KEEPS_RESULTS, RESULTS_FULL, BatchMembers
from framework.wire.stored_numbers import stored_count, stored_time

_PAGE = 1_000
"""Members of a set per round trip."""
_IDS_PAGE = 100
"""Batches or workflows per round trip."""


def read_batches(client: "redis.Redis", shard: str, bids: Sequence[str]) -> list[BatchStatus]:
    """Return the status of each batch that the shard has, in one round trip. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=True)
    for bid in bids:
        key = keys.batch(bid)
        pipeline.hgetall(key)
        pipeline.scard(f"{key}:failed")
        pipeline.scard(f"{key}:dead")
        pipeline.ttl(key)
    pipeline.time()
    *replies, (now, _) = pipeline.execute()
    found: list[BatchStatus] = []
    for position, bid in enumerate(bids):
        stored, failed, dead, ttl_s = replies[4 * position : 4 * position + 4]
        if b"pending" in stored:
            fields = {decode_escaped(name): decode_escaped(value) for name, value in stored.items()}
            found.append(batch_status(bid, shard, fields, failed, dead, ttl_s, float(now)))
    return found


def scan_bids(client: "redis.Redis") -> Iterator[list[str]]:
    """Yield the ids of the batches of a shard, in pages. Raises redis errors."""
    return scan_ids(client, keys.BATCHES)


def scan_ids(client: "redis.Redis", key: str) -> Iterator[list[str]]:
    """Yield the ids in a sorted set of batches or workflows, in pages. Raises redis errors."""
    cursor = 0
    while True:
        reply: Any = client.zscan(key, cursor, count=_IDS_PAGE)  # pyright: ignore[reportUnknownMemberType]
        cursor, members = reply
        yield [decode_escaped(one) for one, _ in members]
        if not cursor:
            return


def scan_members(client: "redis.Redis", bid: str, kind: BatchMembers) -> Iterator[str]:
    """Yield the members of a set of a batch, once each unless the set changes meanwhile. Raises redis errors."""
    key = f"{keys.batch(bid)}:{kind}"
    members = cast("Iterator[bytes]", client.sscan_iter(key, count=_PAGE))  # pyright: ignore[reportUnknownMemberType]
    yield from map(decode_escaped, members)


def read_results(client: "redis.Redis", bid: str) -> list[KeptResult]:
    """Return the stored answers of the jobs of a batch, by their places. Raises redis errors."""
    stored = cast("dict[bytes, bytes]", client.hgetall(f"{keys.batch(bid)}:results"))
    return sorted_results(bid, stored)


def sorted_results(bid: str, stored: Mapping[bytes, bytes]) -> list[KeptResult]:
    """Return answers that are stored with their places, in the order of these. Raises BatchError if some are missing."""
    if RESULTS_FULL in stored:
        raise BatchError(
            bid, "the results of its jobs have more than 16 MiB, and some are not kept: return ids instead of data"
        )
    found: list[tuple[int, str, bytes]] = []
    for jid, value in stored.items():
        if jid.startswith(b":"):
            continue
        place, _, answer = value.partition(b" ")
        found.append((int(place), decode_escaped(jid), answer))
    return [KeptResult(jid, place, answer) for place, jid, answer in sorted(found)]


def batch_status(
    bid: str, shard: str, fields: Mapping[str, str], failed: int, dead: int, ttl_s: int, now: float
) -> BatchStatus:
    """Return the status of a batch from the fields of its HASH and the sizes of its sets."""

    def number(name: str) -> int:
        return stored_count(fields.get(name))

    def at(name: str) -> float | None:
        return stored_time(fields.get(name))

    return BatchStatus(
        bid=bid,
        shard=shard,
        description=fields.get("description", ""),
        parent=fields.get("parent", ""),
        total=number("total"),
        pending=number("pending"),
        failures=failed + dead,
        dead=dead,
        removed=number("removed"),
        children=number("children"),
        open=number("open") > 0,
        callback_queue=fields.get("callback_queue", ""),
        created_at=at("created_at") or 0.0,
        expires_at=now + ttl_s if ttl_s >= 0 else None,
        complete_at=at("complete_at"),
        success_at=at("success_at"),
        death_at=at("death_at"),
        finished_at=at("finished_at"),
        invalidated_at=at("invalidated_at"),
        cancelled_at=at("cancelled_at"),
        keeps_results=KEEPS_RESULTS in fields,
    )
