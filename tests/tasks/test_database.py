"""The tables of tasks: their migrations, on both databases."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from framework.errors import TaskTablesError
from framework.tasks import database as module
from framework.tasks.database import REVISION, TaskDatabase
from framework.tasks.model import metadata


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


def test_sqlite_opened_by_two_databases_is_made_once(tmp_path):
    first, second = (TaskDatabase(f"sqlite:///{tmp_path}/new/tasks.db") for _ in range(2))
    for one in (first, second):
        with one.reading():
            pass
        one.dispose()
