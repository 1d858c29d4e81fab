import hashlib
import threading
from dataclasses import replace

import pytest

from framework.recover.suspects import MAX_UNACKNOWLEDGED, RunEvidence, SuspectRunner, is_suspect
from framework.timings import STANDARD
from framework.wire import keys
from tests.harness import IDENTITY, encoded, full_memory, opened, payload, until
from tests.tables import each_row


def evidence(redis):
    return RunEvidence.from_hash(redis.hgetall(keys.process(IDENTITY)))


@pytest.mark.proves("R25")
@each_row(
    ("rank", "start_state"),
    [
        (0, "started"),
        (1, "started"),
        (2, "maybe_started"),
        (1 + MAX_UNACKNOWLEDGED, "maybe_started"),
        (2 + MAX_UNACKNOWLEDGED, "not_started"),
    ],
)
def test_classify_counts_as_many_started_as_the_concurrency(rank, start_state):
    assert RunEvidence(2, frozenset()).classify(encoded(), payload(), rank) == start_state


def test_classify_without_evidence_accuses_no_job():
    assert RunEvidence.from_hash({}).classify(encoded(), payload(), 0) == "maybe_started"
    assert RunEvidence.from_hash({b"slots": b"many"}).concurrency is None
    assert RunEvidence.from_hash({b"slots": b"9" * 20_000}).concurrency is None


def test_evidence_of_a_capsule_has_its_own_slots():
    fields = {b"slots": b"7", b"capsule:slow": b"2", b"capsule:odd": b"many"}
    assert RunEvidence.from_hash(fields, "slow").concurrency == 2
    assert RunEvidence.from_hash(fields, "odd").concurrency is None
    assert RunEvidence.from_hash(fields, "gone").concurrency is None
    assert RunEvidence.from_hash(fields).concurrency is None  # those of `odd` are unknown
    assert RunEvidence.from_hash({b"slots": b"7", b"capsule:slow": b"2"}).concurrency == 5


@pytest.mark.proves("R25")
def test_suspect_started_if_its_start_was_written(redis, granted):
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


def test_suspect_runs_though_redis_is_away(make_server):
    server = make_server()
    shard = opened(server.url)
    server.stop()
    SuspectRunner(shard.client, IDENTITY, 2).begin(encoded(), 0)
    shard.close()


def test_start_of_a_suspect_is_written_at_maxmemory(redis, granted):
    redis.set(keys.lease(IDENTITY), 1, px=60_000)
    with full_memory(redis):
        SuspectRunner(granted, IDENTITY, 2).begin(b"x", 0)
    assert redis.hlen(keys.process(IDENTITY)) == 1


def test_end_of_a_suspect_is_written_with_the_next_start(redis, granted):
    runner = SuspectRunner(granted, IDENTITY, 2)
    one, two, three = (encoded(jid=jid, aw_suspect=True) for jid in ("1", "2", "3"))
    runner.begin(one, 0)
    runner.end(one)
    runner.begin(two, 0)
    runner.begin(three, 0)  # after the turn of the second
    runner.end(three)
    runner.begin(three, 0)  # again, after a push-back
    fields = payload(aw_suspect=True)
    assert [evidence(redis).classify(data, fields, 0) for data in (one, two, three)] == [
        "not_started",
        "started",
        "started",
    ]


def test_lost_ends_of_suspects_are_written_again(redis, granted, make_server):
    runner = SuspectRunner(granted, IDENTITY, 2)
    runner.begin(b"one", 0)
    runner.end(b"one")
    server = make_server()
    away = opened(server.url)
    server.stop()
    runner._client, here = away.client, runner._client
    runner.begin(b"two", 0)
    runner._client = here
    runner.begin(b"three", 0)
    assert redis.hkeys(keys.process(IDENTITY)) == [hashlib.sha1(b"three").hexdigest().encode()]
    away.close()


SLOW_TURNS = replace(STANDARD, suspect_turn_s=60.0, suspect_trial_s=60.0)


@pytest.mark.proves("R25")
def test_suspects_take_turns(redis, granted):
    runner = SuspectRunner(granted, IDENTITY, 2, SLOW_TURNS)
    runner.begin(b"one", 0)
    second = threading.Thread(target=runner.begin, args=(b"two", 2))
    second.start()
    until(lambda: runner._turn_changed._waiters, "the second waits")
    assert redis.hlen(keys.process(IDENTITY)) == 1
    runner.end(b"stranger")
    assert runner._turn_ends_at > 0  # still the turn of the first
    runner.end(b"one")
    second.join(10)
    assert redis.hkeys(keys.process(IDENTITY)) == [hashlib.sha1(b"two").hexdigest().encode()]


@pytest.mark.parametrize(
    ("interruptions", "turn"),
    [(0, "suspect_turn_s"), (1, "suspect_turn_s"), (2, "suspect_trial_s"), (7, "suspect_trial_s")],
)
def test_turn_of_a_suspect_ends_though_its_job_runs(redis, granted, interruptions, turn):
    runner = SuspectRunner(granted, IDENTITY, 2, replace(SLOW_TURNS, **{turn: 0.01}))
    runner.begin(b"long", interruptions)
    runner.begin(b"next", 0)
    assert redis.hlen(keys.process(IDENTITY)) == 2


@pytest.mark.proves("F1")
def test_turns_are_shorter_where_many_jobs_run(redis, granted):
    runner = SuspectRunner(granted, IDENTITY, 100_000, SLOW_TURNS)
    runner.begin(b"long", 0)
    runner.begin(b"longer", 2)
    runner.begin(b"last", 0)
    assert redis.hlen(keys.process(IDENTITY)) == 3
