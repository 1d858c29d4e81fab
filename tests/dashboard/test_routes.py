"""Each route, with each role and method: what is answered, and that every answer has the headers."""

from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from framework import ApplicationWorker
from framework.dashboard import Caller, app
from framework.dashboard.application import _STATIC, all_pages
from framework.dashboard.openapi import describe, path_of
from framework.dashboard.security import HEADERS
from framework.features.batches import keys as batch_keys
from framework.features.workflows import keys as workflow_keys
from framework.features.workflows.definition import StepJobs, WorkflowDefinition, WorkflowStep
from framework.pages.caller import ROLES
from tests.harness import encoded

WORDS = {
    "{class:path}": "Job",
    "{class}": "Job",
    "{queue:path}": "default",
    "{queue}": "default",
    "{jid:path}": "J1",
    "{jid}": "J1",
    "{workflow}": "wf-1",
    "{batch}": "aw-1",
    "{task}": "t1",
}


def add_groups(redis):
    """Write the batch and the workflow of ``WORDS``."""
    redis.hset(batch_keys.batch("aw-1"), mapping={"pending": 1, "total": 2, "created_at": 1, "ttl_s": 600})
    steps = WorkflowDefinition((WorkflowStep("import", "start", "", (StepJobs("Job", {}),)),))
    fields = {"name": "import", "definition": steps.encode(), "steps": "import", "ttl_s": 600, "created_at": 1}
    redis.hset(workflow_keys.workflow("wf-1"), mapping=fields)


def address(path, words=WORDS):
    for word, value in words.items():
        path = path.replace(word, value)
    assert "{" not in path, f"{path}: give the word of the path a value in WORDS"
    return path


def check_headers(answer):
    assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS)
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_each_page_asks_for_its_role(browser, shards, redis, own_classes, declarations):
    class Job(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self) -> None: ...

    declarations["Job"] = Job.declaration()
    redis.sadd("queues", "default")
    redis.lpush("queue:default", encoded("Job", jid="J1"))
    add_groups(redis)
    # What admin may, another test does for each page; operate reads as read does.
    for role, page in ((role, page) for role in ("none", "read") for page in all_pages()):
        client = browser(Caller("ann", role))
        allowed = ROLES.index(role) >= ROLES.index(page.role)
        for path in (address(page.path), address(path_of(page).replace(":path", ""))):
            answer = client.get(path)
            assert (answer.status_code, path) == (200 if allowed else 403, path)
            check_headers(answer)
        change = client.post(address(page.path), data={"action": "x"})
        assert change.status_code == (403 if page.actions else 405)
        check_headers(change)
        if not allowed:
            assert client.get(f"/live{address(page.path).rstrip('/') or '/overview'}").status_code == 403


def test_each_action_asks_for_its_role(browser, shards, redis):
    """What a caller with the role gets, the tests of the actions say."""
    add_groups(redis)
    for role in ROLES:
        client = browser(Caller("ann", role))
        client.get("/")
        for page, action in ((one, action) for one in all_pages() for action in one.actions):
            if ROLES.index(role) >= ROLES.index(action.role):
                continue
            form = {
                "token": client.cookies.get("aw_token", ""),
                "action": action.name,
                "all": "yes",
                "confirmed": "yes",
            }
            answer = client.post(address(page.path), data=form)
            assert (answer.status_code, "needs the role" in answer.text) == (403, True), (role, page.path, action.name)
            check_headers(answer)


def test_no_route_knows_other_methods(browser, shards, redis):
    client = browser(Caller("ann", "admin"))
    paths = [
        path for page in all_pages() for path in (page.path, path_of(page), path_of(page).replace("/api", "/live", 1))
    ]
    for path in (*map(address, (path.replace(":path}", "}") for path in paths)), "/api/openapi.json"):
        for method in ("PUT", "DELETE"):
            answer = client.request(method, path)
            assert (answer.status_code, method, path) == (405, method, path)
            check_headers(answer)


def test_unknown_callers_and_no_authorize_see_nothing(browser, shards):
    for client in (browser(None), TestClient(app(), base_url="http://localhost")):
        for path in ("/", "/queues", "/api/queues", "/live/queues", "/api/openapi.json"):
            answer = client.get(path)
            assert answer.status_code == 403
            check_headers(answer)


def test_unknown_things_are_not_found(browser, shards):
    client = browser(Caller("ann", "admin"))
    for path in (
        "/nothing",
        "/queues/nothing",
        "/queues?shard=nothing",
        "/api/queues/nothing",
        "/workflows/w",
        "/batches/b",
    ):
        answer = client.get(path)
        assert answer.status_code == 404
        check_headers(answer)


def test_unexpected_error_has_headers_and_no_details(browser, shards, monkeypatch):
    client = browser(Caller("ann", "admin"))
    monkeypatch.setattr("framework.dashboard.pages.queue_pages.read_queues", lambda _: 1 / 0)
    answer = client.get("/queues")
    assert answer.status_code == 500
    assert "ZeroDivision" not in answer.text
    check_headers(answer)


def test_first_load_is_small(browser, shards):
    client = browser(Caller("ann", "admin"))
    files = [path for path in _STATIC.iterdir() if path.suffix in (".js", ".css", ".svg")]
    assert sum(len(client.get(f"/static/{file.name}").content) for file in files) <= 80_000
    assert "max-age" in client.get("/static/dashboard.css").headers["cache-control"]


def test_description_has_each_page_and_is_valid(browser, shards):
    found = browser(Caller("ann", "read")).get("/api/openapi.json").json()
    assert found == describe(all_pages(), "/")
    assert sorted(found["paths"]) == sorted(path_of(page) for page in all_pages())
    Draft202012Validator.check_schema(found["components"]["schemas"]["Error"])
