"""The changes of pages: a preview changes nothing, a confirmed one changes what it has said, and only what the caller may change."""

import json
import time

import pytest

from framework import ApplicationWorker
from framework.admin import audit_log
from framework.admin.queue_actions import read_pause_log
from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from framework.dashboard.pages import actions
from framework.features.batches import keys as batch_keys
from framework.features.concurrency.limit_state import LimitOverride, set_override
from framework.features.leases import keys as lease_keys
from framework.features.limiters import keys as limiter_keys
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


def test_jobs_get_a_new_time_that_is_shown_before(browser, shards, redis):
    fill(redis, "retry")
    client, now = browser(ADMIN), redis.time()[0]
    form = {"action": "reschedule", "minutes": "90"}
    assert "1 h 30 min from now" in send(client, "/retries", job=["main J0"], **form)
    assert redis.zscore("retry", redis.zrange("retry", 0, 0)[0]) == 1.0
    assert "1 job moved to a new time" in send(client, "/retries", job=["main J0"], **form, confirmed="yes")
    ((last, due),) = redis.zrange("retry", -1, -1, withscores=True)
    assert json.loads(last)["jid"] == "J0"
    assert now + 5_400 <= due < now + 5_400 + 600
    send(client, "/retries", all="yes", **form, confirmed="yes")
    assert redis.zcount("retry", now + 5_400, "+inf") == 3
    assert "minutes must be a number" in send(client, "/retries", 409, all="yes", action="reschedule", minutes="0")


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


def test_queue_is_paused_where_it_is_known(browser, shards, redis, second_redis):
    redis.lpush("queue:default", encoded("Job"))
    client = browser(ADMIN)
    both = {"action": "pause", "shard": ["main", "second"]}
    text = send(client, "/queues/default", **both)
    assert "default on main: 1 job" in text
    assert "second does not know the queue" in text
    text = send(client, "/queues/default", confirmed="yes", **both)
    assert "main: default is paused; second does not know the queue" in text
    assert (redis.smembers("paused"), second_redis.smembers("paused")) == ({b"default"}, set())
    assert "no queue is named" in send(client, "/queues/default", status=409, action="pause", shard="second")


