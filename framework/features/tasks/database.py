"""Define the tables of tasks, and open their database: SQLite makes them at the first use, PostgreSQL is migrated by a command."""

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    StaticPool,
    String,
    Table,
    Text,
    create_engine,
    event,
    inspect,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, SQLAlchemyError

from framework.command_line import command as command_name
from framework.errors import TaskDatabaseError, TaskTablesError
from framework.private_files import make_file, make_folder
from framework.settings.urls import shown_url
from framework.store.postgres import bounded_connection
from framework.telemetry import logs
from framework.timings import backoff_s

REVISION = "0004"
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


# ``Connection.exec_driver_sql`` takes 20 to 70 us for each statement beyond what the driver takes, which is more than most
# statements of a batch take. These three raise errors as SQLAlchemy raises them.
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


STATUSES = ("enqueue", "working", "finish", "failed", "error")
"""The statuses of an event; a task has a counter of each."""

OPEN_STATUSES = ("enqueue", "working")
"""The statuses of an event whose job has not ended."""

FAILED_STATUSES = ("failed", "error")
"""The statuses of an event whose job ended without doing its work."""

MAX_ID = 1 << 62
"""The largest id of an event or a message that may be asked for: databases store eight bytes."""

metadata = MetaData()

# SQLite numbers rows by itself only in a column of the type INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")


_DELETED = "state = 'deleted'"
_SINGLE = "task_id IS NULL AND ended_at IS NOT NULL"


def _counter(name: str) -> "Column[int]":
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


tasks = Table(
    "aw_tasks",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("worker", String(255)),
    Column("title", Text),
    Column("owner", String(255)),
    Column("tenant", String(255)),
    Column("result", Text),
    Column("created_at", Float, nullable=False),
    Column("closed_at", Float),
    Column("completed_at", Float),
    Column("cancelled_at", Float),
    _counter("total"),
    _counter("items"),
    *(_counter(status) for status in STATUSES),
    Index("aw_tasks_created", "created_at", "id"),
    Index("aw_tasks_owner", "owner", "created_at"),
    Index("aw_tasks_tenant", "tenant", "created_at"),
    Index("aw_tasks_completed", "completed_at"),
)
"""One row per task. The counters are kept in the transactions that change its events."""

events = Table(
    "aw_events",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("jid", String(255), nullable=False, unique=True),
    Column("task_id", String(32), ForeignKey("aw_tasks.id", ondelete="CASCADE")),
    Column("worker", String(255), nullable=False),
    Column("queue", String(255), nullable=False),
    Column("shard", String(64), nullable=False),
    Column("status", String(10), nullable=False),
    Column("state", String(24), nullable=False),
    Column("reason", Text),
    Column("error_class", String(255)),
    Column("params", Text),
    Column("whole", Boolean, nullable=False, server_default=text("false")),
    Column("items", Integer, nullable=False, server_default=text("1")),
    Column("runs", Integer, nullable=False, server_default=text("0")),
    Column("stands_for", String(255)),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("changed_at", Float, nullable=False),
    Column("payload", Text),
    Column("due_at", Float),
    Index("aw_events_task", "task_id", "status", "id"),
    Index("aw_events_open", "shard", "changed_at", postgresql_where=text("status IN ('enqueue', 'working')")),
    Index("aw_events_stands_for", "stands_for", postgresql_where=text("stands_for IS NOT NULL")),
    Index("aw_events_deleted", "shard", "changed_at", postgresql_where=text(_DELETED), sqlite_where=text(_DELETED)),
    Index("aw_events_single", "ended_at", postgresql_where=text(_SINGLE), sqlite_where=text(_SINGLE)),
)
"""One row per job. ``params`` is JSON, ``whole`` says whether it has every argument, ``stands_for`` is the job of a duplicate.

``payload`` and ``due_at`` are those of a job that the ledger may enqueue again: it has not ended, or no key of Redis had it.
"""

history = Table(
    "aw_history",
    metadata,
    Column("hour", BigInteger, primary_key=True),
    Column("shard", String(64), primary_key=True),
    Column("worker", String(255), primary_key=True),
    _counter("processed"),
    _counter("failed"),
    Column("seconds", Float, nullable=False, server_default=text("0")),
    Column("durations", Text),
    Index("aw_history_worker", "worker", "hour"),
)
"""One row per hour, shard and class (room ``history``). ``hour`` is its beginning in epoch seconds, ``durations`` a JSON list."""

history_days = Table(
    "aw_history_days",
    metadata,
    Column("day", BigInteger, primary_key=True),
    Column("shard", String(64), primary_key=True),
    Column("runs", Text, nullable=False),
)
"""One row per day of UTC and shard: ``runs`` has the sums of its rows of ``history``, as JSON, one list per column.

The transaction that writes an hour writes its day too.
"""

urgency_history = Table(
    "aw_urgency_history",
    metadata,
    Column("step_s", Integer, primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("shard", String(64), primary_key=True),
    _counter("runs"),
    Column("counts", Text, nullable=False),
)
"""One row per hour and per day (``step_s`` seconds) and shard: ``counts`` has those of each urgency, as JSON; ``runs`` their runs."""

messages = Table(
    "aw_messages",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("key", String(80), nullable=False, unique=True),
    Column("jid", String(255), nullable=False),
    Column("at", Float, nullable=False),
    Column("text", Text, nullable=False),
    Column("fields", Text),
    Index("aw_messages_jid", "jid", "id"),
)
"""One row per message of a job. ``key`` makes a repeated write harmless."""
