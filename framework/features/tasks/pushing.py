"""Push the jobs of a task, and record those that a client middleware drops."""

import time
from collections.abc import Sequence
from typing import Any

from framework.application_worker import PushOptions, Setter
from framework.declare.declaration import Declaration
from framework.declare.setter import declaration_of
from framework.features.tasks.access import current
from framework.features.tasks.change import EventChange
from framework.features.tasks.job_ends import DROPPED
from framework.features.tasks.params import params_of
from framework.features.tasks.scope import PUSH_SCOPE, PushScope
from framework.features.tasks.settings import TaskSettings
from framework.push.job_batch import TASK_FIELDS
from framework.types import Jid, Json
from framework.wire.job import TASK, TASK_ITEMS, generate_jid

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
