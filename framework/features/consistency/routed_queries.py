"""Route queries: reads go to the job's replica until the first write, everything else goes to the primary.

This module imports SQLAlchemy; pushes and runs do not need it. A statement counts as a read by its text or structure:
text that might write is no read. A write that a replica refuses had no effect there and is executed on the primary.
"""

import re
from collections.abc import Callable
from typing import Any, Self

from sqlalchemy import Connection, CursorResult, Engine, Executable, TextClause
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.sql import visitors

from framework.features.consistency import replica_context
from framework.features.consistency.databases import Database, DatabaseServer

_BLANK = r"(?:\s+|--[^\n]*\n|/\*.*?\*/|\()*"
_READ_STATEMENT = re.compile(rf"{_BLANK}(?:select|values|table|show|with)\b", re.IGNORECASE | re.DOTALL)
_WRITE_WORDS = re.compile(
    r"\b(?:insert|update|delete|merge|into|nextval|setval|share|lock|pg_notify|pg_(?:try_)?advisory\w*)\b",
    re.IGNORECASE,
)
"""Words of statements that write, or that make sense on the primary only, as locks do."""
_READ_ONLY_TRANSACTION, _RECOVERY_CONFLICT = "25006", "40001"
"""SQLSTATEs of a replica: it refuses a write, or it cancels a read that blocks the replay. Neither has any effect."""


def is_read(statement: object) -> bool:
    """Return whether a statement certainly only reads."""
    if isinstance(statement, TextClause):
        return _READ_STATEMENT.match(statement.text) is not None and _WRITE_WORDS.search(statement.text) is None
    element = getattr(statement, "element", None)
    if element is not None:
        return is_read(element)
    if not getattr(statement, "is_select", False) or getattr(statement, "_for_update_arg", None) is not None:
        return False
    parts: Any = statement
    return not any(
        getattr(part, "is_dml", False) or (isinstance(part, TextClause) and _WRITE_WORDS.search(part.text))
        for part in visitors.iterate(parts)
    )


class RoutedConnection:
    """Execute statements in one transaction on the primary, begun by the first statement that needs it; reads may use
    the replica.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connections: dict[DatabaseServer, Connection] = {}

    def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[Any]:
        name, primary, _ = self._database
        replica = replica_context.replica_of(name)
        if not is_read(statement):
            replica_context.mark_written(name)
        elif replica is not None and (connection := self._connection_to(replica)) is not None:
            try:
                return connection.execute(statement, parameters)
            except DBAPIError as error:
                if error.connection_invalidated:
                    _discard_replica(replica, name, error)
                elif not _is_replica_refusal(error, name):
                    raise
        if primary not in self._connections:
            self._connections[primary] = primary.engine.connect()
        return self._connections[primary].execute(statement, parameters)

    def scalar(self, statement: Executable, parameters: Any = None) -> Any:
        return self.execute(statement, parameters).scalar()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Commit, or roll back if the block raises; return every connection to its pool."""
        primary = self._connections.get(self._database.primary)
        try:
            if primary is not None and kind is None:
                primary.commit()
        finally:
            for connection in self._connections.values():
                connection.close()
            self._connections = {}

    def _connection_to(self, replica: DatabaseServer) -> Connection | None:
        if replica not in self._connections:
            connection = _connect(replica, self._database.name)
            if connection is None:
                return None
            self._connections[replica] = connection
        return self._connections[replica]


class RoutedSession(Session):
    """Send a Session's reads to the replica; after a flush or a statement that may write, the primary is its only bind."""

    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(**options)
        self._database = database
        self._reachable: set[DatabaseServer] = set()

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **more: Any) -> Engine:
        del mapper, more
        name, primary, _ = self._database
        replica = replica_context.replica_of(name)
        if self._flushing or not is_read(clause):
            replica_context.mark_written(name)
        elif replica is not None and self._is_reachable(replica):
            return replica.engine
        return primary.engine

    def execute(self, *args: Any, **options: Any) -> Any:
        return self._with_fallback(super().execute, args, options)

    def scalars(self, *args: Any, **options: Any) -> Any:
        return self._with_fallback(super().scalars, args, options)

    def scalar(self, *args: Any, **options: Any) -> Any:
        return self._with_fallback(super().scalar, args, options)

    def _is_reachable(self, replica: DatabaseServer) -> bool:
        """Return whether the replica accepts connections. It is tried once: a Session cannot survive the loss of a connection."""
        if replica not in self._reachable and (connection := _connect(replica, self._database.name)):
            connection.close()
            self._reachable.add(replica)
        return replica in self._reachable

    def _with_fallback(self, run: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        name = self._database.name
        replica = replica_context.replica_of(name)
        try:
            return run(*args, **options)
        except DBAPIError as error:
            # If the replica is still chosen, it raised the error, not the primary.
            if (
                replica is None
                or replica_context.replica_of(name) is not replica
                or not _is_replica_refusal(error, name)
            ):
                raise
        return run(*args, **options)


def _connect(replica: DatabaseServer, database: str) -> Connection | None:
    """Return a connection to a replica; ``None`` if it accepts none, and then it is not tried again for a while."""
    try:
        return replica.engine.connect()
    except OperationalError as error:
        _discard_replica(replica, database, error)
        return None


def _discard_replica(replica: DatabaseServer, database: str, error: DBAPIError) -> None:
    replica.mark_failed(error)
    replica_context.discard(database)


def _is_replica_refusal(error: DBAPIError, database: str) -> bool:
    """Return whether the error is a replica's refusal; if so, the primary is used from now on."""
    state = getattr(error.orig, "sqlstate", None)
    if state == _READ_ONLY_TRANSACTION:
        replica_context.mark_written(database)
    elif state == _RECOVERY_CONFLICT:
        replica_context.discard(database)
    return state in (_READ_ONLY_TRANSACTION, _RECOVERY_CONFLICT)
