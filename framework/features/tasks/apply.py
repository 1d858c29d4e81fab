"""Write changes of events in one transaction, and keep the counters of their tasks exact.

At a crash: all rows of a batch change together with the counters, or none. A repeated batch changes nothing more: an end is
written over an equal end, messages have keys. Rows are locked in the order of their ids, first events, then tasks.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Float, Update, bindparam, case, select, update
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError

from framework.errors import EventsTakenError, TaskTablesError
from framework.features.tasks.change import DUPLICATE, HELD, INTERRUPTED, LOST, NOT_PUSHED, EventChange, Status
from framework.features.tasks.database import OPEN_STATUSES, TaskDatabase, events, messages, sql_errors, tasks
from framework.features.tasks.statements import COUNTERS, STATEMENTS
from framework.telemetry import logs
from framework.types import Jid

_OF_A_RUN = ("start", "end")
_HELD = HELD.state
_PUSHED_AGAIN = (NOT_PUSHED.state, LOST.state)
_SUPERSEDED = (INTERRUPTED.state, LOST.state)
"""States that an end from the spool replaces although they were noted after it. The process that took a job back notes the
interruption after the move, so the end may be that of the next run; and a job that has ended is in no key, so it looks lost."""


def _completion() -> Update:
    ended = (tasks.c.closed_at.is_not(None)) & (tasks.c.enqueue == 0) & (tasks.c.working == 0)
    now = bindparam("now", type_=Float)
    completed = case((ended & tasks.c.completed_at.is_(None), now), (ended, tasks.c.completed_at), else_=None)
    return update(tasks).where(tasks.c.id.in_(bindparam("ids", expanding=True))).values(completed_at=completed)


_COMPLETE = _completion()


@dataclass(slots=True)
class StoredEvent:
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
    is_duplicate: bool | int = False
    has_duplicates: bool | int = False
    new_status: Status | None = None
    """The status after this batch; ``None`` if no change of it counts."""
    current: Status = "enqueue"
    """The new status, else the stored one."""
    reason: str | None = None
    error_class: str | None = None
    stands_for: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    shard: str | None = None
    """The shard of the run; ``None`` leaves the column as it is."""
    is_current: bool = False
    """Whether the stored row is as this batch leaves it: it has made the row from a push, and no other change of the job came."""
    keeps_payload: bool = True
    payload: str | None = None
    """The new payload, unless the row keeps its own."""

    def set_payload(self, payload: str | None) -> None:
        self.keeps_payload, self.payload, self.has_payload = False, payload, payload is not None

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
    statements = STATEMENTS[connection.dialect.name]
    jids = {one.jid for one in changes}
    rows = {stored[1]: _row(stored) for stored in statements.lock(connection, list(jids))}
    if len(rows) < len(jids):
        _insert(connection, changes, rows)
    for one in changes:
        _fold(rows[one.jid], one, late=late)
    changed = [row for row in rows.values() if row.new_status is not None or row.status is None]
    # Rarely any: the rows say whether there are.
    if any(row.has_duplicates or row.stands_for is not None for row in changed):
        changed += _end_duplicates(connection, changed, rows)
    usual, rare = _updates(changed)
    deltas = _counted(changed, max([one.at for one in changes], default=0.0))
    if rare:
        statements.update_all(connection, rare)
    if usual or deltas:
        statements.update(connection, usual, deltas)
    said = [(one.key, change.jid, one.at, one.text, one.fields) for change in changes for one in change.messages]
    if said:
        statements.add_messages(connection, said)


def _row(stored: Sequence[Any]) -> StoredEvent:
    row = StoredEvent(*stored)
    row.current = stored[3]
    return row


def _insert(connection: Connection, changes: Sequence[EventChange], rows: dict[str, StoredEvent]) -> None:
    """Make the missing events, as waiting in their queues, or as their pushes say."""
    firsts: dict[str, EventChange] = {}
    # The jobs of which the batch has more than a push: their rows are read again, with their numbers and their duplicates.
    continued: set[str] = set()
    for one in changes:
        if one.jid not in rows:
            first = firsts.setdefault(one.jid, one)
            if first is not one or one.kind != "push" or one.status != "enqueue":
                continued.add(one.jid)
    wanted = {one.task_id for one in firsts.values() if one.task_id is not None}
    known = set(connection.execute(select(tasks.c.id).where(tasks.c.id.in_(wanted))).scalars()) if wanted else wanted
    statements = STATEMENTS[connection.dialect.name]
    made = statements.insert(connection, [_inserted(one, known) for one in firsts.values()])
    # Another transaction may have made one meanwhile: its row is locked now.
    read_again = continued.union(jid for jid in firsts if jid not in made)
    for row in map(_row, statements.lock(connection, list(read_again))) if read_again else ():
        if row.jid in made:
            row.status = None
        rows[row.jid] = row
    for jid, one in firsts.items():
        if jid not in read_again:
            row = StoredEvent(
                0, jid, one.task_id if one.task_id in known else None, None, one.state, one.at, items=one.items
            )
            row.is_current = True
            rows[jid] = row


def _inserted(first: EventChange, known: Collection[str]) -> tuple[Any, ...]:
    """Return the columns of a new event, by ``INSERTED``."""
    first.fill_params()
    return (
        *(first.jid, first.task_id if first.task_id in known else None, first.worker, first.queue, first.shard),
        *("enqueue", first.state if first.kind == "push" else "queued", first.params, first.whole, first.items),
        *(first.payload, first.due_at, first.at, first.at),
    )


def _fold(row: StoredEvent, change: EventChange, *, late: bool) -> None:
    kind, at = change.kind, change.at
    if kind == "note" or not _accepts(row, change, late=late):
        return
    # A start is written again if it is not known whether its transaction was committed: it counts once.
    is_first = row.changed_at != at or row.state != change.state
    row.new_status = row.current = status = change.status
    row.state, row.changed_at = change.state, at
    row.reason, row.error_class, row.stands_for = change.reason, change.error_class, change.stands_for
    row.ended_at = None if status in OPEN_STATUSES else at
    if kind == "start":
        row.runs += is_first
        # A job may run on another shard than that of its push.
        row.started_at, row.shard = at, change.shard
    elif kind == "mend" and change.shard:
        # So may a failed job that is pushed again.
        row.shard = change.shard
    if change.payload is not None and row.status is not None:
        row.set_payload(change.payload)
    elif row.has_payload and status not in OPEN_STATUSES and change.state != LOST.state:
        # The job has ended: its arguments must not stay longer than it does.
        row.set_payload(None)


def _accepts(row: StoredEvent, change: EventChange, *, late: bool) -> bool:
    """Return whether a change is newer than what is stored."""
    if change.kind in _OF_A_RUN and row.current in OPEN_STATUSES and not late and change.state != _HELD:
        # Nearly every change, so it is asked first. The rules below would say the same.
        return True
    if row.status is None and row.new_status is None:
        return True
    if change.kind == "mend":
        return row.changed_at == change.seen_at
    if late and change.at < row.changed_at and not (row.state in _SUPERSEDED and change.status not in OPEN_STATUSES):
        return False
    if change.state == _HELD:
        # Admission holds a job in Redis before its record is written. Meanwhile another process may start the job, and
        # even end it: the record then says less than the event.
        return row.current == "enqueue"
    if change.kind == "push":
        return row.state in _PUSHED_AGAIN
    # For the same reason an interruption reopens no event, whatever the clocks say.
    if change.state == INTERRUPTED.state and not row.is_open:
        return False
    # The start of a run whose process was suspended may be written after the end of the next run.
    return not (change.kind == "start" and not row.is_open and row.changed_at > change.at)


def _end_duplicates(
    connection: Connection, changed: Sequence[StoredEvent], rows: dict[str, StoredEvent]
) -> list[StoredEvent]:
    """End the events of duplicates with the events of the jobs that stand for them, however many others stand in between.

    A debounced job that was replaced a hundred times ends with the last one. Return the rows that the batch had not changed.
    """
    standing: dict[str, list[StoredEvent]] = {}
    for row in changed:
        if row.is_open and row.stands_for is not None:
            standing.setdefault(row.stands_for, []).append(row)
    # Each row with the row of the job that decides its end.
    level = [(row, row) for row in changed if not row.is_open]
    level += [(row, row) for row in ended_rows(connection, list(standing.keys() - {row.jid for row in changed}))]
    more: list[StoredEvent] = []
    while level:
        deciders = {row.jid: decider for row, decider in level}
        stored = _stored_duplicates(connection, [row.jid for row, _ in level if row.has_duplicates], rows)
        more += (row for row, _ in stored)
        noted = [(row, jid) for jid in deciders for row in standing.pop(jid, ()) if row.is_open]
        level = [(row, deciders[jid]) for row, jid in (*stored, *noted)]
        for row, decider in level:
            _end_with(row, decider)
    return more


def _stored_duplicates(
    connection: Connection, owners: Sequence[str], rows: dict[str, StoredEvent]
) -> list[tuple[StoredEvent, str]]:
    """Return the open duplicates of these jobs that the batch has not changed, each with its job; ``rows`` gets them."""
    if not owners:
        return []
    statements = STATEMENTS[connection.dialect.name]
    # A row that the batch has changed says more than the stored one, and counts once.
    found = {
        jid: owner
        for jid, owner in statements.duplicates(connection, owners)
        if jid not in rows or rows[jid].new_status is None
    }
    missing = [jid for jid in found if jid not in rows]
    rows |= {row.jid: row for row in map(_row, statements.lock(connection, missing) if missing else ())}
    return [(rows[jid], owner) for jid, owner in found.items() if jid in rows]


def ended_rows(connection: Connection, jids: Sequence[str]) -> list[StoredEvent]:
    """Return the events of these jobs that have ended. Not locked: a duplicate that misses the end is mended later."""
    if not jids:
        return []
    names = ("jid", "status", "state", "changed_at", "reason", "error_class", "ended_at")
    ended = select(*(events.c[name] for name in names)).where(
        events.c.jid.in_(jids), events.c.status.not_in(OPEN_STATUSES)
    )
    found: list[StoredEvent] = []
    for one in connection.execute(ended).mappings():
        shown = {name: one[name] for name in ("reason", "error_class")}
        row = StoredEvent(
            0, one["jid"], None, one["status"], one["state"], one["changed_at"], current=one["status"], **shown
        )
        row.ended_at = one["ended_at"]
        found.append(row)
    return found


def _end_with(row: StoredEvent, owner: StoredEvent) -> None:
    row.new_status = row.current = owner.current
    row.state, row.stands_for = DUPLICATE.state, owner.jid
    row.reason = reason_of_duplicate(owner.jid, owner.state, owner.reason)
    row.error_class, row.changed_at, row.ended_at = owner.error_class, owner.changed_at, owner.ended_at
    if row.has_payload:
        row.set_payload(None)


def reason_of_duplicate(owner: str, state: str, reason: str | None) -> str:
    """Return why an event ended with that of another job."""
    if state == DUPLICATE.state and reason:
        # It names the job that has run.
        return reason
    return f"the job {owner} stands for it: {state}" + (f": {reason}" if reason else "")


def _updates(rows: Sequence[StoredEvent]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return the parameters of ``Statements.update``, and of ``update_all`` for the rows that need it."""
    usual: list[tuple[Any, ...]] = []
    rare: list[tuple[Any, ...]] = []
    for row in rows:
        if row.new_status is None or row.is_current:
            continue
        values = (
            *(row.new_status, row.state, row.reason, row.error_class, row.changed_at, row.ended_at, row.runs),
            *(row.started_at, row.shard),
        )
        if row.is_duplicate or row.stands_for is not None or not row.keeps_payload:
            rare.append((*values, row.stands_for, row.keeps_payload, row.payload, row.id))
        else:
            usual.append((*values, row.id))
    return usual, rare


