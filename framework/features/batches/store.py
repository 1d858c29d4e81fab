"""Read and change batches, for applications, operators and commands; find their shards; build their callbacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, cast

import redis
from redis.exceptions import RedisError

from framework.declare.request import PushRequest
from framework.errors import (
    BatchError,
    MissingKeyError,
    PayloadError,
    ShardUnavailableError,
    StateRefusedError,
    UnknownBatchError,
    UnknownWorkflowError,
)
from framework.features.batches import keys as batch_keys
from framework.features.batches.batch import BatchStatus
from framework.features.batches.calls import BatchFacts, BuiltCallback
from framework.features.batches.payload import EVENTS, BatchEventName, Callback, KeptResult, kept_at
from framework.features.batches.push import KEEPS_RESULTS, BatchBlock, stored_callback
from framework.push.client import Client
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.store.script import Script
from framework.text import decode_escaped
from framework.types import Json
from framework.wire import keys
from framework.wire.answers import end_answer
from framework.wire.job import BATCH_EVENT, BID, decode, rewrite
from framework.wire.json import dumps, loads, stored_count, stored_time
from framework.wire.protected import result_place
from framework.wire.sub_queues import parent_of

T = TypeVar("T")

CHANGE = Script("batches/change", "time", "recorded", "batches/batch")

BatchMembers: TypeAlias = Literal["failed", "dead", "children"]
"""The sets of a batch: jobs that failed and will run again, jobs that died, nested batches."""

BatchAction: TypeAlias = Literal["invalidate", "cancel", "delete", "callback"]
"""The actions of ``scripts/change.lua`` on a batch."""

_RESULTS_FULL = b":full"
"""Field of the results of a batch: one of them did not fit into the limit of all. Fields of jobs begin with no colon."""
_PAGE = 1_000
"""Members of a set per round trip."""
_IDS_PAGE = 100
"""Batches or workflows per round trip."""
_MOST_KNOWN = 10_000
"""Ids whose shard a process remembers."""


def list_batches(shard: Shard) -> Iterator[BatchStatus]:
    """Yield the batches of one shard. Raises redis errors."""
    for bids in scan_ids(shard.client, batch_keys.BATCHES):
        yield from read_batches(shard.client, shard.name, bids)


def find_batch(shard: Shard, bid: str) -> BatchStatus | None:
    """Return the status of a batch, ``None`` if the shard does not have it. Raises redis errors."""
    return next(iter(read_batches(shard.client, shard.name, [bid])), None)


def change_batch(shard: Shard, bid: str, action: BatchAction, event: str = "", callback: bytes = b"") -> int:
    """Change a batch: return 1 if it is done, 0 if the shard does not have it, -1 if the event has happened.

    Raises redis errors and ShardUnavailableError.
    """
    if action == "cancel":
        # Its nested batches first: afterwards none can be added. They are of the same shard.
        for child in scan_members(shard.client, bid, "children"):
            change_batch(shard, child, action)
    names = (batch_keys.batch(bid), batch_keys.BATCHES, keys.CANCELLED)
    done: int = shard.run_script(CHANGE, names, (bid, action, event, callback))
    return done


def read_batches(client: "redis.Redis", shard: str, bids: Sequence[str]) -> list[BatchStatus]:
    """Return the status of each batch that the shard has, in one round trip. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=True)
    for bid in bids:
        key = batch_keys.batch(bid)
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
            found.append(_status_of(bid, shard, fields, failed, dead, ttl_s, float(now)))
    return found


def _status_of(
    bid: str, shard: str, fields: Mapping[str, str], failed: int, dead: int, ttl_s: int, now: float
) -> BatchStatus:

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
    key = f"{batch_keys.batch(bid)}:{kind}"
    members = cast("Iterator[bytes]", client.sscan_iter(key, count=_PAGE))  # pyright: ignore[reportUnknownMemberType]
    yield from map(decode_escaped, members)


def read_results(client: "redis.Redis", bid: str) -> list[KeptResult]:
    """Return the stored answers of the jobs of a batch, in the order of their places. Raises redis errors.

    Raises:
        BatchError: some of them are missing.
    """
    stored = cast("dict[bytes, bytes]", client.hgetall(f"{batch_keys.batch(bid)}:results"))
    if _RESULTS_FULL in stored:
        raise BatchError(
            bid, "the results of its jobs have more than 16 MiB, and some are not kept: return ids instead of data"
        )
    found: list[KeptResult] = []
    for jid, value in stored.items():
        if not jid.startswith(b":"):
            place, _, answer = value.partition(b" ")
            found.append(KeptResult(decode_escaped(jid), int(place), answer))
    return sorted(found, key=lambda one: (one.place, one.jid))


def stored_jobs(client: "redis.Redis", text: bytes) -> Iterator[bytes]:
    """Yield the payloads with this text that batches enqueue at their events. Raises redis errors."""
    names = [name for event in EVENTS for name in (f"on_{event}", f"{event}_at")]
    for bids in scan_ids(client, batch_keys.BATCHES):
        pipeline: Any = client.pipeline(transaction=False)
        for bid in bids:
            pipeline.hmget(batch_keys.batch(bid), names)
        for fields in cast("list[list[bytes | None]]", pipeline.execute()):
            for stored, fired_at in zip(fields[::2], fields[1::2], strict=True):
                if stored is not None and fired_at is None:
                    yield from (one for one in _callbacks(stored) if text in one)


def _callbacks(stored: bytes) -> list[bytes]:
    """Return the payloads in a field of a batch (``Callback``); none if another program has written it."""
    try:
        found: Any = loads(stored, None)
        return [str(payload).encode() for _, payload in found]
    except (PayloadError, TypeError, ValueError):
        return []


