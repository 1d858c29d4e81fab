"""Garbage in every key of limits, locks and pauses stops no process, and loses or doubles no job."""

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from framework.features.concurrency.limits import THROTTLE
from framework.features.pause.admission import resume
from framework.features.pause.store import HOLD_PAUSED
from framework.store.script import FINISH, RELEASE_WAITING, RENEW_SLOTS, TAKE_SLOT
from framework.wire.resources import JobResources, Lock, Slot
from tests.harness import encoded, examples
from tests.proofs.places import jid_of, payload_in, place_of

BASE, ME, QUEUE = "aw:limit:A", "aw:working:me", "queue:q"
RUNNING, WAITING, TURNS, PAUSED = f"{BASE}:running", f"{BASE}:waiting:", f"{BASE}:turns", "aw:paused_jobs:A"
SETS = (RUNNING, WAITING, TURNS, PAUSED)
HASHES = (BASE, f"{BASE}:scopes", f"{BASE}:scope_slots", "aw:lock:w1", "aw:flags", "aw:counters")
NAMES = (f"{BASE}:full", "aw:limits", "aw:limits:waiting", "aw:paused_classes", "queues")
FIELDS = (
    "limit",
    "share",
    "turn",
    "current",
    "current_until",
    "override",
    "override_until",
    "known",
    "jid",
    "me w1",
    "",
)

HELD = ["w1", "w2", "w3"]
IN_LINE = ["l1", "l2", "l3"]
AWAY = ["p1", "p2"]

garbage = st.one_of(
    st.sampled_from(
        [
            b"",
            b"\n",
            b"[]\n{}",
            b'["q"]',
            b"[7]\nx",
            b'{"a":1}\n{}',
            b"null\n{}",
            b'["q"',
            b"[" * 300,
            b'["q\\u0000"]\nx',
        ]
    ),
    st.sampled_from(
        [b"nan", b"inf", b"-inf", b"1e999", b"-5", b"0", b"9" * 40, b"0x10", b"me w1", b" l1", b"A", BASE.encode()]
    ),
    st.binary(max_size=20),
)
some = st.lists(garbage, max_size=3)
garbage_values = st.fixed_dictionaries(
    {
        "sets": st.dictionaries(st.sampled_from(SETS), some),
        "hashes": st.dictionaries(
            st.sampled_from(HASHES), st.dictionaries(st.sampled_from(FIELDS), garbage, max_size=4)
        ),
        "names": st.dictionaries(st.sampled_from(NAMES), some),
        "wrong": st.sets(st.sampled_from((RUNNING, TURNS, *HASHES, *NAMES, QUEUE)), max_size=2),
    }
)


def job(jid):
    return encoded(**{"class": "A", "jid": jid, "queue": "q", "args": []})


def lay_out(redis, found):
    """Write valid jobs to every place, and garbage to the same keys, or a key of a wrong type in place of the key."""
    redis.flushall()
    ticket = b'["q"]\n'
    redis.lpush(ME, *map(job, HELD))
    redis.zadd(WAITING, {b'["q","%b"]\n%b' % (jid.encode(), job(jid)): n for n, jid in enumerate(IN_LINE)})
    redis.zadd(PAUSED, {ticket + job(jid): n for n, jid in enumerate(AWAY)})
    redis.zadd(TURNS, {"": 1})
    redis.sadd("aw:limits:waiting", BASE)
    redis.sadd("aw:paused_classes", "A")
    for key, members in found["sets"].items():
        for score, member in enumerate(members):
            redis.zadd(key, {member: score})
    for key, fields in found["hashes"].items():
        for name, value in fields.items():
            redis.hset(key, name, value)
    for key, members in found["names"].items():
        for member in members:
            redis.sadd(key, member)
    for key in found["wrong"]:
        redis.delete(key)
        redis.set(key, "no such thing")


def where(redis):
    """Count the places of each valid job."""
    counts = Counter()
    for key in redis.scan_iter():
        if place_of(key) is None or redis.type(key) == b"string":
            continue
        listed = redis.lrange(key, 0, -1) if redis.type(key) == b"list" else redis.zrange(key, 0, -1)
        counts.update(jid_of(payload_in(key, member)).decode(errors="replace") for member in listed)
    return {jid: counts[jid] for jid in (*HELD, *IN_LINE, *AWAY)}