def _counted(rows: Sequence[StoredEvent], now: float) -> list[tuple[Any, ...]]:
    """Return the numbers to add to the counters of each task. A task whose last open event has ended is complete then."""
    deltas: dict[str, dict[str, int]] = {}
    for row in rows:
        task_id, before, after = row.task_id, row.status, row.current
        if task_id is None or before == after:
            continue
        delta = deltas.get(task_id)
        if delta is None:
            delta = deltas[task_id] = dict.fromkeys(COUNTERS, 0)
        if before is None:
            delta["total"] += 1
            delta["items"] += row.items
        else:
            delta[before] -= 1
        delta[after] += 1
    # In the order of their ids, so that two writers never wait for each other.
    return [(*deltas[task_id].values(), now, task_id) for task_id in sorted(deltas)]


def note_completion(connection: Connection, task_ids: Sequence[str], now: float) -> None:
    """Set the time of completion of tasks that are closed and have no open event, and remove it from the others."""
    connection.execute(_COMPLETE, {"ids": list(task_ids), "now": now})


PUSHED_AGAIN = "pushed again by retry_failed"
"""The reason of an event between its claim and the start of its job."""


class SeenEvent(NamedTuple):
    """An event of a failed job, as a call has read it."""

    id: int
    jid: Jid
    changed_at: float


