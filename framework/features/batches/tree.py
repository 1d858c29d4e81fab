"""Read one batch with what is around it: the batches in which it is nested, those nested in it, its callbacks, and its failed jobs.

All are of one shard. Each level is one or two round trips, so the number of levels and of batches is bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

import redis

from framework.errors import PayloadError
from framework.features.batches import keys as batch_keys
from framework.features.batches.batch import BatchStatus
from framework.features.batches.payload import EVENTS, BatchEventName
from framework.features.batches.store import read_batches
from framework.shard.shard import Shard
from framework.text import decode_escaped
from framework.typeguards import is_mapping
from framework.types import Jid
from framework.wire.json import loads

MOST_ABOVE, MOST_BELOW = 3, 2
"""The levels that are read. Each batch leads to its own page, which shows further ones."""
MOST_NESTED = 20
"""The nested batches that are read of one level: each is four commands."""
MOST_JOBS = 50
"""The ids that are read of failed and of dead jobs."""
_FIELDS = [f"on_{event}" for event in EVENTS]


class BatchCallback(NamedTuple):
    """A job that an event of a batch enqueues."""

    event: BatchEventName
    worker: str
    """The wire name of its class; empty if the stored payload cannot be read."""
    queue: str
    """Its queue; empty for one of another shard."""


@dataclass(frozen=True, slots=True)
class BatchNode:
    """A batch with the batches that are nested in it."""

    status: BatchStatus
    nested: Sequence["BatchNode"] = ()
    """Those that were read: ``status.children`` counts all."""


@dataclass(frozen=True, slots=True)
class BatchTree:
    """A batch with what is around it."""

    root: BatchNode
    above: Sequence[BatchStatus]
    """The batches in which it is nested, the outermost first."""
    callbacks: Sequence[BatchCallback]
    failed: Sequence[Jid]
    """Some of the jobs that failed and will run again."""
    dead: Sequence[Jid]


def read_tree(shard: Shard, bid: str) -> BatchTree | None:
    """Return the batch with what is around it, ``None`` if the shard does not have it. Raises redis errors."""
    client = shard.client
    own = next(iter(read_batches(client, shard.name, [bid])), None)
    if own is None:
        return None
    pipeline: Any = client.pipeline(transaction=False)
    key = batch_keys.batch(bid)
    pipeline.hmget(key, _FIELDS)
    pipeline.sscan(f"{key}:failed", 0, count=MOST_JOBS)
    pipeline.sscan(f"{key}:dead", 0, count=MOST_JOBS)
    stored, (_, failed), (_, dead) = pipeline.execute()
    return BatchTree(
        _below(client, shard.name, own),
        _above(client, shard.name, own),
        [one for event, value in zip(EVENTS, stored, strict=True) for one in _callbacks(event, value)],
        _first(failed, MOST_JOBS),
        _first(dead, MOST_JOBS),
    )


def _above(client: "redis.Redis", shard: str, own: BatchStatus) -> list[BatchStatus]:
    found: list[BatchStatus] = []
    seen, parent = {own.bid}, own.parent
    # A batch that was changed in Redis may name itself.
    while parent and parent not in seen and len(found) < MOST_ABOVE:
        seen.add(parent)
        one = next(iter(read_batches(client, shard, [parent])), None)
        if one is None:
            break
        found.append(one)
        parent = one.parent
    return found[::-1]


def _below(client: "redis.Redis", shard: str, own: BatchStatus) -> BatchNode:
    levels, names = [[own]], dict[str, list[str]]()
    seen = {own.bid}
    while len(levels) <= MOST_BELOW:
        having = [one.bid for one in levels[-1] if one.children > 0]
        if not having:
            break
        # A batch that was changed in Redis may be nested in itself.
        found = {bid: [one for one in nested if one not in seen] for bid, nested in _nested(client, having).items()}
        bids = [one for nested in found.values() for one in nested][:MOST_NESTED]
        seen.update(bids)
        names.update(found)
        levels.append(read_batches(client, shard, bids) if bids else [])
    known = {one.bid: one for level in levels for one in level}

    def node(status: BatchStatus) -> BatchNode:
        nested = [known[bid] for bid in names.get(status.bid, ()) if bid in known]
        return BatchNode(status, [node(one) for one in sorted(nested, key=lambda one: (one.created_at, one.bid))])

    return node(own)


def _nested(client: "redis.Redis", bids: Sequence[str]) -> dict[str, list[str]]:
    """Return some of the nested batches of each batch, in one round trip."""
    pipeline: Any = client.pipeline(transaction=False)
    for bid in bids:
        pipeline.sscan(f"{batch_keys.batch(bid)}:children", 0, count=MOST_NESTED)
    replies = cast("list[tuple[int, list[bytes]]]", pipeline.execute())
    return {bid: _first(members, MOST_NESTED) for bid, (_, members) in zip(bids, replies, strict=True)}


def _first(members: Sequence[bytes], most: int) -> list[str]:
    """Return the first ones: a small set is returned whole, whatever the count says."""
    return list(islice(map(decode_escaped, sorted(members)), most))


def _callbacks(event: BatchEventName, stored: bytes | None) -> list[BatchCallback]:
    """Return the callbacks in a field of a batch; none if another program has written it."""
    if stored is None:
        return []
    try:
        found: Any = loads(stored, None)
        return [BatchCallback(event, _worker_of(str(payload)), str(queue)) for queue, payload in found]
    except (PayloadError, TypeError, ValueError):
        return []


def _worker_of(payload: str) -> str:
    found: Any = loads(payload.encode(), None)
    return str(found.get("class") or "") if is_mapping(found) else ""
