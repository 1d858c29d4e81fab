"""Define ``Task``: many jobs of one purpose, with their progress, failures and results in SQL."""

import asyncio
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import islice
from types import TracebackType
from typing import Any, Self, Unpack

from sqlalchemy import Connection, RowMapping, insert, update

from framework.application_worker import PushOptions, Setter
from framework.async_twin import async_twin
from framework.declare.setter import declaration_of
from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.errors import TaskDatabaseError, TaskError, TaskNotFoundError
from framework.features.tasks.access import current
from framework.features.tasks.apply import note_completion
from framework.features.tasks.change import clean_text, has_valid_jid
from framework.features.tasks.database import FAILED_STATUSES, MAX_ID, STATUSES, sql_errors, tasks
from framework.features.tasks.progress import (
    PAGE_BYTES,
    EventMessage,
    JobEvent,
    TaskProgress,
    find_event,
    find_task,
    has_events_after,
    list_events,
    list_messages,
    list_tasks,
    load_json,
    open_events,
    progress_of,
)
from framework.features.tasks.retrying import PUSH_CHUNK, push_chunk, push_failed_again
from framework.features.tasks.store import TaskStore
from framework.text import Sentence, did_you_mean, format_count
from framework.typeguards import short_repr
from framework.types import Jid, Json
from framework.wire.json import dumps

