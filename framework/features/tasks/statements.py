"""The statements that each batch of changes executes, in the SQL of each database.

They are texts for the driver: to compile an expression of SQLAlchemy for each batch would cost several times its execution. A batch
executes one of each at most, whatever its size, and one for each task: it locks its events, makes those that are missing, updates
them, inserts messages, and adds to the counters of its tasks.

PostgreSQL gets the rows of a statement as one array for each column, written here. Its driver makes arrays and parameters value by
value in Python, which took more processor time than the rest of the batch; JSON took the server more.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection

from framework.features.tasks.database import STATUSES, execute, execute_many, fetch
from framework.wire.json import dumps

COUNTERS = (*STATUSES, "total", "items")
"""The counters of a task, in the order of their parameters."""

UPDATED = ("status", "state", "reason", "error_class", "changed_at", "ended_at", "runs", "started_at", "shard")
"""The columns of an event that change with its state, in the order of their parameters: a start time or a shard of None leaves its
column as it is."""

RARE = ("stands_for", "keeps_payload", "payload")
"""The parameters after them in the update of a duplicate, or of an event with a payload: ``keeps_payload`` leaves it as it is."""

INSERTED = (
    *("jid", "task_id", "worker", "queue", "shard", "status", "state", "params", "whole", "items", "payload", "due_at"),
    *("created_at", "changed_at"),
)
"""The columns of a new event, in the order of their parameters."""

MESSAGE = ("key", "jid", "at", "text", "fields")
"""The columns of a message, in the order of their parameters."""

_KEPT = ("started_at", "shard")
_OPEN = "('enqueue', 'working')"
_SELECT = (
    "SELECT e.id, e.jid, e.task_id, e.status, e.state, e.changed_at, e.runs, e.items, "  # noqa: S608 - constants
    "e.payload IS NOT NULL, e.stands_for IS NOT NULL, "
    f"EXISTS (SELECT 1 FROM aw_events d WHERE d.stands_for = e.jid AND d.status IN {_OPEN}) FROM aw_events e "
)


def _duplicates_of(jids: str) -> str:
    """Return the statement that follows the chain of open duplicates. UNION leaves out pairs that it has, so a ring ends too."""
    return (
        "WITH RECURSIVE d (jid, owner) AS ("  # noqa: S608 - constants
        f"SELECT jid, stands_for FROM aw_events WHERE {jids} AND status IN {_OPEN} UNION "
        f"SELECT e.jid, d.owner FROM aw_events e JOIN d ON e.stands_for = d.jid WHERE e.status IN {_OPEN}"
        ") SELECT jid, owner FROM d"
    )


class Statements(Protocol):
    def lock(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """Lock the events of these jobs; return their id, jid, task_id, status, state, changed_at, runs, items, has_payload,
        is_duplicate, has_duplicates."""
        ...

    def duplicates(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        """Return the open events of duplicates of these jobs, and of duplicates of those: (jid, job of ``jids``)."""
        ...

    def insert(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> Collection[str]:
        """Make events from the columns of ``INSERTED``; return the jids of those that were missing."""
        ...

    def add_messages(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert messages from the columns of ``MESSAGE``, unless they are stored already."""
        ...

    def update(
        self, connection: Connection, rows: Sequence[tuple[Any, ...]], counts: Sequence[tuple[Any, ...]]
    ) -> None:
        """Write the columns of locked events by ``UPDATED``, the id last; then add to the counters of tasks (``COUNTERS``, the time,
        the id), and note the completion of a task or its end."""
        ...

    def update_all(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write the columns of events by ``UPDATED`` and ``RARE``; the id comes last."""
        ...


class SqliteStatements:
    """The statements of SQLite. One connection writes at a time, so no row is locked."""

    _LOCK = f"{_SELECT} WHERE e.jid IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
    _DUPLICATES = _duplicates_of("stands_for IN (SELECT value FROM json_each(?))")
    # SQLite writes the entries of an index for each of its columns that is set, also to the same value: so the columns of most
    # updates are few.
    _SET = "UPDATE aw_events SET " + ", ".join(  # noqa: S608 - constants
        f"{name} = COALESCE(?, {name})" if name in _KEPT else f"{name} = ?" for name in UPDATED
    )
    _UPDATE = f"{_SET} WHERE id = ?"
    _UPDATE_ALL = f"{_SET}, stands_for = ?, payload = CASE WHEN ? THEN payload ELSE ? END WHERE id = ?"
    _COUNT = (
        f"UPDATE aw_tasks SET {', '.join(f'{name} = {name} + ?{place}' for place, name in enumerate(COUNTERS, 1))}, "  # noqa: S608
        "completed_at = CASE WHEN closed_at IS NOT NULL AND enqueue + ?1 = 0 AND working + ?2 = 0 "
        "THEN COALESCE(completed_at, ?8) END WHERE id = ?9"
    )

    _INSERT = (
        f"INSERT INTO aw_events ({', '.join(INSERTED)}) VALUES ({', '.join('?' * len(INSERTED))}) "  # noqa: S608 - constants
        "ON CONFLICT (jid) DO NOTHING"
    )
    _ADD_MESSAGES = (
        f"INSERT INTO aw_messages ({', '.join(MESSAGE)}) VALUES ({', '.join('?' * len(MESSAGE))}) "  # noqa: S608 - constants
        "ON CONFLICT (key) DO NOTHING"
    )

    def lock(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        return fetch(connection, self._LOCK, (dumps(list(jids)).decode(),))

    def insert(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> Collection[str]:
        execute_many(connection, self._INSERT, rows)
        # No other connection has written since this transaction has found them missing.
        return {row[0] for row in rows}

    def add_messages(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        execute_many(connection, self._ADD_MESSAGES, rows)

    def duplicates(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        return fetch(connection, self._DUPLICATES, (dumps(list(jids)).decode(),))

    def update(
        self, connection: Connection, rows: Sequence[tuple[Any, ...]], counts: Sequence[tuple[Any, ...]]
    ) -> None:
        execute_many(connection, self._UPDATE, rows)
        execute_many(connection, self._COUNT, counts)

    def update_all(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        execute_many(connection, self._UPDATE_ALL, rows)


_TYPES = {
    **dict.fromkeys(("changed_at", "created_at", "started_at", "ended_at", "due_at", "at"), "float8"),
    **dict.fromkeys(("runs", "items"), "int"),
    **dict.fromkeys(("whole", "keeps_payload"), "bool"),
    "id": "bigint",
}
"""The types of PostgreSQL of the columns that are no text."""

_MAX_ARRAYS = 64 * 1024 * 1024
"""Characters of the arrays of one statement; PostgreSQL takes less than 1 GB for each."""


def _type_of(column: str) -> str:
    return _TYPES.get(column, "text")


def _rows_of(columns: Sequence[str]) -> str:
    """Return the expression of PostgreSQL for the rows in the texts of ``_arrays``."""
    return f"unnest({', '.join(f'%s::{_type_of(name)}[]' for name in columns)}) AS v({', '.join(columns)})"


def _arrays(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, ...]]:
    """Return rows as an array for each column, once, or in parts if there are large values."""
    texts = tuple(
        _text_array(values) if _type_of(name) == "text" else _array(values)
        for name, values in zip(columns, zip(*rows, strict=True), strict=True)
    )
    if len(rows) > 1 and sum(map(len, texts)) > _MAX_ARRAYS:
        middle = len(rows) // 2
        yield from _arrays(columns, rows[:middle])
        yield from _arrays(columns, rows[middle:])
    else:
        yield texts


def _array(values: Iterable[object]) -> str:
    """Return numbers or truth values as an array of PostgreSQL."""
    return f"{{{','.join(map(str, values)).replace('None', 'NULL')}}}"


def _text_array(values: Sequence[str | None]) -> str:
    """Return texts as an array of PostgreSQL: each is quoted, and only two characters have a meaning in quotes."""
    # Most columns of a batch have one value, such as a status or no reason.
    if values and values.count(values[0]) == len(values):
        return f"{{{','.join([_quoted(values[0])] * len(values))}}}"
    return f"{{{','.join(map(_quoted, values))}}}"


def _quoted(text: str | None) -> str:
    return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _count_parameters(counted: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the parameters of ``PostgresStatements._COUNT``, which names two of the counters twice."""
    known = len(COUNTERS)
    return (*counted[:known], *counted[:2], *counted[known:])


class PostgresStatements:
    """The statements of PostgreSQL, one round trip each."""

    # In the order of their ids, so that two writers never wait for each other.
    _LOCK = f"{_SELECT} WHERE e.jid = ANY(%s::text[]) ORDER BY e.jid FOR UPDATE OF e"
    _DUPLICATES = _duplicates_of("stands_for = ANY(%s::text[])")
    _INSERT = (
        f"INSERT INTO aw_events ({', '.join(INSERTED)}) SELECT {', '.join(INSERTED)} "  # noqa: S608 - constants
        f"FROM {_rows_of(INSERTED)} ON CONFLICT (jid) DO NOTHING RETURNING jid"
    )
    _ADD_MESSAGES = (
        f"INSERT INTO aw_messages ({', '.join(MESSAGE)}) SELECT {', '.join(MESSAGE)} "  # noqa: S608 - constants
        f"FROM {_rows_of(MESSAGE)} ON CONFLICT (key) DO NOTHING"
    )
    _SET = "UPDATE aw_events AS e SET " + ", ".join(  # noqa: S608 - constants
        f"{name} = COALESCE(v.{name}, e.{name})" if name in _KEPT else f"{name} = v.{name}" for name in UPDATED
    )
    _UPDATED, _ALL = (*UPDATED, "id"), (*UPDATED, *RARE, "id")
    _UPDATE = f"{_SET} FROM {_rows_of(_UPDATED)} WHERE e.id = v.id"
    _UPDATE_ALL = (
        f"{_SET}, stands_for = v.stands_for, payload = CASE WHEN v.keeps_payload THEN e.payload ELSE v.payload END "
        f"FROM {_rows_of(_ALL)} WHERE e.id = v.id"
    )
    _COUNT = (
        f"UPDATE aw_tasks SET {', '.join(f'{name} = {name} + %s' for name in COUNTERS)}, "  # noqa: S608 - constants
        "completed_at = CASE WHEN closed_at IS NOT NULL AND enqueue + %s = 0 AND working + %s = 0 "
        "THEN COALESCE(completed_at, %s::float8) END WHERE id = %s"
    )
    _UPDATE_AND_COUNT = f"WITH counted AS ({_COUNT}) {_UPDATE}"

    def lock(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        return fetch(connection, self._LOCK, (_text_array(jids),))

    def duplicates(self, connection: Connection, jids: Sequence[str]) -> Sequence[Any]:
        return fetch(connection, self._DUPLICATES, (_text_array(jids),))

    def insert(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> Collection[str]:
        made: set[str] = set()
        for arrays in _arrays(INSERTED, rows):
            made.update(row[0] for row in fetch(connection, self._INSERT, arrays))
        return made

    def add_messages(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        for arrays in _arrays(MESSAGE, rows):
            execute(connection, self._ADD_MESSAGES, arrays)

    def update(
        self, connection: Connection, rows: Sequence[tuple[Any, ...]], counts: Sequence[tuple[Any, ...]]
    ) -> None:
        updates = list(_arrays(self._UPDATED, rows)) if rows else []
        if len(counts) == len(updates) == 1:
            # One round trip less for most batches. The events are locked, so the order of the two updates is that of all writers.
            execute(connection, self._UPDATE_AND_COUNT, (*_count_parameters(counts[0]), *updates[0]))
            return
        for arrays in updates:
            execute(connection, self._UPDATE, arrays)
        for one in counts:
            execute(connection, self._COUNT, _count_parameters(one))

    def update_all(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        for arrays in _arrays(self._ALL, rows):
            execute(connection, self._UPDATE_ALL, arrays)


STATEMENTS: dict[str, Statements] = {"sqlite": SqliteStatements(), "postgresql": PostgresStatements()}
"""The statements by the name of the dialect."""
