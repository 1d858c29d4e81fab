"""The HTTP API on an ASGI transport: each answer fits its schema, and strangers see nothing."""

import asyncio
import json

import httpx2 as httpx
import pytest
from jsonschema import Draft202012Validator
from redis.exceptions import RedisError
from sqlalchemy import Engine, event
from starlette.applications import Starlette
from starlette.routing import Mount

from framework import ApplicationWorker, BusinessError, testing
from framework.errors import TaskDatabaseError
from framework.tasks import Task, http
from framework.tasks.http import TaskScope, tasks_app
from framework.tasks.openapi import DOCUMENT
from tests.tables import each_row


@pytest.fixture
def worker(own_classes, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")

    class RowWorker(ApplicationWorker):
        feature_category = "not_owned"
        track = True

        def perform(self, row: int) -> None:
            self.record("checked", row=row)
            if row == 2:
                raise BusinessError("no name")

    with testing.fake():
        yield RowWorker


@pytest.fixture
def task(worker):
    with Task.create(worker, title="rows", owner="ann", tenant="shop") as made:
        made.perform_bulk(worker, [(1,), (2,)])
    testing.drain(raise_errors=False)
    return made


def scope_of(request):
    name = request.headers.get("x-user")
    scopes = {"root": TaskScope(may_change=True), "ann": TaskScope(owner="ann", tenant="shop"), "bob": TaskScope("bob")}
    return scopes.get(name)


def ask(method, path, user="root", app=None, status=200):
    async def send():
        mounted = Starlette(routes=[Mount("/api", app or tasks_app(scope_of))])
        transport = httpx.ASGITransport(mounted, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, f"/api{path}", headers={"x-user": user})

    answer = asyncio.run(send())
    assert answer.status_code == status, answer.text
    return answer


def template_of(path):
    parts = path.partition("?")[0].split("/")
    if len(parts) > 2:
        parts[2] = "{task_id}" if parts[1] == "tasks" else "{jid}"
    return "/".join(parts)


def fits(method, path, status=200, user="root"):
    """Return the answer after comparing it with the schema of its route."""
    answer = ask(method, path, user, status=status).json()
    operation = DOCUMENT["paths"][template_of(path)][method.lower()]
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(answer)
    return answer


def test_every_route_answers_as_its_schema_says(task):
    (listed,) = fits("GET", "/tasks?owner=ann&limit=5")["tasks"]
    assert listed["id"] == task.id
    assert fits("GET", f"/tasks?before={task.id}")["tasks"] == []
    assert fits("GET", f"/tasks/{task.id}")["progress"]["counts"]["failed"] == 1
    page = fits("GET", f"/tasks/{task.id}/events?limit=1&status=finish&status=failed")
    assert fits("GET", f"/tasks/{task.id}/events?after={page['next']}")["next"] is None
    (failed,) = fits("GET", f"/tasks/{task.id}/failures")["events"]
    assert (failed["reason"], failed["params"]) == ("no name", [2])
    assert [one["text"] for one in fits("GET", f"/jobs/{failed['jid']}")["messages"]] == ["checked", "no name"]
    shown = fits("GET", f"/jobs/{failed['jid']}")
    times = [shown["created_at"], shown["started_at"], shown["messages"][0]["at"], shown["ended_at"]]
    assert all(listed["created_at"] <= one <= listed["completed_at"] for one in times)
    assert fits("POST", f"/tasks/{task.id}/retry") == {"retried": 1}
    assert fits("POST", f"/tasks/{task.id}/cancel") == {"cancelled": 1}


def test_list_is_read_by_one_query(task):
    for _ in range(3):
        Task.create(title="more").close()
    statements = []

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert len(fits("GET", "/tasks")["tasks"]) == 4
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len([one for one in statements if "FROM aw_tasks" in one]) == 1


def test_stream_ends_with_the_task(task, monkeypatch):
    monkeypatch.setattr(http, "STREAM_PERIOD_S", 0.01)
    lines = ask("GET", f"/tasks/{task.id}/stream").text.split("\n\n")
    assert lines[0].startswith("event: progress\ndata: ")
    assert json.loads(lines[0].partition("data: ")[2])["counts"]["finish"] == 1
    assert lines[1] == "event: complete\ndata: {}"


def test_without_a_hook_every_request_is_refused(task):
    for path in ("/tasks", f"/tasks/{task.id}", f"/tasks/{task.id}/stream", "/jobs/x"):
        assert "authorize" in ask("GET", path, app=tasks_app(), status=403).json()["error"]
    assert ask("POST", f"/tasks/{task.id}/cancel", app=tasks_app(), status=403)
    described = ask("GET", "/openapi.json", app=tasks_app()).json()
    assert described["servers"] == [{"url": "/api"}]


def test_caller_sees_only_tasks_of_its_scope(task, worker):
    alone = worker.perform_async(3)
    assert fits("GET", "/tasks", user="bob")["tasks"] == []
    fits("GET", "/tasks?owner=ann", user="bob", status=403)
    foreign = [
        f"/tasks/{task.id}",
        f"/tasks/{task.id}/failures",
        f"/tasks/{task.id}/stream",
        f"/tasks?before={task.id}",
    ]
    foreign += [f"/jobs/{task.failures()[0].jid}", f"/jobs/{alone}"]
    missing = ["/tasks/nothing", "/tasks/%00", "/tasks?before=nothing", "/jobs/nothing", "/jobs/%00"]
    # One answer for all: none tells whether the task exists, or where the database is.
    assert {ask("GET", path, "bob", status=404).text for path in (*foreign, *missing)} == {
        '{"error":"there is no such task or job, or you may not see it"}'
    }
    fits("GET", f"/tasks/{task.id}", user="ann")
    fits("POST", f"/tasks/{task.id}/cancel", user="ann", status=403)


@each_row(
    ("path", "status"),
    [
        ("/tasks?limit=0", 400),
        ("/tasks?limit=x", 400),
        ("/tasks?limit=99999999999999999999", 400),
        ("/tasks?owner=", 400),
        ("/tasks?tenant=%00", 400),
        ("/tasks?before=nothing", 404),
        ("/tasks/nothing", 404),
        ("/tasks/%00", 404),
        ("/tasks/nothing/events?status=lost", 400),
        ("/tasks/nothing/failures?after=-1", 400),
        ("/jobs/nothing", 404),
        ("/jobs/%00", 404),
    ],
)
def test_bad_requests_get_an_error_with_its_reason(path, status, worker):
    assert fits("GET", path, status)["error"]


def test_failed_server_is_not_described_to_the_caller(task, monkeypatch):
    async def failing(_):
        raise errors.pop()

    errors = [TaskDatabaseError("postgresql://secret-host/app", OSError("refused")), RedisError("secret-host:6379")]
    monkeypatch.setattr(Task, "aretry_failed", failing)
    for _ in range(2):
        assert "secret-host" not in str(fits("POST", f"/tasks/{task.id}/retry", 503))


def test_hook_may_be_async(task):
    async def authorize(request):
        await asyncio.sleep(0)
        return TaskScope()

    assert ask("GET", "/tasks", app=tasks_app(authorize)).json()["tasks"]