_ON_THEIR_SHARD = ("queued", "working", "held", "interrupted")
"""The states of jobs that are in a queue, or held, of the shard that their event names."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
# Bytes of a result, which each listing of tasks reads.
_MAX_RESULT = 1_000_000


def open_database() -> TaskStore:
    return current().store


class Task:
    """Many jobs of one purpose. ``create`` makes one, ``get`` finds one.

        with Task.create(ImportRowWorker, title="prices.xlsx", owner="user-7") as task:
            task.perform_bulk(ImportRowWorker, rows)

    At the end of the block the task is closed: it is complete when all its jobs have ended. Methods that wait for the database have
    twins for ``async def`` code: ``await task.aprogress()``.

    Every method raises ``TaskDatabaseError`` if the database does not answer, ``TaskTablesError`` if it has no tables.
    """

    def __init__(self, task_id: str, facts: dict[str, Any]) -> None:
        self.id = task_id
        self.worker: str | None = facts["worker"]
        self.title: str | None = facts["title"]
        self.owner: str | None = facts["owner"]
        self.tenant: str | None = facts["tenant"]
        self.created_at: float = facts["created_at"]

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.title or self.worker or ''}>"

    # --- making and finding ---------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        worker: type[Any] | Setter[...] | None = None,
        title: str | None = None,
        owner: str | None = None,
        tenant: str | None = None,
    ) -> "Task":
        """Make a task. ``worker`` is the class of most of its jobs, ``owner`` and ``tenant`` are for filters and authorisation.

        Raises:
            TaskDatabaseError, TaskTablesError: the task was not made.
        """
        facts: dict[str, Any] = {
            "worker": None if worker is None else declaration_of(worker).wire_name,
            "title": None if title is None else clean_text(_text("title", title)),
            "owner": _name("owner", owner),
            "tenant": _name("tenant", tenant),
            "created_at": time.time(),
        }
        task_id = uuid.uuid4().hex
        _write(lambda connection: connection.execute(insert(tasks).values(id=task_id, **facts)))
        return cls(task_id, facts)

    @classmethod
    async def acreate(
        cls,
        worker: type[Any] | Setter[...] | None = None,
        title: str | None = None,
        owner: str | None = None,
        tenant: str | None = None,
    ) -> "Task":
        """Call ``create`` without blocking the event loop, with its result and its errors."""
        return await asyncio.to_thread(cls.create, worker, title, owner, tenant)

    @classmethod
    async def aget(cls, task_id: str) -> "Task":
        """Call ``get`` without blocking the event loop, with its result and its errors."""
        return await asyncio.to_thread(cls.get, task_id)

    @classmethod
    def get(cls, task_id: str) -> "Task":
        """Return the task with this id.

        Raises:
            TaskNotFoundError: the database has no such task.
        """
        row = _row(task_id)
        return cls(task_id, dict(row))

    @classmethod
    def all(
        cls, *, owner: str | None = None, tenant: str | None = None, limit: int = 100, before: "Task | None" = None
    ) -> "list[Task]":
        """Return a page of tasks, the newest first; the next page begins with ``before=page[-1]``.

        Raises:
            TypeError, ValueError: a filter is no text, or ``limit`` is not positive.
        """
        return [cls(row["id"], dict(row)) for row in _page(owner, tenant, limit, before)]

    # --- adding jobs ----------------------------------------------------------------------------------------------

    def perform_bulk(
        self, worker: type[Any] | Setter[...], args: Iterable[Sequence[Any]], **options: Unpack[PushOptions]
    ) -> list[Jid | None]:
        """Push one job per tuple of arguments, 1,000 at a time; return the ids, ``None`` for a job that was dropped.

        The events are durable before the jobs are written. The class need not declare ``track``. ``options`` are those of
        ``Worker.set``. A dropped job has an event too, which says why.

        Raises:
            ArgumentsError, ExceedLimitError, BulkPushError: as ``Worker.perform_bulk``, with the jobs of earlier chunks written.
            TaskError: the task was cancelled or is complete. If it is cancelled during the push, the written jobs are cancelled too.
        """
        self._check_open(options)
        jids: list[Jid | None] = []
        jobs = iter(args)
        while chunk := list(islice(jobs, PUSH_CHUNK)):
            jids += self._push(worker, chunk, options)
        return jids

    def perform_split(
        self,
        worker: type[Any] | Setter[...],
        items: Iterable[Any],
        size: int,
        *more: Any,
        **options: Unpack[PushOptions],
    ) -> list[Jid | None]:
        """Split items into jobs of ``size``: each gets a list of items as its first argument, then ``more``.

        Raises as ``perform_bulk``; ValueError for a size below 1.
        """
        if size < 1:
            raise ValueError(f"perform_split: size = {size} is not allowed. Allowed: a whole number >= 1")
        self._check_open(options)
        jids: list[Jid | None] = []
        left = iter(items)
        while chunk := list(islice(left, size * PUSH_CHUNK)):
            parts = [chunk[start : start + size] for start in range(0, len(chunk), size)]
            whole = [(part, *more) for part in parts if len(part) == size]
            rest = [(part, *more) for part in parts if len(part) < size]
            if whole:
                jids += self._push(worker, whole, options, items=size)
            if rest:
                jids += self._push(worker, rest, options, items=len(rest[0][0]))
        return jids

    def _push(
        self, worker: type[Any] | Setter[...], jobs: Sequence[Sequence[Any]], options: PushOptions, *, items: int = 1
    ) -> list[Jid | None]:
        """Push one chunk. Its jobs are cancelled if the task was cancelled before ``cancel`` could see their events."""
        jids = push_chunk(self.id, worker, jobs, options, items=items)
        # After the push: ``cancel`` notes the cancellation, and then reads the events. So it sees these events, or this look sees it.
        try:
            is_cancelled = _row(self.id)["cancelled_at"] is not None
        # The jobs are written, with their events in the spool. No task can be cancelled meanwhile.
        except TaskDatabaseError:
            is_cancelled = False
        if is_cancelled:
            for shard in current().shards.values():
                shard.cancel([jid for jid in jids if jid is not None])
            raise self._closed_error("was cancelled")
        return jids

    def close(self) -> None:
        """Take no more jobs: the task is complete when all have ended. The end of a ``with`` block calls it."""
        now = time.time()

        def close(connection: Connection) -> None:
            wanted = update(tasks).where(tasks.c.id == self.id, tasks.c.closed_at.is_(None))
            connection.execute(wanted.values(closed_at=now))
            note_completion(connection, [self.id], now)

        _write(close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- looking --------------------------------------------------------------------------------------------------

    def progress(self) -> TaskProgress:
        """Return how far the task is. One row is read, whatever the number of jobs.

        Raises:
            TaskNotFoundError: the task was removed.
        """
        return progress_of(_row(self.id), time.time())

    def events(self, *statuses: str, after: int = 0, limit: int = 100) -> list[JobEvent]:
        """Return a page of the events of these statuses (none: of all); the next page begins with ``after=page[-1].id``.

        Raises:
            ValueError: there is no such status, or a number is out of range.
        """
        for one in statuses:
            if one not in STATUSES:
                raise ValueError(
                    f"{one!r} is no status of an event{did_you_mean(str(one), STATUSES)}. Statuses: {', '.join(STATUSES)}"
                )
        _check_page(after, limit)
        with _reading() as connection:
            return list_events(connection, self.id, statuses, after, limit)

    def failures(self, *, after: int = 0, limit: int = 100) -> list[JobEvent]:
        """Return a page of the events ``failed`` and ``error``, with messages and params; see ``events``."""
        return self.events(*FAILED_STATUSES, after=after, limit=limit)

    def wait(self, timeout: float | None = None) -> TaskProgress:
        """Wait until the task is complete; return its progress.

        Raises:
            TimeoutError: it is not complete within ``timeout`` seconds; its jobs go on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause_s = _FIRST_PAUSE_S
        while True:
            found = self.progress()
            if found.is_complete:
                return found
            left = pause_s if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"task {self.id}: {found.open:,} of {format_count(found.total, 'job')} not ended")
            time.sleep(min(pause_s, left))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)

    # --- acting ---------------------------------------------------------------------------------------------------

    def cancel(self) -> int:
        """Cancel the jobs that have not ended; return their number. Those that wait end when their turn comes.

        Raises:
            ShardUnavailableError: a shard does not answer; call it again.
        """
        wanted = update(tasks).where(tasks.c.id == self.id, tasks.c.cancelled_at.is_(None))
        cancelled = wanted.values(cancelled_at=time.time())
        _write(lambda connection: connection.execute(cancelled))
        self.close()
        count, after = 0, 0
        while True:
            with _reading() as connection:
                page = open_events(connection, self.id, after)
            if not page:
                return count
            for name, shard in current().shards.items():
                if jids := [row["jid"] for row in page if _may_be_on(name, row)]:
                    shard.cancel(jids)
            count, after = count + len(page), page[-1]["id"]

    def retry_failed(self) -> int:
        """Push the jobs again that failed; return how many this call has pushed. Their events begin again.

        Jobs in the dead set are retried from there. Others are pushed from their event, which needs all their arguments. Of several
        calls at a time one pushes each job. A call that was killed is continued by the next.

        Raises:
            TaskRetryError: the arguments of some are not known, or their class is not loaded. Nothing was pushed.
            TaskError: a shard keeps events that are not in the database yet, so what a killed call has pushed is not known.
        """
        return push_failed_again(self.id, current())

    def set_result(self, result: Json) -> None:
        """Store a summary of the result with the task: any JSON value of at most 1,000,000 bytes.

        Raises:
            ValueError: it is too large, or JSON does not give the value back as it is: it has a key that is no str, a tuple, NaN.
        """
        try:
            check_strict_json(result)
        except NotJsonError as error:
            raise ValueError(f"set_result: result{error.path} {error.reason}") from None
        text = dumps(result)
        if len(text) > _MAX_RESULT:
            raise ValueError(
                f"set_result: the result has {len(text):,} bytes as JSON, and may have {_MAX_RESULT:,}. Keep a summary here, and "
                "the data elsewhere"
            )
        stored = update(tasks).where(tasks.c.id == self.id).values(result=text.decode())
        _write(lambda connection: connection.execute(stored))

    def result(self) -> Json:
        """Return the summary of the result, ``None`` before it is stored."""
        found: Json = load_json(_row(self.id)["result"], None)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the task with its progress and result as JSON values."""
        return _row_as_json(_row(self.id))

    def _check_open(self, options: PushOptions) -> None:
        if options.get("sync"):
            raise ValueError("a job with sync=True runs here and now, without an event: call Worker.perform_inline")
        row = _row(self.id)
        for name, word in (("cancelled_at", "was cancelled"), ("completed_at", "is complete")):
            if row[name] is not None:
                raise self._closed_error(word)

    def _closed_error(self, word: str) -> TaskError:
        return TaskError(f"task {self.id} {word}: make another one with Task.create")

    aclose = async_twin(close)
    aperform_bulk = async_twin(perform_bulk)
    aperform_split = async_twin(perform_split)
    aprogress = async_twin(progress)
    aevents = async_twin(events)
    afailures = async_twin(failures)
    async_wait = async_twin(wait)
    acancel = async_twin(cancel)
    aretry_failed = async_twin(retry_failed)


def story(
    jid: Jid, *, after: int = 0, limit: int = 1_000, max_bytes: int | None = None
) -> tuple[JobEvent, list[EventMessage]]:
    """Return the event of a job and a page of its messages, those after the message ``after``.

    With ``max_bytes`` the page ends before the message that would exceed them, and has at least one.

    Raises:
        TaskNotFoundError: no event has this id: the job is not tracked.
        ValueError: a number is out of range.
    """
    _check_page(after, limit)
    with _reading() as connection:
        found = find_event(connection, jid) if has_valid_jid(jid) else None
        if found is None:
            raise TaskNotFoundError(
                f"no event of a job {jid}: its class does not declare `track = True`, or the event was removed"
            )
        return found, list_messages(connection, jid, after, limit, max_bytes)


def page_as_json(
    *, owner: str | None = None, tenant: str | None = None, limit: int = 100, before: Task | None = None
) -> list[dict[str, Any]]:
    """Return a page of tasks as ``Task.as_json`` does each, at most ``PAGE_BYTES`` of texts; see ``Task.all``."""
    return [_row_as_json(row) for row in _page(owner, tenant, limit, before, PAGE_BYTES)]


def events_as_json(task_id: str, statuses: Sequence[str], *, after: int, limit: int) -> dict[str, Any]:
    """Return a page of events, at most ``PAGE_BYTES`` of texts, and the ``after`` of the next page, ``None`` behind the last."""
    with _reading() as connection:
        found = list_events(connection, task_id, statuses, after, limit, PAGE_BYTES)
        last = found[-1].id if found else after
        more = has_events_after(connection, task_id, statuses, last)
    return {"events": [one.as_json() for one in found], "next": last if more else None}


def _page(
    owner: str | None, tenant: str | None, limit: int, before: Task | None, max_bytes: int | None = None
) -> list[RowMapping]:
    place = None if before is None else (before.created_at, before.id)
    _check_page(0, limit)
    for name, value in (("owner", owner), ("tenant", tenant)):
        # No task has a name that a database cannot store.
        if value is not None and clean_text(_text(name, value)) != value:
            return []
    with _reading() as connection:
        return list_tasks(connection, owner, tenant, limit, place, max_bytes)


def _row_as_json(row: RowMapping) -> dict[str, Any]:
    facts = {name: row[name] for name in ("id", "worker", "title", "owner", "tenant", "created_at", "completed_at")}
    return {**facts, "result": load_json(row["result"], None), "progress": progress_of(row, time.time()).as_json()}


def _may_be_on(shard: str, row: Any) -> bool:
    """Return whether a shard may have the job of an event."""
    # Only a job in the schedule or the retry set goes to another shard, when it is due and its route has changed.
    return shard == row["shard"] or row["state"] not in _ON_THEIR_SHARD


def _row(task_id: str) -> Any:
    found = None
    # A database refuses other texts, and that would look like an outage.
    if has_valid_jid(task_id):
        with _reading() as connection:
            found = find_task(connection, task_id)
    if found is None:
        name = open_database().database.name
        raise TaskNotFoundError(Sentence("no task {id!r} in {database}", id=task_id, database=name))
    return found


def _name(what: str, value: str | None) -> str | None:
    if value is not None and (len(_text(what, value)) > 255 or clean_text(value) != value):
        raise ValueError(f"{what} must be a text of at most 255 characters that UTF-8 can write, without NUL")
    return value


def _text(what: str, value: object) -> str:
    """Return a text; raise TypeError for another value."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, not {short_repr(value)} of the type {type(value).__name__}")
    return value


def _check_page(after: int, limit: int) -> None:
    """Raise ValueError for numbers that the databases treat each in its own way, or refuse."""
    if not 0 <= after <= MAX_ID:
        raise ValueError(f"after = {after} is not allowed. Allowed: the id of the last entry of the page before")
    if limit < 1:
        raise ValueError(f"limit = {limit} is not allowed. Allowed: a whole number >= 1")


@contextmanager
def _reading() -> Generator[Connection]:
    """Open one transaction that reads; its SQL errors become ``TaskDatabaseError``."""
    database = open_database().database
    with sql_errors(database), database.reading() as connection:
        yield connection


def _write(change: Callable[[Connection], object]) -> None:
    """Call ``change`` in a transaction, which a deadlock repeats; its SQL errors become ``TaskDatabaseError``."""
    database = open_database().database
    with sql_errors(database):
        database.write(change)
