"""Vacuum one database, a few pages at a time."""

import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from typing import Any, Final

from framework import ApplicationWorker, Discard, RetryLater
from workers.database import var_dir

BUDGET_S: Final = 5.0
PAUSE: Final = timedelta(seconds=10)
PAGES: Final = 256
BUSY_TIMEOUT_S: Final = 1.0

_INCREMENTAL: Final = 2


class VacuumDatabaseWorker(ApplicationWorker):
    """Give free pages of a SQLite database back to the disk and renew its statistics, some seconds at a time."""

    feature_category = "platform_maintenance"
    urgency = "throttled"
    tags = ("cronjob_child",)
    data_consistency = "sticky"
    # Not "until executed": an unfinished job pushes an equal job, which continues, while it still runs.
    idempotent = True
    # Two jobs on one database would wait for each other.
    concurrency_limit = 1
    defer_on_health = None  # SEW007: it repairs the fault that the indicator reports, and yields to writers
    retry = 3
    loggable_arguments = ("name",)

    def perform(self, name: str) -> None:
        path = var_dir() / name
        if path.parent != var_dir() or not path.is_file():
            raise Discard(f"there is no database {name!r}")
        with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous=NORMAL")
            try:
                before = _free_pages(database)
                self._vacuum_pages(database)
                left = _free_pages(database)
            except sqlite3.OperationalError as error:
                # The application's writes are more important. This is no failure, so no retry is used up.
                raise RetryLater(PAUSE, str(error)) from error
        self.log_extra(freed_pages=before - left, left_pages=left)
        if left:
            # The database itself knows the progress: the next job needs no other argument.
            VacuumDatabaseWorker.perform_in(PAUSE, name)

    def _vacuum_pages(self, database: sqlite3.Connection) -> None:
        deadline = time.monotonic() + BUDGET_S
        while _free_pages(database) and time.monotonic() < deadline and not self.interrupted:
            # Its own short transaction each time: a writer waits for a few milliseconds only. A script, as `execute` would
            # stop after the first page: the pragma steps once for each, without a row.
            database.executescript(f"PRAGMA incremental_vacuum({PAGES})")
        database.execute("PRAGMA optimize")
        database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _free_pages(database: sqlite3.Connection) -> int:
    """Return the number of free pages; 0 for a database without incremental vacuum, which cannot return them."""
    if _number(database, "auto_vacuum") != _INCREMENTAL:
        return 0
    return _number(database, "freelist_count")


def _number(database: sqlite3.Connection, pragma: str) -> int:
    row: Any = database.execute(f"PRAGMA {pragma}").fetchone()
    return int(row[0])
