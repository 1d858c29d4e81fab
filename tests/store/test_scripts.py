"""Check each Lua script on each server: its moves, replies and errors, and its behaviour at maxmemory."""

import hashlib
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import OutOfMemoryError, ResponseError

from framework.store.script import (
    DROP_HELD,
    DROP_RETIRED,
    ENQUEUE_DUE,
    FETCH,
    FINISH,
    HEARTBEAT,
    INSPECT_DEAD,
    INTERRUPT,
    KILL,
    MARK_DEAD,
    MIGRATE,
    NOTE_START,
    READ_DUE,
    RECEIVE_TRANSFER,
    RECLAIM,
    REGISTER_ORPHAN,
    RELEASE_WAITING,
    RENEW_CHILDREN,
    RENEW_SLOTS,
    REPLACE,
    REQUEUE,
    RESTORE,
    SCHEDULE,
    SET_STATUS,
    TAKE_SLOT,
    UNREGISTER,
    Script,
)
from framework.wire import keys
from framework.wire.json import dumps, loads
from tests.harness import examples, full_memory
from tests.lua import SCRIPTS, script_files

RUNS, LEASE, WORKING, QUEUE, OTHER, QUEUES, SET, DEAD, REGISTRY, BEATS = (
    "runs",
    "lease",
    "working",
    "queue:q",
    "queue:r",
    "queues",
    "zset",
    "dead",
    "reg",
    "beats",
)
ODD = b"\x00\xff\r\n{not json} \xe4"
"""Payloads are opaque bytes."""


@pytest.fixture
def redis(each_redis):
    each_redis.set(LEASE, "1", px=60_000)
    return each_redis


@pytest.fixture(params=["room", "full"])
def memory(redis, request):
    """Return a context that fills the memory, or none; enter it after the setup: moves must also work on a full server."""
    return (lambda: full_memory(redis)) if request.param == "full" else nullcontext


def listed(redis, key):
    return redis.lrange(key, 0, -1)


def now(redis):
    seconds, microseconds = redis.time()
    return seconds + microseconds / 1e6


def file_name(script):
    """Return the file of a script: one file may have several forms."""
    return script.removesuffix("_counted").removesuffix("_in_reserve")


def test_script_files_have_a_role_and_a_header():
    """A script of no role needs rights that no role grants."""
    files = script_files()
    assert files.keys() == {file_name(name) for name in SCRIPTS}
    for name, script in SCRIPTS.items():
        path = files[file_name(name)]
        source = path.read_text()
        # One that counts has steps before and behind the text of its file.
        assert path.read_bytes() in script.source if name not in files else script.source.endswith(path.read_bytes())
        assert all(f"-- {word}" in source for word in ("KEYS", "ARGV", "RETURN", "COST", "CRASH")), name


@pytest.mark.proves("R12")
def test_script_unknown_to_the_server_is_sent_as_text(redis):
    redis.script_flush()
    assert NOTE_START(redis, [LEASE, RUNS], [1000, "digest"]) == 1
    assert redis.script_exists(hashlib.sha1(NOTE_START.source, usedforsecurity=False).hexdigest()) == [True]


@pytest.mark.proves("I12")
def test_fetch_takes_the_oldest_in_queue_order(redis, memory):
    redis.lpush(QUEUE, "q1", ODD, "q3")
    redis.lpush(OTHER, "r1", "r2")
    with memory():
        assert FETCH(redis, [LEASE, WORKING, OTHER, "queue:none", QUEUE], [5000, 4, 0, 9, 9, 9]) == [
            1,
            [],
            [],
            1,
            [b"r1", b"r2"],
            3,
            [b"q1", ODD],
        ]
    assert listed(redis, QUEUE) == [b"q3"]
    assert listed(redis, WORKING) == [ODD, b"q1", b"r2", b"r1"]
    assert 0 < redis.pttl(LEASE) <= 5000


@pytest.mark.proves("R22", "I19")
@pytest.mark.proves("F35", "F40")
def test_fetch_finds_filled_queues_among_many(redis, memory):
    queues = [f"queue:{number}" for number in range(250)]
    for number in (0, 99, 100, 249):
        redis.lpush(queues[number], number)
    redis.set(queues[150], "no list")
    with memory():
        reply = FETCH(redis, [LEASE, WORKING, *queues], [5000, 9, 0, *[9] * len(queues)])
    assert reply == [1, [], [151], 1, [b"0"], 100, [b"99"], 101, [b"100"], 250, [b"249"]]


def test_fetch_acknowledges_and_returns_fenced_jobs(redis, memory):
    redis.lpush(WORKING, "a", ODD, "b", "b")
    redis.lpush(QUEUE, "new")
    with memory():
        assert FETCH(redis, [LEASE, WORKING, QUEUE], [5000, 0, 4, ODD, "gone", "b", ODD, 9]) == [1, [2, 4], []]
    assert sorted(listed(redis, WORKING)) == [b"a", b"b"]  # one of two equal ones
    assert listed(redis, QUEUE) == [b"new"]


def test_fetch_without_a_lease_acknowledges_and_takes_nothing(redis, memory):
    redis.delete(LEASE)
    redis.lpush(WORKING, "a")
    redis.lpush(QUEUE, "new")
    with memory():
        assert FETCH(redis, [LEASE, WORKING, QUEUE], [5000, 5, 1, "a", 9]) == [0, [], []]
    assert (listed(redis, WORKING), listed(redis, QUEUE)) == ([], [b"new"])
    assert not redis.exists(LEASE)


@pytest.mark.proves("R22", "R50", "I19")
def test_schedule_uses_server_clock_and_own_jobs_only(redis, memory):
    redis.lpush(WORKING, ODD, "a", "b")
    with memory():
        assert SCHEDULE(redis, [WORKING, SET], [ODD, b"new" + ODD, "60.5", ""]) == []
        assert SCHEDULE(redis, [WORKING, SET], [ODD, "again", "60.5", ""]) == [1, 0]
        assert SCHEDULE(redis, [WORKING, SET], [ODD, "again", 1, "", "b", "new b", 9, "", ODD, "again", 1, ""]) == [
            1,
            0,
            3,
            0,
        ]
    assert listed(redis, WORKING) == [b"a"]
    (_, due_b), (member, due) = redis.zrange(SET, 0, -1, withscores=True)
    assert member == b"new" + ODD
    assert 50 < due - now(redis) <= 60.5
    assert 5 < due_b - now(redis) <= 9


def test_drop_held_removes_and_counts_present_jobs_only(redis, memory):
    redis.zadd(SET, {ODD: 1, "a": 2, "b": 3, "c": 4})
    redis.hset("lock", "jid", "j1")
    with memory():
        assert DROP_HELD(redis, [SET, "counts"], [1, "n", "gone", HELD, 1]) == 0
        assert redis.exists("lock")
        jobs = [ODD, HELD_TRACKED, 1, "gone", HELD, 1, "a", "", 2, "b", "", 1]
        assert DROP_HELD(redis, [SET, "counts"], [2, "n", "m", *jobs]) == 3
    assert (redis.zrange(SET, 0, -1), redis.exists("lock")) == ([b"c"], 0)
    assert (redis.hgetall("counts"), redis.get("status")) == ({b"n": b"2", b"m": b"1"}, b"discarded")


HELD = dumps({"lock": {"key": "lock", "owner": "j1", "keep_ms": 0}, "slots": [["limit", "me j1"]]})
HELD_TRACKED = HELD[:-1] + b',"status":["status","discarded","60"]}'
KEPT = HELD.replace(b'"keep_ms":0', b'"keep_ms":60000')


def takes(redis, data, holds):
    """Return every script that removes a job of its process for good."""
    return {
        "complete": lambda: FINISH(redis, [WORKING], [data, holds]),
        "postpone": lambda: not SCHEDULE(redis, [WORKING, SET], [data, data, "5", holds]),
        "bury": lambda: len(KILL(redis, [WORKING, DEAD], [10, 100, 0, data, data, "", holds])) == 2,
        "drop": lambda: DROP_RETIRED(redis, [WORKING, "counts"], [data, "Old", "", 0, holds]),
        "requeue": lambda: REQUEUE(redis, [WORKING, QUEUES, QUEUE], [1, data, data, "q", holds])[0],
        "interrupt": lambda: INTERRUPT(redis, [WORKING, QUEUE, QUEUES], [data, data, "q", holds]),
        "interrupt, given up": lambda: bool(
            INTERRUPT(redis, [WORKING, QUEUE, QUEUES, SET], [data, data, "q", "", holds, 10, 100, "", "", 0])
        ),
        "reclaim": lambda: RECLAIM(
            redis, ["no lease", WORKING, QUEUE, QUEUES], [data, data, now(redis) + 9, "q", 10, 100, "", 0, holds]
        ),
    }


