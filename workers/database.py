"""The features' var directory and SQL databases, SQLite by default.

``<FEATURE>_DATABASE_URL`` names another database; without it, ``<feature>.sqlite3`` in the var directory. Engines are
opened on first use, one per process and feature.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, MetaData, create_engine, event, text
from sqlalchemy.engine import URL, make_url

_BUSY_TIMEOUT_MS: Final = 30_000
_WAL_RETRY_S: Final = 0.01
_SCHEMA_LOCK: Final = 0x636F6465
"""Any number on which no other program locks: PostgreSQL's advisory lock around the creation of the tables."""


def var_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for files of runs: ``FRAMEWORK_VAR_DIR``, else ``var`` next to the folder ``workers``."""
    return Path(environment.get("FRAMEWORK_VAR_DIR") or Path(__file__).resolve().parents[1] / "var")


def database_url(feature: str, environment: Mapping[str, str] = os.environ) -> URL:
    """Return the URL of the feature's database in this process."""
    named = environment.get(f"{feature.upper()}_DATABASE_URL")
    return make_url(named) if named else URL.create("sqlite", database=str(var_dir(environment) / f"{feature}.sqlite3"))


def process_engine(feature: str, metadata: MetaData) -> Engine:
    """Return the engine of this process on the feature's database, its tables made; the same one for every thread."""
    with _OPENING:
        return _engine_of(os.getpid(), database_url(feature), metadata)


def open_engine(url: URL, metadata: MetaData) -> Engine:
    """Return a new engine on ``url`` whose tables exist. Raises SQLAlchemy's ``OperationalError`` when no server answers."""
    if url.get_backend_name() == "sqlite":
        engine = _sqlite_engine(url)
    else:
        # READ COMMITTED is load-bearing: a question like "was that the last file?" is asked after waiting for a row's
        # lock, and must see commits made during the wait.
        engine = create_engine(url, isolation_level="READ COMMITTED", pool_pre_ping=True, pool_size=10, max_overflow=-1)
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})
        metadata.create_all(connection)
    return engine


@contextmanager
def writing(engine: Engine) -> Generator[Connection]:
    """A transaction that may write: committed at the end of the block, rolled back when it raises."""
    with engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def reading(engine: Engine) -> Generator[Connection]:
    """A transaction that only reads and, on SQLite, waits for no writer."""
    with engine.connect().execution_options(read_only=True) as connection, connection.begin():
        yield connection


_OPENING: Final = threading.Lock()


@cache
def _engine_of(_pid: int, url: URL, metadata: MetaData) -> Engine:
    # The process id is part of the key so that a forked child never uses its parent's connections.
    return open_engine(url, metadata)


def _sqlite_engine(url: URL) -> Engine:
    database = url.database
    if database and database != ":memory:":
        Path(database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000}, pool_size=10, max_overflow=-1)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # The driver's own transaction control is switched off: it would begin deferred, and a deferred transaction that
    # reads first and writes later fails at once when another writer commits in between, with any timeout.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        # Only a new file can choose this without the write lock. Maintenance then returns free pages in small steps.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    _switch_to_wal(connection)
    for pragma in ("synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _switch_to_wal(connection: Any) -> None:
    """Switch the file to WAL. Of two connections that switch a new file at once SQLite refuses one without any wait."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_WAL_RETRY_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