class Homes:
    """The shards of ids. Safe to share between threads."""

    def __init__(self, shards: Shards, unknown: type[UnknownBatchError | UnknownWorkflowError]) -> None:
        self._shards = shards
        self._unknown = unknown
        # By id; two threads may find the same.
        self._homes: dict[str, str] = {}

    def forget(self, name: str) -> None:
        self._homes.pop(name, None)

    def ask(self, name: str, ask: Callable[[Shard], T | None]) -> T:
        """Return the answer of the shard that has the id; the others answer ``None``.

        Raises:
            UnknownBatchError, UnknownWorkflowError: no shard has it.
            ShardUnavailableError: a shard that may have it does not answer.
        """
        known, failure, shards = self._homes.get(name), None, self._shards
        # A shard that does not answer pushes is asked last: the id is on one that does, or no shard that answers has it.
        in_order = sorted(shards, key=lambda name: (shards[name].circuit_open, name))
        for shard in [known] if known is not None else in_order:
            try:
                found = ask(shards[shard])
            except (RedisError, OSError, ShardUnavailableError) as error:
                failure = failure or shards[shard].unavailable(error)
                continue
            if found is not None:
                if len(self._homes) >= _MOST_KNOWN:
                    self._homes.clear()
                self._homes[name] = shard
                return found
        if failure is not None:
            raise failure
        raise self._unknown(name)


class Batches:
    """The batches of all shards of a client. Safe to share between threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._signatures = client.state_signatures
        self._homes = Homes(client.shards, UnknownBatchError)

    def block(self, facts: BatchFacts, autoflush: int) -> BatchBlock:
        shard = facts.shard
        if shard is not None:
            # An unknown name is an error before the block.
            shard = self._client.shards[shard].name
        elif facts.exists:
            found = self.status(facts.bid)
            shard, facts.keeps_results = found.shard, found.keeps_results
        return BatchBlock(self._client, facts, shard, autoflush)

    def build_callback(self, facts: BatchFacts, event: BatchEventName, request: PushRequest) -> BuiltCallback | None:
        parent, callback_queue = "", facts.callback_queue
        if facts.exists:
            found = self.status(facts.bid)
            parent, callback_queue = found.parent, found.callback_queue
        elif facts.parent is not None:
            parent = facts.parent.bid
        options = request.options
        if callback_queue and "queue" not in options:
            options = {**options, "queue": callback_queue}
        fields: dict[str, Json] = {BATCH_EVENT: [facts.bid, event]}
        if parent:
            # It is a job of the batch around, which so waits for it.
            fields[BID] = parent
        plan, batch = self._client.build_one(request.declaration, request.args, options, fields)
        if batch is None:
            return None
        data = batch.payloads[0]
        payload = decode(data, None)
        # The script that enqueues it writes the times.
        for name in ("created_at", "enqueued_at"):
            payload.pop(name, None)
        # Not to a sub-queue: the script that ends the last job knows no turns, so the callback would wait for a later push.
        return BuiltCallback(plan.shard.name, Callback(parent_of(batch.queue), rewrite(data, payload)))

    def add_callback(self, facts: BatchFacts, event: BatchEventName, built: BuiltCallback) -> bool:
        def add(home: Shard) -> int | None:
            found = self.status(facts.bid)
            known = BatchFacts(facts.bid, parent=BatchFacts(found.parent) if found.parent else None)
            stored = stored_callback(known, home.name, built)
            return change_batch(home, facts.bid, "callback", event, dumps(stored.encode())) or None

        return self._homes.ask(facts.bid, add) > 0

    def change(self, bid: str, action: BatchAction) -> None:
        self._homes.ask(bid, lambda home: change_batch(home, bid, action) or None)
        if action == "delete":
            self._homes.forget(bid)

    def status(self, bid: str) -> BatchStatus:
        return self._homes.ask(bid, lambda home: find_batch(home, bid))

    def is_valid(self, bid: str) -> bool:
        try:
            while bid:
                found = self.status(bid)
                if found.invalidated_at is not None:
                    return False
                bid = found.parent
        except UnknownBatchError:
            return False
        return True

    def results(self, bid: str) -> Sequence[KeptResult]:
        found = self.status(bid)
        if not found.keeps_results:
            raise BatchError(bid, "it keeps no results: make it with Batch(keep_results=True)")
        return self._homes.ask(bid, lambda home: self.results_on(home, bid))

    def results_on(self, home: Shard, bid: str) -> Sequence[KeptResult]:
        """Return the results that a shard keeps for a batch; one that is not signed as it must be is refused. Raises redis errors."""
        kept = read_results(home.client, bid)
        return [one._replace(answer=self._opened(bid, one)) for one in kept] if self._signatures.signs else kept

    def _opened(self, bid: str, kept: KeptResult) -> bytes:
        try:
            answer = self._signatures.open(result_place(kept.jid), kept.answer)
        except (StateRefusedError, MissingKeyError) as error:
            return end_answer("refused", error.reason).encode()
        # A signed answer names its batch and its place there: none of another batch can stand here.
        if answer != kept.answer and kept_at(answer) != [bid, kept.place]:
            return end_answer("refused", "it is the result of another batch, or of another place in this one").encode()
        return answer

    def members(self, bid: str, kind: BatchMembers) -> Iterator[str]:
        home = self._homes.ask(bid, lambda one: one if find_batch(one, bid) is not None else None)
        with home.reading():
            yield from scan_members(home.client, bid, kind)
