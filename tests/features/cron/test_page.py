"""The page of the schedule: its actions are those of ``application-worker cron``."""

import json

import pytest
from starlette.testclient import TestClient

from framework import admin
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, app, application
from framework.features.cron.keys import leader
from framework.features.cron.settings import CronSettings
from tests.admin.conftest import both_shards
from tests.features.cron.test_admin import report

__all__ = ["both_shards", "report"]


@pytest.fixture
def client(report, monkeypatch):
    monkeypatch.setattr(application, "read_installation", lambda: Installation(load({}), KnownClasses({})))
    admin.add_cron_entry("extra", cron="@hourly", cls=report, args=[7])
    return TestClient(app(lambda _: Caller("ann", "admin")), base_url="http://localhost")


@pytest.fixture
def act(client):
    client.get("/cron")

    def send(action, status=200, **fields):
        token = client.cookies["aw_token"]
        answer = client.post("/cron", data={"token": token, "action": action, "row": "second extra", **fields})
        assert answer.status_code == status, answer.text
        return answer.text

    return send


def test_entry_is_run_disabled_changed_and_reset(act, report, second_redis):
    def entry():
        (found,) = admin.cron_entries("second")
        return found

    assert "extra on second" in act("run")
    assert not second_redis.exists("queue:report")
    act("run", confirmed="yes")
    queued = [json.loads(one) for key in second_redis.keys("queue:*") for one in second_redis.lrange(key, 0, -1)]
    assert [(one["class"], one["args"]) for one in queued] == [(report.declaration().wire_name, [7])]
    act("disable", 409, confirmed="yes")
    act("disable", reason="quiet", confirmed="yes")
    assert (entry().enabled, entry().reason) == (False, "quiet")
    act("enable", confirmed="yes")
    assert entry().enabled
    for wrong in ({}, {"cron": "never"}, {"args": "7"}, {"args": '["x"]'}, {"args": "["}):
        act("change", 409, reason="r", confirmed="yes", **wrong)
    act("change", cron="0 3 * * *", args="[8]", reason="later", confirmed="yes")
    assert (entry().cron, entry().args, entry().reason) == ("0 3 * * *", (8,), "later")
    act("reset", confirmed="yes")
    assert (entry().cron, entry().args) == ("@hourly", (7,))
    assert {(one.actor, one.source) for one in admin.audit_log(action="cron ")} == {("ann", "dashboard")}


def test_schedule_without_a_leader_has_the_command_of_one(client, second_redis):
    assert "worker --shard second -q default</code>" in client.get("/cron?shard=second").text
    second_redis.set(leader(CronSettings.of(load({})).cron.application), "h:1:aaaaaaaaaaaa")
    text = client.get("/cron").text
    assert "h:1:aaaaaaaaaaaa" in text
    assert "worker --shard" not in text
