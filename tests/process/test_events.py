"""Check that repeated events of a component give one log line, not one line per event."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from framework.process.events import ProcessEvents
from framework.recover.reaper import RecoveredJob
from framework.wire.job import Job
from tests.harness import server_lines


@pytest.fixture
def lines():
    with server_lines("info") as read:
        yield read


@pytest.fixture
def events():
    return ProcessEvents("main")


@pytest.mark.proves("R13")
def test_events_outage_gives_a_line_at_start_and_end(lines, events):
    for part in ("lease", "record", "reaper", "lease", "fetcher"):
        events.redis_failed(part, RedisConnectionError("gone"))
    for part in ("lease", "record", "reaper", "fetcher"):
        events.redis_answered(part)
    failed, back = lines()
    assert (failed["event_name"], failed["component"], failed["count"]) == ("redis.failed", "lease", 1)
    assert (failed["severity"], failed["exception.message"]) == ("ERROR", "gone")
    assert (back["event_name"], back["failures"], back["severity"]) == ("redis.recovered", 5, "INFO")
    assert back["away_s"] >= 0


def test_events_refusal_of_one_component_is_separate(lines, events):
    events.redis_failed("record", OutOfMemoryError("OOM"))
    events.redis_failed("poller", OutOfMemoryError("OOM"))
    events.redis_failed("lease", ReadOnlyError("READONLY"))
    events.redis_answered("lease")
    events.redis_answered("record")
    logged = [(line["event_name"], line["component"]) for line in lines()]
    assert logged == [
        ("redis.failed", "record"),
        ("redis.failed", "poller"),
        ("redis.failed", "lease"),
        ("redis.recovered", "lease"),
        ("redis.recovered", "record"),
    ]


@pytest.mark.proves("R13")
def test_events_lasting_state_is_logged_again_with_count(lines, events, set_clock):
    for _ in range(100):
        events.redis_failed("lease", RedisConnectionError("gone"))
        set_clock.advance(0.5)
    events.redis_answered("lease")
    counts = [line["count"] for line in lines() if line["event_name"] == "redis.failed"]
    assert counts == [1, 60]


def test_events_unended_outage_does_not_lengthen_the_next(lines, events, set_clock):
    events.redis_failed("settler", RedisConnectionError("gone"))
    set_clock.advance(3600)
    events.redis_failed("lease", RedisConnectionError("gone"))
    set_clock.advance(2)
    events.redis_answered("lease")
    assert [line["away_s"] for line in lines() if line["event_name"] == "redis.recovered"] == [2.0]


@pytest.mark.proves("R13")
def test_events_flapping_redis_gives_two_lines(lines, events):
    for _ in range(50):
        events.redis_failed("lease", RedisConnectionError("gone"))
        events.redis_answered("lease")
    assert [line["event_name"] for line in lines()] == ["redis.failed", "redis.recovered"]


@pytest.mark.proves("R37")
def test_events_trimmed_entries_are_logged(lines, events):
    for destination, trimmed in (("queue:default", 0), ("interrupted", 3), ("dead", 1)):
        events.recovered(
            RecoveredJob("host:1:000000000abc", Job({"class": "GoneWorker", "jid": "j"}), destination, trimmed=trimmed)
        )
    logged = [(line["event_name"], line["count"], line["severity"]) for line in lines() if "event_name" in line]
    assert logged == [("interrupted.trimmed", 3, "WARN"), ("dead.trimmed", 1, "WARN")]


def test_events_jobs_of_a_dead_migration_are_one_line(lines, events):
    events.recovered(RecoveredJob("aw:migration:reports", Job(), "queue:reports", migration_jobs=1_200))
    (line,) = lines()
    assert (line["owner"], line["destination"], line["count"]) == ("aw:migration:reports", "queue:reports", 1_200)
    assert (line["job_status"], line["severity"]) == ("recovered", "WARN")
    assert "class" not in line
