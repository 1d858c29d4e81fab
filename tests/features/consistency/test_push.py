"""Check the WAL positions that a push records: with and without middleware, once per bulk slice, within the deadline."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from framework.features.consistency import databases as database_servers
from framework.features.consistency import replica_context
from framework.features.consistency.databases import DEADLINE_S, Databases, parse_lsn
from framework.features.consistency.push import PushPositions
from framework.features.consistency.routed_queries import RoutedConnection
from framework.settings.model import DatabaseSettings
from tests.harness import forked, until
from tests.push.conftest import jobs, pusher
from tests.push.conftest import worker as any_worker

__all__ = ["jobs", "pusher"]

PUSH_MODES = pytest.mark.parametrize("push_mode", ["plain", "middleware"])


def worker(name="Job", **attributes):
    return any_worker(name, queue="default", **attributes)


class Passing:
    def call(self, worker, job, queue, pool):
        yield


@pytest.fixture
def opened(pusher):
    """The pusher, with the positions of these databases, in either push mode."""

    def open_pusher(databases, push_mode="plain"):
        return pusher.open(*[Passing] * (push_mode == "middleware"), positions=PushPositions(databases))

    return open_pusher


@pytest.fixture
def asked(postgres, shop):
    """Return a function that counts the position queries to the primary since its last call."""
    postgres.execute(f"ALTER DATABASE {shop} SET log_statement = 'all'")
    seen = 0

    def look():
        nonlocal seen
        total = (postgres.folder / "log").read_text(errors="replace").count("pg_current_wal_insert_lsn")
        found, seen = total - seen, total
        return found

    look()
    yield look
    postgres.execute(f"ALTER DATABASE {shop} RESET log_statement")


def insert_position(postgres, shop):
    return parse_lsn(postgres.execute("SELECT pg_current_wal_insert_lsn()::text", shop))


@PUSH_MODES
def test_positions_push_records_position_of_its_writes(opened, databases, postgres, shop, jobs, push_mode):
    opened(databases, push_mode)
    with databases["main"].primary.engine.connect() as connection:
        connection.execute(text("SET synchronous_commit = off"))  # committed, and maybe not written to the WAL's file
        connection.execute(text("INSERT INTO orders (id) VALUES (1)"))
        connection.commit()
    written = insert_position(postgres, shop)
    worker(data_consistency="sticky").perform_async()
    (job,) = jobs()
    assert written <= parse_lsn(job["wal_locations"]["main"]) <= insert_position(postgres, shop)
    assert job["wal_location_sources"] == {"main": "primary"}
    assert job["worker_data_consistency"] == "sticky"
    assert "worker_data_consistency_per_db" not in job


@PUSH_MODES
def test_positions_bulk_looks_up_once_per_chunk(opened, databases, asked, jobs, push_mode):
    opened(databases, push_mode)
    worker(data_consistency="delayed").perform_bulk([(number,) for number in range(2_001)])
    assert asked() == 3
    assert all(job["wal_locations"].keys() == {"main"} for job in jobs())
    worker(data_consistency="delayed").perform_in(60, 1)
    assert asked() == 1


@PUSH_MODES
def test_positions_override_applies_to_single_database(opened, settings, asked, jobs, push_mode):
    databases = Databases({**settings, "ci": settings["main"], "alone": DatabaseSettings(url=settings["main"].url)})
    opened(databases, push_mode)
    worker("One", data_consistency="sticky", data_consistency_overrides={"ci": "delayed"}).perform_async()
    worker("Two", data_consistency="always", data_consistency_overrides={"ci": "sticky"}).perform_async()
    worker(
        "Three", data_consistency="sticky", data_consistency_overrides={"main": "always", "ci": "always"}
    ).perform_async()
    one, two, three = jobs()
    assert one["worker_data_consistency"] == "delayed"
    assert one["worker_data_consistency_per_db"] == {"main": "sticky", "ci": "delayed"}
    assert one["wal_locations"].keys() == {"main", "ci"}
    assert two["worker_data_consistency"] == "sticky"
    assert two["worker_data_consistency_per_db"] == {"main": "always", "ci": "sticky"}
    assert two["wal_locations"].keys() == {"ci"}
    assert not [name for name in three if "wal" in name or "consistency" in name]
    assert asked() == 3
    databases.dispose()


def test_positions_after_replica_read_are_the_replicas(opened, databases, standby, postgres, shop, jobs):
    opened(databases)
    standby.pause_replay()
    postgres.execute("INSERT INTO orders (id) VALUES (2)", shop)
    token = replica_context.use({"main": databases["main"].replicas[0]})
    sticky = worker(data_consistency="sticky")
    sticky.perform_async()
    with RoutedConnection(databases["main"]) as connection:
        connection.execute(text("DELETE FROM orders"))
    sticky.perform_async()
    replica_context.restore(token)
    before, after = jobs()
    assert [job["wal_location_sources"]["main"] for job in (before, after)] == ["replica", "primary"]
    assert parse_lsn(before["wal_locations"]["main"]) < parse_lsn(after["wal_locations"]["main"])


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def connections(server):
    found = []
    try:
        while True:
            found.append(server.accept()[0])
    except BlockingIOError:
        return found


def on(server, **more):
    url = f"postgresql+psycopg://u@127.0.0.1:{server.getsockname()[1]}/shop"
    return Databases({"main": DatabaseSettings(url=url, replicas=(url,)), **more})


@PUSH_MODES
def test_positions_class_without_replica_looks_up_none(opened, silent, jobs, push_mode):
    databases = on(silent, alone=DatabaseSettings(url="postgresql+psycopg://u@127.0.0.1:1/alone"))
    opened(databases, push_mode)
    worker("Plain").perform_async()
    worker("Always", data_consistency="always").perform_async()
    worker("OnlyAlone", data_consistency="always", data_consistency_overrides={"alone": "sticky"}).perform_async()
    worker("Plain").perform_bulk([(1,), (2,)])
    assert connections(silent) == []
    assert not [name for job in jobs() for name in job if "wal" in name or "consistency" in name]


def test_positions_silent_server_delays_one_push_a_second(opened, silent, jobs, caplog, monkeypatch):
    monkeypatch.setattr(database_servers, "DEADLINE_S", DEADLINE_S)
    databases = on(silent)
    opened(databases)
    sticky = worker(data_consistency="sticky")
    began = time.monotonic()
    sticky.perform_async()
    took = time.monotonic() - began
    assert DEADLINE_S <= took < DEADLINE_S + 2
    began = time.monotonic()
    for _ in range(20):
        sticky.perform_async()
    assert time.monotonic() - began < 20 * DEADLINE_S  # as long as if each of them had waited
    assert [job.get("wal_locations") for job in jobs()] == [None] * 21
    assert all(job["worker_data_consistency"] == "sticky" for job in jobs())
    held = connections(silent)
    assert len(held) == 1
    assert "does not return its WAL position" in caplog.text
    for one in held:
        one.close()


OURS = "pg_stat_activity WHERE application_name LIKE 'application-worker%'"


def pids(postgres, shop):
    return set(postgres.execute(f"SELECT array_agg(pid) FROM {OURS}", shop) or ())


def test_positions_dead_idle_connection_is_replaced(opened, databases, postgres, shop, jobs):
    opened(databases)
    sticky = worker(data_consistency="sticky")
    sticky.perform_async()
    assert postgres.execute(f"SELECT count(pg_terminate_backend(pid, 5000)) FROM {OURS}", shop)
    sticky.perform_async()
    assert [list(job["wal_locations"]) for job in jobs()] == [["main"]] * 2


def test_positions_hanging_connection_delays_no_push(opened, databases, postgres, shop, jobs, monkeypatch):
    opened(databases)
    sticky, others = worker(data_consistency="sticky"), pids(postgres, shop)
    sticky.perform_async()
    (mine,) = pids(postgres, shop) - others
    monkeypatch.setattr(database_servers, "DEADLINE_S", DEADLINE_S)
    os.kill(mine, signal.SIGSTOP)
    try:
        began = time.monotonic()
        sticky.perform_async()
        assert time.monotonic() - began < DEADLINE_S + 1.9  # it would wait for ever
    finally:
        os.kill(mine, signal.SIGCONT)
    until(lambda: not any(thread.name == "wal-position" for thread in threading.enumerate()))
    assert [job.get("wal_locations") is None for job in jobs()] == [False, True]


def test_positions_forked_child_opens_own_connections(opened, databases, postgres, shop):
    opened(databases)
    server = databases["main"].primary
    assert server.position()
    before = pids(postgres, shop)

    def child():
        assert server.position()
        assert len(pids(postgres, shop) - before) == 1
        assert server.position()

    assert forked(child) == 0
    assert server.position()
    assert pids(postgres, shop) >= before  # the child has not ended them