def acquire(redis, jid, limit):
    return TAKE_SLOT(redis, [ME, BASE], [job(jid), f"me {jid}", jid, "q", limit, 60, "", "", 0, "wait", ""])


def use(redis):
    """Run every operation on these keys as processes do; return the jobs that ended."""
    for call in (
        lambda: acquire(redis, "w1", 2),
        lambda: acquire(redis, "w2", 2),
        lambda: RENEW_SLOTS(redis, [RUNNING, RUNNING], [60, "me w1", "me w2"]),
        lambda: THROTTLE(redis, [BASE], [2, "hard", 1, 1, 60]),
        lambda: HOLD_PAUSED(
            redis,
            [ME, PAUSED, "aw:paused_classes", "aw:flags", "aw:pause_strategy:A"],
            [job("w3"), "q", "A", "f", "", "s", 9, ""],
        ),
        lambda: RELEASE_WAITING(redis, [BASE], [2, 0, 10, 60]),
        lambda: resume(redis, "A", b"", class_known=True),
    ):
        with suppress(ResponseError):
            call()
    holds = JobResources(Lock("aw:lock:w1", "w1", 60.0, "A"), [Slot(BASE, "me w1")])
    return {"w1"} if FINISH(redis, [ME], [job("w1"), holds.on_end()]) else set()


@pytest.mark.proves("F38", "I1", "I2", "R51")
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(found=garbage_values)
def test_garbage_in_policy_keys_loses_no_job(redis, found):
    lay_out(redis, found)
    ended = use(redis)
    assert where(redis) == {jid: int(jid not in ended) for jid in where(redis)}
    for key in (*HASHES, *NAMES, QUEUE, RUNNING, TURNS):
        if redis.type(key) == b"string":
            redis.delete(key)
    redis.delete(BASE, f"{BASE}:scopes", f"{BASE}:scope_slots", "aw:flags", "aw:pause_strategy:A")
    redis.zadd(TURNS, {"": 1})
    for _ in range(3):
        RELEASE_WAITING(redis, [BASE], [0, 0, 100, 60])
        resume(redis, "A", b"", class_known=True)
    queued = [jid_of(data).decode(errors="replace") for data in redis.lrange(QUEUE, 0, -1)]
    assert {*IN_LINE, *AWAY} <= {*queued}
    assert where(redis) == {jid: int(jid not in ended) for jid in where(redis)}


@pytest.mark.proves("F38", "I1", "R51")
@pytest.mark.parametrize("scope", ["", "s"])
@pytest.mark.parametrize("key", [f"{BASE}:{name}" for name in ("turns", "scopes", "held")] + [*NAMES, BASE, QUEUE])
def test_waiting_job_gets_a_slot_after_the_garbage_is_gone(redis, key, scope):
    def enter(data, jid):
        arguments = [
            data,
            f"me {jid}",
            jid,
            "q",
            1,
            60,
            "5" if b"buffered" in data else "",
            scope,
            len(scope),
            "wait",
            "",
        ]
        with suppress(ResponseError):
            TAKE_SLOT(redis, [ME, BASE], arguments)

    def reclaim_and_requeue():
        with suppress(ResponseError):
            RELEASE_WAITING(redis, [BASE], [1, len(scope), 10, 60])
        while key != QUEUE and (data := redis.lmove(QUEUE, ME, "RIGHT", "LEFT")):
            enter(data, jid_of(data).decode())

    jobs = {jid: job(jid) for jid in HELD}
    redis.set(key, "no such thing")
    redis.lpush(ME, *jobs.values())
    for jid, data in jobs.items():
        enter(data, jid)
    reclaim_and_requeue()
    everywhere = redis.lrange(ME, 0, -1) + redis.zrange(WAITING + scope, 0, -1)
    assert sorted(jid for jid in HELD for data in everywhere if jid.encode() in data) == HELD
    redis.delete(key)
    key = ""
    for data in redis.lrange(ME, 0, -1)[:-1]:  # asked again, or new ones that come
        enter(data, jid_of(data).decode())
    for _ in range(6):
        reclaim_and_requeue()
        for data in redis.lrange(ME, 0, -1):
            FINISH(redis, [ME], [data, JobResources(None, [Slot(BASE, f"me {jid_of(data).decode()}")]).on_end()])
    assert not redis.exists(ME, QUEUE, WAITING + scope, RUNNING)
