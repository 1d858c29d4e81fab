"""Read and change batches on every shard, and build their callbacks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from framework.declare.batch_port import BatchFacts, BatchStatus, BuiltCallback, JobCollector, KeptResult
from framework.declare.declaration import Declaration
from framework.declare.request import PushRequest
from framework.errors import BatchError, MissingKeyError, StateRefusedError, UnknownBatchError
from framework.features.batches.block import BatchBlock, JobMaker, stored_callback
from framework.features.batches.homes import Homes
from framework.push.job_batch import JobBatch
from framework.push.push_plan import PushPlan
from framework.shard.shard import Shard
from framework.types import Json
from framework.wire.answers import end_answer
from framework.wire.batch_fields import BATCH_EVENT, BID, BatchAction, BatchEventName, BatchMembers, Callback, kept_at
from framework.wire.job import decode, rewrite
from framework.wire.json import dumps
from framework.wire.protected import StateSignatures, result_place
from framework.wire.sub_queues import parent_of


class CallbackMaker(JobMaker, Protocol):
    """The methods of the client that batches use."""

    state_signatures: StateSignatures

    def build_one(
        self, declaration: Declaration, args: list[Any], options: Mapping[str, Any], fields: Mapping[str, Json]
    ) -> tuple[PushPlan, JobBatch | None]:
        """Return the plan of a class with these options and one of its jobs, ``None`` if a client middleware dropped it."""
        ...


class Batches:
    """The batches of all shards of a client. Safe to share between threads."""

    def __init__(self, client: CallbackMaker) -> None:
        self._client = client
        self._signatures = client.state_signatures
        self._homes = Homes(lambda: client.shards, UnknownBatchError)

    def block(self, facts: BatchFacts, autoflush: int) -> JobCollector:
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
            return home.change_batch(facts.bid, "callback", event, dumps(stored.encode())) or None

        return self._homes.ask(facts.bid, add) > 0

    def change(self, bid: str, action: BatchAction) -> None:
        if action == "cancel":
            # Its nested batches first: afterwards none can be added.
            for child in self.members(bid, "children"):
                try:
                    self.change(child, action)
                except UnknownBatchError:
                    continue
        self._homes.ask(bid, lambda home: home.change_batch(bid, action) or None)
        if action == "delete":
            self._homes.forget(bid)

    def status(self, bid: str) -> BatchStatus:
        return self._homes.ask(bid, lambda home: home.read_batch(bid))

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
        """Return the results that a shard keeps for a batch. One that is not signed as it must be is a refused one."""
        return opened_results(self._signatures, bid, home.batch_results(bid))

    def members(self, bid: str, kind: BatchMembers) -> Iterator[str]:
        home = self._homes.ask(bid, lambda one: one if one.read_batch(bid) is not None else None)
        return home.batch_members(bid, kind)


def opened_results(signatures: StateSignatures, bid: str, kept: Iterable[KeptResult]) -> list[KeptResult]:
    """Return the results of a batch without their signatures; one that is not signed as it must be becomes a refused one."""
    if not signatures.signs:
        return list(kept)
    return [one._replace(answer=_opened_of(signatures, bid, one)) for one in kept]


def _opened_of(signatures: StateSignatures, bid: str, kept: KeptResult) -> bytes:
    try:
        answer = signatures.open(result_place(kept.jid), kept.answer)
    except (StateRefusedError, MissingKeyError) as error:
        return end_answer("refused", error.reason).encode()
    # A signed answer names its batch and its place there: none of another batch can stand here.
    if answer != kept.answer and kept_at(answer) != [bid, kept.place]:
        return end_answer("refused", "it is the result of another batch, or of another place in this one").encode()
    return answer
