"""Open the database of tasks: SQLite makes its tables at the first use, PostgreSQL is migrated by a command."""

import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError

from framework.command_line import command as command_name
from framework.errors import TaskDatabaseError, TaskTablesError
from framework.features.tasks.model import metadata
from framework.private_files import make_file, make_folder
from framework.settings.urls import shown_url
from framework.store.postgres import bounded_connection
from framework.telemetry import logs
from framework.timings import backoff_s

REVISION = "0002"
"""The newest migration."""

_VERSION_TABLE = "aw_tasks_version"
_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_S = 10.0
_CONNECT_S = 5
_WRITES = "aw_writes"
_TRIES = 6
_CONFLICTS = ("40001", "40P01")
"""The SQLSTATE of a transaction that cannot be serialised, and of a deadlock."""

STATEMENT_S, WRITE_S, PROBE_S = 10.0, 5.0, 2.0
"""How long a statement waits for PostgreSQL; one of the writer, for which jobs wait; and one that only asks whether it answers."""

_limit_s: ContextVar[float] = ContextVar("aw_statement_limit", default=STATEMENT_S)

T = TypeVar("T")
_USED_AT = "aw_used_at"
_IDLE_S = 1.0
"""A connection that was idle for this long is checked before its next use: the server may have been restarted."""


class TaskDatabase:
    """The engine of one database. Shared by the threads of a process; opens no connection before the first use."""

    def __init__(self, url: str) -> None:
        parsed = make_url(url)
        self._url = parsed
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._lock = threading.Lock()
        self._checked = False
        # One connection serves all threads of a database in memory.
        self._one_at_a_time = threading.RLock() if self._is_in_memory else nullcontext()
        self._engine = self._make_engine()

    @property
    def _is_in_memory(self) -> bool:
        return self.is_sqlite and self._url.database in (None, "", ":memory:")

    @property
    def name(self) -> str:
        """The URL without credentials, for messages."""
        return shown_url(self._url.render_as_string(hide_password=True))

    @contextmanager
    def reading(self) -> Generator[Connection]:
        """Open a transaction that only reads. Raises SQLAlchemyError, and TaskTablesError without current tables."""
        self._check_tables()
        with self._one_at_a_time, self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """Open a transaction that writes, and commit it at the end of the block. Raises as ``reading``."""
        self._check_tables()
        with self._one_at_a_time, self._engine.connect() as connection:
            writer = connection.execution_options(**{_WRITES: True})
            with writer.begin():
                yield writer

    def write(self, change: Callable[[Connection], T]) -> T:
        """Call ``change`` in a transaction that writes; return its result.

        PostgreSQL ends one of two transactions that wait for each other, and one that cannot be serialised. That is no outage: the
        transaction is repeated, at most some times, so ``change`` must do the same at each call. Raises as ``reading``.
        """
        for attempt in range(1, _TRIES):
            try:
                with self.writing() as connection:
                    return change(connection)
            except DBAPIError as error:
                if not _may_be_repeated(error):
                    raise
                logs.logger().warning(
                    "two transactions on the database of tasks were in conflict; the transaction is repeated",
                    event_name="tasks.transaction_repeated",
                    count=attempt,
                    error=error,
                )
                time.sleep(backoff_s(attempt, 0.02, 1.0))
        with self.writing() as connection:
            return change(connection)

    def ping(self) -> None:
        """Ask whether the database answers. Raises as ``reading``, after ``PROBE_S`` at most if it hangs."""
        with limited(PROBE_S), self.reading() as connection:
            connection.execute(text("SELECT 1"))

    def migrate(self) -> tuple[str | None, str]:
        """Run the missing migrations; return the revisions before and after. Raises SQLAlchemyError."""
        self._make_folder()
        # An index of a large table takes minutes.
        with limited(math.inf), self._engine.connect() as connection:
            writer = connection.execution_options(**{_WRITES: True})
            with writer.begin():
                if not self.is_sqlite:
                    writer.execute(text("SET LOCAL statement_timeout = 0"))
                before = _revision(writer)
                if before != REVISION:
                    _upgrade(writer)
                return before, REVISION

    def dispose(self, *, close: bool = True) -> None:
        """Drop the connections; without ``close`` they are left to the parent of a forked process."""
        self._engine.dispose(close=close)

    def _make_engine(self) -> Engine:
        if not self.is_sqlite:
            engine = create_engine(
                self._url, pool_size=5, pool_timeout=WRITE_S, connect_args=_postgres_arguments(self._url)
            )
            event.listen(engine, "do_connect", _connect)
            event.listen(engine, "checkin", _note_use)
            event.listen(engine, "checkout", partial(_check_if_idle, engine))
            return engine
        if self._is_in_memory:
            engine = create_engine(self._url, poolclass=StaticPool, connect_args={"check_same_thread": False})
        else:
            engine = create_engine(self._url, connect_args={"timeout": _BUSY_S, "check_same_thread": False})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _check_tables(self) -> None:
        if self._checked:
            return
        if not self.is_sqlite:
            # Without the lock: while the server hangs, each thread would wait for those before it.
            with self._engine.connect() as connection:
                found = _revision(connection)
            if found is None or found < REVISION:
                raise TaskTablesError(self.name, found, REVISION, command_name("tasks migrate"))
        else:
            with self._lock:
                if self._is_in_memory:
                    metadata.create_all(self._engine)
                else:
                    self.migrate()
        self._checked = True

    def _make_folder(self) -> None:
        if self.is_sqlite and self._url.database:
            path = Path(self._url.database)
            make_folder(path.parent)
            # SQLite gives its further files the mode of the first.
            make_file(path)


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """Let each statement of this thread in the block wait at most so long for PostgreSQL. Beyond it the connection is closed."""
    token = _limit_s.set(seconds)
    try:
        yield
    finally:
        _limit_s.reset(token)


