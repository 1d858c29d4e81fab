"""Check what Sentry gets of pushes and runs, with a receiver of envelopes on the loopback and real processes."""

import json

import pytest

from tests.harness import Site, payload
from tests.servers.envelopes import envelope_receiver

JOBS = """
import os

import sentry_sdk
from framework import ApplicationWorker, RetryError
from framework.integrations.sentry import FrameworkIntegration

if "OWN_DSN" in os.environ:
    sentry_sdk.init(
        dsn=os.environ["OWN_DSN"], traces_sample_rate=1.0, release="theirs", integrations=[FrameworkIntegration()]
    )


class Base(ApplicationWorker, abstract=True):
    feature_category = "search"
    queue = "default"


class ChargeWorker(Base):
    retry = 1
    retry_delay = (0.1,)
    loggable_arguments = ("currency",)

    def perform(self, card: str, currency: str, cents: int) -> None:
        sentry_sdk.set_tag("bank", "north")
        sentry_sdk.add_breadcrumb(message=card)
        copy = card * 2
        raise ConnectionError("the bank hung up")


class AsyncWorker(Base):
    async def perform(self) -> None:
        sentry_sdk.capture_message("half way")
        ChildWorker.perform_async()


class ChildWorker(Base):
    def perform(self) -> None: ...


class NightWorker(Base):
    retry = 1
    retry_delay = (0.1,)

    def perform(self, ends: str) -> None:
        if ends == "error" or (ends == "retry" and "retry_count" not in self._aw_job):
            raise ValueError(ends)
"""

PUSH = """
import jobs, sentry_sdk
with sentry_sdk.start_transaction(name="POST /orders", op="http.server"):
    jobs.ChargeWorker.perform_async("s3cret", "EUR", 1250)
    jobs.AsyncWorker.perform_async()
sentry_sdk.flush()
"""


@pytest.fixture
def site(redis, redis_url, short_path):
    made = Site(short_path, redis_url, warm=True)
    made.write("feature_categories.yml", {"feature_categories": {"search": {"owner": "a team"}}})
    nightly = {"cron": "5 1 * * *", "class": "NightWorker", "args": ["ok"], "time_zone": "Europe/Berlin"}
    made.write("schedule.yml", {"schedule": {"Nightly.run": nightly}})
    (short_path / "jobs.py").write_text(JOBS)
    yield made
    made.close()


@pytest.fixture
def receiver():
    with envelope_receiver() as server:
        yield server


def settled(process, name, status, count=1):
    """Wait for lines of the ends of jobs of a class."""
    from tests.harness import until

    return until(lambda: len(process.find(job_status=status, **{"class": name})) >= count)


