"""Collect the pushes of one block of a batch, and write them with their counts, by one script call for up to some thousand jobs."""

import threading
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from framework.declare.request import BulkRequest, DueTime, PushRequest
from framework.errors import BatchCancelledError, BatchError, ShardUnavailableError, UnknownBatchError
from framework.features.batches import keys as batch_keys
from framework.features.batches.calls import BatchFacts, BuiltCallback, StepPart
from framework.features.batches.payload import KEPT, BatchEventName, Callback
from framework.push.client import Client
from framework.push.job_batch import Destination, JobBatch, PushRecorder, queued_status
from framework.push.push_plan import PushPlan, tell_enqueued
from framework.shard.connection import TOKEN_MS
from framework.shard.shard import Shard
from framework.store.script import LOCK_PARTS, Script
from framework.telemetry import logs
from framework.telemetry.job_events import job_events
from framework.types import Jid, Json
from framework.wire import keys
from framework.wire.job import BID, append_fields, generate_jid
from framework.wire.json import dumps, loads
from framework.wire.resources import UniqueJobs
from framework.wire.status_key import tracked_job

KEEPS_RESULTS = "keeps_results"
"""Field of a batch: the results of its jobs are kept."""

_MAIN = "main"
"""The shard of a batch that has neither jobs nor callbacks."""

_MAX_BYTES = 8_000_000
"""Payloads of one step: a call must not take much memory of Redis."""

_TRIES = 3
"""How often a write is sent whose reply was lost: under one token it is done once."""

WRITTEN_BEFORE, WRITTEN, UNKNOWN, SUCCEEDED, CANCELLED, NO_PARENT, PARENT_CANCELLED = 2, 1, 0, -1, -2, -3, -4
"""Codes: the part of a step was written before; written; there is no such batch; it has succeeded; it was cancelled; its parent is
unknown, succeeded or cancelled."""

_REFUSALS: Mapping[int, str] = {
    SUCCEEDED: "it has succeeded, so no jobs can be added; make a new batch",
    NO_PARENT: "the batch around it is unknown or has succeeded; nothing was written",
}


@dataclass(slots=True)
class NewBatch:
    """The facts of a batch that the next write creates."""

    description: str
    parent: str
    callback_queue: str
    callbacks: Mapping[BatchEventName, Sequence[Callback]]
    keeps_results: bool = False

    def fields(self) -> dict[str, str]:
        found = {"description": self.description, "parent": self.parent, "callback_queue": self.callback_queue}
        if self.keeps_results:
            found[KEEPS_RESULTS] = "1"
        for event, callbacks in self.callbacks.items():
            found[f"on_{event}"] = dumps([one.encode() for one in callbacks]).decode()
        return {name: value for name, value in found.items() if value}


@dataclass(slots=True)
class BatchGroup:
    """Jobs of one write for one queue, or (an empty queue) for the schedule set, oldest first."""

    queue: str
    payloads: list[bytes] = field(default_factory=list[bytes])
    dues: list[str] = field(default_factory=list[str])
    """For the schedule set, one for each job: epoch seconds, or ``+SECONDS`` after the write, by Redis's clock."""
    lock_requests: dict[int, str] = field(default_factory=dict[int, str])
    """The lock requests of deduplicated jobs, by the index of the job (``LockRequest.encode``)."""


@dataclass(slots=True)
class BatchWrite:
    """The jobs of a block that one step writes, with the counts of the batch."""

    bid: str
    token: str
    """A write with the same token is done once."""
    ttl_s: int
    create: NewBatch | None = None
    opens: bool = False
    """Whether more jobs of the block follow in a later write: no event but a death happens before the last write."""
    closes: bool = False
    """Whether this is the last write of a block that had opened the batch."""
    groups: Sequence[BatchGroup] = ()
    statuses: Sequence[Sequence[str]] = ()
    """The SET commands of tracked jobs, without their first word."""
    part: StepPart | None = None
    """The part of a workflow's step that this write has."""

    def head(self, token_ms: int) -> bytes:
        create = None if self.create is None else self.create.fields()
        groups = [{"queue": one.queue, "n": len(one.payloads), "dues": one.dues} for one in self.groups]
        found: dict[str, Any] = {
            "bid": self.bid,
            "token_ms": token_ms,
            "ttl_s": self.ttl_s,
            "create": create,
            "opens": self.opens,
            "closes": self.closes,
            "groups": groups,
            "locks": [{str(index): text for index, text in one.lock_requests.items()} for one in self.groups],
            "statuses": [list(one) for one in self.statuses],
            "part": None if self.part is None else asdict(self.part),
        }
        return dumps(found)

    def payloads(self) -> list[bytes]:
        return [payload for one in self.groups for payload in one.payloads]


