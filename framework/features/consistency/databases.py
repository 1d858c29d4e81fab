"""Know the application's databases, which of them a class may read from a replica, and the WAL positions of their servers."""

import importlib
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakSet

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.feature import Late
from framework.push.client import Client
from framework.route.router import LoadedWorkers
from framework.settings.model import CoreSettings, DatabaseSettings
from framework.supervised_threads import SupervisedThread
from framework.telemetry.library_calls import DATABASE_OPTION
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.usage import REPLICA
from framework.text import did_you_mean, join_names
from framework.types import DataConsistency
from framework.version import install_extra

if TYPE_CHECKING:
    from sqlalchemy import Engine

ConsistencyLevels: TypeAlias = Mapping[str, DataConsistency]
"""A class's data consistency for each database that has replicas."""

SETTINGS_FILE = "config/application.yml"
"""The default name of the settings file in messages."""

_STRICTEST_FIRST: tuple[DataConsistency, ...] = ("always", "sticky", "delayed")
"""Each level accepts staler replicas than the level before it."""

DATABASES: "Late[Callable[[Client], Databases]]" = Late("framework.features.consistency.databases:open_databases")

DEADLINE_S = 1.0
RETRY_AFTER_S = 5.0

POSITION_TTL_S = 1.0
"""How long a replica's position is reused. A replica only advances, so an older position stays true."""

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")

_CONNECT_ARGS = {"connect_timeout": 2, "tcp_user_timeout": 2000, "application_name": "application-worker: positions"}
"""Limits for a connection attempt whose caller has stopped waiting; libpq accepts no shorter timeout."""

_PRIMARY_POSITION = "SELECT pg_current_wal_insert_lsn()::text"
"""The insert position, not the written position: with synchronous_commit = off a commit may not be written yet (as in GitLab).
"""

_REPLICA_POSITION = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()::text END"


# SQLAlchemy is loaded with the first server that is used. A request for a position takes at most ``DEADLINE_S``, even if
# the server, the network or the resolver of names hangs. A server that did not answer is not asked again for
# ``RETRY_AFTER_S``.
class DatabaseServer:
    """A primary or a replica. Connects on first use; safe to share between threads, and after a fork."""

    def __init__(self, name: str, url: str, *, is_replica: bool) -> None:
        self.name = name
        """The name in log lines; the URL contains a password."""
        self.is_replica = is_replica
        self._url = url
        self._log_limit = LogRateLimit(60.0)
        self._reset()
        _servers.add(self)

    def _reset(self) -> None:
        self._lock = Lock()
        self._engine: Engine | None = None
        """The pool for the application's queries."""
        self._position_engine: Engine | None = None
        """The pool for position queries."""
        self._unavailable_until = 0.0
        self.last_position = -1
        """The last known position."""
        self._last_position_at = 0.0

    @property
    def engine(self) -> "Engine":
        """Return the pool for the application's queries. It grows with the number of jobs, so no job waits for a connection."""
        with self._lock:
            if self._engine is None:
                made = self._create_engine(pool_pre_ping=True, pool_size=5, max_overflow=-1)
                database = self.name.partition(" replica ")[0]
                options = {DATABASE_OPTION: f"{database}{REPLICA}" if self.is_replica else database}
                made = made.execution_options(**options)
                self._engine = made.execution_options(postgresql_readonly=True) if self.is_replica else made
            return self._engine

    def position(self) -> int | None:
        """Return the position of a primary's WAL or of a replica's replay, in bytes, within ``DEADLINE_S``.

        ``None`` if the server does not answer, or does not have the role that the configuration gives it. That is logged, and
        the server is not asked again for ``RETRY_AFTER_S``.
        """
        if monotonic() < self._unavailable_until:
            return None
        try:
            # Opened outside of the deadline: loading SQLAlchemy takes a while, once per process.
            engine = self._open_position_engine()
            self.last_position = _run_with_deadline(DEADLINE_S, partial(self._query_position, engine))
        except Exception as error:  # noqa: BLE001 - no error of a driver, a resolver or a server may stop the work
            self.mark_failed(error)
            return None
        self._last_position_at = monotonic()
        return self.last_position

    def has_reached(self, position: int) -> bool | None:
        """Return whether a replica has reached ``position``; ``None`` if its position is unknown."""
        if position <= self.last_position and monotonic() - self._last_position_at < POSITION_TTL_S:
            return True
        found = self.position()
        return None if found is None else found >= position

    def mark_failed(self, error: BaseException) -> None:
        """Take the server out of use for ``RETRY_AFTER_S``; no caller waits for it meanwhile."""
        self._unavailable_until = monotonic() + RETRY_AFTER_S
        self._last_position_at = 0.0
        self._log_limit.warning(
            self.name,
            f"the database server {self.name} does not return its WAL position; jobs use the primary. Check the server; this "
            f"process asks it again in {RETRY_AFTER_S:g} s",
            "consistency.server_unavailable",
            database=self.name,
            error=error,
        )

    def dispose(self, *, close: bool = True) -> None:
        """Drop all connections. After a fork, the child does not close them: the parent still uses them."""
        for engine in (self._engine, self._position_engine):
            if engine is not None:
                engine.dispose(close=close)
        self._reset()

    def _query_position(self, engine: "Engine") -> int:
        """Return the position, without a deadline. A connection that died while idle is replaced once."""
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
            raise PositionUnavailable("the server is not in recovery, so it is not a replica (any more)")
        return parse_lsn(answer)

    def _open_position_engine(self) -> "Engine":
        with self._lock:
            if self._position_engine is None:
                # Without a transaction and a reset, a query is one round trip.
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