@pytest.mark.proves("R38", "R42", "I10")
@pytest.mark.parametrize(
    "move", ["complete", "postpone", "bury", "drop", "requeue", "interrupt", "interrupt, given up", "reclaim"]
)
def test_removal_of_a_job_releases_its_lock_and_slots(redis, memory, move):
    def hold(owner):
        redis.delete("lock")
        redis.hset("lock", mapping={"jid": owner, "position": "1"})
        redis.pexpire("lock", 5_000)
        redis.zadd("limit:running", {"me j1": 1, "me j2": 1})

    redis.lpush(WORKING, ODD)
    hold("j1")
    with memory():
        assert takes(redis, b"not ours", HELD)[move]() == 0
        assert redis.hget("lock", "jid") == b"j1"
        assert redis.zcard("limit:running") == 2
        assert takes(redis, ODD, HELD)[move]() == 1
    assert (redis.exists("lock"), redis.zrange("limit:running", 0, -1)) == (0, [b"me j2"])
    redis.lpush(WORKING, ODD)
    hold("another")
    with memory():
        assert takes(redis, ODD, HELD)[move]() == 1
    assert redis.hget("lock", "jid") == b"another"
    redis.lpush(WORKING, ODD)
    hold("j1")
    with memory():
        assert takes(redis, ODD, KEPT)[move]() == 1
    assert redis.hgetall("lock") == {b"jid": b"j1", b"position": b"1"}
    assert 50_000 < redis.pttl("lock") <= 60_000


@pytest.mark.proves("R22", "I16", "I19")
def test_kill_moves_once_and_trims_by_age_and_count(redis, memory):
    redis.lpush(WORKING, ODD, "a", "b")
    stamp = now(redis)
    redis.zadd(DEAD, {"ancient": stamp - 500, "old": stamp - 50, "young": stamp - 5})
    with memory():
        assert KILL(redis, [WORKING, DEAD], [3, 100, 0, ODD, ODD, "", ""]) == [0, 2]
        assert KILL(redis, [WORKING, DEAD], [3, 100, 0, ODD, "again", "", ""]) == [0, 0, 1, 0]
        assert KILL(redis, [WORKING, DEAD], [10, 100, 0, "b", "b", "", "", ODD, "again", "", "", "a", "a", "", ""]) == [
            0,
            0,
            2,
            0,
        ]
    assert redis.zrange(DEAD, 0, -1) == [b"young", ODD, b"b", b"a"]
    assert redis.llen(WORKING) == 0


def test_trim_of_many_entries_goes_on_at_the_next_death(redis):
    """After an outage, or with lower settings, a million entries may have to leave."""
    redis.zadd(DEAD, {f"ancient{number}": 1 + number for number in range(1_500)})
    assert [kill_job(redis, f"new{number}", most=9_000) for number in range(3)] == [1_000, 500, 0]
    redis.zadd(DEAD, {f"more{number}": now(redis) - 10 + number / 10_000 for number in range(1_500)})
    assert [kill_job(redis, f"last{number}", most=101) for number in range(3)] == [1_000, 405, 1]
    assert redis.zcard(DEAD) == 100


def kill_job(redis, data, business="", most=100):
    if redis.lpos(WORKING, data) is None:
        redis.lpush(WORKING, data)
    (_, trimmed) = KILL(redis, [WORKING, DEAD], [most, 1_000, business or 0, data, data, "1" if business else "", ""])
    return trimmed


def test_kill_keeps_limited_business_failures(redis, memory):
    kill_job(redis, "real")
    redis.lpush(WORKING, *(f"b{number}" for number in range(5)))
    with memory():
        assert [kill_job(redis, f"b{number}", business=3) for number in range(5)] == [0, 0, 0, 1, 1]
    assert redis.zrange(DEAD, 0, -1) == [b"real", b"b2", b"b3", b"b4"]
    found = redis.zrange(keys.DEAD_BUSINESS, 0, -1, withscores=True)
    scores = dict(redis.zrange(DEAD, 1, -1, withscores=True))
    assert found == [(hashlib.sha1(entry).hexdigest().encode(), score) for entry, score in scores.items()]


def test_full_dead_set_trims_business_errors_first(redis, memory):
    for number in range(4):
        kill_job(redis, f"real{number}")
        kill_job(redis, f"b{number}", business=10)
    redis.lpush(WORKING, "late", "later", "latest")
    with memory():
        assert kill_job(redis, "late", most=8) == 2  # fewer than 8 stay
        assert redis.zrange(DEAD, 0, 2) == [b"real0", b"real1", b"real2"]
        assert kill_job(redis, "later", most=6) == 3
        assert kill_job(redis, "latest", most=6) == 1
    assert redis.zrange(DEAD, 0, -1) == [b"real2", b"real3", b"late", b"later", b"latest"]
    assert redis.exists(keys.DEAD_BUSINESS) == 0


@pytest.mark.parametrize("mover", ["reclaim", "promote"])
def test_kill_of_malformed_job_keeps_real_failures(redis, mover):
    kill_job(redis, "real")
    kill_job(redis, "b", business=10)
    redis.delete(LEASE)
    if mover == "reclaim":
        redis.lpush(WORKING, ODD)
        assert RECLAIM(redis, [LEASE, WORKING, DEAD, QUEUES], [ODD, ODD, now(redis) + 60, "", 3, 100]) == 2
    else:
        redis.zadd(SET, {ODD: 1})
        assert ENQUEUE_DUE(redis, [SET, QUEUES, DEAD, DEAD], [1, 3, 100, 60, ODD, "dead", ODD, ""]) == [[1], 1]
    assert redis.zrange(DEAD, 0, -1) == [b"real", ODD]


def test_kill_does_not_count_removed_business_errors(redis):
    for number in range(40):
        kill_job(redis, f"b{number}", business=40)
    redis.zrem(DEAD, *(f"b{number}" for number in range(40) if number % 4))  # as Sidekiq's pages do it
    kept = redis.zrange(DEAD, 0, -1)
    trimmed = [kill_job(redis, f"new{number}", business=40) for number in range(5)]
    # Of 41 digests 30 find no entry: that ten which are drawn all find theirs is one chance in 10^8.
    assert (sum(trimmed), redis.zrange(DEAD, 0, 9)) == (0, kept)
    assert redis.zcard(DEAD) <= redis.zcard(keys.DEAD_BUSINESS) <= 40
    redis.delete(DEAD)
    assert [kill_job(redis, f"again{number}", business=40) for number in range(5)] == [0] * 5


def test_trimmed_business_error_loses_its_digest(redis):
    kill_job(redis, "b", business=3)
    redis.zadd(DEAD, {"b": 5})
    redis.zadd(keys.DEAD_BUSINESS, {hashlib.sha1(b"b").hexdigest(): 5})
    assert kill_job(redis, "real") == 1
    assert (redis.zrange(DEAD, 0, -1), redis.exists(keys.DEAD_BUSINESS)) == ([b"real"], 0)


def test_kill_with_an_index_of_wrong_type_trims_the_set(redis):
    redis.set(keys.DEAD_BUSINESS, "x")
    assert [kill_job(redis, "b", business=3), kill_job(redis, "real", most=2)] == [0, 1]
    assert redis.zrange(DEAD, 0, -1) == [b"real"]


@pytest.mark.proves("R22", "I19")
def test_drop_retired_removes_and_counts_once(redis, memory):
    redis.lpush(WORKING, ODD, "a", ODD)
    redis.hset("counts", "Old", 5)
    with memory():
        assert DROP_RETIRED(redis, [WORKING, "counts"], [ODD, "Old"]) == 1
        assert DROP_RETIRED(redis, [WORKING, "counts"], ["a", "Older"]) == 1
        assert DROP_RETIRED(redis, [WORKING, "counts"], ["a", "Older"]) == 0
        assert DROP_RETIRED(redis, [WORKING, "counts"], ["never ours", "Older"]) == 0
    assert listed(redis, WORKING) == [ODD]  # one of two equal ones
    assert redis.hgetall("counts") == {b"Old": b"6", b"Older": b"1"}


