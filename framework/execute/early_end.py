"""Decide whether a job ends without running: it was cancelled, or is too old. Asked before its policies: it takes no slot."""

from asyncio import current_task
from collections.abc import Container
from typing import Any

from framework.declare.declaration import Declaration
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import SUCCEEDED, Cancelled, Expired, RunOutcome, Yielded
from framework.process_clock import process_clock
from framework.types import Jid, Payload
from framework.wire.job import bid_of, expiry_of
from framework.wire.resources import slot_id


def early_end(
    unit: UnitOfWork, payload: Payload, declaration: Declaration | None, cancelled: Container[Jid]
) -> Cancelled | Expired | None:
    """Return the outcome of a job that ends now, ``None`` if it may run."""
    # A policy has moved the job, together with others: this process does not own it any more.
    if unit.has_moved:
        return None
    if (jid := cancelled_jid(payload, cancelled)) is not None:
        forget_cursor(unit, payload, declaration)
        return Cancelled(jid, ran=False)
    # A class of another application has rules of its own.
    expiry = None if declaration is None else expiry_of(payload)
    if expiry is None:
        return None
    late_s = process_clock.now() - expiry
    if late_s <= 0:
        return None
    forget_cursor(unit, payload, declaration)
    return Expired(expiry, late_s)


def forget_cursor(unit: UnitOfWork, payload: Payload, declaration: Declaration | None) -> None:
    """Let the script that ends an iterable job, which does not run, remove the cursor of an earlier run."""
    if declaration is not None and declaration.is_iterable:
        unit.own_resources().iteration = slot_id(payload, unit.data)


def cancelled_jid(payload: Payload, cancelled: Container[Jid]) -> Jid | None:
    """Return the id of a job if it, or its batch, is among the cancelled ones. Other writers' ids may have any type."""
    jid = payload.get("jid")
    if not isinstance(jid, str):
        return None
    return jid if jid in cancelled or bid_of(payload) in cancelled else None


def outcome_of_stop(instance: Any) -> RunOutcome:
    """Return the outcome of a job that has read whether it was cancelled, and has returned: it has ended, or yields."""
    if instance._aw_stop is not None:
        reason, made_progress = instance._aw_stop
        return Yielded(reason, made_progress=made_progress)
    return Cancelled(instance.jid, ran=True) if instance._aw_cancellation.seen else SUCCEEDED


def task_cancelled() -> bool:
    """Return whether the running task was asked to end."""
    return (task := current_task()) is not None and task.cancelling() > 0