# Of several calls at a time one pushes each failed job again: a call claims an event in the state in which it has read it, in one
# transaction before the job is written to Redis, and leaves out a job whose event has changed meanwhile. A kill before the claim
# leaves a failed event, which the next call finds. A kill after it leaves an event that waits with the reason ``PUSHED_AGAIN``, and
# perhaps no job: the next call looks for such jobs in Redis (``retrying``); without one the leader does, as for every push.
def claim_events(database: TaskDatabase, seen: Sequence[SeenEvent], changes: Sequence[EventChange]) -> None:
    """Let each event begin again with the job of its change. May be repeated with the same new jobs.

    Raises:
        EventsTakenError: another call was faster.
        TaskDatabaseError: the database does not answer.
    """
    with sql_errors(database):
        database.write(partial(_claim, seen=seen, changes=changes))


def _claim(connection: Connection, seen: Sequence[SeenEvent], changes: Sequence[EventChange]) -> None:
    # In the order in which every writer locks events.
    columns = select(events.c.id, events.c.jid, events.c.changed_at).where(events.c.id.in_([one.id for one in seen]))
    stored: dict[int, Any] = {
        row.id: row for row in connection.execute(columns.order_by(events.c.jid).with_for_update())
    }
    taken: set[int] = set()
    claimed: list[tuple[SeenEvent, EventChange]] = []
    for one, change in zip(seen, changes, strict=True):
        row = stored.get(one.id)
        if row is not None and row.changed_at == one.changed_at:
            change.kind, change.seen_at, change.reason = "mend", one.changed_at, PUSHED_AGAIN
            claimed.append((one, change))
        # An earlier try of this push has claimed it: its new id is known to no other call.
        elif row is None or not row.jid == change.jid != one.jid:
            taken.add(one.id)
    if taken:
        raise EventsTakenError(frozenset(taken))
    _replace_jids(connection, claimed)
    apply_changes(connection, [change for _, change in claimed])


def _replace_jids(connection: Connection, claimed: Sequence[tuple[SeenEvent, EventChange]]) -> None:
    """Give the claimed events and their messages the ids of the new jobs."""
    renamed = [{"old": one.jid, "new": change.jid} for one, change in claimed if one.jid != change.jid]
    if renamed:
        for table in (events, messages):
            connection.execute(
                update(table).where(table.c.jid == bindparam("old")).values(jid=bindparam("new")), renamed
            )
