"""Check the events that the error tracker sends, with a receiver on the loopback, and the values that it never sends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import BusinessError, PayloadError, RetryError
from framework.finish.report import JobReporter
from framework.process.events import ProcessEvents
from framework.telemetry.sentry import NoTracker, open_tracker
from framework.wire.job import Job
from tests.fork_server import FORK_SERVER
from tests.harness import ROOT, RecordingTracker, Site, payload, until
from tests.servers.envelopes import EnvelopeReceiver, envelope_receiver
from tests.tables import each_row

JOBS = """
import os

import sentry_sdk

from framework import ApplicationWorker, BusinessError, Discard, RetryError, RetryLater
from framework.handlers import on_death, on_error


class Later(RetryError):
    pass


class Base(ApplicationWorker, abstract=True):
    feature_category = "search"
    queue = "default"
    retry = 0


class FailWorker(Base):
    def perform(self, secret):
        hidden = secret * 2
        try:
            raise KeyError("why")
        except KeyError as error:
            raise ValueError("it broke") from error


class RetryErrorWorker(Base):
    def perform(self):
        raise Later("again")


class BusinessWorker(Base):
    def perform(self):
        raise BusinessError("closed")


class LaterWorker(Base):
    def perform(self):
        raise RetryLater(60)


class DiscardWorker(Base):
    def perform(self):
        raise Discard("no")


class CrumbWorker(Base):
    def perform(self, secret):
        sentry_sdk.add_breadcrumb(message=secret)
        raise LookupError("with a crumb")


def say(*words):
    # One write, so that two threads do not share a line.
    words = [type(word).__name__ if isinstance(word, Exception) else word for word in words]
    os.write(2, (" ".join(words) + "\\n").encode())


@on_error
def failed(error, facts):
    say("on_error", error, facts["job"]["class"])


@on_death
def died(job, error):
    say("on_death", error, job.worker)