@pytest.mark.parametrize("prepare_key", [lambda r: r.set("counts", "x"), lambda r: r.hset("counts", "Old", "many")])
def test_drop_retired_uncounted_job_is_put_back(redis, memory, prepare_key):
    redis.lpush(WORKING, ODD)
    prepare_key(redis)
    with memory(), pytest.raises(ResponseError):
        DROP_RETIRED(redis, [WORKING, "counts"], [ODD, "Old"])
    assert listed(redis, WORKING) == [ODD]


@pytest.mark.parametrize(
    "prepare_key", [lambda r: None, lambda r: r.set("state", "running"), lambda r: r.lpush("state", "x")]
)
def test_set_status_final_state_replaces_any_value(redis, memory, prepare_key):
    prepare_key(redis)
    with memory():
        SET_STATUS(redis, ["state"], ["completed", 100])
    assert (redis.get("state"), 90 < redis.ttl("state") <= 100) == (b"completed", True)


def test_read_due_returns_due_jobs_earliest_first(redis, memory):
    stamp = now(redis)
    redis.zadd(SET, {"late": stamp - 1, ODD: stamp - 9, "mid": stamp - 5, "future": stamp + 100})
    with memory():
        clock, *members = READ_DUE(redis, [SET], [2])
        assert members[::2] == [ODD, b"mid"]
        assert [float(score) for score in members[1::2]] == pytest.approx([stamp - 9, stamp - 5])
        assert len(READ_DUE(redis, ["none"], [2])) == 1
    assert abs(float(clock) - now(redis)) < 5
    assert redis.zcard(SET) == 4


def promote(redis, jobs, *, most=10_000, longest=1e9):
    """Run ENQUEUE_DUE with (member, action, payload, queue) tuples."""
    members, words, payloads, names = zip(*jobs, strict=True)
    places = [f"queue:{name}" if name else DEAD for name in names]
    return ENQUEUE_DUE(
        redis,
        [SET, QUEUES, DEAD, *places],
        [len(jobs), most, longest, 60, *members, *words, *payloads, *names],
    )


@pytest.mark.proves("R31", "I19")
def test_enqueue_due_racing_pollers_move_once(redis, memory):
    redis.zadd(SET, {"a": 1, ODD: 2, "broken": 3, "moving": 4.125, "bad": 5, "dropped": 6})
    jobs = [
        ("a", "queue", "A", "q"),
        (ODD, "queue", b"B" + ODD, "r"),
        ("broken", "dead", "broken", ""),
        ("moving", "mark", b"moving" + ODD, ""),
        ("bad", "delay", "", ""),
        ("dropped", "remove", "", ""),
        ("missing", "queue", "M", "q"),
    ]
    with memory():
        assert promote(redis, jobs) == [[1, 1, 1, 1, 1, 1, 0], 0]
        assert promote(redis, [*jobs[:4], jobs[5]]) == [[0, 0, 0, 0, 0], 0]
    assert (listed(redis, QUEUE), listed(redis, OTHER)) == ([b"A"], [b"B" + ODD])
    assert redis.zrange(DEAD, 0, -1) == [b"broken"]
    assert redis.smembers(QUEUES) == {b"q", b"r"}
    (first, second) = redis.zrange(SET, 0, -1, withscores=True)
    assert first == (b"moving" + ODD, 4.125)
    assert second[0] == b"bad"
    assert 50 < second[1] - now(redis) <= 60


def test_enqueue_due_trims_the_dead_set(redis, memory):
    stamp = now(redis)
    redis.zadd(DEAD, {"ancient": stamp - 500, "old": stamp - 50, "young": stamp - 5})
    redis.zadd(SET, {ODD: 1, "later": 2})
    with memory():
        assert promote(redis, [(ODD, "dead", ODD, "")], most=3, longest=100) == [[1], 2]
        assert promote(redis, [("later", "queue", "L", "q")], most=1) == [[1], 0]
    assert redis.zrange(DEAD, 0, -1) == [b"young", ODD]


def land(redis, *jobs, within_s=60):
    """Run RECEIVE_TRANSFER with (token, payload, queue) tuples."""
    tokens, payloads, names = zip(*jobs, strict=True)
    places = [
        place for token, name in zip(tokens, names, strict=True) for place in (f"landed:{token}", f"queue:{name}")
    ]
    return RECEIVE_TRANSFER(redis, [QUEUES, *places], [len(jobs), 60_000, now(redis) + within_s, *payloads, *names])


@pytest.mark.proves("I19")
def test_receive_transfer_writes_each_token_once(redis):
    assert land(redis, ("t1", ODD, "q"), ("t2", "two", "r")) == [1, 1]
    assert land(redis, ("t2", "two", "r"), ("t1", ODD, "q"), ("t3", "three", "q")) == [0, 0, 1]
    assert (listed(redis, QUEUE), listed(redis, OTHER)) == ([b"three", ODD], [b"two"])
    assert redis.smembers(QUEUES) == {b"q", b"r"}
    assert 0 < redis.pttl("landed:t1") <= 60_000


@pytest.mark.proves("R31", "I4")
def test_receive_transfer_late_call_writes_nothing(redis):
    assert land(redis, ("t1", "one", "q"), within_s=-1) == []
    assert redis.keys("*") == [LEASE.encode()]


def test_receive_transfer_full_server_writes_nothing(redis):
    with full_memory(redis), pytest.raises(OutOfMemoryError):
        land(redis, ("t1", "one", "q"))
    assert redis.keys("*") == [LEASE.encode()]


def test_enqueue_due_jobs_go_behind_waiting_ones(redis):
    redis.lpush(QUEUE, "waiting")
    redis.zadd(SET, {"a": 1, "b": 2})
    promote(redis, [("a", "queue", "a", "q"), ("b", "queue", "b", "q")])
    assert listed(redis, QUEUE) == [b"b", b"a", b"waiting"]


@pytest.mark.proves("R22", "I12", "I19")
def test_requeue_pushes_own_jobs_to_the_right_end(redis, memory):
    redis.lpush(WORKING, "oldest", ODD, "theirs")
    redis.lpush(QUEUE, "waiting")
    arguments = [3, ODD, "gone", "oldest", b"new" + ODD, "gone", "oldest", "q", "q", "q"]
    with memory():
        assert REQUEUE(redis, [WORKING, QUEUES, QUEUE, QUEUE, QUEUE], arguments) == [2]
        assert REQUEUE(redis, [WORKING, QUEUES, QUEUE, QUEUE, QUEUE], arguments) == [0]
    assert listed(redis, QUEUE) == [b"waiting", b"new" + ODD, b"oldest"]  # the oldest is next
    assert listed(redis, WORKING) == [b"theirs"]
    assert redis.smembers(QUEUES) == {b"q"}


@pytest.mark.proves("I19")
def test_register_orphan_enters_unknown_dead_owners_only(redis, memory):
    redis.zadd(REGISTRY, {"known": 5, "seen dead": -5})
    owners = {
        "known": "aw:lease:known",
        "seen dead": "aw:lease:seen dead",
        "lives": LEASE,
        "strange": "aw:lease:strange",
    }
    places = [key for name, lease in owners.items() for key in (lease, f"aw:process:{name}")]
    arguments = [REGISTRY, *places], [part for name in owners for part in (name, "")]
    asked_at = now(redis)
    with memory():
        assert REGISTER_ORPHAN(redis, *arguments) == 1
        assert REGISTER_ORPHAN(redis, *arguments) == 0
    *before, (identity, since) = redis.zrange(REGISTRY, 0, -1, withscores=True)
    assert before == [(b"seen dead", -5), (b"known", 5)]
    assert identity == b"strange"
    assert asked_at <= since <= now(redis)  # as if it had just beaten: it has a whole lease to do so


