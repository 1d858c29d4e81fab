"""Read and change the workflows of one shard, for applications, operators and commands."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import redis

from framework.errors import PayloadError
from framework.features.batches import keys as batch_keys
from framework.features.batches.batch import BatchStatus
from framework.features.batches.store import change_batch, read_batches, scan_ids
from framework.features.workflows import keys as workflow_keys
from framework.features.workflows.definition import (
    WorkflowCommand,
    WorkflowDefinition,
    WorkflowEvent,
    WorkflowStep,
    step_bid,
)
from framework.features.workflows.workflow import StepState, StepStatus, WorkflowState, WorkflowStatus
from framework.shard.shard import Shard
from framework.store.script import Script
from framework.text import decode_escaped
from framework.wire.json import stored_count, stored_time

CHANGE = Script("workflows/change", "time", "recorded", "batches/batch")
ADVANCE = Script("workflows/advance", "time", "recorded", "batches/batch")

WorkflowAction: TypeAlias = Literal["create", "plan"] | WorkflowCommand
"""The actions of ``scripts/change.lua``."""

_LIST_TTL_MS = 86_400_000
"""How long stored jobs wait for their workflow, or for the end of the function that computes them."""

_PUSHED_BYTES = 4_000_000
"""Parts of one round trip."""


def read_fields(shard: Shard, workflow_id: str) -> dict[str, str] | None:
    """Return the fields of a workflow, ``None`` if the shard does not have it. Raises ShardUnavailableError."""
    with shard.reading():
        stored = cast("dict[bytes, bytes]", shard.client.hgetall(workflow_keys.workflow(workflow_id)))
    if b"ttl_s" not in stored:
        return None
    return {decode_escaped(name): decode_escaped(value) for name, value in stored.items()}


def read_workflows(client: "redis.Redis", shard: str, ids: Sequence[str]) -> list[WorkflowStatus]:
    """Return the status of each workflow that the shard has, in two round trips. Raises redis errors."""
    pipeline: Any = client.pipeline(transaction=True)
    for one in ids:
        pipeline.hgetall(workflow_keys.workflow(one))
        pipeline.ttl(workflow_keys.workflow(one))
    pipeline.time()
    *replies, (now, _) = pipeline.execute()
    found: list[tuple[str, dict[str, str], int]] = []
    for one, stored, ttl_s in zip(ids, replies[::2], replies[1::2], strict=True):
        if b"ttl_s" in stored:
            found.append((one, {decode_escaped(name): decode_escaped(value) for name, value in stored.items()}, ttl_s))
    bids = [bid for one, fields, _ in found for bid in batches_of(one, fields)]
    batches = {one.bid: one for one in read_batches(client, shard, bids)} if bids else {}
    return [_status_of(one, shard, fields, ttl_s, float(now), batches) for one, fields, ttl_s in found]


def add_parts(shard: Shard, place: str, parts: Iterable[bytes]) -> int:
    """Append the parts of a step's jobs to a list that expires; return how many. Raises ShardUnavailableError."""
    count, waiting, size = 0, list[bytes](), 0

    def push() -> None:
        # Not around the loop: an error of the function that makes the parts is none of the shard.
        with shard.reading():
            pipeline: Any = shard.client.pipeline(transaction=True)
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


def list_workflows(shard: Shard) -> Iterator[WorkflowStatus]:
    """Yield the workflows of one shard. Raises redis errors."""
    for ids in scan_ids(shard.client, workflow_keys.WORKFLOWS):
        if ids:
            yield from read_workflows(shard.client, shard.name, ids)


def find_workflow(shard: Shard, workflow_id: str) -> WorkflowStatus | None:
    """Return the status of a workflow, ``None`` if the shard does not have it. Raises redis errors."""
    return next(iter(read_workflows(shard.client, shard.name, [workflow_id])), None)


def change_workflow(shard: Shard, workflow_id: str, action: WorkflowCommand) -> bool:
    """Invalidate, cancel or delete a workflow, and the batches of its steps; return whether the shard has it.

    Raises redis errors and ShardUnavailableError.
    """
    fields = read_fields(shard, workflow_id)
    if fields is None:
        return False
    # The workflow first: no step begins afterwards. If this process dies here, the caller repeats both.
    write_workflow(shard, workflow_id, action)
    for name in fields["steps"].split():
        if f"{name}:state" in fields or action == "cancel":
            change_batch(shard, step_bid(workflow_id, name), action)
    return True


def write_workflow(
    shard: Shard,
    workflow_id: str,
    action: WorkflowAction,
    facts: bytes = b"",
    lists: Sequence[str] = (),
    numbers: Sequence[int] = (),
) -> None:
    """Run ``scripts/change.lua``. Raises ShardUnavailableError."""
    names = (workflow_keys.workflow(workflow_id), workflow_keys.WORKFLOWS, *lists)
    shard.run_script(CHANGE, names, (workflow_id, action, facts, *numbers))


def advance_workflow(
    shard: Shard, workflow_id: str, step: str, event: WorkflowEvent, after_success: str, after_failure: str
) -> tuple[str, str]:
    """Note the end of a step (``scripts/advance.lua``); return the answer and its step or state. Raises ShardUnavailableError."""
    names = (
        workflow_keys.workflow(workflow_id),
        batch_keys.batch(step_bid(workflow_id, step)),
        workflow_keys.step_jobs(workflow_id, step),
    )
    answer, *rest = shard.run_script(ADVANCE, names, (step, event, after_success, after_failure))
    return answer.decode(), rest[0].decode() if rest else ""


def step_part(shard: Shard, place: str, number: int) -> bytes | None:
    """Return a part of a step's jobs, from 1 on, ``None`` if the list does not have it. Raises ShardUnavailableError."""
    with shard.reading():
        found: Any = shard.client.lrange(place, number - 1, number - 1)
    return found[0] if found else None


def batches_of(workflow_id: str, fields: Mapping[str, str]) -> list[str]:
    """Return the ids of the batches that its status needs: those of steps that run or have failed, and the one around it."""
    steps = [name for name in fields.get("steps", "").split() if fields.get(f"{name}:state") not in (None, "succeeded")]
    return [step_bid(workflow_id, name) for name in steps] + ([fields["parent"]] if fields.get("parent") else [])


def _status_of(
    workflow_id: str,
    shard: str,
    fields: Mapping[str, str],
    ttl_s: int,
    now: float,
    batches: Mapping[str, BatchStatus],
) -> WorkflowStatus:

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
