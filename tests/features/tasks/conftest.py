import pytest

from framework.declare import registry
from framework.features.tasks.database import metadata
from tests.features.tasks.task_bench import TaskBench
from tests.postgres import database, postgres

__all__ = ["database", "postgres"]


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request, tmp_path):
    if request.param == "sqlite":
        one = TaskBench(f"sqlite:///{tmp_path}/tasks.db")
    else:
        one = TaskBench(request.getfixturevalue("database"))
        one.database.migrate()
    yield one
    one.close()


@pytest.fixture
def memory():
    one = TaskBench("sqlite://")
    yield one
    one.close()


@pytest.fixture
def own_classes():
    with registry.isolated():
        yield


@pytest.fixture
def tables():
    return metadata.tables
