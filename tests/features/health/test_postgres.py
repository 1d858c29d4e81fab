"""Check the four PostgreSQL indicators against real servers in trouble."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from framework.features.health.indicator import Normal, NotAvailable, Question, Signal, Stop, Unknown
from framework.features.health.postgres import postgres_indicators
from framework.features.health.prometheus import HealthConnection
from framework.features.health.settings import HealthSection
from tests.features.health.conftest import WAITING
from tests.harness import until
from tests.postgres import Postgres, running, standby_of


class Asked:
    """Query one server."""

    def __init__(self, url: str, settings: dict[str, object], timeout_s: float) -> None:
        self.database = HealthConnection(url, timeout_s)
        self.unknown_tables: list[tuple[str, str]] = []
        self._indicators = postgres_indicators(
            HealthSection.model_validate(settings), lambda *place: self.unknown_tables.append(place)
        )

    def __call__(self, indicator: str, *tables: str) -> Signal:
        return self._indicators[indicator].evaluate(Question("main", tables, 5.0, self.database.query))


@pytest.fixture
def asked() -> Iterator[Callable[..., Asked]]:
    made: list[Asked] = []

    def make(
        server: Postgres, user: str = "postgres", timeout_s: float = 10.0, name: str = "postgres", **settings: object
    ) -> Asked:
        made.append(Asked(server.url(name).replace("postgres@", f"{user}@"), settings, timeout_s))
        return made[-1]

    yield make
    for one in made:
        one.database.close()


def test_autovacuum_on_listed_table_stops(failing_server, asked):
    ask = asked(failing_server)
    assert ask("autovacuum", "shop.events_1") == Stop("autovacuum runs on shop.events_1")
    assert ask("autovacuum", "empty", "shop.events_1", "Orders") == Stop("autovacuum runs on shop.events_1")
    assert ask("autovacuum", "shop.events") == Stop("autovacuum runs on shop.events")  # by way of its partition
    assert ask("autovacuum", "empty", "shop.texts") == Stop("autovacuum runs on shop.texts")  # on its TOAST table
    assert ask("autovacuum", "empty", "public.Orders") == Normal("autovacuum runs on none of the tables")
    assert ask.unknown_tables == []
    assert asked(failing_server, name="twin")("autovacuum", "shop.events_1") == Normal(
        "autovacuum runs on none of the tables"
    )
    assert ask("autovacuum") == NotAvailable("no tables are listed")


def test_autovacuum_missing_table_is_reported_and_ignored(failing_server, asked):
    ask = asked(failing_server)
    absent = (
        "events_1",
        "orders",
        "shop.nothing",
        "postgres.shop.events_1",
        "a.b.c.d",
        '"; DROP',
        "public.",
        ".x",
        "%s",
    )
    assert ask("autovacuum", "empty", *absent) == Normal("autovacuum runs on none of the tables")
    assert ask.unknown_tables == [("main", table) for table in absent]
    assert ask("autovacuum", "nothing", "shop.events_1") == Stop("autovacuum runs on shop.events_1")
    assert ask("autovacuum", "nothing") == NotAvailable("there is no table nothing")


def test_autovacuum_without_right_is_unknown(failing_server, asked):
    ask = asked(failing_server, "other_user")
    signal = ask("autovacuum", "empty")
    assert isinstance(signal, Unknown)
    assert "pg_read_all_stats" in signal.reason
    assert isinstance(ask("replication_lag"), Unknown)
    assert isinstance(ask("connections"), Normal)
    assert isinstance(ask("wal_archiving"), Stop)


def test_wal_archiving_waiting_segments_stop(failing_server, asked):
    found = asked(failing_server)("wal_archiving")
    assert isinstance(found, Stop)
    waiting = int(found.reason.removesuffix(" WAL segments wait for archiving, more than 42"))
    assert waiting >= WAITING  # and the segments that earlier tests have filled
    assert isinstance(asked(failing_server, wal_archiving={"above": 10 * waiting})("wal_archiving"), Normal)


def test_wal_archiving_switched_off_is_not_available(postgres, asked):
    assert asked(postgres)("wal_archiving") == NotAvailable("archive_mode is off")


def test_wal_archiving_counts_from_first_segment(asked):
    with running(archive_mode="on") as server:
        ask = asked(server, wal_archiving={"above": 1})
        assert ask("wal_archiving") == NotAvailable("no segment has been archived yet")
        server.execute("ALTER SYSTEM SET archive_command = 'true'")
        server.execute("SELECT pg_reload_conf()")
        server.execute("CREATE TABLE a ()")
        server.execute("SELECT pg_switch_wal()")
        until(lambda: isinstance(ask("wal_archiving"), Normal), "the first has been archived")
        server.execute("ALTER SYSTEM SET archive_command = 'false'")
        server.execute("SELECT pg_reload_conf()")
        for name in "bc":
            server.execute(f"CREATE TABLE {name} ()")
            server.execute("SELECT pg_switch_wal()")
        until(lambda: server.execute("SELECT failed_count FROM pg_stat_archiver"), "archiving fails")

        def waiting():
            current = server.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")
            return int(current[8:], 16) - int(server.execute("SELECT last_archived_wal FROM pg_stat_archiver")[8:], 16)

        # The two segments of above; a server that has written since is in the third (PostgreSQL 18 always).
        until(lambda: ask("wal_archiving") == Stop(f"{waiting()} WAL segments wait for archiving, more than 1"))
        assert waiting() in (2, 3)


def test_replication_lag_beyond_threshold_stops(failing_server, asked):
    ask = asked(failing_server, replication_lag={"above_s": 0.2, "above_bytes": None})
    by_size = asked(failing_server, replication_lag={"above_s": None, "above_bytes": 100_000})
    without = asked(failing_server, replication_lag={"above_s": None, "above_bytes": None})
    assert ask("replication_lag") == NotAvailable("no replica streams from this server")
    assert without("replication_lag") == NotAvailable("both thresholds are null")
    with standby_of(failing_server) as standby:
        until(lambda: isinstance(by_size("replication_lag"), Normal), "it streams and has caught up")
        of_standby = asked(standby)
        assert of_standby("replication_lag") == NotAvailable(
            "this server is a replica; only its primary reports the lag"
        )
        assert of_standby("wal_archiving") == NotAvailable("this server is a replica; its primary archives")
        standby.pause_replay()
        failing_server.execute("INSERT INTO empty SELECT generate_series(1, 10000)")
        behind = until(lambda: (found := by_size("replication_lag")) and isinstance(found, Stop) and found, "by bytes")
        assert behind.reason.startswith("the slowest of 1 replicas is ")
        assert behind.reason.endswith(", more than 100,000 bytes")
        late = until(lambda: (found := ask("replication_lag")) and isinstance(found, Stop) and found, "by seconds")
        assert late.reason.endswith(", more than 0.2 s")


def test_connections_beyond_share_stop(failing_server, asked):
    ask = asked(failing_server, connections={"above": 0.2})
    assert isinstance(ask("connections"), Normal)
    with ExitStack() as stack:
        for _ in range(13):
            stack.enter_context(failing_server.connect())
        found = ask("connections")
        assert isinstance(found, Stop)
        assert found.reason.endswith(" of 60 connections are in use, more than 20%")
    until(lambda: isinstance(ask("connections"), Normal), "they have gone")


def test_health_connection_reads_only_and_reconnects(failing_server, asked):
    ask = asked(failing_server)
    query = ask.database.query
    ((first,),) = query("SELECT pg_backend_pid()")
    assert query("SELECT pg_backend_pid(), %(x)s::int", {"x": 5}) == [(first, 5)]
    assert query("SELECT '100%'") == [("100%",)]
    ask.database.close_idle(600.0)  # it was used a moment ago
    assert query("SELECT pg_backend_pid()") == [(first,)]
    ask.database.close_idle(0.0)
    until(
        lambda: not failing_server.execute(f"SELECT count(*) FROM pg_stat_activity WHERE pid = {first}"),
        "its session has ended",
    )
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        query("CREATE TABLE not_here ()")
    ((second,),) = query("SELECT pg_backend_pid()")
    failing_server.execute(f"SELECT pg_terminate_backend({second}, 5000)")
    own_name_query = "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    assert query(own_name_query) == [("application-worker: health",)]  # the dead connection was replaced
    named = HealthConnection(f"{failing_server.url()}&application_name=shop&connect_timeout=9", 10.0)
    assert named.query(own_name_query) == [("shop",)]
    named.close()


def test_health_connection_frozen_server_times_out(failing_server, asked):
    assert asked(failing_server).database.query("SELECT 1")  # every module is loaded now
    query = asked(failing_server, timeout_s=2.0).database.query
    with pytest.raises(psycopg.errors.QueryCanceled):
        query("SELECT pg_sleep(20)")
    ((backend,),) = query("SELECT pg_backend_pid()")
    os.kill(backend, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(TimeoutError, match="did not answer in time"):
            query("SELECT 1")
        assert time.monotonic() - begun < 20.0  # a frozen server never answers
        assert query("SELECT 1") == [(1,)]  # over another connection
    finally:
        os.kill(backend, signal.SIGCONT)
