"""Represent a job that is ready to be written by a script of its own, in one step with other things."""

from collections.abc import Callable
from typing import NamedTuple

from framework.push.job_batch import JobBatch
from framework.push.push_plan import PushPlan
from framework.types import Jid
from framework.wire.json import loads
from framework.wire.status_key import tracked_job


class PreparedJob(NamedTuple):
    """One job, with what its step must write besides: its lock, and its state if it is tracked."""

    shard: str
    queue: str
    payload: bytes
    jid: Jid
    lock_request: bytes
    """Empty for a job that is not deduplicated."""
    status_ttl_s: int
    """How long the state of a tracked job is kept; 0 for an untracked one."""
    log_duplicate: Callable[[Jid], None]
    """Logs the job as a duplicate of the job with this id."""
    note_written: Callable[[], None]
    """Records the written job of a tracked class."""


def prepared_job(plan: PushPlan, batch: JobBatch) -> PreparedJob:
    """Return the only job of a batch."""
    payload = batch.payloads[0]
    fields = loads(payload, None)
    tracked = tracked_job(fields)
    lock_request = b""
    if batch.unique is not None and plan.deduplication is not None:
        lock_request = plan.deduplication.lock_request(fields).encode()

    def log_duplicate(owner: Jid) -> None:
        if batch.unique is not None and plan.deduplication is not None:
            plan.deduplication.written(batch.unique, [owner])

    def note_written() -> None:
        if plan.recorder is not None:
            plan.recorder.written(plan.destination, batch)

    ttl_s = 0 if tracked is None else tracked.ttl_s
    return PreparedJob(
        plan.shard.name,
        batch.queue,
        payload,
        batch.jids[0],
        lock_request,
        ttl_s,
        log_duplicate,
        note_written,
    )