class BatchReply(NamedTuple):
    """The answer of ``scripts/push.lua``."""

    code: int
    """1: written; 2: a part of a step that was written before; else one of the constants below, and nothing was written."""
    owners: Sequence[Sequence[Any]]
    """Of each dropped duplicate: group and index, from 0, and the jid of the job that it duplicates."""


PUSH = Script("batches/push", "time", "recorded", "batches/batch", late=(*LOCK_PARTS[1:], "turns"))


def write_batch(shard: Shard, write: BatchWrite) -> BatchReply:
    """Write jobs of a batch with their counts. A write with the same token is done once.

    Raises:
        ShardUnavailableError: all of these jobs are written or none; ``maybe_written`` says whether they may be.
    """
    queues = [keys.queue(one.queue) if one.queue else keys.SCHEDULE for one in write.groups]
    names = (
        batch_keys.batch(write.bid),
        batch_keys.BATCHES,
        keys.pushed(write.token),
        keys.QUEUES,
        keys.SCHEDULE,
        *queues,
    )
    code, *owners = shard.run_script(PUSH, names, (write.head(TOKEN_MS), *write.payloads()))
    return BatchReply(code, owners[0] if owners else ())


class _RecordedJobs(NamedTuple):
    """Jobs of a tracked class, which are recorded before they are written."""

    recorder: PushRecorder
    destination: Destination
    jobs: JobBatch
    context: Context
    """The context of their push: it may name the events that they replace."""


