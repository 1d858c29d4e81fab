"""Read tasks, events and messages, in pages. Raises SQLAlchemyError."""

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, RowMapping, func, select

from framework.tasks.model import OPEN_STATUSES, events, messages, tasks
from framework.tasks.progress import EventMessage, JobEvent, event_of, message_of

SHOWN_MESSAGES = 50
"""The newest messages of an event that come with it."""

MAX_PAGE = 1_000


def find_task(connection: Connection, task_id: str) -> RowMapping | None:
    """Return the row of a task."""
    return connection.execute(select(tasks).where(tasks.c.id == task_id)).mappings().first()


def list_tasks(
    connection: Connection, owner: str | None, tenant: str | None, limit: int, before: tuple[float, str] | None
) -> list[RowMapping]:
    """Return rows of tasks, the newest first; ``before`` is the place after which the page begins: (created_at, id)."""
    wanted = select(tasks).order_by(tasks.c.created_at.desc(), tasks.c.id.desc()).limit(min(limit, MAX_PAGE))
    if owner is not None:
        wanted = wanted.where(tasks.c.owner == owner)
    if tenant is not None:
        wanted = wanted.where(tasks.c.tenant == tenant)
    if before is not None:
        created, task_id = before
        wanted = wanted.where(
            (tasks.c.created_at < created) | ((tasks.c.created_at == created) & (tasks.c.id < task_id))
        )
    return list(connection.execute(wanted).mappings())


def list_events(
    connection: Connection, task_id: str, statuses: Sequence[str], after: int, limit: int
) -> list[JobEvent]:
    """Return events of a task in the order of their ids, those after ``after``, with their newest messages."""
    wanted = select(events).where(events.c.task_id == task_id, events.c.id > after).order_by(events.c.id)
    if statuses:
        wanted = wanted.where(events.c.status.in_(statuses))
    rows = list(connection.execute(wanted.limit(min(limit, MAX_PAGE))).mappings())
    found = newest_messages(connection, [row["jid"] for row in rows])
    return [event_of(row, found.get(row["jid"], ())) for row in rows]


def find_event(connection: Connection, jid: str) -> JobEvent | None:
    """Return the event of a job with its newest messages."""
    row = connection.execute(select(events).where(events.c.jid == jid)).mappings().first()
    return None if row is None else event_of(row, newest_messages(connection, [jid]).get(jid, ()))


def newest_messages(connection: Connection, jids: Sequence[str]) -> dict[str, list[EventMessage]]:
    """Return the newest messages of several jobs, the oldest of them first."""
    if not jids:
        return {}
    place = func.row_number().over(partition_by=messages.c.jid, order_by=messages.c.id.desc()).label("place")
    ranked = select(messages, place).where(messages.c.jid.in_(jids)).subquery()
    found: dict[str, list[EventMessage]] = {}
    for row in connection.execute(
        select(ranked).where(ranked.c.place <= SHOWN_MESSAGES).order_by(ranked.c.id)
    ).mappings():
        found.setdefault(row["jid"], []).append(message_of(row))
    return found


def list_messages(connection: Connection, jid: str, after: int, limit: int) -> list[EventMessage]:
    """Return messages of a job in their order, those after the message ``after``."""
    wanted = select(messages).where(messages.c.jid == jid, messages.c.id > after).order_by(messages.c.id)
    return [message_of(row) for row in connection.execute(wanted.limit(min(limit, MAX_PAGE))).mappings()]


def open_jids(connection: Connection, task_id: str, after: int) -> list[tuple[int, str]]:
    """Return a page of (event id, job id) of the jobs that wait or run."""
    wanted = select(events.c.id, events.c.jid).where(
        events.c.task_id == task_id, events.c.status.in_(OPEN_STATUSES), events.c.id > after
    )
    return [(row.id, row.jid) for row in connection.execute(wanted.order_by(events.c.id).limit(MAX_PAGE))]


def failed_rows(connection: Connection, task_id: str, statuses: Sequence[str]) -> Iterator[list[RowMapping]]:
    """Yield pages of the rows of failed events, oldest first. Each page is read when it is wanted."""
    after = 0
    while True:
        wanted = select(events).where(events.c.task_id == task_id, events.c.status.in_(statuses), events.c.id > after)
        page = list(connection.execute(wanted.order_by(events.c.id).limit(MAX_PAGE)).mappings())
        if not page:
            return
        yield page
        after = page[-1]["id"]
