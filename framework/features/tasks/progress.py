"""Read what ``framework.tasks`` returns, in pages: the progress of tasks, the events of jobs, and their messages."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, func, select, union_all
from sqlalchemy.sql.elements import ColumnElement

from framework.features.tasks.change import Status
from framework.features.tasks.database import OPEN_STATUSES, STATUSES, events, messages, tasks
from framework.types import Jid


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task is."""

    counts: Mapping[Status, int]
    """The number of jobs by status; every status is there."""
    total: int
    """The number of jobs."""
    items: int
    """The number of items of all jobs: more than jobs after ``perform_split``."""
    elapsed_s: float
    """Seconds from the start of the task until now, or until its end."""
    is_complete: bool
    """Whether the task takes no more jobs, and all have ended."""
    is_cancelled: bool

    @property
    def ended(self) -> int:
        """The number of jobs that have ended, well or not."""
        return self.total - self.open

    @property
    def open(self) -> int:
        """The number of jobs that wait or run."""
        return self.counts["enqueue"] + self.counts["working"]

    @property
    def failed(self) -> int:
        """The number of jobs that ended without doing their work: ``failed`` and ``error``."""
        return self.counts["failed"] + self.counts["error"]

    @property
    def share(self) -> float:
        """The share of jobs that have ended, from 0 to 1."""
        return self.ended / self.total if self.total else float(self.is_complete)

    @property
    def rate(self) -> float:
        """The jobs that ended per second since the start of the task."""
        return self.ended / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def eta_s(self) -> float | None:
        """The seconds until the last job ends at this rate; ``None`` while no job has ended, 0 for a complete task."""
        if not self.open:
            return 0.0
        return self.open / self.rate if self.rate else None

    def as_json(self) -> dict[str, Any]:
        """Return the progress as JSON values."""
        return {
            "counts": dict(self.counts),
            "total": self.total,
            "items": self.items,
            "ended": self.ended,
            "failed": self.failed,
            "share": round(self.share, 6),
            "rate": round(self.rate, 3),
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
            "elapsed_s": round(self.elapsed_s, 3),
            "is_complete": self.is_complete,
            "is_cancelled": self.is_cancelled,
        }


