"""Write changes of events in one transaction, and keep the counters of their tasks exact.

Crash story: all rows of a batch change together with the counters, or none. A repeated batch changes nothing more: an end is
written over an equal end, messages have keys. Rows are locked in the order of their ids, first events, then tasks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Insert, bindparam, case, select, update
from sqlalchemy.dialects import postgresql, sqlite

from framework.tasks.change import EventChange, Message, Status
from framework.tasks.job_ends import DUPLICATE, LOST, NOT_PUSHED
from framework.tasks.model import FAILED_STATUSES, OPEN_STATUSES, STATUSES, events, messages, tasks

_PUSHED_AGAIN = (NOT_PUSHED.state, LOST.state)


@dataclass(slots=True)
class _Row:
    """An event as it is stored, and as it will be."""

    id: int
    jid: str
    task_id: str | None
    status: Status | None
    """``None`` for a row that this batch has made."""
    state: str
    changed_at: float
    runs: int = 0
    items: int = 1
    new_status: Status | None = None
    values: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def current(self) -> Status:
        return self.new_status or self.status or "enqueue"

    @property
    def is_open(self) -> bool:
        return self.current in OPEN_STATUSES


def apply_changes(connection: Connection, changes: Sequence[EventChange], *, late: bool = False) -> None:
    """Write changes in their order. ``late``: they come from the spool, so newer ones may be written already."""
    by_jid: dict[str, list[EventChange]] = {}
    for one in changes:
        by_jid.setdefault(one.jid, []).append(one)
    _replace_jids(connection, [one for one in changes if one.replaces is not None])
    rows = _lock_rows(connection, by_jid)
    missing = [jid for jid in by_jid if jid not in rows]
    if missing:
        _insert(connection, [by_jid[jid][0] for jid in missing], rows)
    for jid, several in by_jid.items():
        for one in several:
            _fold(rows[jid], one, late=late)
    changed = [row for row in rows.values() if row.values or row.status is None]
    changed += _end_duplicates(connection, [row for row in changed if not row.is_open])
    _update_events(connection, changed)
    _insert_messages(connection, [(one.jid, message) for one in changes for message in one.messages])
    _count(connection, changed, max((one.at for one in changes), default=0.0))


def _replace_jids(connection: Connection, changes: Sequence[EventChange]) -> None:
    """Give the events of failed jobs, which are pushed again, the ids of the new jobs."""
    for one in changes:
        failed = (events.c.id == one.replaces) & events.c.status.in_(FAILED_STATUSES)
        old = connection.execute(select(events.c.jid).where(failed).with_for_update()).scalar()
        if old is not None:
            connection.execute(update(events).where(events.c.id == one.replaces).values(jid=one.jid))
            connection.execute(update(messages).where(messages.c.jid == old).values(jid=one.jid))


def _lock_rows(connection: Connection, jids: Iterable[str]) -> dict[str, _Row]:
    return _rows(connection, events.c.jid.in_(list(jids)))


def _rows(connection: Connection, condition: Any) -> dict[str, _Row]:
    columns = [events.c[name] for name in ("id", "jid", "task_id", "status", "state", "changed_at", "runs", "items")]
    found = connection.execute(select(*columns).where(condition).order_by(events.c.jid).with_for_update())
    return {row.jid: _Row(*row) for row in found}


def _insert(connection: Connection, firsts: Sequence[EventChange], rows: dict[str, _Row]) -> None:
    """Make the missing events, as waiting in their queues."""
    wanted = {one.task_id for one in firsts if one.task_id is not None}
    known = (
        set(connection.execute(select(tasks.c.id).where(tasks.c.id.in_(wanted))).scalars()) if wanted else set[str]()
    )
    values = [
        {
            "jid": one.jid,
            "task_id": one.task_id if one.task_id in known else None,
            "worker": one.worker,
            "queue": one.queue,
            "shard": one.shard,
            "status": "enqueue",
            "state": "queued",
            "params": one.params,
            "whole": one.whole,
            "items": one.items,
            "created_at": one.at,
            "changed_at": one.at,
        }
        for one in firsts
    ]
    statement: Any = _dialect_insert(connection, events).on_conflict_do_nothing(index_elements=["jid"])
    made = set(connection.execute(statement.returning(events.c.jid), values).scalars())
    for jid, row in _lock_rows(connection, [one.jid for one in firsts]).items():
        if jid in made:
            row.status = None
        rows[jid] = row


def _dialect_insert(connection: Connection, table: Any) -> Any:
    make: Any = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement: Insert = make(table)
    return statement


def _fold(row: _Row, change: EventChange, *, late: bool) -> None:
    if change.kind == "note" or not _accepts(row, change, late=late):
        return
    row.new_status, row.state, row.changed_at = change.status, change.state, change.at
    values = row.values
    values.update(
        status=change.status,
        state=change.state,
        reason=change.reason,
        error_class=change.error_class,
        stands_for=change.stands_for,
        changed_at=change.at,
        ended_at=None if change.status in OPEN_STATUSES else change.at,
    )
    if change.kind == "start":
        row.runs += 1
        values["started_at"] = change.at
    values["runs"] = row.runs


def _accepts(row: _Row, change: EventChange, *, late: bool) -> bool:
    """Return whether a change is newer than what is stored."""
    if row.status is None and row.new_status is None:
        return True
    if change.kind == "mend":
        return row.changed_at == change.seen_at
    if late and change.at < row.changed_at:
        return False
    if change.kind == "push":
        return row.state in _PUSHED_AGAIN or change.replaces is not None
    # The start of a run whose process was suspended may be written after the end of the next run.
    return not (change.kind == "start" and not row.is_open and row.changed_at > change.at)


def _end_duplicates(connection: Connection, ended: Sequence[_Row]) -> list[_Row]:
    """End the events of duplicates with the events of the jobs that stand for them."""
    if not ended:
        return []
    # Rarely any: the index answers.
    jids = [row.jid for row in ended]
    pairs = connection.execute(
        select(events.c.jid, events.c.stands_for).where(
            events.c.stands_for.in_(jids), events.c.status.in_(OPEN_STATUSES)
        )
    ).all()
    if not pairs:
        return []
    owners = {row.jid: row for row in ended}
    waiting = _lock_rows(connection, [pair.jid for pair in pairs])
    for pair in pairs:
        row, owner = waiting[pair.jid], owners[pair.stands_for]
        row.new_status = owner.current
        row.values = {**owner.values, "state": DUPLICATE.state, "stands_for": pair.stands_for, "runs": row.runs}
        row.values["reason"] = _reason_of_duplicate(pair.stands_for, owner.state, owner.values.get("reason"))
        row.values.pop("started_at", None)
    return list(waiting.values())


def _reason_of_duplicate(owner: str, state: str, reason: str | None) -> str:
    return f"the job {owner} stands for it: {state}" + (f": {reason}" if reason else "")


_COLUMNS = (
    *("status", "state", "reason", "error_class", "stands_for", "changed_at", "ended_at", "runs"),
    "started_at",
)


def _update_events(connection: Connection, rows: Sequence[_Row]) -> None:
    for names in (_COLUMNS[:-1], _COLUMNS):
        wanted = [row for row in rows if row.values and ("started_at" in row.values) == ("started_at" in names)]
        if wanted:
            statement = update(events).where(events.c.id == bindparam("row_id"))
            statement = statement.values({name: bindparam(f"new_{name}") for name in names})
            parameters = [{"row_id": row.id, **{f"new_{name}": row.values[name] for name in names}} for row in wanted]
            connection.execute(statement, parameters)


def _insert_messages(connection: Connection, found: Sequence[tuple[str, Message]]) -> None:
    if found:
        statement = _dialect_insert(connection, messages).on_conflict_do_nothing(index_elements=["key"])
        values = [
            {"key": one.key, "jid": jid, "at": one.at, "text": one.text, "fields": one.fields} for jid, one in found
        ]
        connection.execute(statement, values)


def _count(connection: Connection, rows: Sequence[_Row], now: float) -> None:
    """Add to the counters of the tasks; a task whose last open event has ended is complete."""
    deltas: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.task_id is None:
            continue
        delta = deltas.setdefault(row.task_id, dict.fromkeys((*STATUSES, "total", "items"), 0))
        if row.status is None:
            delta["total"] += 1
            delta["items"] += row.items
        else:
            delta[row.status] -= 1
        delta[row.current] += 1
    if not deltas:
        return
    names = (*STATUSES, "total", "items")
    statement = update(tasks).where(tasks.c.id == bindparam("row_id"))
    statement = statement.values({name: tasks.c[name] + bindparam(f"add_{name}") for name in names})
    connection.execute(
        statement,
        [{"row_id": key, **{f"add_{name}": deltas[key][name] for name in names}} for key in sorted(deltas)],
    )
    note_completion(connection, sorted(deltas), now)


def note_completion(connection: Connection, task_ids: Sequence[str], now: float) -> None:
    """Set the time of completion of tasks that are closed and have no open event, and remove it from the others."""
    ended = (tasks.c.closed_at.is_not(None)) & (tasks.c.enqueue == 0) & (tasks.c.working == 0)
    completed = case((ended & tasks.c.completed_at.is_(None), now), (ended, tasks.c.completed_at), else_=None)
    connection.execute(update(tasks).where(tasks.c.id.in_(task_ids)).values(completed_at=completed))


def counters_of(row: Mapping[str, Any]) -> dict[Status, int]:
    """Return the counters of a row of ``aw_tasks`` by status."""
    return {status: int(row[status]) for status in STATUSES}  # type: ignore[misc]
