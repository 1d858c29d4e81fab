"""Read the batches and workflows of one shard, and write its workflows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import redis
from redis.exceptions import RedisError

from framework.declare.batch_port import BatchStatus, KeptResult
from framework.declare.workflow_port import StepState, StepStatus, WorkflowState, WorkflowStatus
from framework.errors import BatchError, PayloadError
from framework.shard.connection import ShardConnection
from framework.shard.redis_errors import unavailable_error
from framework.store.connect import Endpoint
from framework.store.script import WORKFLOW_ADVANCE, WORKFLOW_CHANGE
from framework.text import decode_escaped
from framework.wire import keys
from framework.wire.batch_fields import KEEPS_RESULTS, RESULTS_FULL, BatchMembers
from framework.wire.json import stored_count, stored_time
from framework.wire.workflow_fields import WorkflowAction, WorkflowDefinition, WorkflowEvent, WorkflowStep, step_bid

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


_LIST_TTL_MS = 86_400_000
"""How long stored jobs wait for their workflow, or for the end of the function that computes them."""

_PUSHED_BYTES = 4_000_000
"""Parts of one round trip."""


def read_fields(client: "redis.Redis", workflow_id: str) -> dict[str, str] | None:
    """Return the fields of a workflow, ``None`` if the shard does not have it. Raises redis errors."""
    stored = cast("dict[bytes, bytes]", client.hgetall(keys.workflow(workflow_id)))
    return (
        {decode_escaped(name): decode_escaped(value) for name, value in stored.items()} if b"ttl_s" in stored else None
    )


def read_workflows(client: "redis.Redis", shard: str, ids: Sequence[str]) -> list[WorkflowStatus]:
    """Return the status of each workflow that the shard has, in two round trips. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=True)
    for one in ids:
        pipeline.hgetall(keys.workflow(one))
        pipeline.ttl(keys.workflow(one))
    pipeline.time()
    *replies, (now, _) = pipeline.execute()
    found: list[tuple[str, dict[str, str], int]] = []
    for one, stored, ttl_s in zip(ids, replies[::2], replies[1::2], strict=True):
        if b"ttl_s" in stored:
            found.append((one, {decode_escaped(name): decode_escaped(value) for name, value in stored.items()}, ttl_s))
    bids = [bid for one, fields, _ in found for bid in batches_of(one, fields)]
    batches = {one.bid: one for one in read_batches(client, shard, bids)} if bids else {}
    return [workflow_status(one, shard, fields, ttl_s, float(now), batches) for one, fields, ttl_s in found]


def scan_workflows(client: "redis.Redis") -> Iterator[list[str]]:
    """Yield the ids of the workflows of a shard, in pages. Raises redis errors."""
    return scan_ids(client, keys.WORKFLOWS)


def add_parts(client: "redis.Redis", place: str, parts: Iterable[bytes]) -> int:
    """Append the parts of a step's jobs to a list that expires; return how many. Raises redis errors."""
    count, waiting, size = 0, list[bytes](), 0

    def push() -> None:
        pipeline: Any = client.pipeline(transaction=True)
        pipeline.rpush(place, *waiting)
        pipeline.pexpire(place, _LIST_TTL_MS)
        pipeline.execute()

    for part in parts:
        waiting.append(part)
        count, size = count + 1, size + len(part)
        if size >= _PUSHED_BYTES:
            push()
            waiting, size = [], 0
    if waiting:
        push()
    return count


def batches_of(workflow_id: str, fields: Mapping[str, str]) -> list[str]:
    """Return the ids of the batches that its status needs: those of steps that run or have failed, and the one around it."""
    steps = [name for name in fields.get("steps", "").split() if fields.get(f"{name}:state") not in (None, "succeeded")]
    return [step_bid(workflow_id, name) for name in steps] + ([fields["parent"]] if fields.get("parent") else [])


def workflow_status(
    workflow_id: str,
    shard: str,
    fields: Mapping[str, str],
    ttl_s: int,
    now: float,
    batches: Mapping[str, BatchStatus],
) -> WorkflowStatus:
    """Return the status of a workflow from the fields of its HASH and the statuses of the batches of ``batches_of``."""

    def at(name: str) -> float | None:
        return stored_time(fields.get(name))

    parent = batches.get(fields.get("parent", ""))
    # A batch that is cancelled removes the jobs that start its steps.
    cancelled_at = at("cancelled_at") or (
        parent.cancelled_at if parent is not None and "ended_at" not in fields else None
    )
    ended_at = at("ended_at") or cancelled_at
    definition = _definition_of(fields)
    steps = tuple(
        _step_status(workflow_id, one, fields, batches, ended=ended_at is not None, cancelled=cancelled_at is not None)
        for one in definition.steps
    )
    return WorkflowStatus(
        id=workflow_id,
        name=fields.get("name", ""),
        description=fields.get("description", ""),
        shard=shard,
        state=_state(fields, steps, ended=ended_at is not None, cancelled=cancelled_at is not None),
        parent=fields.get("parent", ""),
        steps=steps,
        created_at=at("created_at") or 0.0,
        ended_at=ended_at,
        cancelled_at=cancelled_at,
        invalidated_at=at("invalidated_at"),
        expires_at=now + ttl_s if ttl_s >= 0 else None,
    )