@pytest.mark.proves("R21", "I19")
@pytest.mark.parametrize(("name", "key"), [("q", QUEUE), ("", SET)])
def test_reclaim_takes_from_the_dead_only_and_once(redis, memory, name, key):
    redis.lpush(WORKING, ODD, "a")
    arguments = [ODD, b"new" + ODD, now(redis) + 60, name, 100, 100]
    assert RECLAIM(redis, [LEASE, WORKING, key, QUEUES], arguments) == -1
    assert redis.llen(WORKING) == 2
    redis.delete(LEASE)
    with memory():
        assert RECLAIM(redis, [LEASE, WORKING, key, QUEUES], arguments) == 1
        assert RECLAIM(redis, [LEASE, WORKING, key, QUEUES], arguments) == 0
    assert listed(redis, WORKING) == [b"a"]
    found = listed(redis, key) if name else redis.zrange(key, 0, -1)
    assert found == [b"new" + ODD]
    assert redis.smembers(QUEUES) == ({b"q"} if name else set())


@pytest.mark.proves("R24", "I16", "I19")
def test_interrupt_requeues_or_quarantines_running_jobs(redis, memory):
    redis.rpush(WORKING, "young", "old", ODD)
    stamp = now(redis)
    redis.zadd(SET, {"ancient": stamp - 500, "older": stamp - 50})
    redis.rpush(QUEUE, "waits")
    places = [WORKING, QUEUE, QUEUES]
    given_up = ["q", "", "", 3, 100, "status", "failed", 60]
    with memory():
        assert INTERRUPT(redis, places, ["young", "y1", "q", ""]) == 1
        assert INTERRUPT(redis, places, ["young", "y1", "q", ""]) == 0
        assert INTERRUPT(redis, places, ["old", "o1", "q", ""]) == 1
        assert INTERRUPT(redis, [*places, SET], [ODD, b"3" + ODD, *given_up]) == 3  # one was too old
        assert INTERRUPT(redis, [*places, SET], [ODD, b"3" + ODD, *given_up]) == 0
    assert listed(redis, QUEUE) == [b"waits", b"y1", b"o1"]  # the oldest is the next to run
    assert redis.smembers(QUEUES) == {b"q"}
    assert redis.zrange(SET, 0, -1) == [b"older", b"3" + ODD]
    assert redis.zscore(SET, b"3" + ODD) == pytest.approx(stamp, abs=30)
    assert (redis.get("status"), 50 < redis.ttl("status") <= 60) == (b"failed", True)
    assert redis.llen(WORKING) == 0


def test_interrupt_with_wrong_types_loses_no_job(redis):
    redis.rpush(WORKING, ODD)
    redis.set(SET, "x")
    given_up = [ODD, "1", "q", "", "", 3, 100, "", "", 0]
    assert INTERRUPT(redis, [WORKING, QUEUE, QUEUES, SET], given_up) == 1
    assert listed(redis, QUEUE) == [b"1"]
    redis.rpush(WORKING, ODD)
    assert INTERRUPT(redis, [WORKING, "zset", QUEUES, SET], given_up) == -1
    assert listed(redis, WORKING) == [ODD]


def test_reclaim_trims_the_set_by_age_and_count(redis):
    redis.delete(LEASE)
    stamp = now(redis)
    redis.zadd(SET, {"ancient": stamp - 500, "old": stamp - 50, "young": stamp - 5})
    redis.lpush(WORKING, ODD)
    redis.lpush(WORKING, "next")
    assert RECLAIM(redis, [LEASE, WORKING, SET, QUEUES], [ODD, ODD, stamp + 60, "", 10, 100]) == 2
    assert redis.zrange(SET, 0, -1) == [b"old", b"young", ODD]
    assert RECLAIM(redis, [LEASE, WORKING, SET, QUEUES], ["next", "next", stamp + 60, "", 3, 100]) == 3
    assert redis.zrange(SET, 0, -1) == [ODD, b"next"]


@pytest.mark.proves("R20")
def test_reclaim_ignores_an_outdated_inspection(redis):
    redis.delete(LEASE)
    redis.lpush(WORKING, ODD)
    assert RECLAIM(redis, [LEASE, WORKING, QUEUE, QUEUES], [ODD, ODD, now(redis) - 1, "q", 3, 100]) == -1
    assert listed(redis, WORKING) == [ODD]


def migrate(redis, *jobs, show=10, most_bytes=10_000, queues=("q", "r")):
    """Run the migration script with (payload, payload to store, position of its queue) tuples, oldest first."""
    shown, stored, places = zip(*jobs, strict=True) if jobs else ((), (), ())
    return MIGRATE(
        redis,
        [LEASE, WORKING, QUEUES, *(f"queue:{name}" for name in queues)],
        [60_000, show, most_bytes, len(jobs), len(queues), *queues, *shown, *stored, *places],
    )


@pytest.mark.proves("I19")
def test_migrate_moves_the_oldest_and_returns_the_next(redis, memory):
    redis.lpush(WORKING, "one", ODD, "three", "four", "five")
    redis.lpush(QUEUE, "new q")
    redis.lpush(OTHER, "new r")
    with memory():
        assert migrate(redis, show=2) == [1, [], b"one", ODD]
        assert migrate(redis, ("one", "", 1), (ODD, b"r" + ODD, 2), ("three", "", 1)) == [1, [], b"four", b"five"]
    assert listed(redis, QUEUE) == [b"three", b"one", b"new q"]
    assert listed(redis, OTHER) == [b"r" + ODD, b"new r"]
    assert redis.smembers(QUEUES) == {b"q", b"r"}
    assert 50_000 < redis.pttl(LEASE) <= 60_000


def test_migrate_moves_only_the_returned_jobs(redis):
    redis.lpush(WORKING, "one", "two")
    assert migrate(redis, ("one", "", 1), ("other", "", 1)) == [0, [], b"one", b"two"]
    assert migrate(redis, ("one", "", 1), ("two", "", 1), ("three", "", 1)) == [0, [], b"one", b"two"]
    redis.delete(LEASE)
    assert migrate(redis, ("one", "", 1)) == [-1, []]
    assert listed(redis, WORKING) == [b"two", b"one"]
    assert not redis.exists(QUEUE, LEASE)


def test_migrate_page_is_bounded_by_bytes_but_one_job(redis):
    redis.lpush(WORKING, "x" * 60, "y" * 30, "z" * 20)
    assert migrate(redis, most_bytes=100)[2:] == [b"x" * 60, b"y" * 30]
    assert migrate(redis, most_bytes=10)[2:] == [b"x" * 60]


def test_migrate_page_of_many_reads_has_all_jobs_in_order(redis):
    jobs = [b"", *(b"%d" % number * (1 + number % 50) for number in range(300))]
    redis.lpush(WORKING, *jobs)
    assert migrate(redis, show=250, most_bytes=1_000_000)[2:] == jobs[:250]
    assert migrate(redis, show=500, most_bytes=1_000_000)[2:] == jobs
    (few,) = [at for at in range(300) if sum(map(len, jobs[:at])) <= 2_000 < sum(map(len, jobs[: at + 1]))]
    assert migrate(redis, show=250, most_bytes=2_000)[2:] == jobs[:few]


@pytest.mark.proves("F40", "I1")
def test_migrate_target_of_wrong_type_keeps_the_jobs(redis, wrong):
    redis.lpush(WORKING, "one", "two", "three")
    redis.set(OTHER, "no list")
    assert migrate(redis, ("one", "", 1), ("two", "new", 2), ("three", "new", 1)) == [1, [2]]
    assert listed(redis, QUEUE) == [b"new", b"two", b"one"]
    redis.lpush(WORKING, "four")
    redis.delete(QUEUE)
    redis.set(QUEUE, "no list")
    assert migrate(redis, ("four", "", 1)) == [-2, []]
    assert listed(redis, WORKING) == [b"four"]


def restore(redis, *, within_s=60, most=10, most_bytes=10_000, queue="q"):
    return RESTORE(redis, [LEASE, WORKING, f"queue:{queue}", QUEUES], [now(redis) + within_s, most, most_bytes, queue])


@pytest.mark.proves("R20", "I19")
def test_restore_dead_migration_puts_oldest_back_first(redis, memory):
    redis.lpush(WORKING, "three", ODD, "five")
    redis.lpush(QUEUE, "one", "two")
    assert restore(redis) == -1
    redis.delete(LEASE)
    assert restore(redis, within_s=-1) == -1
    with memory():
        assert restore(redis, most=2) == 2
        assert restore(redis, most_bytes=1) == 1
        assert restore(redis) == 0
    assert listed(redis, QUEUE) == [b"five", ODD, b"three", b"two", b"one"]
    assert redis.smembers(QUEUES) == {b"q"}


