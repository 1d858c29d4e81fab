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
from framework.errors import TaskDatabaseError, TaskNotFoundError
from framework.features.tasks import http
from framework.features.tasks.http import DOCUMENT, TaskScope, tasks_app
from framework.tasks import Task
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
            for _ in range(3 if row >= 10 else 0):
                self.record("m" * 500)
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
    scopes = {
        "root": TaskScope.all(may_change=True),
        "ann": TaskScope(owner="ann", tenant="shop"),
        "bob": TaskScope("bob"),
    }
    return scopes.get(name)


def ask(method, path, user="root", app=None, status=200, site="none"):
    async def send():
        mounted = Starlette(routes=[Mount("/api", app or tasks_app(scope_of))])
        transport = httpx.ASGITransport(mounted, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, f"/api{path}", headers={"x-user": user, "sec-fetch-site": site})

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


def test_list_is_read_by_two_queries(task):
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
    assert len([one for one in statements if "FROM aw_tasks" in one]) == 2


def test_stream_ends_with_the_task(task, monkeypatch):
    monkeypatch.setattr(http, "STREAM_PERIOD_S", 0.01)
    lines = ask("GET", f"/tasks/{task.id}/stream").text.split("\n\n")
    assert lines[0].startswith("event: progress\ndata: ")
    assert json.loads(lines[0].partition("data: ")[2])["counts"]["finish"] == 1
    assert lines[1] == "event: complete\ndata: {}"


@pytest.mark.parametrize("facts", [{}, {"owner": None}, {"owner": ""}, {"owner": 5}, {"tenant": None, "owner": "ann"}])
def test_scope_without_a_name_is_an_error(facts):
    with pytest.raises(ValueError, match=r"TaskScope\.all\(\) sees every task"):
        TaskScope(**facts)


def test_page_ends_at_its_bytes(worker, monkeypatch):
    monkeypatch.setattr("framework.features.tasks.task.PAGE_BYTES", 3_000)
    monkeypatch.setattr(http, "PAGE_BYTES", 3_000)
    with Task.create(worker, title="t" * 1_000) as task:
        jids = task.perform_bulk(worker, [(10,), (11,), (12,), (3,), (4,), (5,)])
    testing.drain()
    sizes, after, seen = [], 0, []
    while after is not None:
        page = fits("GET", f"/tasks/{task.id}/events?after={after}")
        seen += [one["jid"] for one in page["events"]]
        sizes.append(len(page["events"]))
        after = page["next"]
    assert seen == jids
    assert sizes == [1, 1, 4]
    assert len(fits("GET", f"/jobs/{jids[0]}")["messages"]) == 4
    monkeypatch.setattr(http, "PAGE_BYTES", 1_100)
    assert len(fits("GET", f"/jobs/{jids[0]}")["messages"]) == 3
    for _ in range(3):
        Task.create(title="t" * 1_000).close()
    assert len(fits("GET", "/tasks")["tasks"]) == 3


def test_repeated_status_is_asked_for_once(task):
    statements = []

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        fits("GET", f"/tasks/{task.id}/events?{'&'.join(['status=finish'] * 500)}")
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert not [one for one in statements if "UNION ALL" in one]


def test_page_of_another_site_changes_nothing(task):
    refused = ask("POST", f"/tasks/{task.id}/cancel", site="cross-site", status=403)
    assert "another site" in refused.text
    ask("GET", f"/tasks/{task.id}", site="cross-site")
    ask("POST", f"/tasks/{task.id}/cancel", site="same-origin")


@pytest.fixture
def endless(worker, monkeypatch):
    """A task that is never complete, whose streams look at it at once."""
    monkeypatch.setattr(http, "STREAM_PERIOD_S", 0.001)
    with Task.create(worker) as task:
        yield task


def test_stream_ends_with_its_lifetime(endless, monkeypatch):
    monkeypatch.setattr(http, "STREAM_LIFETIME_S", 0.05)
    assert "event: complete" not in ask("GET", f"/tasks/{endless.id}/stream").text


def test_stream_ends_when_its_caller_loses_the_right(endless, monkeypatch):
    monkeypatch.setattr(http, "AUTHORIZATION_PERIOD_S", 0.0)
    answers = [TaskScope.all(), TaskScope.all(), None]
    app = tasks_app(lambda _: answers.pop(0))
    assert ask("GET", f"/tasks/{endless.id}/stream", app=app).text.count("event: progress") == 1
    assert not answers


def test_stream_ends_with_the_deletion_of_its_task(endless, monkeypatch):
    reads = []

    async def progress(task):
        reads.append(task)
        if len(reads) > 1:
            raise TaskNotFoundError("deleted")
        return await asyncio.to_thread(task.progress)

    monkeypatch.setattr(Task, "aprogress", progress)
    assert ask("GET", f"/tasks/{endless.id}/stream").text.count("event: progress") == 1


def test_streams_of_a_scope_are_bounded(endless, monkeypatch):
    monkeypatch.setattr(http, "MAX_STREAMS_OF_SCOPE", 2)
    monkeypatch.setattr(http, "STREAM_LIFETIME_S", 0.3)
    app = tasks_app(lambda _: TaskScope.all())
    mounted = Starlette(routes=[Mount("/api", app)])

    async def open_three():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(mounted), base_url="http://test") as client:
            path = f"/api/tasks/{endless.id}/stream"
            at_once = await asyncio.gather(*(client.get(path) for _ in range(3)))
            return sorted(one.status_code for one in at_once), (await client.get(path)).status_code

    assert asyncio.run(open_three()) == ([200, 200, 429], 200)


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
        return TaskScope.all()

    assert ask("GET", "/tasks", app=tasks_app(authorize)).json()["tasks"]
