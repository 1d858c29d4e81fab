"""Push the jobs of a task, and its failed jobs again: from the dead set, or from their events (``claim_events``)."""

import time
from collections.abc import Sequence
from dataclasses import fields
from itertools import chain
from typing import Any, TypeAlias

from sqlalchemy import RowMapping

from framework.admin.shard_job_set import ShardJobSet
from framework.application_worker import PushOptions, Setter
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.setter import declaration_of
from framework.errors import EventsTakenError, TaskRetryError
from framework.features.tasks.access import LazyRecorder, current
from framework.features.tasks.apply import PUSHED_AGAIN, SeenEvent, claim_events
from framework.features.tasks.change import DEAD, DROPPED, EventChange, params_of
from framework.features.tasks.database import FAILED_STATUSES, sql_errors
from framework.features.tasks.ledger import Ledger, LostJob
from framework.features.tasks.progress import failed_rows, load_json, pushed_again_rows
from framework.features.tasks.recorder import PUSH_SCOPE, PushScope
from framework.features.tasks.settings import TaskSettings
from framework.push.job_batch import TASK_FIELDS
from framework.push.transactions import skipping_transaction_check
from framework.text import format_count
from framework.types import Jid, Json
from framework.wire.job import TASK, TASK_ITEMS, generate_jid

_SHOWN = 3
_PUSH_S = 10.0
"""Longer than the time between the claim of an event and the write of its job, in a call that was not killed."""

_Row: TypeAlias = RowMapping


def push_failed_again(task_id: str, access: LazyRecorder) -> int:
    rows = _failed_rows(task_id, access)
    dead = _in_dead_sets(access, [row["jid"] for row in rows if _may_be_dead(row)])
    from_events = _without_job(access, [row for row in rows if row["jid"] not in dead])
    _check(from_events)
    retried = sum(_retry_dead(access, row, *dead[row["jid"]]) for row in rows if row["jid"] in dead)
    for name in sorted({row["worker"] for row in from_events}):
        same = [row for row in from_events if row["worker"] == name]
        for start in range(0, len(same), PUSH_CHUNK):
            retried += _push(task_id, name, same[start : start + PUSH_CHUNK])
    return retried


def _failed_rows(task_id: str, access: LazyRecorder) -> list[_Row]:
    """Return the events of failed jobs, and those that a killed call may have claimed without pushing their jobs."""
    database = access.store.database
    with sql_errors(database), database.reading() as connection:
        failed = chain.from_iterable(failed_rows(connection, task_id, FAILED_STATUSES))
        rows: list[_Row] = [*failed]
        # The faked jobs of a test are not in Redis, and no call of it is killed.
        if not access.is_in_memory:
            rows += pushed_again_rows(connection, task_id, PUSHED_AGAIN, time.time() - _PUSH_S)
    return rows


def _may_be_dead(row: _Row) -> bool:
    return bool(row["state"] == DEAD.state or row["reason"] == PUSHED_AGAIN)


def _in_dead_sets(access: LazyRecorder, jids: Sequence[str]) -> dict[str, tuple[ShardJobSet, Any]]:
    # The faked shards of a test have no Redis.
    if not jids or access.is_in_memory:
        return {}
    found: dict[str, tuple[ShardJobSet, Any]] = {}
    for shard in access.shards.values():
        jobs = ShardJobSet(shard, "dead", access.settings)
        found.update({record.jid: (jobs, record) for record in jobs.find(*jids)})
    return found


def _without_job(access: LazyRecorder, rows: Sequence[_Row]) -> list[_Row]:
    """Leave out the events whose jobs a key of Redis has: an operator has retried them from the dead set, or a killed call has.

    Raises:
        TaskError, redis errors: that is not known.
    """
    if access.is_in_memory:
        return list(rows)
    unsure = [_as_lost(row) for row in rows if _may_be_dead(row)]
    ledger = Ledger(access.shards, access.store.database, access.settings.size_limit)
    has_job = {one.id for one in unsure} - {one.id for one in ledger.missing(unsure)}
    return [row for row in rows if row["id"] not in has_job]


def _as_lost(row: _Row) -> LostJob:
    # Every job of a task has the mark of recorded jobs, so that the walks over the keys find it.
    facts: dict[str, Any] = {one.name: row[one.name] for one in fields(LostJob) if one.name != "has_payload"}
    return LostJob(**facts, has_payload=True)