def _definition_of(fields: Mapping[str, str]) -> WorkflowDefinition:
    """Return the stored definition; one without steps if it cannot be read, so that one workflow hides no other."""
    try:
        return WorkflowDefinition.decode(fields.get("definition", ""))
    except PayloadError:
        return WorkflowDefinition(())


def _state(fields: Mapping[str, str], steps: Sequence[StepStatus], *, ended: bool, cancelled: bool) -> WorkflowState:
    if cancelled:
        return "cancelled"
    if ended:
        return "failed" if stored_count(fields.get("failed_steps")) > 0 else "succeeded"
    return "waiting" if all(one.state == "waiting" for one in steps) else "running"


def _step_status(
    workflow_id: str,
    step: WorkflowStep,
    fields: Mapping[str, str],
    batches: Mapping[str, BatchStatus],
    *,
    ended: bool,
    cancelled: bool,
) -> StepStatus:
    def number(name: str) -> int:
        return stored_count(fields.get(f"{step.name}:{name}"))

    def at(name: str) -> float | None:
        return stored_time(fields.get(f"{step.name}:{name}"))

    bid = step_bid(workflow_id, step.name)
    batch = batches.get(bid)
    state = cast("StepState", fields.get(f"{step.name}:state", "waiting"))
    if state == "waiting" and ended:
        state = "skipped"
    elif state in ("starting", "running") and cancelled:
        state = "cancelled"
    failed = state == "failed"
    dead, removed = (number("dead"), number("removed")) if batch is None else (batch.dead, batch.removed)
    return StepStatus(
        name=step.name,
        state=state,
        after=step.after,
        on=step.on,
        workers=tuple(one.worker for one in step.jobs),
        bid=bid,
        jobs=number("jobs") if f"{step.name}:jobs" in fields else None,
        pending=batch.pending if batch is not None else (dead + removed if failed else 0),
        failures=dead if batch is None else batch.failures,
        dead=dead,
        removed=removed,
        started_at=at("started_at"),
        ended_at=at("ended_at"),
    )


T = TypeVar("T")


class WorkflowStore:
    """The workflows of a shard. Every method raises ShardUnavailableError when Redis does not answer or refuses."""

    name: str
    endpoint: Endpoint
    client: "redis.Redis"
    _connection: ShardConnection

    def change_workflow(
        self,
        workflow_id: str,
        action: WorkflowAction,
        facts: bytes = b"",
        lists: Sequence[str] = (),
        numbers: Sequence[int] = (),
    ) -> bool:
        """Change a workflow (``workflow_change.lua``); return whether the shard has it."""
        names = (keys.workflow(workflow_id), keys.WORKFLOWS, *lists)
        return bool(self._connection.run_script(WORKFLOW_CHANGE, names, (workflow_id, action, facts, *numbers)))

    def advance_workflow(
        self, workflow_id: str, step: str, event: WorkflowEvent, after_success: str, after_failure: str
    ) -> tuple[str, str]:
        """Note the end of a step (``workflow_advance.lua``); return the answer and its step or state."""
        names = (
            keys.workflow(workflow_id),
            keys.batch(step_bid(workflow_id, step)),
            keys.step_jobs(workflow_id, step),
        )
        arguments = (step, event, after_success, after_failure)
        answer, *rest = self._connection.run_script(WORKFLOW_ADVANCE, names, arguments)
        return answer.decode(), rest[0].decode() if rest else ""

    def read_workflow(self, workflow_id: str) -> dict[str, str] | None:
        """Return the fields of a workflow, ``None`` if this shard does not have it."""
        return self._reading(lambda: read_fields(self.client, workflow_id))

    def workflow_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Return the status of a workflow, ``None`` if this shard does not have it."""
        return self._reading(lambda: next(iter(read_workflows(self.client, self.name, [workflow_id])), None))

    def add_step_parts(self, place: str, parts: Iterable[bytes]) -> int:
        """Append the parts of a step's jobs to a list; return how many."""
        return self._reading(lambda: add_parts(self.client, place, parts))

    def step_part(self, place: str, number: int) -> bytes | None:
        """Return a part of a step's jobs, from 1 on, ``None`` if the list does not have it."""
        found: Any = self._reading(lambda: self.client.lrange(place, number - 1, number - 1))
        return found[0] if found else None

    def _reading(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (RedisError, OSError) as error:
            raise unavailable_error(self.name, self.endpoint, error) from error