@pytest.mark.proves("F40", "I1")
def test_restore_keeps_jobs_without_a_queue(redis, wrong):
    redis.delete(LEASE)
    redis.lpush(WORKING, "one", "two")
    redis.set(QUEUE, "no list")
    assert restore(redis) == 0
    assert listed(redis, WORKING) == [b"two", b"one"]


@pytest.mark.proves("I19")
def test_replace_keeps_scores_and_skips_missing_members(redis, memory):
    exact = 1_750_000_000.1234567
    redis.zadd(SET, {ODD: exact, "two": 2, "same": 9, "becomes same": 5})
    members, stored = [ODD, "gone", "becomes same"], [b"new" + ODD, "never", "same"]
    with memory():
        assert REPLACE(redis, [SET], [3, *members, *stored]) == [1, 0, 1]
    assert dict(redis.zrange(SET, 0, -1, withscores=True)) == {b"new" + ODD: exact, b"two": 2, b"same": 5}


def test_heartbeat_renews_reports_a_gap_and_registers(redis, memory):
    redis.delete(LEASE)
    with memory():
        held, first, new, steady, before = HEARTBEAT(redis, [LEASE, REGISTRY, RUNS, BEATS], ["me", 5000, 7, 3000])
        assert (held, new, steady, before, redis.hgetall(RUNS)) == (0, 1, 0, b"", {b"slots": b"7"})
        assert redis.get(BEATS) == first
        assert 0 < redis.pttl(BEATS) <= 3000
        held, second, *state = HEARTBEAT(redis, [LEASE, REGISTRY, RUNS, BEATS], ["me", 9000, 7, 6000])
        assert (held, *state[:2]) == (1, 0, 1)
        assert float(state[2]) == float(first)
        assert redis.get(BEATS) == first
        redis.delete("other lease")
        HEARTBEAT(redis, ["other lease", REGISTRY, RUNS, BEATS], ["other", 9000, 7, 6000])
        assert redis.get(BEATS) == first  # that one has just started is no gap
        assert 3000 < redis.pttl(BEATS) <= 6000
        redis.delete(BEATS)
        _, third, *state = HEARTBEAT(redis, [LEASE, REGISTRY, RUNS, BEATS], ["me", 9000, 7, 6000])
        assert redis.get(BEATS) == third
        assert (state[:2], float(state[2])) == ([0, 0], float(second))
    assert 5000 < redis.pttl(LEASE) <= 9000
    assert float(first) < float(second) < float(third) <= now(redis)
    assert redis.zscore(REGISTRY, "me") == float(third)


def test_note_start_notes_the_job_and_returns_lease_state(redis, memory):
    with memory():
        assert NOTE_START(redis, [LEASE, RUNS], [9000, "one"]) == 1
        redis.delete(LEASE)
        assert NOTE_START(redis, [LEASE, RUNS], [9000, "two"]) == 0
        assert NOTE_START(redis, [LEASE, RUNS], [9000, "three", "two", "three"]) == 0
    assert set(redis.hgetall(RUNS)) == {b"one", b"three"}
    assert not redis.exists(LEASE)


def test_mark_dead_deletes_the_lease_and_notes_the_time(redis, memory):
    redis.zadd(REGISTRY, {"me": now(redis) - 3, "other": 5})
    with memory():
        assert MARK_DEAD(redis, [LEASE, REGISTRY], ["me"]) == 1
        assert MARK_DEAD(redis, ["none", REGISTRY], ["stranger"]) == 0
    assert not redis.exists(LEASE)
    assert abs(redis.zscore(REGISTRY, "me") + now(redis)) < 2
    assert redis.zrange(REGISTRY, 0, -1) == [b"me", b"other"]


def examined(redis):
    return INSPECT_DEAD(redis, [LEASE, WORKING, REGISTRY, RUNS, BEATS], ["me", 2, 15, 18])


def test_inspect_dead_returns_what_a_dead_process_left(redis, memory):
    redis.zadd(REGISTRY, {"me": now(redis) - 100})
    redis.lpush(WORKING, "oldest", ODD, "youngest")
    redis.hset(RUNS, "slots", 7)
    redis.set(BEATS, now(redis) - 1000)
    assert examined(redis) == []  # it has a lease
    redis.delete(LEASE)
    with memory():
        stamp, length, process, *page = examined(redis)
    assert abs(float(stamp) - now(redis)) < 2
    assert (length, process, page) == (3, [b"slots", b"7"], [b"youngest", ODD])
    redis.zrem(REGISTRY, "me")
    assert examined(redis) == []  # not registered


@pytest.mark.proves("R20")
@pytest.mark.parametrize(
    ("silent", "since", "found"),
    [
        (16, 19, True),
        (16, 17, False),  # Redis may have been unavailable until a moment ago
        (16, None, False),  # no heartbeats: Redis may just have come back
        (14, 1000, False),  # it lost its lease, but was there a moment ago
    ],
)
def test_inspect_dead_unsteady_heartbeats_count_none_as_dead(redis, silent, since, found):
    redis.delete(LEASE)
    redis.zadd(REGISTRY, {"me": now(redis) - silent})
    redis.lpush(WORKING, ODD)
    if since is not None:
        redis.set(BEATS, now(redis) - since)
    assert bool(examined(redis)) is found
    MARK_DEAD(redis, [LEASE, REGISTRY], ["me"])
    assert examined(redis)  # a process that its parent marked dead is dead


@pytest.mark.proves("R50")
def test_inspect_dead_clock_set_back_restarts_the_wait(redis, memory):
    redis.delete(LEASE)
    redis.zadd(REGISTRY, {"me": now(redis) - 100})
    redis.set(BEATS, now(redis) + 3600)
    with memory():
        assert examined(redis) == []
    assert not redis.exists(BEATS)


@pytest.mark.proves("F38")
@pytest.mark.parametrize(
    "write", [lambda r: r.set(BEATS, "garbage"), lambda r: r.set(BEATS, "nan"), lambda r: r.rpush(BEATS, 1)]
)
def test_inspect_dead_invalid_time_restarts_the_wait(redis, write):
    redis.delete(LEASE)
    redis.zadd(REGISTRY, {"me": now(redis) - 100})
    write(redis)
    assert examined(redis) == []
    assert not redis.exists(BEATS)


def test_renew_children_renews_late_leases_only(redis, memory):
    stamp = now(redis)
    beats = {"fresh": stamp - 1, "late": stamp - 100, "stuck": stamp - 2_000, "lapsed": stamp - 300, "dead": -stamp}
    redis.zadd(REGISTRY, beats)
    children = [*beats, "unknown"]
    for name in ("fresh", "late", "stuck"):
        redis.set(name, 1, ex=100)

    def extend(since, revive):
        return RENEW_CHILDREN(redis, [REGISTRY, *children], [300_000, 60, 1_200, since, revive, *children])

    def renewed():
        return [name for name in children if redis.ttl(name) > 100]

    with memory():
        reply = extend(0, 0)
        passed = reply[1] - 1
        assert reply[1:] == [1 + passed, 100 + passed, 2_000 + passed, 300 + passed, -1, -1]
        assert renewed() == ["late"]
        assert 500 <= extend(stamp - 500, 0)[3] < 560  # silence counts since the parent sees Redis up
        assert renewed() == ["late", "stuck"]
        assert extend(0, 1)[1:] == [0, 0, 0, 0, -1, -1]  # Redis was unavailable
    assert renewed() == ["late", "stuck", "lapsed"]
    assert 0 <= passed < 60
    assert 0 <= float(reply[0]) - stamp < 60


@pytest.mark.proves("I24")
def test_unregister_removes_only_long_dead_empty_processes(redis):
    redis.zadd(REGISTRY, {"me": now(redis) - 100})
    for name in (RUNS, "record"):
        redis.hset(name, "slots", 7)
    redis.sadd("processes", "me", "other")
    call = [LEASE, REGISTRY, "processes", WORKING, "aw:working:me/slow", RUNS, "record"], ["me", 50, 2]
    assert UNREGISTER(redis, *call) == 0  # it lives
    redis.delete(LEASE)
    redis.lpush(WORKING, ODD)
    assert UNREGISTER(redis, *call) == 0  # it holds jobs
    redis.delete(WORKING)
    redis.lpush("aw:working:me/slow", ODD)
    assert UNREGISTER(redis, *call) == 0  # so does its capsule
    redis.delete("aw:working:me/slow")
    for recently in (now(redis) - 10, 10 - now(redis)):
        redis.zadd(REGISTRY, {"me": recently})
        assert UNREGISTER(redis, *call) == 0  # a blocking call may be alive
    assert redis.exists(RUNS, "record") == 2
    assert redis.scard("processes") == 2
    redis.zadd(REGISTRY, {"me": now(redis) - 100})
    assert UNREGISTER(redis, *call) == 1
    assert UNREGISTER(redis, *call) == 0
    assert not redis.exists(REGISTRY, RUNS, "record")
    assert redis.smembers("processes") == {b"other"}
    redis.set("processes", "no set")
    redis.zadd(REGISTRY, {"me": 100 - now(redis)})
    assert UNREGISTER(redis, *call) == 1  # seen dead long ago


