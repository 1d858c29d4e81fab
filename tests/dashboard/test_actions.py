"""The changes of pages: a preview changes nothing, a confirmed one changes what it has said, and only what the caller may change."""

import pytest

from framework import ApplicationWorker
from framework.admin import audit_log
from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from framework.features.concurrency.limit_state import LimitOverride, set_override
from framework.wire import keys
from tests.harness import encoded, register_process

ADMIN, READER = Caller("ann", "admin"), Caller("bob", "read")


def send(client, path, status=200, **fields):
    client.get(path)
    answer = client.post(path, data={"token": client.cookies["aw_token"], **fields})
    assert answer.status_code == status, answer.text
    return answer.text


def fill(redis, key="dead", **fields):
    for number in range(3):
        redis.zadd(
            key, {encoded(f"Job{number}", jid=f"J{number}", queue="default", retry_count=1, **fields): number + 1.0}
        )


def test_preview_changes_nothing_and_confirmation_does(browser, shards, redis):
    fill(redis)
    client = browser(ADMIN)
    text = send(client, "/dead", action="retry", job=["main J0", "main J2"])
    assert "2 jobs" in text
    assert "J0" in text
    assert redis.zcard("dead") == 3
    assert "2 jobs moved" in send(client, "/dead", action="retry", job=["main J0", "main J2"], confirmed="yes")
    assert (redis.zcard("dead"), redis.llen("queue:default")) == (1, 2)
    assert {(one.actor, one.source, one.end) for one in audit_log()} == {("ann", "dashboard", "done")}
    assert [one["actor"] for one in client.get("/api/audit").json()["records"]] == ["ann", "ann"]


def test_all_matching_jobs_are_those_of_the_filter(browser, shards, redis):
    fill(redis)
    client = browser(ADMIN)
    fields = {"action": "delete", "all": "yes", "class": "Job1"}
    assert "1 job" in send(client, "/dead?class=Job1", **fields)
    send(client, "/dead?class=Job1", **fields, confirmed="yes")
    assert redis.zcard("dead") == 2
    send(client, "/dead", action="delete", all="yes", confirmed="yes")
    assert redis.zcard("dead") == 0


@pytest.mark.parametrize("fields", [{}, {"action": "nothing"}, {"action": "retry"}])
def test_incomplete_forms_change_nothing(browser, shards, redis, fields):
    fill(redis)
    send(browser(ADMIN), "/dead", status=409 if fields.get("action") == "retry" else 400, confirmed="yes", **fields)
    assert redis.zcard("dead") == 3


def test_reader_and_forged_forms_change_nothing(browser, shards, redis):
    fill(redis)
    send(browser(READER), "/dead", status=403, action="delete", all="yes", confirmed="yes")
    client = browser(ADMIN)
    for fields, headers in (({"token": "x" * 40}, {}), ({}, {"sec-fetch-site": "cross-site"})):
        client.get("/dead")
        data = {"token": client.cookies["aw_token"], "action": "delete", "all": "yes", "confirmed": "yes", **fields}
        assert client.post("/dead", data=data, headers=headers).status_code == 403
    assert redis.zcard("dead") == 3
    for page in all_pages():
        assert {one.role for one in page.actions} <= {"operate", "admin"}


def test_caller_of_a_category_acts_on_its_jobs_only(browser, shards, redis, own_classes, declarations):
    class Job1(ApplicationWorker):
        feature_category = "billing"

        def perform(self) -> None: ...

    declarations["Job1"] = Job1.declaration()
    fill(redis)
    client = browser(Caller("eve", feature_categories={"billing": "operate"}))
    send(client, "/dead", status=409, action="delete", all="yes", confirmed="yes")
    send(client, "/dead", action="delete", all="yes", confirmed="yes", **{"class": "Job0"})
    send(client, "/dead", action="delete", job=["main J0", "main J1"], confirmed="yes")
    assert redis.zcard("dead") == 2
    assert not [one for one in redis.zrange("dead", 0, -1) if b"J1" in one]


def test_queue_is_paused_resumed_and_cleared(browser, shards, redis, second_redis):
    for client in (redis, second_redis):
        client.sadd("queues", "default")
    redis.lpush("queue:default", encoded("Job"))
    client = browser(ADMIN)
    send(client, "/queues/default", action="pause", shard="main", reason="deploy", confirmed="yes")
    assert (redis.smembers("paused"), second_redis.smembers("paused")) == ({b"default"}, set())
    assert [one["is_paused"] for one in client.get("/api/queues/default").json()["places"]] == [True, False]
    send(client, "/queues/default", action="unpause", shard="main", confirmed="yes")
    assert not redis.smembers("paused")
    send(browser(Caller("eve", "operate")), "/queues/default", status=403, action="clear", confirmed="yes")
    assert redis.llen("queue:default") == 1
    assert "1 job" in send(browser(ADMIN), "/queues/default", action="clear", shard="main", confirmed="yes")
    assert redis.llen("queue:default") == 0


def test_process_gets_the_signal(browser, shards, redis):
    register_process(redis, {"hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 5}, "h:1:aaaaaaaaaaaa")
    client = browser(ADMIN)
    (one,) = client.get("/api/processes").json()["processes"]
    assert "1 process" in send(client, "/processes", action="quiet", process=f"main {one['identity']}")
    send(client, "/processes", action="quiet", process=f"main {one['identity']}", confirmed="yes")
    assert redis.lrange(f"{one['identity']}-signals", 0, -1) == [b"TSTP"]


def test_limit_is_set_with_a_preview_and_cleared(browser, shards, redis):
    set_override(redis, "Charge", LimitOverride(5, None, "before", "eve"))
    form = {"limit": "main Charge", "value": "2", "minutes": "30", "reason": "load"}
    client = browser(ADMIN)
    text = send(client, "/limits", action="set", **form)
    assert "at most 2 jobs at a time, for 30 min" in text
    assert "Charge on main: now limit 5, 0 running, 0 waiting" in text
    assert redis.hget(keys.limit("Charge"), "override") == b"5"
    for wrong in ({"value": "x"}, {"value": "-2"}, {"minutes": "0"}, {"reason": " "}, {"limit": ""}):
        fields = {**form, **wrong} if "limit" not in wrong else {name: form[name] for name in form if name != "limit"}
        send(client, "/limits", status=409, action="set", confirmed="yes", **fields)
    send(browser(Caller("bob", "operate")), "/limits", status=403, action="set", confirmed="yes", **form)
    assert redis.hget(keys.limit("Charge"), "override") == b"5"
    assert "1 limit changed" in send(browser(ADMIN), "/limits", action="set", confirmed="yes", **form)
    (limit,) = browser(ADMIN).get("/api/limits").json()["limits"]
    assert (limit["limit"], limit["set_by"], limit["reason"]) == (2, "ann", "load")
    assert "1 limit changed" in send(browser(ADMIN), "/limits", action="clear", confirmed="yes", limit="main Charge")
    assert not redis.hexists(keys.limit("Charge"), "override")
    assert {(one.action, one.actor, one.end) for one in audit_log()} == {
        ("jobs limits set", "ann", "done"),
        ("jobs limits clear", "ann", "done"),
    }
