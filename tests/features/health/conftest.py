"""Provide one PostgreSQL server whose health indicators all report trouble."""

from collections.abc import Iterator

import pytest

from tests.harness import until
from tests.postgres import Postgres, running

_LIMITS = {
    "autovacuum_vacuum_threshold": 0,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_cost_delay": 100,
    "autovacuum_vacuum_cost_limit": 1,
}
"""Vacuumed at once, and for minutes."""
EAGER = ", ".join(f"{name} = {value}" for name, value in _LIMITS.items())
EAGER_TOAST = ", ".join(f"toast.{name} = {value}" for name, value in _LIMITS.items())
VACUUMS = "SELECT count(DISTINCT relid) FROM pg_stat_progress_vacuum"
WAITING = 43
"""One segment more waits for archiving than is allowed."""


@pytest.fixture(scope="session")
def _failing_server() -> Iterator[Postgres]:
    settings = {
        "archive_mode": "on",
        "archive_command": "false",
        "autovacuum_naptime": "1s",
        "deadlock_timeout": "20ms",
    }
    with running("--wal-segsize=1", autovacuum_max_workers="6", **settings) as server:
        with server.connect() as session:
            session.execute("CREATE SCHEMA shop")
            session.execute("CREATE TABLE shop.events (id int, body text) PARTITION BY RANGE (id)")
            session.execute("CREATE TABLE shop.events_1 PARTITION OF shop.events FOR VALUES FROM (0) TO (1000000)")
            session.execute(f"ALTER TABLE shop.events_1 SET (fillfactor = 10, {EAGER})")
            session.execute("CREATE TABLE shop.texts (id int, body text)")
            session.execute("ALTER TABLE shop.texts ALTER body SET STORAGE EXTERNAL")
            session.execute(f"ALTER TABLE shop.texts SET (autovacuum_enabled = false, {EAGER_TOAST})")
            session.execute('CREATE TABLE "Orders" (id int)')
            session.execute("CREATE TABLE empty (id int)")
            session.execute("CREATE ROLE other_user LOGIN")
            session.execute("CREATE DATABASE twin TEMPLATE postgres")  # the same tables, of the same numbers
            for number in range(WAITING):
                session.execute(f"COMMENT ON TABLE empty IS '{number}'")
                session.execute("SELECT pg_switch_wal()")
        until(lambda: server.execute("SELECT failed_count FROM pg_stat_archiver"), "the archiver fails")
        yield server


@pytest.fixture
def failing_server(_failing_server: Postgres) -> Postgres:
    """Its archive command fails with 43 segments waiting; autovacuum runs on a partition, and on another table's TOAST."""
    here = f"{VACUUMS} WHERE datname = 'postgres'"
    if _failing_server.execute(here) < 2:  # autovacuum has not started, or has ended
        _failing_server.execute("INSERT INTO shop.events SELECT n, 'x' FROM generate_series(1, 20000) n")
        _failing_server.execute("INSERT INTO shop.texts SELECT n, repeat('x', 8000) FROM generate_series(1, 400) n")
        _failing_server.execute("DELETE FROM shop.events")
        _failing_server.execute("DELETE FROM shop.texts")
        until(lambda: _failing_server.execute(here) >= 2, "autovacuum runs")
    return _failing_server
