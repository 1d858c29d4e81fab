"""Write changes of events in one transaction, and keep the counters of their tasks exact.

Crash story: all rows of a batch change together with the counters, or none. A repeated batch changes nothing more: an end is
written over an equal end, messages have keys. Rows are locked in the order of their ids, first events, then tasks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import Connection, Float, Table, Update, bindparam, case, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from framework.errors import TaskTablesError
from framework.tasks.change import EventChange, Message, Status
from framework.tasks.database import TaskDatabase
from framework.tasks.job_ends import DUPLICATE, HELD, LOST, NOT_PUSHED
from framework.tasks.model import FAILED_STATUSES, OPEN_STATUSES, STATUSES, events, messages, tasks
from framework.telemetry import logs

_PUSHED_AGAIN = (NOT_PUSHED.state, LOST.state)


_COUNTERS = (*STATUSES, "total", "items")
_COLUMNS = ("status", "state", "reason", "error_class", "stands_for", "changed_at", "ended_at", "runs")


def _update_of(names: tuple[str, ...]) -> Update:
    statement = update(events).where(events.c.id == bindparam("row_id"))
    return statement.values({name: bindparam(f"new_{name}") for name in names})


def _completion() -> Update:
    ended = (tasks.c.closed_at.is_not(None)) & (tasks.c.enqueue == 0) & (tasks.c.working == 0)
    now = bindparam("now", type_=Float)
    completed = case((ended & tasks.c.completed_at.is_(None), now), (ended, tasks.c.completed_at), else_=None)
    return update(tasks).where(tasks.c.id.in_(bindparam("ids", expanding=True))).values(completed_at=completed)


def _insert_of(table: Table, key: str) -> dict[str, Any]:
    """Return the statement that inserts missing rows, by dialect."""
    made: dict[str, Any] = {"sqlite": sqlite.insert(table), "postgresql": postgresql.insert(table)}
    return {name: one.on_conflict_do_nothing(index_elements=[key]) for name, one in made.items()}


# Made once: to build them for each batch would cost more than to execute them.
_LOCK = (
    select(
        *(events.c[name] for name in ("id", "jid", "task_id", "status", "state", "changed_at", "runs", "items")),
        events.c.payload.is_not(None),
    )
    .where(events.c.jid.in_(bindparam("jids", expanding=True)))
    .order_by(events.c.jid)
    .with_for_update()
)
_DUPLICATES = select(events.c.jid, events.c.stands_for).where(
    events.c.stands_for.in_(bindparam("jids", expanding=True)), events.c.status.in_(OPEN_STATUSES)
)
_EXTRA_NAMES = {"started_at", "shard", "payload"}
_EXTRA = tuple({*start, *payload} for start in ((), ("started_at", "shard")) for payload in ((), ("payload",)))
_UPDATES = tuple((extra, names, _update_of(names)) for extra in _EXTRA for names in ((*_COLUMNS, *sorted(extra)),))
_ADD = (
    update(tasks)
    .where(tasks.c.id == bindparam("row_id"))
    .values({name: tasks.c[name] + bindparam(f"add_{name}") for name in _COUNTERS})
)
_COMPLETE = _completion()
_INSERT_EVENTS = {name: one.returning(events.c.jid) for name, one in _insert_of(events, "jid").items()}
_INSERT_MESSAGES = _insert_of(messages, "key")


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
    has_payload: bool = False
    new_status: Status | None = None
    values: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def current(self) -> Status:
        return self.new_status or self.status or "enqueue"

    @property
    def was_open(self) -> bool:
        return self.status in OPEN_STATUSES

    @property
    def is_open(self) -> bool:
        return self.current in OPEN_STATUSES


def write_changes(database: TaskDatabase, changes: Sequence[EventChange], *, late: bool = False) -> None:
    """Write changes in one transaction. If the database refuses a value, write each alone, and leave out the refused ones.

    ``late`` as for ``apply_changes``. Raises SQLAlchemyError, OSError or TaskTablesError if the database does not take any: a part
    of the changes may be written, and all of them are to be written again.
    """
    try:
        database.write(lambda connection: apply_changes(connection, changes, late=late))
    except Exception as cause:
        if _is_unavailable(cause):
            raise
    else:
        return
    for one in changes:
        try:
            database.write(partial(apply_changes, changes=[one], late=late))
        except Exception as error:
            # Lost meanwhile: the other changes must not be left out with the refused one.
            if _is_unavailable(error):
                raise
            logs.logger().error(
                "the database refuses the event of a job; the job continues without it. Report the error",
                event_name="task_event.refused",
                jid=one.jid,
                state=one.state,
                error=error,
            )


def _is_unavailable(error: Exception) -> bool:
    """Return whether the database does not answer; else it refuses a value."""
    return isinstance(error, SQLAlchemyError | OSError | TaskTablesError) and not isinstance(
        error, DataError | IntegrityError
    )


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
    return {row.jid: _Row(*row) for row in connection.execute(_LOCK, {"jids": list(jids)})}


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
            "payload": one.payload,
            "due_at": one.due_at,
            "created_at": one.at,
            "changed_at": one.at,
        }
        for one in firsts
    ]
    made = set(connection.execute(_INSERT_EVENTS[connection.dialect.name], values).scalars())
    for jid, row in _lock_rows(connection, [one.jid for one in firsts]).items():
        if jid in made:
            row.status = None
        rows[jid] = row


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
        # A job may run on another shard than that of its push.
        values.update(started_at=change.at, shard=change.shard)
    values["runs"] = row.runs
    if change.payload is not None and row.status is not None:
        values["payload"], row.has_payload = change.payload, True
    elif row.has_payload and change.status not in OPEN_STATUSES and change.state != LOST.state:
        # The job has ended: its arguments must not stay longer than it does.
        values["payload"], row.has_payload = None, False


def _accepts(row: _Row, change: EventChange, *, late: bool) -> bool:
    """Return whether a change is newer than what is stored."""
    if row.status is None and row.new_status is None:
        return True
    if change.kind == "mend":
        return row.changed_at == change.seen_at
    if late and change.at < row.changed_at:
        return False
    if change.state == HELD.state:
        # Decision 247: admission holds a job in Redis before its record is written. Meanwhile another process may start the job, and
        # even end it: the record then says less than the event.
        return row.current == "enqueue"
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
    pairs = connection.execute(_DUPLICATES, {"jids": jids}).all()
    if not pairs:
        return []
    owners = {row.jid: row for row in ended}
    waiting = _lock_rows(connection, [pair.jid for pair in pairs])
    for pair in pairs:
        row, owner = waiting[pair.jid], owners[pair.stands_for]
        row.new_status = owner.current
        row.values = {**owner.values, "state": DUPLICATE.state, "stands_for": pair.stands_for, "runs": row.runs}
        row.values["reason"] = _reason_of_duplicate(pair.stands_for, owner.state, owner.values.get("reason"))
        for name in _EXTRA_NAMES:
            row.values.pop(name, None)
        if row.has_payload:
            row.values["payload"] = None
    return list(waiting.values())


def _reason_of_duplicate(owner: str, state: str, reason: str | None) -> str:
    return f"the job {owner} stands for it: {state}" + (f": {reason}" if reason else "")


def _update_events(connection: Connection, rows: Sequence[_Row]) -> None:
    for extra, names, statement in _UPDATES:
        wanted = [row for row in rows if row.values and _EXTRA_NAMES & row.values.keys() == extra]
        if wanted:
            parameters = [{"row_id": row.id, **{f"new_{name}": row.values[name] for name in names}} for row in wanted]
            connection.execute(statement, parameters)


def _insert_messages(connection: Connection, found: Sequence[tuple[str, Message]]) -> None:
    if found:
        values = [
            {"key": one.key, "jid": jid, "at": one.at, "text": one.text, "fields": one.fields} for jid, one in found
        ]
        connection.execute(_INSERT_MESSAGES[connection.dialect.name], values)


def _count(connection: Connection, rows: Sequence[_Row], now: float) -> None:
    """Add to the counters of the tasks; a task whose last open event has ended is complete."""
    deltas: dict[str, dict[str, int]] = {}
    for row in rows:
        if row.task_id is None:
            continue
        delta = deltas.setdefault(row.task_id, dict.fromkeys(_COUNTERS, 0))
        if row.status is None:
            delta["total"] += 1
            delta["items"] += row.items
        else:
            delta[row.status] -= 1
        delta[row.current] += 1
    if not deltas:
        return
    parameters = [{"row_id": key, **{f"add_{name}": deltas[key][name] for name in _COUNTERS}} for key in sorted(deltas)]
    connection.execute(_ADD, parameters)
    # Only an event that is new, ends, or begins again changes whether a task is complete.
    moved = {row.task_id for row in rows if row.task_id and (row.status is None or row.is_open != row.was_open)}
    if moved:
        note_completion(connection, sorted(moved), now)


def note_completion(connection: Connection, task_ids: Sequence[str], now: float) -> None:
    """Set the time of completion of tasks that are closed and have no open event, and remove it from the others."""
    connection.execute(_COMPLETE, {"ids": list(task_ids), "now": now})


def counters_of(row: Mapping[str, Any]) -> dict[Status, int]:
    """Return the counters of a row of ``aw_tasks`` by status."""
    return {status: int(row[status]) for status in STATUSES}  # type: ignore[misc]