def _check(rows: Sequence[_Row]) -> None:
    unloaded = sorted({row["worker"] for row in rows if registry.find(row["worker"]) is None})
    if unloaded:
        raise TaskRetryError(f"the classes {', '.join(unloaded)} are not loaded here: import them, and call it again.")
    unknown = [row["jid"] for row in rows if not row["whole"]]
    if unknown:
        shown = ", ".join(unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        raise TaskRetryError(
            f"the arguments of {format_count(len(unknown), 'failed job')} are not stored ({shown}): list them in loggable_arguments, "
            "or set tasks.params: whole, before the jobs are pushed. Nothing was pushed."
        )


def _retry_dead(access: LazyRecorder, row: _Row, jobs: ShardJobSet, record: Any) -> bool:
    """Move a job from the dead set to its queue; return whether this call has moved it."""
    change = EventChange(row["jid"], "mend", time.time(), worker=row["worker"], queue=row["queue"], shard=row["shard"])
    if TaskSettings.of(access.settings).tasks.ledger != "none":
        change.payload = record.data.decode(errors="replace")
    try:
        claim_events(access.store.database, [_seen(row)], [change])
    except EventsTakenError:
        return False
    return jobs.act_on("retry", record.data) == "done"


def _push(task_id: str, name: str, rows: Sequence[_Row]) -> int:
    """Push jobs from their events, without those that another call takes; return the number of pushed jobs."""
    worker: Any = registry.find(name)
    pushed = 0
    left: list[_Row] = list(rows)
    while left:
        scope = PushScope(replaces=list(map(_seen, left)))
        params = [load_json(row["params"], []) for row in left]
        try:
            # A transaction of the application says nothing about failed jobs of the past, and its rollback must not lose a claim.
            with skipping_transaction_check():
                jids = push_recorded(scope, task_id, worker, params, PushOptions())
        except EventsTakenError as error:
            pushed += len(scope.recorded)
            done: set[int] = {left[place]["id"] for place in scope.recorded}
            left = [row for row in left if row["id"] not in error.taken | done]
        else:
            return pushed + sum(jid is not None for jid in jids)
    return pushed


def _seen(row: _Row) -> SeenEvent:
    return SeenEvent(row["id"], row["jid"], row["changed_at"])


PUSH_CHUNK = 1_000


def push_chunk(
    task_id: str,
    worker: type[Any] | Setter[...],
    jobs: Sequence[Sequence[Any]],
    options: PushOptions,
    *,
    items: int = 1,
) -> list[Jid | None]:
    """Push at most ``PUSH_CHUNK`` jobs of a task; return their ids, ``None`` for those that were dropped."""
    scope = PushScope()
    jids = push_recorded(scope, task_id, worker, jobs, options, items=items)
    dropped = [index for index, jid in enumerate(jids) if jid is None and index not in scope.recorded]
    if dropped:
        access = current()
        whole = TaskSettings.of(access.settings).tasks.params == "whole"
        changes = [_dropped(task_id, worker, jobs[index], items, whole=whole) for index in dropped]
        access.store.writer.write(changes)
    return jids


def push_recorded(
    scope: PushScope,
    task_id: str,
    worker: type[Any] | Setter[...],
    jobs: Sequence[Sequence[Any]],
    options: PushOptions,
    *,
    items: int = 1,
) -> list[Jid | None]:
    """Push jobs of a task; ``scope`` learns which of them were recorded."""
    fields: dict[str, Json] = {TASK: task_id, **({TASK_ITEMS: items} if items > 1 else {})}
    of_task, of_scope = TASK_FIELDS.set(fields), PUSH_SCOPE.set(scope)
    try:
        wish: PushOptions = {**options, "track": True}
        pushed: list[Jid | None] = worker.set(**wish).perform_bulk(jobs)
        return pushed
    finally:
        TASK_FIELDS.reset(of_task)
        PUSH_SCOPE.reset(of_scope)


def _dropped(
    task_id: str, worker: type[Any] | Setter[...], args: Sequence[Any], items: int, *, whole: bool
) -> EventChange:
    declaration: Declaration = declaration_of(worker)
    change = EventChange(generate_jid(), "push", time.time(), *DROPPED, worker=declaration.wire_name, task_id=task_id)
    change.reason = "a client middleware did not yield"
    change.items = items
    change.params, change.whole = params_of({"args": list(args)}, declaration, whole=whole)
    return change
