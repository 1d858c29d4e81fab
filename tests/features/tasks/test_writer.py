"""The writer thread: batches, and a database that does not answer."""

import threading
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy.exc import DataError, OperationalError

from framework.errors import TaskDatabaseError
from framework.features.tasks import writer as writer_module
from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.store import drain
from framework.wire import keys
from tests.features.tasks.task_bench import TaskBench, change
from tests.harness import ROOT, forked, until


class BrokenDatabase(TaskDatabase):
    """A database that refuses transactions while ``down``."""

    def __init__(self, url):
        super().__init__(url)
        self.down = threading.Event()
        self.refused = 0
        self.poison = ""

    @contextmanager
    def writing(self):
        if self.down.is_set():
            self.refused += 1
            raise OperationalError("BEGIN", {}, ConnectionError("no server"))
        with super().writing() as connection:
            yield connection


@pytest.fixture
def broken(tmp_path):
    made = []

    def make(when_down):
        one = TaskBench("sqlite://", when_down)
        one.writer.database = one.database = BrokenDatabase(f"sqlite:///{tmp_path}/tasks.db")
        made.append(one)
        return one

    yield make
    for one in made:
        one.database.down.clear()
        one.close()


def test_write_returns_when_the_change_is_stored(memory):
    memory.writer.write([change("j1", "push", 1.0)])
    assert memory.event("j1").status == "enqueue"
    memory.writer.submit(change("j1", "start", 2.0, "working", "working"))
    assert memory.event("j1").status == "working"


def test_waiting_end_is_stored_when_the_database_returns(broken, monkeypatch):
    one = broken("wait")
    one.database.down.set()
    (ticket,) = one.writer.submit_durable([change("j1", "end", 1.0, "finish", "completed")], gives_up=False)
    until(lambda: one.database.refused > 1)
    assert not ticket.wait(0)
    with pytest.raises(TaskDatabaseError, match="does not take events"):
        one.writer.write([change("j2", "push", 1.0)])
    one.database.down.clear()
    assert ticket.wait(30)
    assert ticket.error is None
    # The push that was given up was urgent; the writer waits again, and notices an end for which no thread waits.
    until(lambda: one.writer._idle)
    ended = threading.Event()
    one.writer.submit_end(change("j3", "end", 2.0, "finish", "completed"), ended.set)
    assert ended.wait(10)
    # One that others wait for is not collected with more.
    monkeypatch.setattr(writer_module, "_ENDS_S", 60.0)
    until(lambda: one.writer._idle)
    ended.clear()
    one.writer.submit_end(change("j4", "end", 2.0, "finish", "completed"), ended.set, at_once=True)
    assert ended.wait(10)
    found = [one.event(jid) and one.event(jid).status for jid in ("j1", "j2", "j3", "j4")]
    assert found == ["finish", None, "finish", "finish"]
    assert one.spool.kept == []


def test_jobs_go_on_with_events_in_the_spool(broken):
    one = broken("continue")
    one.database.down.set()
    one.writer.write([change("j1", "push", 1.0)])
    assert [kept.jid for kept in one.spool.kept] == ["j1"]
    one.spool.error = ConnectionError("Redis is away too")
    with pytest.raises(TaskDatabaseError):
        one.writer.write([change("j2", "push", 2.0)])


@pytest.fixture
def refusing(memory, monkeypatch):
    """Return a set of ids whose events the database refuses, and a set of those at which it does not answer, once each."""
    original, refused, failing = memory.database.writing, {"bad"}, set()

    @contextmanager
    def writing():
        with original() as connection:
            yield connection
            written = set(connection.exec_driver_sql("SELECT jid FROM aw_events").scalars())
            if written & refused:
                raise DataError("INSERT", {}, ValueError("out of range"))
            if written & failing:
                failing.clear()
                raise OperationalError("COMMIT", {}, ConnectionError("away"))

    monkeypatch.setattr(memory.database, "writing", writing)
    return failing


def test_deadlock_is_no_outage(database, caplog):
    one = TaskBench(database)
    one.database.migrate()
    one.apply(change("j1", "push", 1.0), change("j2", "push", 1.0))
    with psycopg.connect(database.replace("+psycopg", "")) as other:
        other.execute("SET deadlock_timeout = '60s'")  # so the writer is the one that PostgreSQL ends
        other.execute("SELECT * FROM aw_events WHERE jid = 'j2' FOR UPDATE")
        ends = [change(jid, "end", 2.0, "finish", "completed") for jid in ("j1", "j2")]
        tickets = one.writer.submit_durable(ends, gives_up=True)
        until(lambda: one_waits(database))
        other.execute("SELECT * FROM aw_events WHERE jid = 'j1' FOR UPDATE")
    for ticket in tickets:
        assert (ticket.wait(30), ticket.error) == (True, None)
    assert [one.event(jid).status for jid in ("j1", "j2")] == ["finish", "finish"]
    # Every other write is repeated in the same way.
    files = (ROOT / "framework" / "features" / "tasks").glob("*.py")
    assert [file.name for file in files if ".writing()" in file.read_text()] == ["database.py"]
    assert ("tasks.transaction_repeated" in caplog.text, "tasks.database_failed" in caplog.text) == (True, False)
    # A connection that is lost does not return to its pool, and its error is an outage.
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as other:
        ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        other.execute(f"{ends} WHERE datname = current_database() AND pid <> pg_backend_pid()")
    with pytest.raises(TaskDatabaseError):
        one.writer.write([change("j3", "push", 3.0)])
    one.writer.write([change("j3", "push", 3.0)])
    one.close()


def one_waits(url):
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as third:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return third.execute(waits).fetchone() == (1,)


def test_change_that_the_database_refuses_stops_no_other(memory, refusing):
    memory.writer.write([change(jid, "push", 1.0) for jid in ("good", "bad", "fine")])
    assert [memory.event(jid) is not None for jid in ("good", "bad", "fine")] == [True, False, True]


def test_outage_beside_a_refused_change_loses_no_other(memory, refusing):
    refusing.add("fine")
    changes = [change(jid, "end", 1.0, "finish", "completed") for jid in ("good", "bad", "fine")]
    for ticket in memory.writer.submit_durable(changes, gives_up=False):
        assert ticket.wait(30)
    assert [memory.event(jid) is not None for jid in ("good", "bad", "fine")] == [True, False, True]


def test_refused_change_in_the_spool_stops_no_other(memory, refusing, redis):
    redis.zadd(keys.TASK_EVENTS, {change(jid, "push", 1.0).encode(): 1.0 for jid in ("good", "bad", "fine")})
    assert drain(redis, memory.database, memory.recorder) == 3
    assert [memory.event(jid) is not None for jid in ("good", "bad", "fine")] == [True, False, True]


def test_forked_child_writes_with_a_thread_of_its_own(tmp_path):
    one = TaskBench(f"sqlite:///{tmp_path}/tasks.db")
    one.writer.write([change("parent", "push", 1.0)])
    assert forked(lambda: one.writer.write([change("child", "push", 1.0)])) == 0
    assert (one.event("parent").jid, one.event("child").jid) == ("parent", "child")
    one.close()
