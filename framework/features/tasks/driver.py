"""Execute statements with the driver of a connection.

``Connection.exec_driver_sql`` takes 20 to 70 us for each statement beyond that, which is more than most statements of a batch take.
Errors are raised as SQLAlchemy raises them.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


def execute(connection: Connection, statement: str, parameters: Sequence[Any]) -> Any:
    """Execute a statement in the transaction of the connection; return the cursor. Raises DBAPIError."""
    driver: Any = connection.connection.dbapi_connection
    try:
        return driver.execute(statement, parameters)
    except Exception as error:
        raise _translated(connection, statement, error) from error


def fetch(connection: Connection, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Execute a statement as ``execute``; return all its rows. Raises DBAPIError."""
    rows: list[tuple[Any, ...]] = execute(connection, statement, parameters).fetchall()
    return rows


def execute_many(connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Execute a statement for each row, with SQLite. Raises DBAPIError."""
    driver: Any = connection.connection.dbapi_connection
    try:
        driver.executemany(statement, rows)
    except Exception as error:
        raise _translated(connection, statement, error) from error


def _translated(connection: Connection, statement: str, error: Exception) -> BaseException:
    """Return the error of SQLAlchemy for one of the driver. A connection that is lost does not return to its pool."""
    dialect = connection.dialect
    errors: type[Exception] = dialect.loaded_dbapi.Error
    if not isinstance(error, errors):
        return error
    is_lost = dialect.is_disconnect(error, connection.connection, None)  # type: ignore[arg-type]
    if is_lost:
        connection.invalidate(error)
    return DBAPIError.instance(
        statement, None, error, errors, hide_parameters=True, connection_invalidated=is_lost, dialect=dialect
    )