class Database(NamedTuple):
    """One database: its primary, and the replicas that may be read instead."""

    name: str
    primary: DatabaseServer
    replicas: tuple[DatabaseServer, ...]


class Databases:
    """Hold every configured database. Drivers are loaded, and connections made, on first use."""

    def __init__(self, settings: Mapping[str, DatabaseSettings], file: str = SETTINGS_FILE) -> None:
        self._file = file
        self._all = {name: _database(name, one) for name, one in settings.items()}

    def __getitem__(self, name: str) -> Database:
        if name not in self._all:
            message = f"there is no database {name!r}{did_you_mean(name, self._all)}; add it there with its url"
            raise ConfigurationError([ConfigurationProblem(self._file, "databases", message)])
        if (problem := missing_extra(self._file)) is not None:
            raise ConfigurationError([problem])
        return self._all[name]

    def levels(self, declaration: Declaration) -> ConsistencyLevels:
        """Return the class's consistency for each database with replicas; empty if it reads from no replica."""
        usual: DataConsistency = declaration.facts["data_consistency"]
        overrides: ConsistencyLevels = declaration.facts["data_consistency_overrides"] or {}
        levels: dict[str, DataConsistency] = {
            name: overrides.get(name, usual) for name, database in self._all.items() if database.replicas
        }
        return levels if weakest_level(levels) != "always" else {}

    def problems(self, declarations: Iterable[Declaration]) -> list[ConfigurationProblem]:
        problems: list[ConfigurationProblem] = []
        wanted = False
        for declaration in declarations:
            wanted = wanted or bool(self.levels(declaration))
            for name in declaration.facts["data_consistency_overrides"] or ():
                if self._all and name not in self._all:
                    message = f"{declaration.qualified_name}: data_consistency_overrides names {name!r}, which is not a database"
                    known = join_names(self._all)
                    near = f"{did_you_mean(name, self._all)}; there are {known}: use one of them, or add it there with its url"
                    problems.append(ConfigurationProblem(self._file, "databases", f"{message}{near}"))
        problem = missing_extra(self._file) if wanted else None
        return [*problems, problem] if problem is not None else problems

    def available_replicas(self) -> dict[str, DatabaseServer]:
        """Return a replica that answers of each database that has one, however stale it is."""
        found: dict[str, DatabaseServer] = {}
        for name, _, replicas in self._all.values():
            shuffled = random.sample(replicas, len(replicas))
            answering = next((replica for replica in shuffled if replica.has_reached(0)), None)
            if answering is not None:
                found[name] = answering
        return found

    def dispose(self) -> None:
        for _, primary, replicas in self._all.values():
            for server in (primary, *replicas):
                server.dispose()


def databases_of(settings: CoreSettings) -> Databases:
    """Return the configured databases, the same object for every caller with these settings. Opens no socket."""
    return _open(tuple(sorted(settings.databases.items())), settings.config_file_label("application.yml"))


# One set of servers per configuration: policy, push and application must share the memory of a failed server.
@lru_cache
def _open(settings: tuple[tuple[str, DatabaseSettings], ...], file: str) -> Databases:
    return Databases(dict(settings), file)


def database_problems(workers: LoadedWorkers) -> list[ConfigurationProblem]:
    """Return the problems of the classes with the configured databases."""
    return databases_of(workers.settings).problems(workers.declarations)


def open_databases(client: Client) -> Databases:
    """Return the databases of the client's configuration. Opens no socket."""
    return databases_of(client.settings)


def weakest_level(levels: ConsistencyLevels) -> DataConsistency:
    """Return the level that applies to a job that uses all these databases (GitLab: the one that prefers replicas most)."""
    # One decision for all databases: otherwise each log line and counter would need one strategy per database.
    return max(levels.values(), key=_STRICTEST_FIRST.index) if levels else "always"


def missing_extra(file: str = SETTINGS_FILE) -> ConfigurationProblem | None:
    """Return the problem, with its remedy, if the libraries for replicas are not installed."""
    missing = [name for name in ("sqlalchemy", "psycopg") if find_spec(name) is None]
    if not missing:
        return None
    message = f"needs {' and '.join(missing)}, the extra sql: {install_extra('sql')}"
    return ConfigurationProblem(file, "databases", message)


def _database(name: str, settings: DatabaseSettings) -> Database:
    replicas = enumerate(settings.replicas, 1)
    return Database(
        name,
        DatabaseServer(name, settings.url, is_replica=False),
        tuple(DatabaseServer(f"{name} replica {number}", url, is_replica=True) for number, url in replicas),
    )


class PositionUnavailable(Exception):
    """A server did not return its position in time, or has none."""


def parse_lsn(text: object) -> int:
    """Return a WAL position as a number of bytes. Raises ValueError for malformed text."""
    found = _LSN.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("is not a WAL position such as 0/3000060")
    return (int(found[1], 16) << 32) + int(found[2], 16)


def format_lsn(position: int) -> str:
    """Return a position in PostgreSQL's notation."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def _fetch_scalar(engine: "Engine", statement: Any) -> object:
    with engine.connect() as connection:
        return connection.execute(statement).scalar()


def _run_with_deadline(deadline_s: float, call: Callable[[], int]) -> int:
    """Return the result of ``call``, or raise its error. Raises PositionUnavailable if it takes longer than ``deadline_s``."""
    answers: SimpleQueue[int | Exception] = SimpleQueue()

    def run() -> None:
        try:
            answers.put(call())
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            answers.put(error)

    SupervisedThread("wal-position", run, elastic=True).start()
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
