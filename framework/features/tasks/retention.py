"""Remove tasks and events that ended long ago, in steps of some hundred rows, and archive them first if that is configured.

Never a task that is not complete, or an event whose job has not ended. At a crash: the lines of a step are on the disk before its
rows are removed. A kill in between leaves rows that the next run archives again: an archive may have a line twice, never too few.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from sqlalchemy import Connection, RowMapping, Table, delete, exists, select

from framework.features.tasks.database import OPEN_STATUSES, TaskDatabase, events, messages, sql_errors, tasks
from framework.process_clock import process_clock

_STEP = 500
"""Events of one transaction: it holds locks for some milliseconds."""

DAY_S = 86_400.0


@dataclass(slots=True)
class Pruned:
    tasks: int = 0
    events: int = 0
    messages: int = 0

    def as_json(self) -> dict[str, int]:
        return {"tasks": self.tasks, "events": self.events, "messages": self.messages}


class Retention:
    """Remove what ended more than ``keep_days`` ago. Used by one thread at a time; several processes may run one."""

    def __init__(
        self,
        database: TaskDatabase,
        keep_days: float,
        archive: IO[str] | None = None,
    ) -> None:
        self._database = database
        self._before = process_clock.now() - keep_days * DAY_S
        self._archive = archive
        self._pruned = Pruned()

    def run(self, most: int | None = None) -> Pruned:
        """Remove the oldest first, until about ``most`` events are removed or none is left; return what was removed.

        Raises:
            TaskDatabaseError: the database does not answer. What is removed stays removed.
            OSError: the archive cannot be written. The rows of its step stay.
        """
        with sql_errors(self._database):
            self._run(most)
        return self._pruned

    def _run(self, most: int | None) -> None:
        place = (0.0, "")
        while (found := self._next_task(place)) is not None:
            place = found
            while self._is_below(most) and self._step(events.c.task_id == place[1], place[1]):
                pass
            if not self._is_below(most):
                return
            self._remove_task(place[1])
        single = events.c.task_id.is_(None) & events.c.ended_at.is_not(None) & (events.c.ended_at < self._before)
        while self._is_below(most) and self._step(single):
            pass

    def count_tasks(self) -> int:
        """Return how many tasks ``run`` would remove, counted up to 10,000."""
        with sql_errors(self._database), self._database.reading() as connection:
            found = select(tasks.c.id).where(tasks.c.completed_at < self._before).limit(10_000)
            return len(connection.execute(found).all())

    def _is_below(self, most: int | None) -> bool:
        return most is None or self._pruned.events < most

    def _next_task(self, place: tuple[float, str]) -> tuple[float, str] | None:
        """Return the end and the id of the oldest task after ``place``."""
        ended = tasks.c.completed_at
        later = (ended > place[0]) | ((ended == place[0]) & (tasks.c.id > place[1]))
        with self._database.reading() as connection:
            wanted = select(ended, tasks.c.id).where(ended < self._before, ended >= place[0], later)
            row = connection.execute(wanted.order_by(ended, tasks.c.id).limit(1)).first()
            return None if row is None else (row[0], row[1])

    def _step(self, wanted: Any, task_id: str | None = None) -> bool:
        """Remove some events with their messages; return whether there were any."""
        removed, said = self._database.write(lambda connection: self._remove_events(connection, wanted, task_id))
        self._pruned.events += removed
        self._pruned.messages += said
        return bool(removed)

    def _remove_events(self, connection: Connection, wanted: Any, task_id: str | None) -> tuple[int, int]:
        ended = select(events).where(wanted, events.c.status.not_in(OPEN_STATUSES)).order_by(events.c.id).limit(_STEP)
        rows = list(connection.execute(ended.with_for_update()).mappings())
        jids = [row["jid"] for row in rows]
        # A job of the task may have been retried since the task was chosen: all of its events stay then.
        if not rows or (task_id is not None and not self._is_old(connection, task_id)):
            return 0, 0
        if self._archive is not None:
            by_jid: dict[str, list[RowMapping]] = {}
            found = select(messages).where(messages.c.jid.in_(jids)).order_by(messages.c.id)
            for one in connection.execute(found).mappings():
                by_jid.setdefault(one["jid"], []).append(one)
            self._write([_event_line(row, by_jid.get(row["jid"], ())) for row in rows])
        said = connection.execute(delete(messages).where(messages.c.jid.in_(jids))).rowcount
        removed = connection.execute(delete(events).where(events.c.id.in_([row["id"] for row in rows]))).rowcount
        return removed, said

    def _is_old(self, connection: Connection, task_id: str) -> bool:
        """Return whether a task is complete for long, and lock it: it stays complete until the end of the transaction."""
        same = (tasks.c.id == task_id) & (tasks.c.completed_at < self._before)
        return connection.execute(select(tasks.c.id).where(same).with_for_update()).first() is not None

    def _remove_task(self, task_id: str) -> None:
        def remove(connection: Connection) -> int:
            has_events = exists().where(events.c.task_id == tasks.c.id)
            same = (tasks.c.id == task_id) & (tasks.c.completed_at < self._before)
            row = connection.execute(select(tasks).where(same, ~has_events).with_for_update()).mappings().first()
            if row is None:
                return 0
            if self._archive is not None:
                self._write([{"task": _facts(tasks, row)}])
            return connection.execute(delete(tasks).where(same)).rowcount

        self._pruned.tasks += self._database.write(remove)

    def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        archive = self._archive
        assert archive is not None  # noqa: S101 - checked by the callers
        archive.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        archive.flush()
        os.fsync(archive.fileno())


def _event_line(row: RowMapping, said: Sequence[RowMapping]) -> dict[str, Any]:
    event = _facts(events, row)
    event["messages"] = [{name: one[name] for name in ("at", "text", "fields")} for one in said]
    return {"event": event}


def _facts(table: Table, row: RowMapping) -> dict[str, Any]:
    # The payload may have arguments that are in no log line.
    return {column.name: row[column.name] for column in table.columns if column.name not in ("payload", "due_at")}
