import hashlib
import threading

import pytest

from framework.fetch.in_flight import MAX_UNACKNOWLEDGED
from framework.fetch.suspects import RunEvidence, SuspectRunner, is_suspect
from framework.wire import keys
from tests.harness import IDENTITY, encoded, full_memory, opened, payload, until
from tests.tables import each_row


def evidence(redis):
    return RunEvidence.from_hash(redis.hgetall(keys.process(IDENTITY)))


@pytest.mark.proves("R25")
@each_row(
    ("rank", "guilt"),
    [
        (0, "started"),
        (1, "started"),
        (2, "maybe_started"),
        (1 + MAX_UNACKNOWLEDGED, "maybe_started"),
        (2 + MAX_UNACKNOWLEDGED, "not_started"),
    ],
)
def test_as_many_as_there_are_slots_ran_and_who_stood_behind_did_not(rank, guilt):
    assert RunEvidence(2, frozenset()).classify(encoded(), payload(), rank) == guilt


def test_of_whom_nothing_is_known_nobody_is_accused():
    assert RunEvidence.from_hash({}).classify(encoded(), payload(), 0) == "maybe_started"
    assert RunEvidence.from_hash({b"slots": b"many"}).concurrency is None
    assert RunEvidence.from_hash({b"slots": b"9" * 20_000}).concurrency is None


@pytest.mark.proves("R25")
def test_a_suspect_ran_if_it_was_announced(redis, granted):
    fields = payload(aw_suspect=True)
    data = encoded(aw_suspect=True)
    redis.hset(keys.process(IDENTITY), "slots", 5)
    assert is_suspect(fields)
    assert evidence(redis).classify(data, fields, 0) == "not_started"
    SuspectRunner(granted, IDENTITY, 2).begin(data, 0)
    assert evidence(redis).concurrency == 5
    assert evidence(redis).classify(data, fields, 4_000) == "started"
    assert redis.hkeys(keys.process(IDENTITY)) == [b"slots", hashlib.sha1(data).hexdigest().encode()]


@each_row("value", [None, "true", 1, False])
def test_odd_values_make_no_suspect(value):
    assert not is_suspect(payload(aw_suspect=value))
    assert not is_suspect(payload(interrupted_count=2))  # given back by a process that stopped


def test_a_suspect_runs_though_redis_cannot_be_told(make_server):
    server = make_server()
    shard = opened(server.url)
    server.stop()
    SuspectRunner(shard.client, IDENTITY, 2).begin(encoded(), 0)
    shard.close()


def test_announcements_are_heard_on_a_full_server(redis, granted):
    redis.set(keys.lease(IDENTITY), 1, px=60_000)
    with full_memory(redis):
        SuspectRunner(granted, IDENTITY, 2).begin(b"x", 0)
    assert redis.hlen(keys.process(IDENTITY)) == 1


def test_what_has_ended_is_taken_back_with_the_next_start(redis, granted):
    announcer = SuspectRunner(granted, IDENTITY, 2)
    one, two, three = (encoded(jid=jid, aw_suspect=True) for jid in ("1", "2", "3"))
    announcer.begin(one, 0)
    announcer.end(one)
    announcer.begin(two, 0)
    announcer.begin(three, 0)  # after the turn of the second
    announcer.end(three)
    announcer.begin(three, 0)  # again, after a push-back
    fields = payload(aw_suspect=True)
    assert [evidence(redis).classify(data, fields, 0) for data in (one, two, three)] == [
        "not_started",
        "started",
        "started",
    ]


def test_ends_that_redis_did_not_hear_are_told_again(redis, granted, make_server):
    announcer = SuspectRunner(granted, IDENTITY, 2)
    announcer.begin(b"one", 0)
    announcer.end(b"one")
    server = make_server()
    away = opened(server.url)
    server.stop()
    announcer._client, here = away.client, announcer._client
    announcer.begin(b"two", 0)
    announcer._client = here
    announcer.begin(b"three", 0)
    assert redis.hkeys(keys.process(IDENTITY)) == [hashlib.sha1(b"three").hexdigest().encode()]
    away.close()


@pytest.fixture
def slow_turns(monkeypatch):
    monkeypatch.setattr("framework.fetch.suspects.TURN_S", 60.0)
    monkeypatch.setattr("framework.fetch.suspects.TRIAL_S", 60.0)


@pytest.mark.proves("R25")
def test_suspects_take_turns(redis, granted, slow_turns):
    announcer = SuspectRunner(granted, IDENTITY, 2)
    announcer.begin(b"one", 0)
    second = threading.Thread(target=announcer.begin, args=(b"two", 2))
    second.start()
    until(lambda: announcer._turn_changed._waiters, "the second waits")
    assert redis.hlen(keys.process(IDENTITY)) == 1
    announcer.end(b"stranger")
    assert announcer._turn_ends_at > 0  # still the turn of the first
    announcer.end(b"one")
    second.join(10)
    assert redis.hkeys(keys.process(IDENTITY)) == [hashlib.sha1(b"two").hexdigest().encode()]


@pytest.mark.parametrize(("interruptions", "turn"), [(0, "TURN_S"), (1, "TURN_S"), (2, "TRIAL_S"), (7, "TRIAL_S")])
def test_a_turn_is_over_though_the_job_goes_on(redis, granted, slow_turns, monkeypatch, interruptions, turn):
    monkeypatch.setattr(f"framework.fetch.suspects.{turn}", 0.01)
    announcer = SuspectRunner(granted, IDENTITY, 2)
    announcer.begin(b"long", interruptions)
    announcer.begin(b"next", 0)
    assert redis.hlen(keys.process(IDENTITY)) == 2


@pytest.mark.proves("F1")
def test_where_many_jobs_run_turns_are_short_so_that_all_have_begun_soon(redis, granted, slow_turns):
    announcer = SuspectRunner(granted, IDENTITY, 100_000)
    announcer.begin(b"long", 0)
    announcer.begin(b"longer", 2)
    announcer.begin(b"last", 0)
    assert redis.hlen(keys.process(IDENTITY)) == 3
