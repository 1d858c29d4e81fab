"""One connection to a database, for the questions about its health: made when first asked, and never waited for without end."""

import threading
import time
from collections.abc import Generator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from framework.policies.defer.health.indicator import Rows

if TYPE_CHECKING:
    import psycopg

_CONNECTION = {
    "application_name": "application-worker: health",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 5_000,
}
_POLL_S = 0.1  # how often a wait for the server looks whose time is up
_CANCEL_GRACE_S = 0.5  # in which the server may cancel the statement itself, which says more
_NO_DEADLINE = float("inf")


class HealthConnection:
    """Answers one statement at a time, over one connection; one that failed is closed, and the next statement makes another.

    Raises ImportError where the extra ``sql`` is not installed.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        from sqlalchemy import make_url  # noqa: PLC0415 - paid by those who have a database

        parsed = make_url(url)
        arguments, named = parsed.get_dialect()().create_connect_args(parsed)
        self._driver = _driver()
        self._arguments: tuple[Any, ...] = tuple(arguments)
        # libpq and psycopg take no less than two seconds for a connection.
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
        """Return the rows of a statement that only reads; raises what the database or the driver says, or TimeoutError."""
        if not self._lock.acquire(timeout=self._timeout_s):
            raise TimeoutError(f"other questions held the connection for {self._timeout_s:g} s")
        try:
            at_hand = self._connection
            try:
                return self._execute(statement, parameters)
            except Exception:
                if at_hand is None or not at_hand.closed:
                    raise
                return self._execute(
                    statement, parameters
                )  # it had died while nobody asked, which says nothing of today
        except BaseException:
            self.close()
            raise
        finally:
            self._used_at = time.monotonic()
            self._lock.release()

    def _execute(self, statement: str, parameters: Mapping[str, Any] | None) -> Rows:
        connection = self._open()
        connection.deadline = time.monotonic() + self._timeout_s + _CANCEL_GRACE_S
        # Of the transaction, so that it also holds behind a pooler that shares its sessions.
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
        """Close a connection over which nothing has been asked for ``idle_s``: a fleet at rest takes up no connections."""
        with self._lock:
            if time.monotonic() - self._used_at >= idle_s:
                self.close()

    def close(self) -> None:
        """Close the connection; the next statement makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@cache
def _driver() -> "type[psycopg.Connection[Any]]":
    """Return a kind of connection that gives up at its ``deadline``: a server that is frozen keeps no statement_timeout."""
    import psycopg  # noqa: PLC0415 - as above

    class Bounded(psycopg.Connection[Any]):
        deadline = _NO_DEADLINE

        def wait(self, gen: Any, interval: float = _POLL_S, timeout: float | None = None) -> Any:
            del timeout  # the driver's own, which it has since 3.3
            return super().wait(_run_until(gen, self.deadline), min(interval, _POLL_S))

    return Bounded


def _run_until(work: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
    """Go on with what the driver does, which is woken every ``_LOOK_S``, until the deadline."""
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if time.monotonic() > deadline:
                raise TimeoutError("the database did not answer in time")
            wanted = work.send(ready)
    except StopIteration as end:
        return end.value
