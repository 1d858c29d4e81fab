"""One PostgreSQL: the pool of the application's connections, and the position that its WAL is at.

SQLAlchemy is loaded with the first server that is really used. Whoever asks for a position waits ``DEADLINE_S`` at most,
whatever the server, the network or a resolver of names does meanwhile; a server that did not answer is left alone for ``QUIET_S``.
"""

import importlib
import os
import re
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from framework.telemetry.rate_limit import LogRateLimit

if TYPE_CHECKING:
    from sqlalchemy import Engine

DEADLINE_S = 1.0
RETRY_AFTER_S = 5.0
POSITION_TTL_S = 1.0
"""A replica only ever moves on, so for so long what it has shown need not be asked for again."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_CONNECT_ARGS = {"connect_timeout": 2, "tcp_user_timeout": 2000, "application_name": "application-worker: positions"}
"""What ends the thread that we no longer wait for; libpq knows no shorter time for a connection."""
_PRIMARY_POSITION = "SELECT pg_current_wal_insert_lsn()::text"
"""The insert position, not the written one: with synchronous_commit = off a commit may not be written yet (as GitLab's)."""
_REPLICA_POSITION = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()::text END"


class PositionUnavailable(Exception):
    """A server has not said its position in time, or has none to say."""


def parse_lsn(text: object) -> int:
    """Return a position of the WAL as a number of bytes. Raises ValueError for what is none."""
    found = _LSN.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("is no position of the WAL, for example 0/3000060")
    return (int(found[1], 16) << 32) + int(found[2], 16)


def format_lsn(position: int) -> str:
    """Return a position as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


class DatabaseServer:
    """A primary, or a replica of one. Connects when it is first used; safe to share between threads, and after a fork."""

    def __init__(self, name: str, url: str, *, is_replica: bool) -> None:
        self.name = name
        """What it is called in log lines; its URL holds a password."""
        self.is_replica = is_replica
        self._url = url
        self._log_limit = LogRateLimit(60.0)
        self._reset()
        _servers.add(self)

    def _reset(self) -> None:
        self._lock = Lock()
        self._engine: Engine | None = None
        """For the application's queries."""
        self._position_engine: Engine | None = None
        """For ours."""
        self._unavailable_until = 0.0
        self.last_position = -1
        """The position that it said last."""
        self._last_position_at = 0.0

    @property
    def engine(self) -> "Engine":
        """The pool for the application's queries. Its size follows the jobs that run: nobody waits in vain for a connection."""
        with self._lock:
            if self._engine is None:
                made = self._create_engine(pool_pre_ping=True, pool_size=5, max_overflow=-1)
                self._engine = made.execution_options(postgresql_readonly=True) if self.is_replica else made
            return self._engine

    def position(self) -> int | None:
        """Return the position that a primary writes at or a replica has replayed to, in bytes, within ``DEADLINE_S``.

        None: it did not answer, or is not what it is configured as. It is logged, and nobody asks again for ``QUIET_S``.
        """
        if monotonic() < self._unavailable_until:
            return None
        try:
            asking = self._open_position_engine()  # what takes time here is Python's own: loading SQLAlchemy, once
            self.last_position = _run_with_deadline(DEADLINE_S, partial(self._query_position, asking))
        except Exception as error:  # noqa: BLE001 - whatever a driver, a resolver or a server does: the work goes on
            self.mark_failed(error)
            return None
        self._last_position_at = monotonic()
        return self.last_position

    def has_reached(self, position: int) -> bool | None:
        """Whether a replica shows everything up to ``position``; None when it does not say where it is."""
        if position <= self.last_position and monotonic() - self._last_position_at < POSITION_TTL_S:
            return True
        found = self.position()
        return None if found is None else found >= position

    def mark_failed(self, error: BaseException) -> None:
        """It is out of use for ``QUIET_S``: nobody waits for it meanwhile."""
        self._unavailable_until = monotonic() + RETRY_AFTER_S
        self._last_position_at = 0.0
        self._log_limit.warning(
            self.name,
            f"a database server does not say its position; jobs use the primary, and it is asked again in {RETRY_AFTER_S:g} s",
            "consistency.server_unavailable",
            database=self.name,
            error=error,
        )

    def dispose(self, *, close: bool = True) -> None:
        """Let go of all connections; those of a parent process are not closed, as it goes on with them."""
        for engine in (self._engine, self._position_engine):
            if engine is not None:
                engine.dispose(close=close)
        self._reset()

    def _query_position(self, engine: "Engine") -> int:
        """Return the position, however long it takes. A connection that has died while idle is no answer: another is made."""
        question = importlib.import_module("sqlalchemy").text(
            _REPLICA_POSITION if self.is_replica else _PRIMARY_POSITION
        )
        errors: Any = importlib.import_module("sqlalchemy.exc")
        try:
            answer = _fetch_scalar(engine, question)
        except errors.DBAPIError as error:
            if not error.connection_invalidated:
                raise
            answer = _fetch_scalar(engine, question)
        if answer is None:
            raise PositionUnavailable("it is not in recovery, so it is no replica (any more)")
        return parse_lsn(answer)

    def _open_position_engine(self) -> "Engine":
        with self._lock:
            if self._position_engine is None:
                # No transaction and no reset: one round trip.
                self._position_engine = self._create_engine(
                    pool_size=2,
                    max_overflow=2,
                    pool_timeout=DEADLINE_S,
                    isolation_level="AUTOCOMMIT",
                    pool_reset_on_return=None,
                    connect_args=_CONNECT_ARGS,
                )
            return self._position_engine

    def _create_engine(self, **options: Any) -> "Engine":
        made: Engine = importlib.import_module("sqlalchemy").create_engine(self._url, hide_parameters=True, **options)
        return made


def _fetch_scalar(engine: "Engine", statement: Any) -> object:
    with engine.connect() as connection:
        return connection.execute(statement).scalar()


def _run_with_deadline(deadline_s: float, call: Callable[[], int]) -> int:
    """Return what ``ask`` returns, or raise what it raises; Unavailable when it has not done either in time."""
    answers: SimpleQueue[int | Exception] = SimpleQueue()

    def run() -> None:
        try:
            answers.put(call())
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            answers.put(error)

    Thread(target=run, name="wal-position", daemon=True).start()
    try:
        answer = answers.get(timeout=deadline_s)
    except Empty:
        raise PositionUnavailable(f"no answer within {deadline_s:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


_servers: WeakSet[DatabaseServer] = WeakSet()


def _reset_in_child() -> None:
    for server in list(_servers):
        server.dispose(close=False)


os.register_at_fork(after_in_child=_reset_in_child)