def test_process_gets_the_signal(browser, shards, redis):
    register_process(redis, {"hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 5}, "h:1:aaaaaaaaaaaa")
    client = browser(ADMIN)
    (one,) = client.get("/api/processes").json()["processes"]
    assert "1 process" in send(client, "/processes", action="quiet", process=f"main {one['identity']}")
    send(client, "/processes", action="quiet", process=f"main {one['identity']}", confirmed="yes")
    assert redis.lrange(f"{one['identity']}-signals", 0, -1) == [b"TSTP"]


def test_limit_is_set_with_a_preview_and_cleared(browser, shards, redis):
    set_override(redis, "Charge", LimitOverride(5, None, "before", "eve"))
    form = {"row": "main Charge", "value": "2", "minutes": "30", "reason": "load"}
    client = browser(ADMIN)
    text = send(client, "/limits", action="set", **form)
    assert "at most 2 jobs at a time, for 30 min" in text
    assert "Charge on main: now limit 5, 0 running, 0 waiting" in text
    # What would hold is that of `jobs explain --assume`.
    assert "nothing blocks its jobs" in text
    assert redis.hget(keys.limit("Charge"), "override") == b"5"
    for wrong in ({"value": "x"}, {"value": "-2"}, {"minutes": "0"}, {"reason": " "}, {"row": ""}):
        fields = {**form, **wrong} if "row" not in wrong else {name: form[name] for name in form if name != "row"}
        send(client, "/limits", status=409, action="set", confirmed="yes", **fields)
    send(browser(Caller("bob", "operate")), "/limits", status=403, action="set", confirmed="yes", **form)
    assert redis.hget(keys.limit("Charge"), "override") == b"5"
    assert "1 limit changed" in send(browser(ADMIN), "/limits", action="set", confirmed="yes", **form)
    (limit,) = browser(ADMIN).get("/api/limits").json()["limits"]
    assert (limit["limit"], limit["set_by"], limit["reason"]) == (2, "ann", "load")
    assert "1 limit changed" in send(browser(ADMIN), "/limits", action="clear", confirmed="yes", row="main Charge")
    assert not redis.hexists(keys.limit("Charge"), "override")
    assert {(one.action, one.actor, one.end) for one in audit_log()} == {
        ("jobs limits set", "ann", "done"),
        ("jobs limits clear", "ann", "done"),
    }


def test_class_is_paused_dropped_limited_and_runs_again(browser, shards, redis, second_redis):
    redis.zadd("schedule", {encoded("Charge", jid="J1", deferred=True, deferred_by="health"): time.time() + 600})
    client = browser(ADMIN)
    path, terms = "/classes/Charge?shard=main", {"minutes": "30", "reason": "load"}
    # A class that is not loaded and has not run has no page, and actions on it are allowed.
    client.get("/dead")
    token = client.cookies["aw_token"]

    def act(action, status=200, **fields):
        answer = client.post(path, data={"token": token, "action": action, **fields})
        assert answer.status_code == status, answer.text
        return answer.text

    for wrong in ({}, {**terms, "reason": ""}, {**terms, "minutes": "-1"}):
        act("pause", 409, **wrong)
    text = act("pause", **terms)
    # The answer of `jobs explain --assume`.
    assert "now: no process of main is running; then: no process of main is running; Charge is paused by" in text
    assert not redis.exists(keys.FLAGS)
    for action in ("pause", "drop", "defer"):
        act(action, **terms, percent="40", confirmed="yes")
    flags = {one["name"]: one for one in client.get("/api/flags").json()["flags"]}
    assert {name: one["percentage"] for name, one in flags.items()} == {
        "pause_jobs_Charge": 100.0,
        "drop_jobs_Charge": 40.0,
        "run_jobs_Charge": 60.0,
    }
    assert {(one["class"], one["set_by"], one["reason"]) for one in flags.values()} == {("Charge", "ann", "load")}
    assert not second_redis.exists(keys.FLAGS)
    assert [(one.action, one.by) for one in read_pause_log(redis)] == [("pause", "ann")]
    act("resume", confirmed="yes")
    act("run", confirmed="yes")
    assert not redis.exists(keys.FLAGS)
    assert "1 deferred job on main: 1 by health" in act("run-deferred", rate="10")
    assert "1 deferred job made due" in act("run-deferred", rate="10", confirmed="yes")
    assert redis.zscore("schedule", redis.zrange("schedule", 0, 0)[0]) < time.time() + 60
    act("limit", value="3", confirmed="yes", **terms)
    assert redis.hget(keys.limit("Charge"), "override") == b"3"
    act("open-breaker", confirmed="yes", **terms)
    assert [one["state"] for one in client.get("/api/breakers").json()["breakers"]] == ["open"]
    send(client, "/breakers", action="close", row="main Charge", confirmed="yes")
    assert {(one.actor, one.action, one.end) for one in audit_log(shard="main")} == {
        ("ann", name, "done")
        for name in (
            "jobs pause",
            "jobs drop",
            "jobs defer",
            "jobs resume",
            "jobs flags clear",
            "jobs deferred run-now",
            "jobs limits set",
            "breakers open",
            "breakers close",
        )
    }


def test_flag_is_set_on_each_shard_and_cleared(browser, shards, redis, second_redis):
    client = browser(ADMIN)
    form = {"name": "new_mailer", "percent": "25", "reason": "trial", "minutes": ""}
    assert "until it is cleared" in send(client, "/flags", action="set", **form)
    send(client, "/flags", status=409, action="set", **{**form, "name": "drop_jobs_Charge"})
    send(client, "/flags", action="set", confirmed="yes", **form)
    assert second_redis.hlen(keys.FLAGS) == redis.hlen(keys.FLAGS) == 1
    send(client, "/flags?shard=main", action="clear", all="yes", confirmed="yes")
    assert (redis.hlen(keys.FLAGS), second_redis.hlen(keys.FLAGS)) == (0, 1)


def test_lock_lease_and_limiter_are_changed_by_their_rows(browser, shards, redis):
    lock = f"{keys.LOCKS}Charge:1"
    redis.hset(lock, mapping={"class": "Charge", "jid": "J1", "since": "1"})
    lease = lease_keys.exclusive_lease("nightly")
    redis.hset(lease, mapping={"token": "t", "holder": "job J1", "since": "1"})
    redis.expire(lease, 600)
    redis.zadd(lease_keys.EXCLUSIVE_LEASES, {"nightly": time.time() + 600})
    rule = {"kind": "window", "limit": 5, "interval_s": 60}
    redis.zadd(limiter_keys.NAMES, {"mail": 1})
    redis.hset(limiter_keys.limiter("mail"), mapping={"rule": json.dumps(rule)})
    client = browser(ADMIN)
    assert [one["jid"] for one in client.get("/api/locks?class=Charge").json()["locks"]] == ["J1"]
    assert client.get("/api/locks?class=Other").json()["locks"] == []
    text = send(client, "/locks", action="delete", row=f"main {lock}")
    assert "held by job J1 of Charge, without end" in text
    assert "1 lock changed" in send(client, "/locks", action="delete", row=f"main {lock}", confirmed="yes")
    assert not redis.exists(lock)
    (found,) = client.get("/api/leases").json()["leases"]
    assert (found["name"], found["holder"], "token" in found) == ("nightly", "job J1", False)
    assert "1 lease changed" in send(client, "/leases", action="end", row="main nightly", confirmed="yes")
    assert not redis.exists(lease)
    form = {"row": "main mail", "value": "9", "minutes": "5", "reason": "load"}
    assert "now 5 (0 used), then 9" in send(client, "/limiters", action="resize", **form)
    send(client, "/limiters", action="resize", confirmed="yes", **form)
    (limiter,) = client.get("/api/limiters").json()["limiters"]
    assert (limiter["limit"], limiter["declared"], limiter["resized_by"]) == (9.0, 5, "ann")
    assert "1 limiter changed" in send(client, "/limiters", action="unresize", all="yes", confirmed="yes")
    send(browser(Caller("bob", "operate")), "/locks", status=403, action="delete", all="yes", confirmed="yes")


def test_batch_and_workflow_are_cancelled(browser, shards, redis):
    redis.zadd(batch_keys.BATCHES, {"b-1": time.time() + 600})
    redis.hset(
        batch_keys.batch("b-1"),
        mapping={"pending": 2, "total": 3, "description": "import", "created_at": 1, "ttl_s": 600},
    )
    client = browser(ADMIN)
    assert "2 of 3 jobs pending" in send(client, "/batches", action="cancel", row="main b-1")
    assert "1 batch changed" in send(client, "/batches", action="cancel", row="main b-1", confirmed="yes")
    (batch,) = client.get("/api/batches").json()["batches"]
    assert (batch["state"], batch["ended"]) == ("cancelled", [1, 3])
    send(client, "/batches", action="delete", all="yes", confirmed="yes")
    assert client.get("/api/batches").json()["batches"] == []


def test_jobs_that_cannot_be_brought_back_are_counted_with_the_reason(browser, shards, redis):
    fields = {"J1": {}, "J2": {"bid": "b", "aw_signature": "s"}, "J3": {}}
    for name, more in fields.items():
        redis.zadd("retry", {encoded("Job", jid=name, **more): 1.0})
    client = browser(ADMIN)
    send(client, "/retries", action="delete", all="yes", confirmed="yes")
    rows = {one["jid"]: f"main {one['name']}" for one in client.get("/api/deleted").json()["deleted"]}
    text = send(client, "/deleted", action="undo", row=[rows["J1"], rows["J2"]], confirmed="yes")
    assert "1 job is back; 1 cannot be changed: the job J2 stays deleted" in text
    assert "Push it again" in text
    assert redis.zcard("retry") == 1
    assert [one.count for one in audit_log(action="jobs undo")] == [1]


def test_preview_counts_batches_tasks_and_locks_of_its_jobs(browser, shards, redis, monkeypatch):
    groups = ({"bid": "b1", "aw_task": "t1"}, {"bid": "b1", "idempotency_key": "k"}, {"bid": "b2"}, {})
    for number, more in enumerate(groups):
        redis.zadd("retry", {encoded("Job", jid=f"J{number}", **more): number + 1.0})
    client = browser(ADMIN)
    told = "of 1 class: 3 belong to 2 batches, 1 belong to 1 task, 1 may hold locks."
    assert f"Of them, {told}" in send(client, "/retries", action="delete", all="yes")
    assert "1 belong to 1 batch." in send(client, "/retries", action="kill", job="main J2")
    assert "belong to" not in send(client, "/retries", action="kill", job="main J3")
    monkeypatch.setattr(actions, "_EXAMINED", 2)
    assert "4 jobs?" in (text := send(client, "/retries", action="retry", all="yes"))
    assert "Of the first 2 of them, of 1 class: 2 belong to 1 batch" in text


def test_preview_names_the_limits_that_its_jobs_meet(browser, shards, redis):
    for number, name in enumerate(("Charge", "Charge", "Free")):
        redis.zadd("retry", {encoded(name, jid=f"J{number}"): number + 1.0})
    set_override(redis, "Charge", LimitOverride(5, None, "load", "eve"))
    client = browser(ADMIN)
    met = "wait until a slot is free: 2 jobs of Charge on main (0/5 slots taken)."
    assert met in send(client, "/retries", action="retry", all="yes")
    assert "slot" not in send(client, "/retries", action="retry", job="main J2")
    assert "slot" not in send(client, "/retries", action="kill", all="yes")
