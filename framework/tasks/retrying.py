"""Push the failed jobs of a task again: from the dead set, or from their events."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from framework.admin.shard_job_set import ShardJobSet
from framework.declare import registry
from framework.declare.options import PushOptions
from framework.errors import TaskRetryError
from framework.tasks import queries
from framework.tasks.access import TaskAccess
from framework.tasks.change import EventChange
from framework.tasks.model import FAILED_STATUSES
from framework.tasks.progress import load_json
from framework.tasks.pushing import PUSH_CHUNK, push_recorded
from framework.tasks.scope import PushScope

_SHOWN = 3


def push_failed_again(task_id: str, access: TaskAccess) -> int:
    """See ``Task.retry_failed``."""
    store = access.recorder.store
    with store.database.reading() as connection:
        rows = [dict(row) for page in queries.failed_rows(connection, task_id, FAILED_STATUSES) for row in page]
    dead = _in_dead_sets(access, [row["jid"] for row in rows if row["state"] == "dead"])
    from_events = [row for row in rows if row["jid"] not in dead]
    _check(from_events)
    retried = 0
    for row in rows:
        if (found := dead.get(row["jid"])) is None:
            continue
        jobs, record = found
        store.writer.write([_waits_again(row, record.data if access.settings.tasks.ledger != "none" else None)])
        jobs.act_on("retry", record.data)
        retried += 1
    for name in sorted({row["worker"] for row in from_events}):
        same = [row for row in from_events if row["worker"] == name]
        retried += _push(task_id, name, same)
    return retried


def _in_dead_sets(access: TaskAccess, jids: Sequence[str]) -> dict[str, tuple[ShardJobSet, Any]]:
    # The faked shards of a test have no Redis.
    if not jids or access.recorder.is_in_memory:
        return {}
    found: dict[str, tuple[ShardJobSet, Any]] = {}
    for shard in access.shards.values():
        jobs = ShardJobSet(shard, "dead", access.settings)
        found.update({record.jid: (jobs, record) for record in jobs.find(*jids)})
    return found


def _check(rows: Sequence[Mapping[str, Any]]) -> None:
    unloaded = sorted({row["worker"] for row in rows if registry.find(row["worker"]) is None})
    if unloaded:
        raise TaskRetryError(f"the classes {', '.join(unloaded)} are not loaded here: import them, and call it again.")
    unknown = [row["jid"] for row in rows if not row["whole"]]
    if unknown:
        shown = ", ".join(unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        raise TaskRetryError(
            f"the arguments of {len(unknown):,} failed jobs are not stored ({shown}): list them in loggable_arguments, or set "
            "tasks.params: whole, before the jobs are pushed. Nothing was pushed."
        )


def _waits_again(row: Mapping[str, Any], payload: bytes | None) -> EventChange:
    change = EventChange(row["jid"], "end", time.time(), worker=row["worker"], queue=row["queue"], shard=row["shard"])
    change.reason = "pushed again by retry_failed"
    change.payload = None if payload is None else payload.decode(errors="replace")
    return change


def _push(task_id: str, name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    worker: Any = registry.find(name)
    for start in range(0, len(rows), PUSH_CHUNK):
        chunk = rows[start : start + PUSH_CHUNK]
        scope = PushScope(replaces=[row["id"] for row in chunk])
        push_recorded(scope, task_id, worker, [load_json(row["params"], []) for row in chunk], PushOptions())
    return len(rows)
