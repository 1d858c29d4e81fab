"""Test the command ``diagnose`` on a real server: what it prints, its statuses, its rights, and what other programs wrote."""

import json
import time

import pytest

from framework.wire import keys
from tests.harness import enqueue, register_process

COMMAND = "from framework.cli.main import main; main(prog_name='application-worker')"
LATE = time.time() - 100


@pytest.fixture
def diagnose(site):
    """Return a function that runs the command as a user of the role read-only, and returns its JSON, or its text."""

    def call(*words, status=1, error="", role="read-only"):
        done = site.run("-m", "framework", "diagnose", "-r", "jobs", *words, role=role)
        assert (done.returncode, error in done.stderr) == (status, True), done.stdout + done.stderr
        assert error or done.stderr == ""
        return json.loads(done.stdout) if "--json" in words else done.stdout

    return call


def codes(found):
    return [one["code"] for one in found]


def test_diagnose_without_trouble_says_so(diagnose):
    assert diagnose(status=0) == "No cause of trouble was found on main.\n"
    assert diagnose("--json", status=0) == []


def test_diagnose_prints_cause_evidence_remedy_and_effect(diagnose, redis):
    enqueue(redis, "NoopWorker", queue="mail", enqueued_at=LATE)
    assert diagnose().splitlines()[0] == "1. main: no running process serves the queue mail"
    (found,) = diagnose("--json", "--queue", "mail")
    assert found["remedy"] == "application-worker worker -r jobs -q mail"
    assert {"cause", "evidence", "remedy", "effect"} <= found.keys()


def test_diagnose_class_hides_causes_of_others(diagnose, redis):
    enqueue(redis, "NoopWorker", queue="mail", enqueued_at=LATE)
    enqueue(redis, "AsyncWorker", queue="reports", enqueued_at=LATE)
    (found,) = diagnose("--json", "--class", "AsyncWorker")
    assert found["queues"] == ["reports"]
    assert len(diagnose("--json")) == 2


def test_diagnose_alert_puts_its_causes_first(diagnose, redis):
    enqueue(redis, "NoopWorker", queue="mail", enqueued_at=LATE)
    redis.sadd(keys.PAUSED, "reports")
    enqueue(redis, "AsyncWorker", queue="reports", enqueued_at=LATE)
    assert codes(diagnose("--json", "--alert", "QueuePausedTooLong")) == ["queue_paused", "unserved"]
    assert codes(diagnose("--json", "--alert", "UnknownClass")) == ["unserved", "queue_paused"]


def test_diagnose_unknown_alert_is_wrong_usage(diagnose):
    diagnose("--alert", "QueuePaused", status=2, error="did you mean 'QueuePausedTooLong'?")
    diagnose("--alert", "Nope", status=2, error="ClassNotDequeued,")


def test_diagnose_survives_what_other_programs_wrote(diagnose, redis):
    for key in (keys.RETRY, keys.SCHEDULE, keys.DEAD, keys.INTERRUPTED, keys.FLAGS, keys.PAUSE_LOG, "queue:text"):
        redis.set(key, "no set")
    redis.sadd(keys.QUEUES, "text", "garbage", b"\xff")
    redis.lpush("queue:garbage", b"\x80", b"[]", b'{"class": 5, "enqueued_at": "x", "queue": []}', b"{")
    register_process(redis, "no JSON")
    register_process(
        redis, {"queues": 5, "concurrency": "x"}, "ruby:2:0123456789ab", beat="x", busy="-", aw_clock_s="nan"
    )
    redis.hset("ruby:1:0123456789ab:work", "t", b"[]")
    redis.zadd(keys.REGISTRY, {b"\xff": 5.0, "a:1:b": 5.0})
    redis.sadd(keys.LIMITS_WAITING, "aw:limit:x", "other")
    redis.hset("aw:lock:x", mapping={"jid": "j", "duplicates": "many", "since": "x"})
    enqueue(redis, "NoopWorker", queue="mail", enqueued_at=LATE)
    found = diagnose("--json", error="PauseCauses could not look at everything: WRONGTYPE")
    assert set(codes(found)) == {"unserved"}


def test_diagnose_remedy_quotes_names_of_other_programs(diagnose, redis):
    enqueue(redis, "x; rm -rf /", queue="a; rm -rf /", enqueued_at=LATE)
    (found,) = diagnose("--json")
    assert found["remedy"] == "application-worker worker -q 'a; rm -rf /'"


@pytest.mark.parametrize(
    ("words", "error"),
    [(["--class", "NoopWorkr"], "did you mean 'NoopWorker'?"), (["--queue", "mial"], "did you mean 'mail'?")],
)
def test_diagnose_unknown_name_is_no_absence_of_causes(diagnose, redis, words, error):
    redis.sadd(keys.QUEUES, "mail")
    diagnose(*words, error=error)
    diagnose("--class", "NoopWorker", status=0)
    diagnose("--queue", "mail", status=0)
