"""Ask the HTTP API whatever its description allows, and what it does not: schemathesis makes the requests, and checks the answers."""

import time
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import strategies as st

from framework import ApplicationWorker, testing
from framework.all_settings import load
from framework.errors import TaskNotFoundError
from framework.features.tasks.apply import apply_changes
from framework.features.tasks.change import EventChange, Message
from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.http import TaskScope, tasks_app
from framework.features.tasks.task import open_database
from framework.tasks import Task, story
from framework.wiring import client as wiring

_SETTINGS = hypothesis.settings(deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck))


class RowWorker(ApplicationWorker):
    feature_category = "not_owned"
    track = True
    queue = "default"

    def perform(self, row: int) -> None:
        raise NotImplementedError


@pytest.fixture
def faked(tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    with testing.fake():
        yield


@pytest.fixture
def real(tmp_path, monkeypatch, redis_url, database):
    """PostgreSQL takes less than SQLite: no NUL, no number of more than eight bytes."""
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_TASKS__URL", database)
    tables = TaskDatabase(database)
    tables.migrate()
    tables.dispose()
    client = wiring.ProcessClient(load())
    wiring.bind(client)
    yield
    client.recorder.close()
    client.shards.close()
    wiring.bind_default()


def make_tasks() -> tuple[list[str], list[str]]:
    """Make a complete and a waiting task; return the ids of tasks and of jobs."""
    with Task.create(RowWorker, title="rows", owner="ann", tenant="shop") as ended:
        done, failed = ended.perform_bulk(RowWorker, [(1,), (2,)])
    changes = [
        EventChange(done, "end", time.time(), "finish", "completed"),
        EventChange(failed, "end", time.time(), "failed", "failed", reason="no name €"),
    ]
    changes[1].messages.append(Message("no name €", time.time(), '{"row": 2}'))
    with open_database().database.writing() as connection:
        apply_changes(connection, changes)
    with Task.create(RowWorker, title="more") as waiting:
        waiting.perform_bulk(RowWorker, [(1,)])
    jids = [event.jid for task in (ended, waiting) for event in task.events()]
    return [ended.id, waiting.id], jids


def ask_everything(examples: Callable[[str], int], *, derandomize: bool = False) -> None:
    """Check the answers to requests for existing and for other ids, with allowed and with other parameters.

    ``examples``: how many, by the path of the operation.
    """
    import schemathesis  # here: each process of the tests would import it, a quarter of a second

    tasks, jids = make_tasks()
    app = tasks_app(lambda _: TaskScope.all(may_change=True))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    for found in schema.get_all_operations():
        operation = found.ok()
        # Any text is a valid id, so only parameters of the query can be wrong.
        modes = [schemathesis.GenerationMode.POSITIVE]
        modes += [schemathesis.GenerationMode.NEGATIVE] if len(operation.query) else []
        for mode in modes:
            # A stream of a waiting task ends with its task, not before.
            known = {"task_id": tasks[:1] if operation.path.endswith("/stream") else tasks, "jid": jids}
            count = examples(operation.path)
            _ask(operation, mode, known, hypothesis.settings(_SETTINGS, max_examples=count, derandomize=derandomize))


def _ask(operation, mode, known, settings):
    @settings
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def ask(case, data):
        for name in case.path_parameters or {}:
            if data.draw(st.booleans()):
                case.path_parameters[name] = data.draw(st.sampled_from(known[name]))
        case.call_and_validate()

    ask()


def test_api_answers_every_request_as_described(faked):
    # Most of its time goes into reading the description: few examples, and more where parameters are.
    ask_everything(lambda path: 10 if path in ("/tasks", "/tasks/{task_id}/events") else 2, derandomize=True)


def test_texts_that_postgresql_refuses_name_no_task(real):
    """A refused text is no outage: a database error would say so."""
    for text in ("\0", "\ud800", "x" * 256):
        with pytest.raises(TaskNotFoundError):
            Task.get(text)
        with pytest.raises(TaskNotFoundError):
            story(text)
        assert Task.all(owner=text) == [] == Task.all(tenant=text)
    task = Task.create(title="\0 \ud800")
    assert Task.all(limit=1)[0].title == task.title
    for wrong in ({"after": 1 << 70}, {"after": -1}, {"limit": 0}):
        with pytest.raises(ValueError, match="is not allowed"):
            task.events(**wrong)


@pytest.mark.campaign
@pytest.mark.timeout(1_800)
def test_api_on_postgresql_answers_as_described(real):
    ask_everything(lambda _path: 300)