class BatchBlock:
    """The jobs of one block. Safe from any thread: awaited pushes come from several."""

    def __init__(self, client: Client, facts: BatchFacts, shard: str | None, autoflush: int) -> None:
        self.facts = facts
        self.written = 0
        self._client = client
        self._autoflush = autoflush
        if facts.shard is None:
            facts.shard = shard
        self._fields: Mapping[str, Json] = {BID: facts.bid}
        self._lock = threading.RLock()
        self._groups: dict[str, BatchGroup] = {}
        self._duplicates: dict[tuple[str, int], tuple[PushPlan, UniqueJobs]] = {}
        """The deduplicated jobs by queue and index, for the log lines of those that are dropped."""
        self._statuses: list[Sequence[str]] = []
        self._jids: list[Jid] = []
        self._recorded: list[_RecordedJobs] = []
        self._told: list[tuple[PushPlan, JobBatch]] = []
        self._bytes = 0
        self._is_open, facts.left_open = facts.left_open, False

    def push(self, request: PushRequest) -> Jid | None:
        return self._client.collect(request, self._fields, self._collect)

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        return self._client.collect_bulk(request, self._fields, self._collect)

    def begin_open(self, shard: str) -> None:
        with self._lock:
            self._set_shard(shard, "a nested batch")
            if not self._is_open:
                self._flush(last=False)

    def finish(self) -> None:
        with self._lock:
            if self.facts.exists and not self._jids and not self._is_open:
                return
            self._flush(last=True)

    def finish_part(self) -> None:
        """Write a part of a workflow's step, which may be empty, unless it was written before. Raises as ``finish``."""
        with self._lock:
            assert self.facts.part is not None, "the block is a part of a step"  # noqa: S101
            self._flush(last=self.facts.part.last)

    def abandon(self) -> None:
        with self._lock:
            self.facts.left_open = self._is_open

    def _collect(self, plan: PushPlan, batch: JobBatch, token: str) -> Sequence[Jid | None]:
        """Keep the jobs of one destination. Return their ids; a duplicate is found only when the jobs are written."""
        for part in batch.by_list():
            self._collect_one(plan, part)
        del token
        return batch.jids

    def _collect_one(self, plan: PushPlan, batch: JobBatch) -> None:
        with self._lock:
            self._set_shard(plan.shard.name, plan.declaration.wire_name)
            queue = "" if batch.dues is not None else batch.queue
            group = self._groups.setdefault(queue, BatchGroup(queue))
            for index, built in enumerate(batch.payloads):
                payload = self._with_place(built)
                due = None if batch.dues is None else batch.dues[index]
                if batch.unique is not None:
                    self._add_lock(plan, batch, index, group, due)
                if due is not None:
                    group.dues.append(f"{due.at:.6f}" if due.delay_s is None else f"+{due.delay_s:.6f}")
                group.payloads.append(payload)
                self._bytes += len(payload)
            self._statuses += [_texts(command) for command in batch.statuses if command]
            self._jids += batch.jids
            if job_events.observers:
                self._told.append((plan, batch))
            if plan.recorder is not None:
                self._recorded.append(_RecordedJobs(plan.recorder, plan.destination, batch, copy_context()))
            # A part of a step is one write, so that it is made once.
            if self.facts.part is None and (len(self._jids) >= self._autoflush or self._bytes >= _MAX_BYTES):
                self._flush(last=False)

    def _with_place(self, payload: bytes) -> bytes:
        facts = self.facts
        if not facts.keeps_results:
            return payload
        facts.next_place += 1
        return self._client.signed_again(append_fields(payload, {KEPT: facts.next_place}))

    def _add_lock(self, plan: PushPlan, batch: JobBatch, index: int, group: BatchGroup, due: DueTime | None) -> None:
        assert plan.deduplication is not None, "the plan has made the lock keys"  # noqa: S101
        payload = loads(batch.payloads[index], None)
        request = plan.deduplication.lock_request(payload, None if due is None else due.at)
        tracked = tracked_job(payload)
        if tracked is not None:
            self._statuses.append(_texts(queued_status(tracked, due)))
            request = request.with_status(tracked.command("discarded"))
        place = len(group.payloads)
        group.lock_requests[place] = request.encode().decode()
        if batch.unique is not None:
            one = batch.unique._replace(payloads=(batch.payloads[index],), jids=(batch.jids[index],))
            self._duplicates[group.queue, place] = plan, one

    def _set_shard(self, shard: str, what: str) -> None:
        facts = self.facts
        if facts.shard is None:
            facts.shard = shard
        elif facts.shard != shard:
            raise BatchError(
                facts.bid,
                f"it is on the shard {facts.shard}, and {what} goes to {shard}: a batch counts its jobs in one step with their end, "
                "so all of them are of one shard. Make a batch for each shard, or route the class (config/routing.yml)",
            )

    def _flush(self, *, last: bool) -> None:
        facts = self.facts
        shard = self._choose_shard()
        if not facts.exists and facts.parent_block is not None:
            # The batch around this one must exist first, and must not end meanwhile.
            facts.parent_block.begin_open(shard)
        groups = list(self._groups.values())
        write = BatchWrite(
            facts.bid,
            generate_jid(),
            facts.expires_in_s,
            None if facts.exists else self._new_batch(shard),
            opens=not last and not self._is_open,
            closes=last and self._is_open,
            groups=groups,
            statuses=self._statuses,
            part=facts.part,
        )
        reply = self._send_recorded(shard, write)
        self._log_duplicates(groups, reply)
        if write.create is not None and reply.code == WRITTEN and facts.part is None:
            logs.logger(bid=facts.bid).info("a batch was created", event_name="batch.created", jobs=len(self._jids))
        jids = self._jids if reply.code == WRITTEN else []
        self._groups, self._statuses, self._jids, self._bytes, self._duplicates = {}, [], [], 0, {}
        for plan, batch in self._told if reply.code == WRITTEN else ():
            tell_enqueued(plan, batch, batch.jids)
        self._recorded, self._told = [], []
        self._is_open, facts.exists = not last, True
        self.written += len(jids)
        self._client.collected_jobs_written(jids)

    # Decision 235: the event is durable before its job is.
    def _send_recorded(self, shard: str, write: BatchWrite) -> BatchReply:
        for one in self._recorded:
            one.context.run(one.recorder.enqueued, one.destination, one.jobs)
        try:
            reply = self._send(shard, write)
            if reply.code == WRITTEN_BEFORE:
                # Another run of the job that starts the step has written and recorded them.
                not_written = BatchError(self.facts.bid, "another process has started the step meanwhile")
                for one in self._recorded:
                    one.recorder.not_written(one.destination, one.jobs, not_written)
            elif reply.code != WRITTEN:
                raise self._refusal(reply.code)
        except (ShardUnavailableError, BatchError) as error:
            if not (isinstance(error, ShardUnavailableError) and error.maybe_written):
                for one in self._recorded:
                    one.recorder.not_written(one.destination, one.jobs, error)
            raise
        return reply

    def _send(self, shard: str, write: BatchWrite) -> BatchReply:
        home, tries = self._client.shards[shard], 0
        while True:
            tries += 1
            try:
                return write_batch(home, write)
            except ShardUnavailableError as error:
                # Written or not: the token tells.
                if not error.maybe_written or tries == _TRIES:
                    raise

    def _choose_shard(self) -> str:
        facts = self.facts
        if facts.shard is None:
            parent = None if facts.parent is None else facts.parent.shard
            first = next((built.shard for callbacks in facts.callbacks.values() for built in callbacks), None)
            facts.shard = parent or first or _MAIN
        if facts.parent is not None and facts.parent.shard not in (None, facts.shard):
            raise BatchError(
                facts.bid,
                f"its jobs go to the shard {facts.shard}, and the batch around it is on {facts.parent.shard}: nested batches are of "
                "one shard. Make it outside of the block",
            )
        return facts.shard

    def _new_batch(self, shard: str) -> NewBatch:
        facts = self.facts
        callbacks: dict[BatchEventName, Sequence[Callback]] = {
            event: [stored_callback(facts, shard, built) for built in built_callbacks]
            for event, built_callbacks in facts.callbacks.items()
        }
        parent = "" if facts.parent is None else facts.parent.bid
        return NewBatch(facts.description, parent, facts.callback_queue, callbacks, facts.keeps_results)

    def _refusal(self, code: int) -> BatchError:
        if code == UNKNOWN:
            return UnknownBatchError(self.facts.bid)
        if code in (CANCELLED, PARENT_CANCELLED):
            return BatchCancelledError(self.facts.bid, "it" if code == CANCELLED else "the batch around it")
        return BatchError(self.facts.bid, _REFUSALS[code])

    def _log_duplicates(self, groups: Sequence[BatchGroup], reply: BatchReply) -> None:
        for group, index, owner in reply.owners:
            plan, unique = self._duplicates[groups[int(group)].queue, int(index)]
            if plan.deduplication is not None:
                plan.deduplication.written(unique, [owner.decode() if isinstance(owner, bytes) else owner])


def stored_callback(facts: BatchFacts, shard: str, built: BuiltCallback) -> Callback:
    """Return a callback as the batch on ``shard`` stores it: one of another shard travels through the schedule set.

    Raises:
        BatchError: the batch is nested, and counts its callbacks: these must be on its shard.
    """
    if built.shard == shard:
        return built.callback
    if facts.parent is not None:
        raise BatchError(
            facts.bid,
            f"a callback goes to the shard {built.shard}, and the batch is on {shard}: the batch around it counts the callbacks of a "
            "nested one, so they are of its shard. Choose a class or queue of this shard",
        )
    return built.callback._replace(queue="")


def _texts(command: Sequence[Any]) -> list[str]:
    return [str(word) for word in command[1:]]