"""


@pytest.fixture
def receiver() -> Iterator[EnvelopeReceiver]:
    with envelope_receiver() as server:
        yield server


@pytest.fixture
def site(redis, redis_url, short_path):
    made = Site(short_path, redis_url, warm=True)
    made.write("feature_categories.yml", {"feature_categories": {"search": {"owner": "a team"}}})
    (short_path / "jobs.py").write_text(JOBS)
    yield made
    made.close()


def pushed(redis, *names, **fields):
    for name in names:
        job = payload(name, retry=0, **{"jid": name.lower(), **fields})
        redis.lpush("queue:default", json.dumps(job))


@pytest.mark.proves("I25")
def test_sentry_job_failure_has_tags_and_no_arguments(site, redis, receiver):
    process = site.worker("-q", "default", SENTRY_DSN=receiver.dsn, SENTRY_RELEASE="r1").ready()
    quiet = ("RetryErrorWorker", "BusinessWorker", "LaterWorker", "DiscardWorker")
    pushed(redis, *quiet)
    pushed(redis, "FailWorker", "CrumbWorker", args=["s3cret"], correlation_id="corr", retry_count=1)
    for name in (*quiet, "FailWorker", "CrumbWorker"):
        until(lambda name=name: [line for line in process.find(jid=name.lower()) if line["job_status"] != "start"])
    assert process.end() == 0
    by_type = {event["exception"]["values"][-1]["type"]: event for event in receiver.events}
    # A RetryError is reported when no retry is left.
    assert by_type.keys() == {"ValueError", "LookupError", "Later"}
    assert len(receiver.events) == 3
    event = by_type["ValueError"]
    assert event["tags"] == {
        "class": "FailWorker",
        "queue": "default",
        "jid": "failworker",
        "correlation_id": "corr",
        "feature_category": "search",
        "shard": "main",
        "retry_count": str(process.line(jid="failworker", job_status="fail")["retry_count"]),
    }
    assert event["tags"]["retry_count"] == "2"
    assert event["transaction"] == "FailWorker"
    assert event["release"] == "r1"
    assert event["environment"] == "development"
    cause, raised = event["exception"]["values"]
    assert (cause["type"], cause["value"], raised["value"]) == ("KeyError", "'why'", "it broke")
    assert [one["stacktrace"]["frames"][-1]["context_line"].strip() for one in (cause, raised)] == [
        'raise KeyError("why")',
        'raise ValueError("it broke") from error',
    ]
    assert not [body for body in receiver.bodies if b"s3cret" in body]


def test_registered_handlers_of_a_module_are_called(site, redis):
    process = site.worker("-q", "default").ready()
    pushed(redis, "RetryErrorWorker", "BusinessWorker", "LaterWorker")
    pushed(redis, "FailWorker", args=["x"])
    process.line(job_status="fail", error_kind="business", **{"class": "BusinessWorker"})
    until(lambda: redis.zcard("dead") == 2 and redis.zcard("schedule") == 1)
    assert process.end() == 0
    # A BusinessError reaches death handlers, not the dead set.
    dead_classes = {json.loads(entry)["class"] for entry in redis.zrange("dead", 0, -1)}
    assert dead_classes == {"FailWorker", "RetryErrorWorker"}
    handled = sorted(line for line in process.errors.read_text().splitlines() if line.startswith("on_"))
    assert handled == [
        "on_death BusinessError BusinessWorker",
        "on_death Later RetryErrorWorker",
        "on_death ValueError FailWorker",
        "on_error ValueError FailWorker",
    ]


def test_report_oversize_payload_has_no_arguments(site, redis, receiver):
    site.write("application.yml", {"size_limit": {"mode": "track", "compression_threshold": 100, "limit": 200}})
    code = "import jobs, sentry_sdk; jobs.FailWorker.perform_async('s3cret' * 100); sentry_sdk.flush()"
    ended = site.run("-c", code, SENTRY_DSN=receiver.dsn)
    assert (ended.returncode, ended.stdout) == (0, "")
    (event,) = receiver.events
    (error,) = event["exception"]["values"]
    assert error["type"] == "ExceedLimitError"
    assert "FailWorker: the job's arguments take 604 bytes, the limit is 200" in error["value"]
    assert (event["tags"]["class"], event["transaction"]) == ("FailWorker", "FailWorker")
    assert not [body for body in receiver.bodies if b"s3cret" in body]
    assert redis.llen("queue:default") == 1


def test_sentry_without_a_dsn_is_not_imported(site):
    script = (
        "import sys, framework; from framework.wiring import worker_process; from framework.telemetry.sentry import open_tracker;"
        "from framework.all_settings import load; assert load().sentry.dsn is None; open_tracker(None, 'test');"
        "sys.exit(any(name.partition('.')[0] in ('sentry_sdk', 'urllib3') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=site.environment("producer"), check=False)
    assert done.returncode == 0


def test_sentry_own_client_sends_no_local_variables(receiver, tmp_path):
    """Use an own process: a client of Sentry belongs to the whole process."""
    script = f"""
import sentry_sdk
from framework.telemetry.sentry import open_tracker
sentry_sdk.init({receiver.dsn!r}, release="theirs", include_local_variables=True)
tracker = open_tracker("http://key@127.0.0.1:1/1", "test")
def job(argument):
    sentry_sdk.add_breadcrumb(message=argument)
    sentry_sdk.get_current_scope().set_extra("argument", argument)
    raise ValueError("broke")
try:
    job("s3" + "cret")
except ValueError as error:
    tracker.capture(error, {{"jid": "j"}}, "Job")
