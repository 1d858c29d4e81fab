"""Keep one connection to a database for health checks; connect on first use, and never wait without a deadline."""

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from framework.features.health.indicator import Rows
from framework.store.postgres import bounded_connection

if TYPE_CHECKING:
    import psycopg

_CONNECTION = {
    "application_name": "application-worker: health",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 5_000,
}
# The server gets this much longer to cancel the statement itself: its error is more precise than ours.
_CANCEL_GRACE_S = 0.5


class HealthConnection:
    """Execute one statement at a time. A connection that failed is closed; the next statement opens a new one.

    Raises ImportError without the extra ``sql``.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        from sqlalchemy import make_url  # noqa: PLC0415 - loaded only where a database is configured

        parsed = make_url(url)
        arguments, named = parsed.get_dialect()().create_connect_args(parsed)
        self._driver = bounded_connection()
        self._arguments: tuple[Any, ...] = tuple(arguments)
        # libpq and psycopg accept no connection timeout below two seconds.
        limits = {"connect_timeout": max(2, round(timeout_s))}
        self._options: dict[str, Any] = {
            **limits,
            **_CONNECTION,
            **named,
            "autocommit": True,
            "prepare_threshold": None,
        }
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._used_at = 0.0
        self._connection: psycopg.Connection[Any] | None = None

    def query(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a read-only statement. Raises the driver's error, or TimeoutError."""
        if not self._lock.acquire(timeout=self._timeout_s):
            raise TimeoutError(f"other health checks used the connection for {self._timeout_s:g} s")
        try:
            existing = self._connection
            try:
                return self._execute(statement, parameters)
            except Exception:
                if existing is None or not existing.closed:
                    raise
                # The connection died while idle, which says nothing about the database's health: try once more.
                return self._execute(statement, parameters)
        except BaseException:
            self.close()
            raise
        finally:
            self._used_at = time.monotonic()
            self._lock.release()

    def _execute(self, statement: str, parameters: Mapping[str, Any] | None) -> Rows:
        connection = self._open()
        connection.deadline = time.monotonic() + self._timeout_s + _CANCEL_GRACE_S
        # Set for the transaction only, so that it also works behind a pooler that shares its sessions.
        begin = f"BEGIN READ ONLY; SET LOCAL statement_timeout = {max(1, round(self._timeout_s * 1_000))}"
        connection.execute(begin.encode())
        rows: Rows = connection.execute(statement.encode(), parameters or None).fetchall()
        connection.execute(b"COMMIT")
        return rows

    def _open(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._driver.connect(*self._arguments, **self._options)
        return self._connection

    def close_idle(self, idle_s: float) -> None:
        """Close a connection that has been idle for ``idle_s``: idle processes use no connections."""
        with self._lock:
            if time.monotonic() - self._used_at >= idle_s:
                self.close()

    def close(self) -> None:
        """Close the connection; the next statement opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
