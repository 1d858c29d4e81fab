"""Collect the pushes of one block of a batch, and write them with their counts, by one script call for up to some thousand jobs."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from framework.declare.request import BulkRequest, DueTime, PushRequest
from framework.errors import (
    BacklogFullError,
    BatchCancelledError,
    BatchError,
    BulkPushError,
    ShardUnavailableError,
    UnknownBatchError,
)
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
from framework.text import decode_escaped
from framework.types import Jid, Json
from framework.wire import keys
from framework.wire.accepted import AcceptedLimit, counted_payloads
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

_MOST_HELD_BYTES = 64_000_000
"""Payloads of a block that is written whole or not at all, as it has jobs of a class with ``max_waiting``."""

_TRIES = 3
"""How often a write is sent whose reply was lost: under one token it is done once."""

WRITTEN_BEFORE, WRITTEN, UNKNOWN, SUCCEEDED, CANCELLED, NO_PARENT, PARENT_CANCELLED, FULL = 2, 1, 0, -1, -2, -3, -4, -5
"""Codes: the part of a step was written before; written; there is no such batch; it has succeeded; it was cancelled; its parent is
unknown, succeeded or cancelled; the backlog of a class is full."""

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
    limit: AcceptedLimit | None = None
    """The limit of the jobs, which are of one class then; ``None`` for jobs of classes without one."""
    each: int = 0
    """The bytes that are counted for each of them."""

    @property
    def key(self) -> tuple[str, str]:
        """What the jobs have in common: the queue, and the class of a limit."""
        return self.queue, "" if self.limit is None else self.limit.worker


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
    requests: Sequence[Mapping[str, str | int]] = ()
    """The room that each class with a limit must have, or nothing is written (``AcceptedLimit.request``)."""

    def head(self, token_ms: int) -> bytes:
        create = None if self.create is None else self.create.fields()
        groups = [
            {"queue": one.queue, "n": len(one.payloads), "dues": one.dues, "class": one.key[1], "each": one.each}
            for one in self.groups
        ]
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
            "requests": list(self.requests),
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
    full: Sequence[Any] = ()
    """Of a class whose backlog is full: its name, jobs and bytes."""


PUSH = Script("batches/push", "time", "recorded", "batches/batch", late=(*LOCK_PARTS[1:], "turns", "backlog_limit"))


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
    code, *more = shard.run_script(PUSH, names, (write.head(TOKEN_MS), *write.payloads()))
    found: Sequence[Any] = more[0] if more else ()
    return BatchReply(code, (), found) if code == FULL else BatchReply(code, found)


class _RecordedJobs(NamedTuple):
    """Jobs of a tracked class, which are recorded before they are written."""

    recorder: PushRecorder
    destination: Destination
    jobs: JobBatch
    context: Context
    """The context of their push: it may name the events that they replace."""


@dataclass(slots=True)
class _Collected:
    """Jobs of a block that are written by one call."""

    groups: dict[tuple[str, str], BatchGroup] = field(default_factory=dict[tuple[str, str], BatchGroup])
    duplicates: dict[tuple[str, str, int], tuple[PushPlan, UniqueJobs]] = field(
        default_factory=dict[tuple[str, str, int], tuple[PushPlan, UniqueJobs]]
    )
    """The deduplicated jobs by the key of their group and their index, for the log lines of those that are dropped."""
    statuses: list[Sequence[str]] = field(default_factory=list[Sequence[str]])
    jids: list[Jid] = field(default_factory=list[Jid])
    recorded: list[_RecordedJobs] = field(default_factory=list[_RecordedJobs])
    told: list[tuple[PushPlan, JobBatch]] = field(default_factory=list[tuple[PushPlan, JobBatch]])
    bytes: int = 0

    def count(self) -> None:
        """Let the payloads of classes with a limit say how many bytes are counted for them."""
        for group in self.groups.values():
            if group.limit is not None:
                payloads, group.each = counted_payloads(group.payloads)
                group.payloads = list(payloads)


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
        self._jobs = _Collected()
        self._held: list[_Collected] = []
        """What is collected besides, of a block that is written whole or not at all."""
        self._has_limit = False
        """Whether a class of the block has a limit of accepted jobs."""
        self._is_open, facts.left_open = facts.left_open, False

    def push(self, request: PushRequest) -> Jid | None:
        return self._client.collect(request, self._fields, self._collect)

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        try:
            return self._client.collect_bulk(request, self._fields, self._collect)
        except BulkPushError as error:
            # The jobs before are collected, and not written: there is nothing to resume.
            if isinstance(error.__cause__, BacklogFullError):
                raise error.__cause__ from None
            raise

    def begin_open(self, shard: str) -> None:
        with self._lock:
            self._set_shard(shard, "a nested batch")
            if not self._is_open:
                self._flush(last=False)

    def finish(self) -> None:
        with self._lock:
            if self.facts.exists and not (self._jobs.jids or self._held) and not self._is_open:
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
        # Raises for a class that is held back, mostly before anything of the block is written.
        limit = None if plan.limit is None else plan.limit.of_batch(batch)
        for part in batch.by_list():
            self._collect_one(plan, part, limit)
        del token
        return batch.jids

    def _collect_one(self, plan: PushPlan, batch: JobBatch, limit: AcceptedLimit | None) -> None:
        with self._lock:
            self._set_shard(plan.shard.name, plan.declaration.wire_name)
            self._has_limit = self._has_limit or limit is not None
            jobs = self._jobs
            new = BatchGroup("" if batch.dues is not None else batch.queue, limit=limit)
            group = jobs.groups.setdefault(new.key, new)
            for index, built in enumerate(batch.payloads):
                payload = self._with_place(built)
                due = None if batch.dues is None else batch.dues[index]
                if batch.unique is not None:
                    self._add_lock(plan, batch, index, group, due)
                if due is not None:
                    group.dues.append(f"{due.at:.6f}" if due.delay_s is None else f"+{due.delay_s:.6f}")
                group.payloads.append(payload)
                jobs.bytes += len(payload)
            jobs.statuses += [_texts(command) for command in batch.statuses if command]
            jobs.jids += batch.jids
            if job_events.observers:
                jobs.told.append((plan, batch))
            if plan.recorder is not None:
                jobs.recorded.append(_RecordedJobs(plan.recorder, plan.destination, batch, copy_context()))
            # A part of a step is one write, so that it is made once.
            if self.facts.part is None and (len(jobs.jids) >= self._autoflush or jobs.bytes >= _MAX_BYTES):
                self._end_write()

    def _end_write(self) -> None:
        """Write what is collected, or hold it until the end of a block that is written whole or not at all."""
        held_bytes = self._jobs.bytes + sum(one.bytes for one in self._held)
        if self._has_limit and not self.written and held_bytes < _MOST_HELD_BYTES:
            self._held.append(self._jobs)
            self._jobs = _Collected()
        else:
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
            self._jobs.statuses.append(_texts(queued_status(tracked, due)))
            request = request.with_status(tracked.command("discarded"))
        place = len(group.payloads)
        group.lock_requests[place] = request.encode().decode()
        if batch.unique is not None:
            one = batch.unique._replace(payloads=(batch.payloads[index],), jids=(batch.jids[index],))
            self._jobs.duplicates[(*group.key, place)] = plan, one

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

    # Decision 266: the room for all jobs is asked for by the first write. So a block is refused before anything of it is written.
    def _flush(self, *, last: bool) -> None:
        writes = [*self._held, self._jobs]
        for one in writes:
            one.count()
        requests, limits = self._requests(writes)
        for number, one in enumerate(writes, 1):
            self._write(one, requests if number == 1 else (), limits, last=last and number == len(writes))
        self._held, self._jobs = [], _Collected()

    def _requests(
        self, writes: Sequence[_Collected]
    ) -> tuple[Sequence[Mapping[str, str | int]], Mapping[str, AcceptedLimit]]:
        """Return the room that the classes must have, and their limits by class."""
        limits: dict[str, AcceptedLimit] = {}
        jobs, sizes = Counter[str](), Counter[str]()
        for group in (group for one in writes for group in one.groups.values()):
            if group.limit is not None:
                worker = group.limit.worker
                limits[worker] = group.limit
                jobs[worker] += len(group.payloads)
                sizes[worker] += group.each * len(group.payloads)
        if self.facts.part is not None:
            # A step with more jobs than the limit, or one of a class that is always nearly full, would wait for ever.
            jobs, sizes = Counter(dict.fromkeys(limits, 1)), Counter(dict.fromkeys(limits, 1))
        return [limit.request(jobs[worker], sizes[worker]) for worker, limit in limits.items()], limits

    def _write(
        self,
        jobs: _Collected,
        requests: Sequence[Mapping[str, str | int]],
        limits: Mapping[str, AcceptedLimit],
        *,
        last: bool,
    ) -> None:
        facts = self.facts
        shard = self._choose_shard()
        if not facts.exists and facts.parent_block is not None:
            # The batch around this one must exist first, and must not end meanwhile.
            facts.parent_block.begin_open(shard)
        groups = list(jobs.groups.values())
        write = BatchWrite(
            facts.bid,
            generate_jid(),
            facts.expires_in_s,
            None if facts.exists else self._new_batch(shard),
            opens=not last and not self._is_open,
            closes=last and self._is_open,
            groups=groups,
            statuses=jobs.statuses,
            part=facts.part,
            requests=requests,
        )
        reply = self._send_recorded(shard, write, jobs.recorded, limits)
        self._log_duplicates(jobs, groups, reply)
        if write.create is not None and reply.code == WRITTEN and facts.part is None:
            logs.logger(bid=facts.bid).info("a batch was created", event_name="batch.created", jobs=len(jobs.jids))
        jids = jobs.jids if reply.code == WRITTEN else []
        for plan, batch in jobs.told if reply.code == WRITTEN else ():
            tell_enqueued(plan, batch, batch.jids)
        self._is_open, facts.exists = not last, True
        self.written += len(jids)
        self._client.collected_jobs_written(jids)

    # Decision 235: the event is durable before its job is.
    def _send_recorded(
        self,
        shard: str,
        write: BatchWrite,
        recorded: Sequence[_RecordedJobs],
        limits: Mapping[str, AcceptedLimit],
    ) -> BatchReply:
        for one in recorded:
            one.context.run(one.recorder.enqueued, one.destination, one.jobs)
        try:
            reply = self._send(shard, write)
            if reply.code == WRITTEN_BEFORE:
                # Another run of the job that starts the step has written and recorded them.
                not_written = BatchError(self.facts.bid, "another process has started the step meanwhile")
                for one in recorded:
                    one.recorder.not_written(one.destination, one.jobs, not_written)
            elif reply.code == FULL:
                worker, jobs, size = map(decode_escaped, reply.full)
                raise BacklogFullError(worker, shard, int(jobs), int(size), limits[worker].described)
            elif reply.code != WRITTEN:
                raise self._refusal(reply.code)
        except (ShardUnavailableError, BatchError, BacklogFullError) as error:
            if not (isinstance(error, ShardUnavailableError) and error.maybe_written):
                for one in recorded:
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

    @staticmethod
    def _log_duplicates(jobs: _Collected, groups: Sequence[BatchGroup], reply: BatchReply) -> None:
        for group, index, owner in reply.owners:
            plan, unique = jobs.duplicates[(*groups[int(group)].key, int(index))]
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
