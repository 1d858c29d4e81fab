"""One server in trouble on every count, for the tests of health."""

from collections.abc import Iterator

import pytest

from tests.harness import until
from tests.postgres import Postgres, running

ENDLESS = "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
EAGER = f"autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0, {ENDLESS}"
VACUUMS = "SELECT count(*) FROM pg_stat_progress_vacuum"
WAITING = 43
"""One segment more waits for archiving than is allowed."""


@pytest.fixture(scope="session")
def unwell() -> Iterator[Postgres]:
    """Its archive command fails with 43 segments waiting; autovacuum has begun on a partition, and will take a day."""
    settings = {
        "archive_mode": "on",
        "archive_command": "false",
        "autovacuum_naptime": "1s",
        "deadlock_timeout": "20ms",
    }
    with running("--wal-segsize=1", **settings) as server:
        with server.connect() as session:
            session.execute("CREATE SCHEMA shop")
            session.execute("CREATE TABLE shop.events (id int, body text) PARTITION BY RANGE (id)")
            session.execute("CREATE TABLE shop.events_1 PARTITION OF shop.events FOR VALUES FROM (0) TO (1000000)")
            session.execute(f"ALTER TABLE shop.events_1 SET ({EAGER})")
            session.execute("INSERT INTO shop.events SELECT n, 'x' FROM generate_series(1, 100000) n")
            session.execute("DELETE FROM shop.events WHERE id % 2 = 0")
            session.execute('CREATE TABLE "Orders" (id int)')
            session.execute("CREATE TABLE empty (id int)")
            session.execute("CREATE ROLE stranger LOGIN")
            # Before the rows are seen to be dead, so that no snapshot of ours is in the way.
            for number in range(WAITING):
                session.execute(f"COMMENT ON TABLE empty IS '{number}'")
                session.execute("SELECT pg_switch_wal()")
        until(lambda: server.execute("SELECT failed_count FROM pg_stat_archiver"), "the archiver fails")
        until(lambda: server.execute(VACUUMS), "autovacuum runs")
        yield server