tracker.close()
"""
    ended = FORK_SERVER.run(["-c", script], ROOT, os.environ)
    assert ended.returncode == 0, ended.stderr
    (event,) = receiver.events
    assert event["release"] == "theirs"
    assert event["tags"]["jid"] == "j"
    assert not [body for body in receiver.bodies if b"s3cret" in body]


class Quiet(RetryError):
    pass


def test_sentry_expected_errors_unreported_malformed_reported():
    tracker = RecordingTracker()
    reporter = JobReporter(tracker, "main")
    for error in (RetryError("x"), Quiet("x"), BusinessError("x")):
        reporter(error, {"job": payload(), "queue": "q"})
    assert tracker.captured == []
    error = ValueError("x")
    reporter(error, {"job": {"class": ["odd"], "jid": [1], "args": ["s"]}, "queue": "q", "retry_count": 3})
    reporter(error, {"job": {}, "queue": "q"})
    assert tracker.captured == [
        (error, {"queue": "q", "shard": "main", "retry_count": "3"}, "job"),
        (error, {"queue": "q", "shard": "main"}, "job"),
    ]


@each_row(
    ("report", "error", "of_run", "of_death"),
    [
        ("every", ValueError("x"), 1, 0),
        ("exhausted", ValueError("x"), 0, 1),
        ("every", RetryError("x"), 0, 1),
        ("exhausted", Quiet("x"), 0, 1),
        ("every", BusinessError("x"), 0, 0),
        ("exhausted", BusinessError("x"), 0, 0),
    ],
)
def test_report_of_a_job_comes_once_by_the_setting(report, error, of_run, of_death):
    tracker = RecordingTracker()
    reporter = JobReporter(tracker, "main", report)
    reporter(error, {"job": payload(), "queue": "q", "retry_count": 3})
    assert len(tracker.captured) == of_run
    reporter.died(Job({**payload(), "queue": "q", "retry_count": 3}), error)
    assert len(tracker.captured) == of_run + of_death


@each_row(
    ("own", "callers", "category"),
    [
        ("search", "billing", "search"),
        ("not_owned", "billing", "billing"),
        ("not_owned", None, "not_owned"),
        ("not_owned", ["odd"], "not_owned"),
    ],
)
def test_report_unowned_class_uses_caller_category(own, callers, category):
    tracker = RecordingTracker()
    with registry.isolated():
        body = {"feature_category": own, "wire_name": "Job", "perform": lambda self: None}
        type("Job", (ApplicationWorker,), body)
        JobReporter(tracker, "main")(ValueError("x"), {"job": payload(**{"meta.feature_category": callers})})
    assert tracker.captured[0][1]["feature_category"] == category


@pytest.mark.proves("I25")
def test_report_malformed_payload_has_none_of_its_bytes():
    tracker = RecordingTracker()
    events = ProcessEvents("main", tracker)
    error = PayloadError("it names no class")
    unit = type("Unit", (), {"queue": "q", "data": b"s3cret"})()
    events.malformed(unit, error)
    assert tracker.captured == [(error, {"queue": "q", "shard": "main"}, "job")]


def test_report_framework_errors_are_captured_once(monkeypatch):
    tracker = RecordingTracker()
    events = ProcessEvents("main", tracker)
    error = LookupError("a bug")
    events.component_died("poller", error)
    assert tracker.captured == [(error, {"component": "poller", "shard": "main"}, "poller")]
    tracker.captured.clear()
    away = ConnectionError("away")
    events.redis_failed("fetcher", away)
    assert tracker.captured == []
    monkeypatch.setattr("framework.process.events._REPORT_AFTER_S", 0.0)
    for component in ("fetcher", "poller", "lease"):
        events.redis_failed(component, away)
    assert tracker.captured == [(away, {"component": "fetcher", "shard": "main"}, "fetcher")]
    events.redis_answered("fetcher")
    events.redis_failed("poller", away)
    assert len(tracker.captured) == 2


def test_report_failing_tracker_raises_nothing():
    class Broken(RecordingTracker):
        def capture(self, error, tags, transaction):
            raise OSError("no network")

    events = ProcessEvents("main", Broken())
    events.component_died("poller", LookupError("a bug"))
    events.job_failed(ValueError("x"), {"job": payload(), "queue": "q"})
    assert events.died.is_set()


def test_open_tracker_without_a_dsn_returns_no_tracker():
    assert isinstance(open_tracker(None, "test"), NoTracker)
    assert isinstance(open_tracker("", "test"), NoTracker)