@dataclass(frozen=True, slots=True)
class EventMessage:
    """One message of a job, with its time."""

    id: int
    at: float
    """Epoch seconds, as every time of a task."""
    text: str
    fields: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the message as JSON values."""
        return {"id": self.id, "at": self.at, "text": self.text, "fields": dict(self.fields)}


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One recorded job: its status, its state and reason, and its messages."""

    id: int
    """Grows with each event: pages begin after it."""
    jid: Jid
    task_id: str | None
    worker: str
    queue: str
    shard: str
    status: Status
    state: str
    """Says more than the status: the end or the waiting place."""
    reason: str | None
    error_class: str | None
    params: Sequence[Any]
    """The arguments, as log lines show them, or all of them (setting ``tasks.params``)."""
    items: int
    runs: int
    """How often the job was started."""
    stands_for: Jid | None
    """For a duplicate: the job that stands for it."""
    created_at: float
    started_at: float | None
    ended_at: float | None
    messages: Sequence[EventMessage] = field(default=())
    """The newest messages of the job, oldest first."""

    def as_json(self) -> dict[str, Any]:
        """Return the event as JSON values."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "params": list(self.params), "messages": [one.as_json() for one in self.messages]}


def progress_of(row: RowMapping, now: float) -> TaskProgress:
    counts: dict[Status, int] = {status: max(0, row[status]) for status in STATUSES}  # type: ignore[misc]
    completed: float | None = row["completed_at"]
    return TaskProgress(
        counts,
        row["total"],
        row["items"],
        max(0.0, (now if completed is None else completed) - row["created_at"]),
        completed is not None,
        row["cancelled_at"] is not None,
    )


def event_of(row: RowMapping, found: Sequence[EventMessage]) -> JobEvent:
    columns: dict[str, Any] = {name: row[name] for name in JobEvent.__slots__ if name not in ("params", "messages")}
    return JobEvent(**columns, params=load_json(row["params"], []), messages=found)


def message_of(row: RowMapping) -> EventMessage:
    return EventMessage(row["id"], row["at"], row["text"], load_json(row["fields"], {}))


def load_json(text: str | None, missing: Any) -> Any:
    """Return a stored JSON value; ``missing`` if there is none, or it was cut."""
    if text is None:
        return missing
    try:
        return json.loads(text)
    except ValueError:
        return missing


SHOWN_MESSAGES = 50
"""The newest messages of an event that come with it."""

MAX_PAGE = 1_000

PAGE_BYTES = 1_000_000
"""The texts of a page over HTTP: it ends before the entry that would exceed them, and has at least one. Messages, results and titles
may be long, so a thousand entries could be gigabytes.
"""


def find_task(connection: Connection, task_id: str) -> RowMapping | None:
    return connection.execute(select(tasks).where(tasks.c.id == task_id)).mappings().first()


def list_tasks(
    connection: Connection,
    owner: str | None,
    tenant: str | None,
    limit: int,
    before: tuple[float, str] | None,
    max_bytes: int | None = None,
) -> list[RowMapping]:
    """Return rows of tasks, the newest first; ``before`` is the place after which the page begins: (created_at, id)."""
    place: list[ColumnElement[bool]] = []
    if owner is not None:
        place.append(tasks.c.owner == owner)
    if tenant is not None:
        place.append(tasks.c.tenant == tenant)
    if before is not None:
        created, task_id = before
        place.append((tasks.c.created_at < created) | ((tasks.c.created_at == created) & (tasks.c.id < task_id)))
    order = tasks.c.created_at.desc(), tasks.c.id.desc()
    most = min(limit, MAX_PAGE)
    if max_bytes is not None:
        sizes = select(_length(tasks.c.result) + _length(tasks.c.title)).where(*place).order_by(*order).limit(most)
        most = _fitting(connection.execute(sizes).scalars(), max_bytes)
    return list(connection.execute(select(tasks).where(*place).order_by(*order).limit(most)).mappings())


def list_events(
    connection: Connection,
    task_id: str,
    statuses: Sequence[str],
    after: int,
    limit: int,
    max_bytes: int | None = None,
) -> list[JobEvent]:
    """Return events of a task in the order of their ids, those after ``after``, with their newest messages."""
    rows = _page(connection, task_id, statuses, after, limit)
    if max_bytes is not None:
        sizes = _message_bytes(connection, [row["jid"] for row in rows])
        own = (len(row["params"] or "") + len(row["reason"] or "") + sizes.get(row["jid"], 0) for row in rows)
        rows = rows[: _fitting(own, max_bytes)]
    found = newest_messages(connection, [row["jid"] for row in rows])
    return [event_of(row, found.get(row["jid"], ())) for row in rows]


def _page(
    connection: Connection, task_id: str, statuses: Sequence[str], after: int, limit: int = MAX_PAGE
) -> list[RowMapping]:
    """Return a page of the rows of events. An index range for each status is read, each at most of the length of the page.

    With one range for all of them, PostgreSQL may read the index of the primary key, with the events of other tasks.
    """
    most = min(limit, MAX_PAGE)

    def place(status: str) -> "Select[tuple[int]]":
        of_status = (events.c.task_id == task_id) & (events.c.status == status) & (events.c.id > after)
        ids = select(events.c.id).where(of_status).order_by(events.c.id).limit(most).subquery()
        return select(ids.c.id)

    ids = union_all(*map(place, statuses or STATUSES)).subquery()
    first = select(ids.c.id).order_by(ids.c.id).limit(most)
    return list(connection.execute(select(events).where(events.c.id.in_(first)).order_by(events.c.id)).mappings())


def has_events_after(connection: Connection, task_id: str, statuses: Sequence[str], after: int) -> bool:
    """Return whether a task has events of these statuses behind the event ``after``."""
    return bool(_page(connection, task_id, statuses, after, 1))


def find_event(connection: Connection, jid: str) -> JobEvent | None:
    """Return the event of a job with its newest messages."""
    row = connection.execute(select(events).where(events.c.jid == jid)).mappings().first()
    return None if row is None else event_of(row, newest_messages(connection, [jid]).get(jid, ()))


def newest_messages(connection: Connection, jids: Sequence[str]) -> dict[str, list[EventMessage]]:
    """Return the newest messages of several jobs, the oldest of them first."""
    found: dict[str, list[EventMessage]] = {}
    if jids:
        wanted = _newest(select(messages), jids).order_by(messages.c.id)
        for row in connection.execute(wanted).mappings():
            found.setdefault(row["jid"], []).append(message_of(row))
    return found


def _message_bytes(connection: Connection, jids: Sequence[str]) -> dict[str, int]:
    """Return the sizes of the newest messages of several jobs."""
    if not jids:
        return {}
    size = func.sum(_length(messages.c.text) + _length(messages.c.fields)).label("size")
    rows = connection.execute(_newest(select(messages.c.jid, size), jids).group_by(messages.c.jid)).mappings()
    return {row["jid"]: int(row["size"]) for row in rows}


def _newest(wanted: "Select[*tuple[Any, ...]]", jids: Sequence[str]) -> "Select[*tuple[Any, ...]]":
    """Return a query of messages, limited to the newest of each of these jobs."""
    # A job may have 100,000 messages: the oldest that is shown is found in the index, then those from it on are read.
    of_job = messages.alias()
    same: ColumnElement[bool] = of_job.c.jid == events.c.jid
    oldest = select(of_job.c.id).where(same).order_by(of_job.c.id.desc()).offset(SHOWN_MESSAGES - 1).limit(1)
    first = select(events.c.jid, func.coalesce(oldest.scalar_subquery(), 0).label("id")).where(events.c.jid.in_(jids))
    shown = first.subquery()
    return wanted.join(shown, (messages.c.jid == shown.c.jid) & (messages.c.id >= shown.c.id))


def list_messages(
    connection: Connection, jid: str, after: int, limit: int, max_bytes: int | None = None
) -> list[EventMessage]:
    """Return messages of a job in their order, those after the message ``after``."""
    place = messages.c.jid == jid, messages.c.id > after
    most = min(limit, MAX_PAGE)
    if max_bytes is not None:
        size = _length(messages.c.text) + _length(messages.c.fields)
        sizes = select(size).where(*place).order_by(messages.c.id).limit(most)
        most = _fitting(connection.execute(sizes).scalars(), max_bytes)
    wanted = select(messages).where(*place).order_by(messages.c.id).limit(most)
    return [message_of(row) for row in connection.execute(wanted).mappings()]


def _length(column: "ColumnElement[Any]") -> "ColumnElement[int]":
    return func.coalesce(func.length(column), 0)


def _fitting(sizes: Iterable[int], max_bytes: int) -> int:
    """Return how many of the first entries have at most ``max_bytes`` together, at least one."""
    count = sum(total <= max_bytes for total in accumulate(sizes))
    return max(1, count)


def open_events(connection: Connection, task_id: str, after: int) -> list[RowMapping]:
    """Return a page of the rows of the jobs that wait or run."""
    return _page(connection, task_id, OPEN_STATUSES, after)


def pushed_again_rows(connection: Connection, task_id: str, reason: str, before: float) -> list[RowMapping]:
    """Return the rows of waiting jobs whose event has had this reason since ``before``, or for longer."""
    waiting = (events.c.task_id == task_id) & (events.c.status == "enqueue")
    wanted = select(events).where(waiting, events.c.reason == reason, events.c.changed_at < before)
    return list(connection.execute(wanted.order_by(events.c.id)).mappings())


def failed_rows(connection: Connection, task_id: str, statuses: Sequence[str]) -> Iterator[list[RowMapping]]:
    """Yield pages of the rows of failed events, oldest first. Each page is read when it is wanted."""
    after = 0
    while True:
        page = _page(connection, task_id, statuses, after)
        if not page:
            return
        yield page
        after = page[-1]["id"]
