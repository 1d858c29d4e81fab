"""The tables of tasks: their migrations, on both databases."""

import os
import signal
import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from framework.errors import TaskTablesError
from framework.features.tasks import access, writer
from framework.features.tasks import database as module
from framework.features.tasks.database import REVISION, TaskDatabase, metadata
from tests.features.tasks.task_bench import TaskBench, change
from tests.postgres import running


def test_two_threads_load_the_parts_one_after_the_other(monkeypatch):
    """SQLAlchemy is half there while another thread imports it."""
    begun, goes_on = threading.Event(), threading.Event()

    def slow_import(name):
        begun.set()
        return goes_on.wait(60.0)

    monkeypatch.setattr(access, "import_module", slow_import)
    thread = threading.Thread(target=access.load_part, args=("database",))
    thread.start()
    assert begun.wait(60.0)
    assert not access._importing.acquire(blocking=False)
    goes_on.set()
    thread.join()
    assert access.load_part("apply") is True


def test_migrations_make_the_tables_of_the_model(bench):
    with bench.database.writing() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "aw_tasks_version"})
        found = compare_metadata(context, metadata)
    assert [one for one in found if one[0] != "remove_table" or one[1].name != "aw_tasks_version"] == []
    assert bench.database.migrate() == (REVISION, REVISION)


def test_revision_is_the_newest_migration():
    assert ScriptDirectory(str(module._MIGRATIONS)).get_heads() == [REVISION]


def test_postgres_without_tables_names_the_command(database):
    one = TaskDatabase(database)
    with pytest.raises(TaskTablesError, match="has no tables of tasks: run `application-worker tasks migrate`"):
        one.reading().__enter__()
    assert one.migrate() == (None, REVISION)
    with one.reading():
        pass
    one.dispose()


def test_postgres_that_hangs_is_an_outage(monkeypatch):
    """It keeps no timeout of its own, and its connections stay open."""
    monkeypatch.setattr(module, "PROBE_S", 0.3)
    with running() as server:
        url = server.url()
        one = TaskBench(url, "continue")
        one.database.migrate()
        one.writer.write([change("j1", "push", 1.0)])
        monkeypatch.setattr(writer, "WRITE_S", 0.3)
        with server.frozen():
            with pytest.raises(OperationalError, match=r"did not answer within 0\.3 s"), module.limited(0.3):
                one.database.write(lambda connection: connection.execute(text("SELECT 1")))
            # A new connection is not answered either.
            one.writer.write([change("j2", "push", 2.0)])
            assert [kept.jid for kept in one.spool.kept] == ["j2"]
        assert one.event("j1").status == "enqueue"
        monkeypatch.setattr(writer, "WRITE_S", 30.0)
        one.writer._next_try = 0.0
        one.writer.write([change("j3", "push", 3.0)])
        assert one.event("j3").status == "enqueue"
        # One suspended session of the server: its connection is replaced.
        with one.database.reading() as connection:
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        monkeypatch.setattr(module, "_IDLE_S", 0.0)
        os.kill(pid, signal.SIGSTOP)
        try:
            one.writer.write([change("j4", "push", 4.0)])
            assert (one.event("j4").status, len(one.spool.kept)) == ("enqueue", 1)
        finally:
            os.kill(pid, signal.SIGCONT)
        one.close()


def test_sqlite_opened_by_two_databases_is_made_once(tmp_path):
    first, second = (TaskDatabase(f"sqlite:///{tmp_path}/new/tasks.db") for _ in range(2))
    for one in (first, second):
        with one.reading():
            pass
        one.dispose()