@contextmanager
def sql_errors(database: TaskDatabase) -> Generator[None]:
    """Raise the errors of SQL and of files in the block as ``TaskDatabaseError``."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise TaskDatabaseError(database.name, error) from error


def _may_be_repeated(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) in _CONFLICTS


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar()  # noqa: S608 - a constant
    return found


def _upgrade(connection: Connection) -> None:
    """Run the missing migrations in the transaction of the connection."""
    script = ScriptDirectory(str(_MIGRATIONS))

    def steps(revision: Any, _context: Any) -> Any:
        # As `alembic.command.upgrade`, which would load a file env.py.
        return script._upgrade_revs("head", revision)  # pyright: ignore[reportPrivateUsage]

    with EnvironmentContext(Config(), script, fn=steps, destination_rev="head") as environment:
        environment.configure(connection=connection, target_metadata=metadata, version_table=_VERSION_TABLE)
        with environment.begin_transaction():
            environment.run_migrations()


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not begin transactions by itself: a deferred one fails among many writers.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _note_use(_connection: Any, record: Any) -> None:
    record.info[_USED_AT] = time.monotonic()


def _check_if_idle(engine: Engine, connection: Any, record: Any, _proxy: Any) -> None:
    """Replace a connection that does not answer, if it was idle for some time."""
    # Not pool_pre_ping: three round trips for each batch of the writer, which took its last one a moment before.
    if time.monotonic() - record.info.get(_USED_AT, math.inf) > _IDLE_S and not _answers(engine, connection):
        raise DisconnectionError


def _answers(engine: Engine, connection: Any) -> bool:
    try:
        with limited(min(PROBE_S, _limit_s.get())):
            engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        return False
    return True


def _connect(_dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> Any:
    """Open a connection to PostgreSQL with a deadline for each statement."""
    # The driver takes whole seconds, and two at least.
    longest = min(int(options.get("connect_timeout") or _CONNECT_S), _limit_s.get())
    return _bounded_connection().connect(*arguments, **{**options, "connect_timeout": max(2, math.ceil(longest))})


@cache
def _bounded_connection() -> Any:
    import psycopg  # noqa: PLC0415 - not loaded for SQLite

    class TaskConnection(bounded_connection()):  # type: ignore[misc]
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            limit_s = _limit_s.get()
            self.deadline = time.monotonic() + limit_s
            try:
                return super().wait(gen, interval, timeout)
            except TimeoutError:
                # The answer may still come, to the next statement: no statement may use this connection again.
                self.close()
                raise psycopg.OperationalError(f"the database did not answer within {limit_s:g} s") from None

    return TaskConnection


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN")


def _postgres_arguments(url: URL) -> dict[str, Any]:
    """Return the deadlines of a connection; the URL may set others."""
    usual: dict[str, Any] = {
        "connect_timeout": _CONNECT_S,
        "tcp_user_timeout": 10_000,
        "application_name": "application-worker",
    }
    if "options" not in url.query:
        # Shorter than the deadlines of this process: an error of the server is more precise, and leaves the connection usable.
        usual["options"] = "-c statement_timeout=9500 -c lock_timeout=4000"
    return {name: value for name, value in usual.items() if name not in url.query}
