"""Claim the events of failed jobs for another push, so that of several calls at a time one pushes each job.

A call claims an event in the state in which it has read it, in one transaction before the job is written to Redis. A call whose event
has changed meanwhile leaves the job out: another call pushes it, or it runs again already.

At a crash: a kill before the claim leaves a failed event, which the next call finds. A kill after it leaves an event that waits with
the reason ``PUSHED_AGAIN``, and perhaps no job. The next call looks for such jobs in Redis (``retrying``); without one the leader
does, as for every push.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from framework.errors import EventsTakenError
from framework.features.tasks.apply import apply_changes
from framework.features.tasks.change import EventChange
from framework.features.tasks.database import TaskDatabase, sql_errors
from framework.features.tasks.model import events, messages
from framework.types import Jid

PUSHED_AGAIN = "pushed again by retry_failed"
"""The reason of an event between its claim and the start of its job."""


class SeenEvent(NamedTuple):
    """An event of a failed job, as a call has read it."""

    id: int
    jid: Jid
    changed_at: float


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
