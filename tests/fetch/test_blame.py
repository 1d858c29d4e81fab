import hashlib

import pytest

from framework.fetch.blame import Announcer, Evidence, suspect
from framework.fetch.custody import UNACKNOWLEDGED
from framework.wire import keys
from tests.harness import IDENTITY, encoded, full_memory, opened, payload


def evidence(redis):
    return Evidence.of(redis.hgetall(keys.runs(IDENTITY)))


@pytest.mark.parametrize(
    ("rank", "guilt"),
    [(0, "ran"), (1, "ran"), (2, "perhaps"), (1 + UNACKNOWLEDGED, "perhaps"), (2 + UNACKNOWLEDGED, "waited")],
)
def test_as_many_as_there_are_slots_ran_and_who_stood_behind_did_not(rank, guilt):
    assert Evidence(2, frozenset()).guilt(encoded(), payload(), rank) == guilt


def test_of_whom_nothing_is_known_nobody_is_accused():
    assert Evidence.of({}).guilt(encoded(), payload(), 0) == "perhaps"
    assert Evidence.of({b"slots": b"many"}).slots is None


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_suspect_ran_if_it_was_announced(redis, count):
    fields = payload(interrupted_count=count)
    data = encoded(interrupted_count=count)
    redis.hset(keys.runs(IDENTITY), "slots", 5)
    assert suspect(fields)
    assert evidence(redis).guilt(data, fields, 0) == "waited"
    Announcer(redis, IDENTITY).begin(data)
    assert evidence(redis).slots == 5
    assert evidence(redis).guilt(data, fields, 4_000) == "ran"
    assert redis.hkeys(keys.runs(IDENTITY)) == [b"slots", hashlib.sha1(data).hexdigest().encode()]


@pytest.mark.parametrize("value", [None, "1", 1.5, True])
def test_odd_counts_make_no_suspect(value):
    assert not suspect(payload(interrupted_count=value))
    assert not suspect(payload())


def test_a_suspect_runs_though_redis_cannot_be_told(make_server):
    server = make_server()
    shard = opened(server.url)
    server.stop()
    Announcer(shard.client, IDENTITY).begin(encoded())
    shard.close()


def test_announcements_are_heard_on_a_full_server(redis):
    redis.set(keys.lease(IDENTITY), 1, px=60_000)
    with full_memory(redis):
        Announcer(redis, IDENTITY).begin(b"x")
    assert redis.hlen(keys.runs(IDENTITY)) == 1


def test_what_has_ended_is_taken_back_with_the_next_start(redis):
    announcer = Announcer(redis, IDENTITY)
    one, two, three = (encoded(jid=jid, interrupted_count=1) for jid in ("1", "2", "3"))
    announcer.begin(one)
    announcer.begin(two)
    announcer.end(one)
    announcer.begin(three)
    announcer.end(three)
    announcer.begin(three)  # again, after a push-back
    fields = payload(interrupted_count=1)
    assert [evidence(redis).guilt(data, fields, 0) for data in (one, two, three)] == ["waited", "ran", "ran"]


def test_ends_that_redis_did_not_hear_are_told_again(redis, make_server):
    announcer = Announcer(redis, IDENTITY)
    announcer.begin(b"one")
    announcer.end(b"one")
    server = make_server()
    away = opened(server.url)
    server.stop()
    announcer._client, here = away.client, announcer._client
    announcer.begin(b"two")
    announcer._client = here
    announcer.begin(b"three")
    assert redis.hkeys(keys.runs(IDENTITY)) == [hashlib.sha1(b"three").hexdigest().encode()]
    away.close()