# --- keys of a wrong type: Lua does not roll back, so each script must undo its own writes ----------------------------


@pytest.fixture
def wrong(redis):
    """A key that is neither a list nor a set."""
    redis.set("wrong", "text")
    return "wrong"


@pytest.mark.proves("F40")
def test_fetch_skips_a_queue_of_wrong_type(redis, wrong):
    redis.lpush(QUEUE, "q1")
    redis.lpush(OTHER, "r1")
    reply = FETCH(redis, [LEASE, WORKING, QUEUE, wrong, OTHER], [5000, 9, 0, 9, 9, 9])
    assert reply == [1, [], [2], 1, [b"q1"], 3, [b"r1"]]


@pytest.mark.proves("F40", "I1")
@pytest.mark.parametrize(("move", "limits"), [(SCHEDULE, []), (KILL, [10, 60, 0])], ids=["schedule", "kill"])
def test_failed_move_leaves_the_jobs_in_the_working_list(redis, wrong, move, limits):
    redis.lpush(WORKING, ODD, "a")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        move(redis, [WORKING, wrong], [*limits, "gone", "new", "", "", "a", "new", 1, "", ODD, "new", 1, ""])
    assert set(listed(redis, WORKING)) == {b"a", ODD}


@pytest.mark.proves("F40", "I1")
def test_requeue_keeps_jobs_of_an_unusable_queue(redis, wrong):
    redis.lpush(WORKING, "a", ODD)
    assert REQUEUE(redis, [WORKING, QUEUES, wrong, QUEUE], [2, ODD, "a", "odd2", "a2", "w", "q"]) == [1]
    assert listed(redis, WORKING) == [ODD]
    assert listed(redis, QUEUE) == [b"a2"]


@pytest.mark.proves("F40", "I1")
@pytest.mark.parametrize("name", ["q", ""])
def test_reclaim_leaves_jobs_of_an_unusable_queue(redis, wrong, name):
    redis.delete(LEASE)
    redis.lpush(WORKING, ODD)
    arguments = [ODD, "new", now(redis) + 60, name, 100, 100]
    assert RECLAIM(redis, [LEASE, WORKING, wrong, QUEUES], arguments) == 0
    assert listed(redis, WORKING) == [ODD]


@pytest.mark.proves("F40", "I1")
def test_enqueue_due_wrong_type_postpones_and_goes_on(redis):
    redis.set(OTHER, "no list")
    redis.set(DEAD, "no set")
    redis.zadd(SET, {"bad": 1, "poison": 2, "good": 3})
    jobs = [("bad", "queue", "bad2", "r"), ("poison", "dead", "poison", ""), ("good", "queue", "good2", "q")]
    assert promote(redis, jobs) == [[-1, -1, 1], 0]
    left = dict(redis.zrange(SET, 0, -1, withscores=True))
    assert set(left) == {b"bad", b"poison"}
    assert min(left.values()) > now(redis)
    assert listed(redis, QUEUE) == [b"good2"]


@pytest.mark.proves("F40", "I1")
def test_receive_transfer_wrong_type_leaves_no_guard(redis):
    redis.set(OTHER, "no list")
    assert land(redis, ("t1", "one", "r"), ("t2", "two", "q")) == [-1, 1]
    assert listed(redis, QUEUE) == [b"two"]
    assert not redis.exists("landed:t1")


LIMIT = "aw:limit:Limited"
QUEUED = dumps({"slots": [["aw:limit:queue/q", "me j1"]]})


def job(jid, **more):
    return dumps({"class": "Limited", "args": [], "jid": jid, "queue": "q", **more})


def acquire(redis, data, jid, limit, *, scope="", share=0, mode="wait", holds="", since=""):
    arguments = [data, f"me {jid}", jid, "q", limit, 180, since, scope, share, mode, holds]
    return TAKE_SLOT(redis, [WORKING, LIMIT], arguments)[0]


def in_hand(redis, *jobs):
    redis.lpush(WORKING, *jobs)


def slots(redis):
    return sorted(redis.zrange(f"{LIMIT}:running", 0, -1))


def release(redis, data, jid):
    held = dumps({"slots": [[LIMIT, f"me {jid}"]]})
    assert FINISH(redis, [WORKING], [data, held]) == 1


def jids(redis, key=QUEUE):
    return [loads(data)["jid"] for data in redis.lrange(key, 0, -1)]


@pytest.mark.proves("R43", "R44", "I10")
def test_take_slot_surplus_waits_and_oldest_gets_free_slot(redis, memory):
    redis.zadd("aw:limit:queue/q:running", {"me j1": now(redis) + 60})
    first, second = job("j0"), job("j1")
    in_hand(redis, first, second, job("j2"), job("j3"))
    with memory():
        assert acquire(redis, first, "j0", 1) == 1
        assert acquire(redis, first, "j0", 1) == 1  # the reply was lost
        assert TAKE_SLOT(redis, [WORKING, LIMIT], ["gone", "me x", "x", "q", 1, 180, "", "", 0, "wait", ""])[0] == -1
        assert acquire(redis, second, "j1", 1, holds=QUEUED) == 0
        assert acquire(redis, job("j2"), "j2", 1, mode="refuse") == 2
        assert acquire(redis, job("j3"), "j3", 1) == 0
    assert not redis.exists("aw:limit:queue/q:running")
    assert slots(redis) == [b"me j0"]
    assert listed(redis, WORKING) == [job("j2"), first]
    (waiting, since), _ = redis.zrange(f"{LIMIT}:waiting:", 0, -1, withscores=True)
    ticket, payload = waiting.split(b"\n", 1)
    assert loads(ticket) == ["q", "j1"]
    assert payload == b'%b,"concurrency_limit_buffered_at":%.6f}' % (second[:-1], since)
    with memory():
        release(redis, first, "j0")
    assert listed(redis, QUEUE) == [payload]
    assert redis.smembers("queues") == {b"q"}
    assert slots(redis) == [b" j1"]
    redis.delete(QUEUE)
    in_hand(redis, job("j4"), payload)
    with memory():
        assert acquire(redis, job("j4"), "j4", 1) == 0  # the slot is reserved
        assert acquire(redis, payload, "j1", 1, since=since) == 1
    assert slots(redis) == [b"me j1"]
    assert redis.smembers("aw:limits:waiting") == {LIMIT.encode()}


@pytest.mark.proves("R44", "F7")
def test_slots_unsteady_heartbeats_free_no_slot(redis, memory):
    redis.zadd(f"{LIMIT}:running", {"me j0": now(redis) - 1, " j1": now(redis) - 1})
    for since in (None, now(redis) - 10):
        if since is not None:
            redis.set("aw:steady_since", since)
        with memory():
            assert RELEASE_WAITING(redis, [LIMIT], [1, 0, 100, 60]) == [0, 1, b"1", 0]
        assert redis.zrange(f"{LIMIT}:running", 0, -1) == [b"me j0"]


