"""The running jobs: the stack of one, which its process sends, and the stop of runs."""

import json
import shutil
from pathlib import Path

from framework import ApplicationWorker
from framework.admin import audit_log
from framework.dashboard import Caller
from framework.dashboard.pages import process_pages
from framework.wire import keys
from tests.dashboard.test_actions import send
from tests.dashboard.test_pages import ATTACKS, check_inert
from tests.harness import encoded, register_process, until

ADMIN = Caller("ann", "admin")
IDENTITY = "host1:1:aaaaaaaaaaaa"


def add_run(client, jid, cls="Job", labels=("python",), identity=IDENTITY):
    facts = {"identity": identity, "hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 5}
    register_process(client, {**facts, "labels": list(labels)}, identity)
    run = {"queue": "default", "payload": encoded(cls, jid=jid).decode(), "run_at": 1}
    client.hset(keys.work(identity)[0], f"t{jid}", json.dumps(run))


def test_stack_is_shown_and_the_run_is_stopped(browser, shards, site, redis):
    shutil.copy(Path(__file__).parents[1] / "process" / "order_jobs.py", site.folder)
    process = site.hurried_worker("-r", "order_jobs", "-q", "default").ready()
    done = site.run("-c", "import order_jobs\nprint(order_jobs.TimedWorker.perform_async())")
    jid = done.stdout.strip()
    until(lambda: redis.hlen(keys.work(process.identity)[0]) == 1, "a record of the job")
    client = browser(ADMIN)
    assert f"/running/{jid}" in client.get("/running").text
    page = client.get(f"/running/{jid}").text
    assert "hunter2" not in page
    assert "wait_here" in page
    (stack,) = client.get(f"/api/running/{jid}").json()["stacks"]
    assert (stack["runs_in"], stack["calls"][-1]["function"]) == ("thread", "TimedWorker.perform")
    assert {name for call in stack["calls"] for name in call} == {"function", "file", "line"}
    chosen = {"action": "stop", "row": f"main {jid}", "fate": "kill"}
    assert "moves to the dead set" in send(client, f"/running/{jid}", **chosen)
    assert redis.zcard(keys.DEAD) == 0
    assert "1 run stopped" in send(client, f"/running/{jid}", **chosen, confirmed="yes")
    until(lambda: redis.zcard(keys.DEAD) == 1, "the end of the job")
    (record,) = audit_log()
    assert (record.action, record.actor, record.source, record.what) == (
        "jobs stop",
        "ann",
        "dashboard",
        {"run": jid, "fate": "kill"},
    )


def test_process_that_does_not_answer_is_named(browser, shards, redis, monkeypatch):
    monkeypatch.setattr(process_pages, "_STACK_LIMIT_S", 0.1)
    monkeypatch.setattr(process_pages, "_STOP_LIMIT_S", 0.1)
    add_run(redis, "J1")
    add_run(redis, "J2", labels=(), identity="ruby1:2:bbbbbbbbbbbb")
    client = browser(ADMIN)
    for jid, host in (("J1", "host1"), ("J2", "ruby1")):
        assert f"On {host}: py-spy dump" in client.get(f"/running/{jid}").text
    rows = {"action": "stop", "row": ["main J1", "main J2"], "fate": "requeue"}
    assert "0 runs stopped" in send(client, "/running", **rows, confirmed="yes")
    # The order that was not read does not act later.
    assert redis.llen(keys.orders(IDENTITY)) == 0
    assert "it has ended" in client.get("/running/unknown").text
    for jid in ATTACKS[:3]:
        check_inert(client.get(f"/running/{jid}").text, jid)


def test_stack_and_stop_are_for_operators_of_the_class(browser, shards, redis, own_classes, declarations, monkeypatch):
    class Charge(ApplicationWorker):
        feature_category = "billing"

        def perform(self) -> None: ...

    declarations["Charge"] = Charge.declaration()
    asked = []
    monkeypatch.setattr(process_pages, "read_stacks", lambda *words: asked.append(words) or 1 / 0)
    # The id of a job may be the name of a host: it must not bring the stacks of its processes.
    add_run(redis, "host1", "Other")
    eve = browser(Caller("eve", feature_categories={"billing": "operate"}))
    assert eve.get("/api/running/host1").json()["stacks"] == []
    assert asked == []
    chosen = {"action": "stop", "row": "main host1", "fate": "cancel", "confirmed": "yes"}
    assert "0 runs stopped" in send(eve, "/running", **chosen)
    assert redis.exists(keys.CANCELLED) == 0
    reader = browser(Caller("bob", "read"))
    assert reader.get("/running/host1").status_code == 403
    assert "/running/host1" not in reader.get("/running").text
    send(reader, "/running", status=403, **chosen)


def test_too_many_runs_are_not_stopped_at_once(browser, shards, redis):
    for number in range(11):
        add_run(redis, f"J{number}")
    client = browser(ADMIN)
    assert "choose 10 at most" in send(client, "/running", status=409, action="stop", fate="cancel", all="yes")
    assert "fate must be one of" in send(client, "/running", status=409, action="stop", fate="x", row="main J1")