@pytest.mark.proves("I25")
def test_sentry_has_queue_spans_and_errors_of_jobs(site, receiver):
    process = site.worker("-q", "default", OWN_DSN=receiver.dsn).ready()
    pushed = site.run("-c", PUSH, OWN_DSN=receiver.dsn)
    assert pushed.returncode == 0, pushed.stderr
    settled(process, "ChargeWorker", "fail", 2)
    settled(process, "ChildWorker", "done")
    assert process.end() == 0
    by_name = {}
    for one in receiver.items("transaction"):
        by_name.setdefault(one["transaction"], []).append(one)
    (request,) = by_name["POST /orders"]
    published = {span["description"]: span for span in request["spans"] if span["op"] == "queue.publish"}
    span = published["ChargeWorker"]
    first, second = sorted(by_name["ChargeWorker"], key=lambda one: one["start_timestamp"])
    jid = span["data"]["messaging.message.id"]
    assert span["data"]["messaging.destination.name"] == "default"
    assert span["data"]["messaging.message.body.size"] > 100
    for run in (first, second):
        trace = run["contexts"]["trace"]
        assert (trace["op"], trace["status"]) == ("queue.process", "internal_error")
        assert (trace["trace_id"], trace["parent_span_id"]) == (
            request["contexts"]["trace"]["trace_id"],
            span["span_id"],
        )
        assert trace["data"]["messaging.message.id"] == jid
        assert trace["data"]["messaging.destination.name"] == "default"
        assert trace["data"]["messaging.message.receive.latency"] >= 0
    sizes = [run["contexts"]["trace"]["data"]["messaging.message.body.size"] for run in (first, second)]
    assert sizes[0] == span["data"]["messaging.message.body.size"]
    assert [run["contexts"]["trace"]["data"]["messaging.message.retry.count"] for run in (first, second)] == [0, 1]
    (async_run,) = by_name["AsyncWorker"]
    assert async_run["contexts"]["trace"]["status"] == "ok"
    assert [one["op"] for one in async_run["spans"]] == ["queue.publish"]
    (child,) = by_name["ChildWorker"]
    assert child["contexts"]["trace"]["parent_span_id"] == async_run["spans"][0]["span_id"]
    failures = [event for event in receiver.events if "exception" in event]
    assert [event["exception"]["values"][-1]["type"] for event in failures] == ["ConnectionError"] * 2
    for event in failures:
        assert event["contexts"]["job"]["args"] == ["[FILTERED]", "EUR", "1250"]
        assert (event["contexts"]["job"]["jid"], event["contexts"]["job"]["class"]) == (jid, "ChargeWorker")
        assert (event["tags"]["bank"], event["tags"]["jid"], event["release"]) == ("north", jid, "theirs")
        assert event["transaction"] == "ChargeWorker"
    (message,) = [event for event in receiver.events if "exception" not in event]
    assert (message["message"], message["contexts"]["job"]["class"]) == ("half way", "AsyncWorker")
    assert "bank" not in message.get("tags", {})
    assert not [body for body in receiver.bodies if b"s3cret" in body]


def check_ins(receiver):
    found = {}
    for one in receiver.items("check_in"):
        found.setdefault(one["check_in_id"], []).append(one["status"])
    return found


def test_sentry_monitors_check_in_by_schedule(site, redis, receiver):
    site.write("application.yml", {"sentry": {"cron_monitors": True}})
    process = site.worker("-q", "default", SENTRY_DSN=receiver.dsn).ready()
    for ends in ("ok", "retry", "error"):
        tick = {"name": "Nightly.run", "tick": 1_800_000_000}
        redis.lpush("queue:default", json.dumps(payload("NightWorker", args=[ends], jid=ends, retry=1, cron=tick)))
    redis.lpush("queue:default", json.dumps(payload("NightWorker", args=["ok"], jid="none")))
    settled(process, "NightWorker", "done", 3)
    settled(process, "NightWorker", "fail", 3)
    assert process.end() == 0
    assert sorted(check_ins(receiver).values()) == [
        ["in_progress", "in_progress", "error"],
        ["in_progress", "in_progress", "ok"],
        ["in_progress", "ok"],
    ]
    one = receiver.items("check_in")[-1]
    assert one["monitor_slug"] == "nightly-run"
    assert one["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "5 1 * * *"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 5,
    }
    # The settings have no share of runs with transactions.
    assert receiver.items("transaction") == []


def test_sentry_reports_exhausted_failures_only(site, redis, receiver):
    site.write("application.yml", {"sentry": {"report": "exhausted", "traces_sample_rate": 1}})
    process = site.worker("-q", "default", SENTRY_DSN=receiver.dsn).ready()
    redis.lpush("queue:default", json.dumps(payload("NightWorker", args=["retry"], jid="r")))
    redis.lpush("queue:default", json.dumps(payload("NightWorker", args=["error"], jid="e", retry=1)))
    settled(process, "NightWorker", "fail", 3)
    settled(process, "NightWorker", "done")
    assert process.end() == 0
    assert [(event["tags"]["jid"], event["tags"]["retry_count"]) for event in receiver.events] == [("e", "1")]
    # The client of the settings has transactions too.
    runs = [(one["transaction"], one["contexts"]["trace"]["op"]) for one in receiver.items("transaction")]
    assert runs == [("NightWorker", "queue.process")] * 4