@pytest.mark.proves("R42", "R44")
def test_slots_expired_are_freed_and_late_job_keeps_position(redis, memory):
    redis.zadd(f"{LIMIT}:running", {"dead j0": now(redis) - 1, " j1": now(redis) - 1})
    redis.set("aw:steady_since", now(redis) - 60)
    late = job("j1", concurrency_limit_buffered_at=5.5)
    in_hand(redis, job("j2"), job("j3"), job("j4"), late)
    for jid in ("j2", "j3"):
        assert acquire(redis, job(jid), jid, -1) == 0
    with memory():
        assert RELEASE_WAITING(redis, [LIMIT], [2, 0, 100, 60]) == [2, 2, b"2", 0]
        assert jids(redis) == ["j3", "j2"]  # the older is the next to run
        assert acquire(redis, job("j4"), "j4", 2) == 0
        assert acquire(redis, late, "j1", 2, since="5.5") == 0
    assert [score for _, score in redis.zrange(f"{LIMIT}:waiting:", 0, 0, withscores=True)] == [5.5]
    redis.zadd("aw:limit:Other:running", {"dead j0": 1})
    in_hand(redis, "{other}")
    assert (
        TAKE_SLOT(redis, [WORKING, "aw:limit:Other"], ["{other}", "me j", "j", "q", 1, 9, "", "", 0, "wait", ""])[0]
        == 1
    )
    before = redis.zscore(f"{LIMIT}:running", " j2")
    with memory():
        RENEW_SLOTS(redis, [f"{LIMIT}:running", f"{LIMIT}:running"], [180, " j2", "gone"])
    assert redis.zscore(f"{LIMIT}:running", " j2") > before + 100
    assert slots(redis) == [b" j2", b" j3"]


@pytest.mark.proves("R42", "R50")
def test_slots_clock_jump_keeps_them_until_heartbeats_are_steady(redis, memory):
    in_hand(redis, job("j0"), job("j1"), job("j2"))
    assert acquire(redis, job("j0"), "j0", 2) == 1
    redis.zadd(f"{LIMIT}:running", {"me j0": 1, " j9": 1})
    for beats in (None, now(redis) - 5, now(redis) + 500):
        redis.delete(keys.STEADY_SINCE) if beats is None else redis.set(keys.STEADY_SINCE, beats)
        with memory():
            assert RELEASE_WAITING(redis, [LIMIT], [2, 0, 9, 60])[1] == 1  # the reservation names no process
    with memory():
        assert acquire(redis, job("j1"), "j1", 1) == 0
    redis.set(keys.STEADY_SINCE, now(redis) - 20)
    with memory():
        assert acquire(redis, job("j2"), "j2", 2) == 1
    assert slots(redis) == [b" j1", b"me j2"]


@pytest.mark.proves("R44")
def test_limit_removed_or_unknown_releases_waiting_jobs(redis, memory):
    in_hand(redis, *[job(f"j{number}") for number in range(5)])
    for number in range(5):
        assert acquire(redis, job(f"j{number}"), f"j{number}", -1) == 0
    with memory():
        assert RELEASE_WAITING(redis, [LIMIT], ["", 0, 2, 60]) == [0, 0, b"-1", 1]  # other processes may know it
        assert RELEASE_WAITING(redis, [LIMIT], [0, 0, 2, 60]) == [2, 0, b"0", 1]
    redis.hset(LIMIT, mapping={"limit": -1, "known": now(redis) - 61})
    with memory():
        assert RELEASE_WAITING(redis, [LIMIT], ["", 0, 2, 60]) == [2, 0, b"0", 1]
    redis.hset(LIMIT, mapping={"override": 0, "override_until": now(redis) + 60})
    with memory():
        assert RELEASE_WAITING(redis, [LIMIT], [-1, 0, 2, 60]) == [1, 0, b"0", 0]
    assert jids(redis) == [f"j{number}" for number in reversed(range(5))]  # page after page, and the oldest is next
    assert not redis.keys("aw:limit:*:*")


def test_limit_precedence_is_override_throttled_application(redis):
    in_hand(redis, *[job(f"j{number}") for number in range(3)])
    assert acquire(redis, job("j0"), "j0", 2) == 1
    later = now(redis) + 60
    redis.hset(LIMIT, mapping={"current": 1, "current_until": later})
    assert acquire(redis, job("j1"), "j1", 2) == 0
    redis.hset(LIMIT, mapping={"override": 3, "override_until": ""})
    assert acquire(redis, job("j2"), "j2", 2) == 1
    assert slots(redis) == [b" j1", b"me j0", b"me j2"]
    redis.hset(LIMIT, mapping={"override": -1, "override_until": 1, "current_until": 1})
    assert RELEASE_WAITING(redis, [LIMIT], [4, 0, 9, 60])[2] == b"4"


def test_scopes_get_their_share_in_turn(redis, memory):
    in_hand(redis, *[job(jid) for jid in ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "n0")])
    with memory():
        for number in range(4):
            assert acquire(redis, job(f"a{number}"), f"a{number}", 3, scope="a", share=2) == (number < 2)
        assert acquire(redis, job("b0"), "b0", 3, scope="b", share=2) == 1
        for jid, scope in (("b1", "b"), ("b2", "b"), ("n0", "")):
            assert acquire(redis, job(jid), jid, 3, scope=scope, share=2) == 0
        assert redis.hgetall(f"{LIMIT}:scope_slots") == {b"a": b"2", b"b": b"1"}
        release(redis, job("b0"), "b0")
        assert jids(redis) == ["b1"]  # a has its share
        release(redis, job("a0"), "a0")
        assert jids(redis) == ["b1", "n0"]  # in turn, though b had waited longer
        release(redis, job("a1"), "a1")
        assert jids(redis) == ["b1", "n0", "b2"]
        payload = listed(redis, QUEUE)[0]
    redis.lpush(WORKING, payload)
    with memory():
        assert acquire(redis, payload, "b1", 3, scope="b", share=2, since="1") == 1
        release(redis, payload, "b1")
        assert jids(redis) == ["b1", "n0", "b2", "a2"]  # it has room again since one of its own ended
    redis.zadd(f"{LIMIT}:running", {" a2": 1})
    redis.delete(QUEUE)
    redis.zadd(f"{LIMIT}:running", {" b1": 1, " b2": 1, " n0": 1})
    with memory():
        assert RELEASE_WAITING(redis, [LIMIT], [3, 2, 100, 60]) == [1, 1, b"3", 0]
    assert jids(redis) == ["a3"]
    assert redis.hgetall(f"{LIMIT}:scope_slots") == {b"a": b"1"}


@pytest.mark.proves("R22")
def test_slots_wrong_type_keys_lose_no_waiting_job(redis):
    in_hand(redis, *[job(f"j{number}") for number in range(4)])
    assert acquire(redis, job("j0"), "j0", -1) == 0
    assert acquire(redis, job("j1"), "j1", -1) == 0
    redis.set(QUEUE, "no list")
    for _ in range(2):
        assert RELEASE_WAITING(redis, [LIMIT], [1, 0, 100, 60])[0] == 0
    redis.zadd(f"{LIMIT}:waiting:", {b"no ticket": 1, b"[1]\n{}": 2})
    redis.delete(QUEUE)
    assert RELEASE_WAITING(redis, [LIMIT], [5, 0, 100, 60])[0] == 2
    assert sorted(jids(redis)) == ["j0", "j1"]
    assert redis.zcard(f"{LIMIT}:waiting:") == 2
    redis.delete(f"{LIMIT}:waiting:")
    redis.set(f"{LIMIT}:waiting:", "no sorted set")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        acquire(redis, job("j2"), "j2", 1)
    redis.set(f"{LIMIT}:running", "no sorted set")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        acquire(redis, job("j3"), "j3", 1)
    assert listed(redis, WORKING) == [job("j3"), job("j2")]


# --- how many jobs have been processed --------------------------------------------------------------------------------


def counts(redis):
    """Return Sidekiq's counters: the total, and each day."""
    days = {key.decode().rpartition(":")[2]: int(redis.get(key)) for key in redis.keys("stat:processed:*")}
    return int(redis.get("stat:processed") or 0), days


def today(redis):
    return datetime.fromtimestamp(redis.time()[0], UTC).strftime("%Y-%m-%d")


def test_fetch_counts_acknowledged_jobs_once(redis, memory):
    redis.set("lease", 1)
    redis.lpush("working", "a", "b", "c")
    with memory():
        for _ in range(2):  # again, as after a lost reply
            FETCH(redis, ["lease", "working"], [1_000, 0, 3, "a", "not ours", "b"])
    assert counts(redis) == (2, {today(redis): 2})
    assert 157_000_000 < redis.ttl(f"stat:processed:{today(redis)}") <= 157_680_000
    FETCH(redis, ["lease", "working"], [1_000, 0, 1, "c"])
    FETCH(redis, ["lease", "working", "queue:none"], [1_000, 1, 0, 1])
    assert counts(redis) == (3, {today(redis): 3})


