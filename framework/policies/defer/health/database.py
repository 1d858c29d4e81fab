"""One connection to a database, for the questions about its health: made when first asked, and never waited for without end."""

import threading
import time
from collections.abc import Generator, Mapping
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.rows import TupleRow
from sqlalchemy import make_url

from framework.policies.defer.health.indicator import Rows

_APPLICATION = "application-worker health"
_KEEPALIVES = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 2, "tcp_user_timeout": 5_000}


class Database:
    """Answers one statement at a time, over one connection; one that failed is closed, and the next statement makes another."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parsed = make_url(url)
        arguments, named = parsed.get_dialect()().create_connect_args(parsed)
        self._arguments: tuple[Any, ...] = tuple(arguments)
        # libpq and psycopg take no less than two seconds for a connection.
        self._named: dict[str, Any] = {"connect_timeout": max(2, round(timeout_s)), **_KEEPALIVES, **named}
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: _Bounded | None = None

    def query(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Return the rows of a statement that only reads; raises what the database or the driver says, or TimeoutError."""
        if not self._lock.acquire(timeout=self._timeout_s):
            raise TimeoutError(f"the connection was busy for {self._timeout_s:g} s")
        try:
            return self._ask(statement, parameters)
        except BaseException:
            self._close()
            raise
        finally:
            self._lock.release()

    def _ask(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        connection = self._open()
        connection.deadline = time.monotonic() + self._timeout_s
        # Per transaction, so that it holds behind a pooler that shares sessions, too.
        with connection.transaction():
            connection.execute("SET TRANSACTION READ ONLY")
            connection.execute(f"SET LOCAL statement_timeout = {max(1, round(self._timeout_s * 1_000))}")
            return connection.execute(statement.encode(), parameters).fetchall()

    def _open(self) -> "_Bounded":
        found = self._connection
        if found is not None and not found.closed:
            return found
        found = _Bounded.connect(
            *self._arguments,
            **self._named,
            autocommit=True,
            prepare_threshold=None,
            application_name=_APPLICATION,
        )
        self._connection = found
        return found

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Bounded(psycopg.Connection[TupleRow]):
    """A connection that gives up at ``deadline``: a server that is frozen keeps no statement_timeout."""

    deadline = float("inf")

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        del timeout  # of the driver's own, which knows it since 3.3
        return super().wait(_until(gen, self), min(interval, 0.1))


def _until(work: PQGen[RV], connection: _Bounded) -> Generator[Any, Any, RV]:
    """Go on with what the driver does, which wakes up ten times a second, until the connection's deadline."""
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if time.monotonic() > connection.deadline:
                raise TimeoutError("the database did not answer in time")
            wanted = work.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result
