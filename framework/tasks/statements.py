"""The statements that each batch of changes executes, in the SQL of each database.

They are texts for the driver: to compile an expression of SQLAlchemy for each batch would cost several times its execution. A batch
executes four of them, whatever its size: it locks its events, updates them, and adds to the counters of its tasks.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

from framework.tasks.model import STATUSES
from framework.wire.json import dumps

COUNTERS = (*STATUSES, "total", "items")
"""The counters of a task, in the order of their parameters."""

UPDATED = ("status", "state", "reason", "error_class", "stands_for", "changed_at", "ended_at", "runs")
"""The columns of an event that change with its state, in the order of their parameters."""

KEPT = ("started_at", "shard", "keeps_payload", "payload")
"""The parameters after them: a start time or a shard of None leaves its column as it is, and so does ``keeps_payload``."""

_OPEN = "('enqueue', 'working')"
_SELECT = (
    "SELECT e.id, e.jid, e.task_id, e.status, e.state, e.changed_at, e.runs, e.items, "  # noqa: S608 - constants
    "e.payload IS NOT NULL, "
    f"EXISTS (SELECT 1 FROM aw_events d WHERE d.stands_for = e.jid AND d.status IN {_OPEN}) FROM aw_events e "
)


class Statements(Protocol):
    """The statements of one kind of database."""

    def lock(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """Lock the events of these jobs; return their id, jid, task_id, status, state, changed_at, runs, items, has_payload,
        has_duplicates."""
        ...

    def duplicates(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """Return the open events of duplicates of these jobs: (jid, stands_for)."""
        ...

    def update(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write the columns of events by ``UPDATED`` and ``KEPT``; the id comes last."""
        ...

    def count(self, connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
        """Add to the counters of tasks (``COUNTERS``, the time, the id), and note the completion of a task or its end."""
        ...


class SqliteStatements:
    """The statements of SQLite. One connection writes at a time, so no row is locked."""

    _LOCK = f"{_SELECT} WHERE e.jid IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
    _DUPLICATES = (
        "SELECT jid, stands_for FROM aw_events "  # noqa: S608 - constants
        f"WHERE stands_for IN (SELECT value FROM json_each(?)) AND status IN {_OPEN}"
    )
    _UPDATE = (
        f"UPDATE aw_events SET {', '.join(f'{name} = ?' for name in UPDATED)}, "  # noqa: S608 - constants
        "started_at = COALESCE(?, started_at), shard = COALESCE(?, shard), "
        "payload = CASE WHEN ? THEN payload ELSE ? END WHERE id = ?"
    )
    _COUNT = (
        f"UPDATE aw_tasks SET {', '.join(f'{name} = {name} + ?{place}' for place, name in enumerate(COUNTERS, 1))}, "  # noqa: S608
        "completed_at = CASE WHEN closed_at IS NOT NULL AND enqueue + ?1 = 0 AND working + ?2 = 0 "
        "THEN COALESCE(completed_at, ?8) END WHERE id = ?9"
    )

    def lock(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """See ``Statements``."""
        return connection.exec_driver_sql(self._LOCK, (dumps(list(jids)).decode(),)).fetchall()

    def duplicates(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """See ``Statements``."""
        return connection.exec_driver_sql(self._DUPLICATES, (dumps(list(jids)).decode(),)).fetchall()

    def update(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """See ``Statements``."""
        connection.exec_driver_sql(self._UPDATE, list(rows))

    def count(self, connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
        """See ``Statements``."""
        connection.exec_driver_sql(self._COUNT, list(rows))


class PostgresStatements:
    """The statements of PostgreSQL, one round trip each."""

    _TYPES = (
        "text",
        "text",
        "text",
        "text",
        "text",
        "float8",
        "float8",
        "int",
        "float8",
        "text",
        "bool",
        "text",
        "bigint",
    )
    # In the order of their ids, so that two writers never wait for each other.
    _LOCK = f"{_SELECT} WHERE e.jid = ANY(%s::text[]) ORDER BY e.jid FOR UPDATE OF e"
    _DUPLICATES = (
        "SELECT jid, stands_for FROM aw_events "  # noqa: S608 - constants
        f"WHERE stands_for = ANY(%s::text[]) AND status IN {_OPEN}"
    )
    _UPDATE = (
        f"UPDATE aw_events AS e SET {', '.join(f'{name} = v.{name}' for name in UPDATED)}, "  # noqa: S608 - constants
        "started_at = COALESCE(v.started_at, e.started_at), shard = COALESCE(v.shard, e.shard), "
        "payload = CASE WHEN v.keeps_payload THEN e.payload ELSE v.payload END "
        f"FROM unnest({', '.join(f'%s::{kind}[]' for kind in _TYPES)}) "
        f"AS v({', '.join((*UPDATED, *KEPT))}, id) WHERE e.id = v.id"
    )
    _COUNT = (
        f"UPDATE aw_tasks SET {', '.join(f'{name} = {name} + %s' for name in COUNTERS)}, "  # noqa: S608 - constants
        "completed_at = CASE WHEN closed_at IS NOT NULL AND enqueue + %s = 0 AND working + %s = 0 "
        "THEN COALESCE(completed_at, %s::float8) END WHERE id = %s"
    )

    def lock(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """See ``Statements``."""
        return connection.exec_driver_sql(self._LOCK, (list(jids),)).fetchall()

    def duplicates(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """See ``Statements``."""
        return connection.exec_driver_sql(self._DUPLICATES, (list(jids),)).fetchall()

    def update(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """See ``Statements``."""
        connection.exec_driver_sql(self._UPDATE, tuple(map(list, zip(*rows, strict=True))))

    def count(self, connection: Connection, rows: Sequence[tuple[object, ...]]) -> None:
        """See ``Statements``."""
        known = len(COUNTERS)
        for one in rows:
            connection.exec_driver_sql(self._COUNT, (*one[:known], *one[:2], *one[known:]))


STATEMENTS: dict[str, Statements] = {"sqlite": SqliteStatements(), "postgresql": PostgresStatements()}
"""The statements by the name of the dialect."""