def test_fetch_releases_nothing_of_another_process(redis, memory):
    redis.set("lease", 1)
    redis.lpush("working", "a", "b")
    redis.zadd("aw:limit:C:running", {"me a": 9e9, "me b": 9e9, "me gone": 9e9})
    slots = ["slot", "aw:limit:C", "", 3, "1 2 3", "me a", "me gone", "me b"]
    states = ["state", "completed", 60, 2, "1 2", "aw:status:a", "aw:status:gone"]
    redis.hset("aw:lock:a", "jid", "a")
    redis.hset("aw:lock:gone", "jid", "gone")
    redis.hset("aw:lock:b", "jid", "of another job")
    locks = ["lock", "", "", 6, "1 2 3", *(word for job in ("a", "gone", "b") for word in (f"aw:lock:{job}", job))]
    with memory():
        reply = FETCH(redis, ["lease", "working"], [1_000, 0, 3, "a", "gone", "b", "", *slots, *locks, *states])
    assert reply == [1, [2], []]
    assert sorted(redis.keys("aw:lock:*")) == [b"aw:lock:b", b"aw:lock:gone"]
    assert redis.zrange("aw:limit:C:running", 0, -1) == [b"me gone"]
    assert (redis.get("aw:status:a"), redis.get("aw:status:gone")) == (b"completed", None)


def test_fetch_shows_only_a_job_of_its_own_as_running(redis, memory):
    """A job that has ended by another call has a later state already."""
    redis.set("lease", 1)
    redis.lpush("working", "a", "c")
    redis.set("aw:status:ended", "retrying")
    shown = [
        word
        for job, key in (("a", "a"), ("b", "ended"), ("c", "c"))
        for word in ("running", "running", 60, 2, "", job, f"aw:status:{key}")
    ]
    with memory():
        for _ in range(2):  # again, as after a lost reply
            reply = FETCH(redis, ["lease", "working"], [1_000, 0, 1, "c", "", *shown])
    assert reply == [1, [1], []]
    assert [redis.get(f"aw:status:{name}") for name in ("a", "ended", "c")] == [b"running", b"retrying", None]
    assert 50 < redis.ttl("aw:status:a") <= 60


def test_fetch_gives_a_freed_slot_to_the_waiting_job(redis):
    redis.set("lease", 1)
    redis.lpush("working", "a")
    redis.hset("aw:limit:C", "limit", 1)
    redis.zadd("aw:limit:C:running", {"me a": 9e9})
    redis.hset("aw:limit:C:scopes", "me a", "s")
    redis.hset("aw:limit:C:scope_slots", "s", 1)
    redis.zadd("aw:limit:C:turns", {"": 1})
    redis.zadd("aw:limit:C:waiting:", {b'["q","w"]\nw': 1})
    FETCH(redis, ["lease", "working"], [1_000, 0, 1, "a", "", "slot", "aw:limit:C", "", 1, "1", "me a"])
    assert redis.zrange("aw:limit:C:running", 0, -1) == [b" w"]
    assert listed(redis, QUEUE) == [b"w"]
    assert redis.exists("aw:limit:C:scopes", "aw:limit:C:scope_slots") == 0


@pytest.fixture
def full_limit(redis):
    """Fill a limit of two: of its jobs `a` and `b` one ends, and of three others that wait the first two are of one queue."""
    redis.set("lease", 1)
    redis.lpush("working", "a", "b")
    redis.hset("aw:limit:C", "limit", 2)
    redis.sadd("aw:limits:waiting", "aw:limit:C")
    redis.zadd("aw:limit:C:running", {"me a": 9e9, "me b": 9e9})
    redis.zadd("aw:limit:C:turns", {"": 1})
    redis.zadd("aw:limit:C:waiting:", {f'["{queue}","{jid}"]\n{jid}': int(jid) for queue, jid in ("q1", "q2", "r3")})

    def fetch(*ended, queues=("queue:q",), wanted=5, quotas=(5, 5)):
        members = [f"me {jid}" for jid in ended]
        slots = ["slot", "aw:limit:C", "180", len(ended), " ".join(map(str, range(1, len(ended) + 1))), *members]
        arguments = [1_000, wanted, len(ended), *ended, *quotas[: len(queues)], "", *slots]
        return FETCH(redis, ["lease", "working", *queues], arguments)

    return fetch


def held_at(redis):
    return [member.split(b"\n")[1] for member in redis.zrange("aw:limit:C:waiting:", 0, -1)]


@pytest.mark.proves("R43", "R44", "I10")
def test_fetch_brings_waiting_jobs_with_their_slots(redis, memory, full_limit):
    with memory():
        assert full_limit("a") == [1, [], [], [1, b"aw:limit:C", b"me 1"], [b"1"]]
        assert full_limit("a") == [1, [1], []]  # again, as after a lost reply
    assert (slots_of(redis), held_at(redis)) == ([b"me 1", b"me b"], [b"2", b"3"])
    assert listed(redis, "working") == [b"1", b"b"]
    assert not redis.exists("queue:q")
    redis.hset("aw:limit:C", "override", 1)
    assert full_limit("b") == [1, [], []]
    redis.hdel("aw:limit:C", "override")
    # The last one is to run from another queue, so it goes there, with a slot that is reserved for it.
    assert full_limit("1", wanted=2) == [1, [], [], [1, b"aw:limit:C", b"me 2"], [b"2"]]
    assert (slots_of(redis), held_at(redis), listed(redis, "queue:r")) == ([b" 3", b"me 2"], [], [b"3"])
    assert redis.exists("aw:limit:C:turns", "aw:limits:waiting") == 0


@pytest.mark.parametrize(
    "places",
    [
        {"queues": ("queue:first", "queue:q"), "wanted": 1},
        {"queues": ("queue:other",)},
        {"queues": ("queue:q",), "quotas": ("~5",)},
    ],
    ids=["a more important queue has jobs", "the queue is not served", "the queue may have sub-queues"],
)
def test_fetch_sends_waiting_jobs_by_their_queue(redis, full_limit, places):
    redis.lpush("queue:first", "important")
    redis.lpush("queue:q", "younger")
    full_limit("a", **places)
    got = listed(redis, "working")
    assert [*listed(redis, "queue:q"), *got].count(b"1") == 1
    assert (b"important" in got) == (len(places["queues"]) == 2)
    # Its slot is reserved, and it is the next one of its queue.
    assert slots_of(redis) == [b" 1", b"me b"]
    assert b"1" in got or listed(redis, "queue:q")[-1] == b"1"


def slots_of(redis):
    return sorted(redis.zrange("aw:limit:C:running", 0, -1))


def test_fetch_without_a_lease_counts_acknowledged_jobs(redis):
    redis.lpush("working", "a")
    FETCH(redis, ["lease", "working"], [1_000, 0, 1, "a"])
    assert counts(redis)[0] == 1


def test_finish_counts_once(redis, memory):
    redis.lpush("working", "a")
    with memory():
        assert [FINISH(redis, ["working"], ["a", ""]) for _ in range(2)] == [1, 0]
    assert counts(redis) == (1, {today(redis): 1})


@pytest.mark.parametrize("wrong_type", ["all", "day"])
def test_counters_of_wrong_type_stop_no_acknowledgement(redis, wrong_type):
    key = "stat:processed" if wrong_type == "all" else f"stat:processed:{today(redis)}"
    for make in (lambda: redis.lpush(key, "x"), lambda: redis.set(key, "no number")):
        redis.delete("stat:processed", key)
        make()
        redis.set("lease", 1)
        redis.lpush("working", "a", "b")
        assert FETCH(redis, ["lease", "working"], [1_000, 0, 1, "a"]) == [1, [], []]
        assert FINISH(redis, ["working"], ["b", ""]) == 1
        assert redis.exists("working") == 0
    if wrong_type == "day":
        assert redis.get("stat:processed") == b"2"


DATE_OF = (
    Script("fetch", "count").source.partition(b"local function count_processed")[0]
    + b"return date_of(tonumber(ARGV[1]))"
)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(moment=st.datetimes(datetime(1970, 1, 1), datetime(2400, 12, 31)))  # noqa: DTZ001 - of UTC
def test_count_uses_the_date_of_utc(redis, moment):
    seconds = int(moment.replace(tzinfo=UTC).timestamp())
    assert redis.eval(DATE_OF, 0, seconds) == moment.strftime("%Y-%m-%d").encode()
