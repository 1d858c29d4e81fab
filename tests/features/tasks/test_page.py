"""Test the pages of tasks on a real database and real shards: progress, failures, roles, and actions with their records."""

import json
import socket
import time

import pytest

from framework import ApplicationWorker
from framework.admin import audit_log
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, application
from framework.declare import port
from framework.features.tasks.access import current
from framework.features.tasks.apply import apply_changes
from framework.features.tasks.database import TaskDatabase
from framework.tasks import Task
from framework.wire import keys
from framework.wiring.client import bind_default
from tests.admin.conftest import bound
from tests.dashboard.conftest import _whole, browser, dashboard, shards
from tests.dashboard.test_actions import send
from tests.dashboard.test_pages import ATTACKS, check_inert
from tests.features.tasks.task_bench import change
from tests.harness import opened

__all__ = ["_whole", "browser", "dashboard", "shards"]

ADMIN = Caller("ann", "admin")
BILLING = Caller("eve", feature_categories={"billing": "operate"})


@pytest.fixture(params=["sqlite", "postgresql"])
def tasks(request, own_classes, tmp_path, redis_url, second_redis_url, monkeypatch):
    """Let the process use a database of its own; return a function that makes a task whose second job has failed."""
    url = f"sqlite:///{tmp_path}/tasks.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
        database = TaskDatabase(url)
        database.migrate()
        database.dispose()

    class ImportWorker(ApplicationWorker):
        feature_category = "billing"
        queue = "default"
        retry = 0

        def perform(self, card: str) -> None: ...

    config = tmp_path / "config"
    config.mkdir()
    urls = {"main": redis_url, "second": second_redis_url}
    (config / "redis.yml").write_text(json.dumps({"shards": {name: {"url": url} for name, url in urls.items()}}))
    chosen = {"url": url, "params": "whole"}
    (config / "application.yml").write_text(json.dumps({"tasks": chosen}))
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(config))
    monkeypatch.delenv("REDIS_URL", raising=False)
    known = KnownClasses(
        {"Import": ImportWorker.declaration()} | {ImportWorker.declaration().wire_name: ImportWorker.declaration()}
    )
    settings = load()
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, known))
    port.unbind()
    bind_default()

    def make(title, worker=ImportWorker, reason="no price", jobs=3):
        with Task.create(worker, title=title, owner=title) as task:
            jids = task.perform_bulk(ImportWorker, [("4242",)] * jobs)
        facts = {"worker": ImportWorker.declaration().wire_name, "task_id": task.id}
        ended = change(jids[1], "end", time.time() + 1, "error", "failed", reason=reason, error_class=reason, **facts)
        with current().store.database.writing() as connection:
            apply_changes(connection, [ended], late=False)
        return task

    for _ in bound({name: opened(url, name) for name, url in urls.items()}):
        yield make
    current().close()
    port.unbind()
    bind_default()


def test_progress_and_failures_are_shown_and_failed_jobs_retried(browser, tasks, redis):
    task = tasks("prices.xlsx")
    client = browser(ADMIN)
    (one,) = client.get("/api/tasks").json()["tasks"]
    assert (one["title"], one["state"], one["total"], one["ended"], one["failed"]) == ("prices.xlsx", "runs", 3, 1, 1)
    assert "<progress" in client.get("/tasks").text
    path = f"/tasks/{task.id}"
    found = client.get(f"/api{path}").json()
    assert found["task"]["counts"] == {"enqueue": 2, "working": 0, "finish": 0, "failed": 0, "error": 1}
    (failure,) = found["failures"]
    assert (failure["reason"], failure["arguments"], failure["state"]) == ("no price", ["4242"], "failed")
    before = redis.llen(keys.queue("default"))
    assert "1 job of 1 task" in send(client, path, action="retry")
    assert redis.llen(keys.queue("default")) == before
    assert "1 job is pushed again" in send(client, path, action="retry", confirmed="yes")
    assert redis.llen(keys.queue("default")) == before + 1
    assert client.get(f"/api{path}?live=1").json()["failures"] == []
    assert "3 jobs of 1 task" in send(client, "/tasks", action="cancel", row=task.id)
    assert "3 jobs are cancelled" in send(client, "/tasks", action="cancel", row=task.id, confirmed="yes")
    assert client.get("/api/tasks?live=1").json()["tasks"][0]["state"] == "cancelled"
    assert [(one.action, one.actor, one.count) for one in audit_log()] == [
        ("tasks cancel", "ann", 3),
        ("tasks retry", "ann", 1),
    ]
    assert client.get("/tasks/nothing").status_code == 404
    assert client.get(f"{path}?after=x").status_code == 400
    send(client, "/tasks", 409, action="cancel", confirmed="yes")


def test_caller_sees_tasks_of_own_classes_and_acts_with_the_role_on_all(browser, tasks):
    ours, other = tasks("ours"), tasks("other", worker=None)
    assert [one["id"] for one in browser(BILLING).get("/api/tasks").json()["tasks"]] == [ours.id]
    assert browser(BILLING).get(f"/tasks/{other.id}").status_code == 404
    reader = browser(Caller("bob", "read"))
    assert len(reader.get("/api/tasks").json()["tasks"]) == 2
    assert "4242" not in reader.get(f"/tasks/{ours.id}").text
    send(reader, f"/tasks/{ours.id}", 403, action="cancel", confirmed="yes")
    for caller, task in ((BILLING, other), (Caller("eve", shards={"main": "operate", "second": "read"}), ours)):
        send(browser(caller), "/tasks", 409, action="cancel", row=task.id, confirmed="yes")
    assert not ours.progress().is_cancelled
    assert "3 jobs" not in send(browser(BILLING), "/tasks", action="cancel", row=ours.id)


def test_page_of_a_job_has_what_is_recorded_of_it(browser, tasks, redis):
    tasks("prices.xlsx")
    client = browser(ADMIN)
    (task,) = client.get("/api/tasks").json()["tasks"]
    (failure,) = client.get(f"/api/tasks/{task['id']}").json()["failures"]
    found = client.get(f"/api/job/{failure['jid']}").json()
    record = [one["what"] for one in found["timeline"] if "the database of tasks" in one["sources"]]
    assert (record[0], record[-1]) == ("pushed", "ended: failed")
    # Its payload in the queue says the same about the push.
    assert set(found["timeline"][0]["sources"]) == {"the payload", "the database of tasks"}
    assert "the database of tasks" in client.get(f"/job/{failure['jid']}").text
    assert (
        browser(Caller("eve", feature_categories={"other": "read"}))
        .get(f"/api/job/{failure['jid']}")
        .json()["timeline"]
        == []
    )


def test_fields_of_tasks_are_escaped(browser, tasks):
    made = [tasks(attack, reason=attack) for attack in ATTACKS[:2]]
    client = browser(ADMIN)
    found = check_inert(client.get("/tasks").text, "tasks").text
    assert [attack for attack in ATTACKS[:2] if attack not in found] == []
    for attack, task in zip(ATTACKS, made, strict=False):
        assert check_inert(client.get(f"/tasks/{task.id}").text, "task").text.count(attack) >= 3
        check_inert(send(client, "/tasks", action="cancel", row=task.id), "preview")


def test_page_without_a_database_says_so_and_makes_none(browser, shards, tmp_path, monkeypatch):
    settings = load({}).model_copy(update={"var_dir": tmp_path})
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, KnownClasses({})))
    client = browser(ADMIN)
    for path in ("/tasks", "/tasks/x"):
        assert "There is no database of tasks yet" in client.get(path).text
    assert "no database" in send(client, "/tasks", 409, action="cancel", row="x")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def database_at(shards, tmp_path, monkeypatch):
    """Return a function that lets the dashboard use the database of a URL, which is away."""

    def use(url):
        tasks = load({}).tasks.model_copy(update={"url": url})
        settings = load({}).model_copy(update={"tasks": tasks})
        monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, KnownClasses({})))
        monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
        monkeypatch.setenv("FRAMEWORK_TASKS__URL", url)
        port.unbind()
        bind_default()

    yield use
    port.unbind()
    bind_default()


def test_database_that_does_not_answer_is_told(browser, database_at, tmp_path):
    database_at(f"sqlite:///{tmp_path}")
    found = browser(ADMIN).get("/api/tasks").json()
    assert (found["tasks"], bool(found["problem"])) == ([], True)


def test_hanging_database_is_asked_once_in_five_seconds(dashboard, browser, database_at):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        database_at(f"postgresql+psycopg://ann@127.0.0.1:{silent.getsockname()[1]}/tasks")
        client = browser(ADMIN)
        for path in ("/tasks", "/tasks/x"):
            assert "does not answer: no answer within 1 s" in client.get(path).text
        assert "没有响应" in client.get("/tasks", headers={"accept-language": "zh"}).text
        silent.settimeout(0)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
