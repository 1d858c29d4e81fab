"""``admit.lua`` has the effects of ``take_slot``, ``start_locked`` and a SET for each of its jobs."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.features.deduplication.store import START_LOCKED
from framework.store.script import ADMIT, TAKE_SLOT
from framework.wire import keys
from framework.wire.json import dumps
from tests.harness import examples

ME = "host:1:0"
WORKING = keys.working(ME)
BASE = keys.limit("C")

JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "ours": st.sampled_from([True, True, True, False]),
            "scope": st.sampled_from(["", "", "a", "b"]),
            "lock": st.sampled_from([None, "own", "free", "of another"]),
            "tracked": st.booleans(),
            "waited": st.booleans(),
            "reserved": st.booleans(),
        }
    ),
    min_size=1,
    max_size=6,
)


def payload(number):
    return dumps({"class": "C", "jid": f"j{number}"})


def prepare(redis, jobs, *, waiting, refuses=False):
    redis.flushall()
    for number, job in enumerate(jobs):
        if job["ours"]:
            redis.lpush(WORKING, payload(number))
        if job["lock"] in ("own", "of another"):
            redis.hset(keys.lock(str(number)), "jid", f"j{number}" if job["lock"] == "own" else "other")
            redis.pexpire(keys.lock(str(number)), 50_000)
        # Only a job that has waited, or that a limited-capacity worker has pushed, may have a reservation.
        if job.get("reserved") and (job["waited"] or refuses):
            redis.zadd(f"{BASE}:running", {f" j{number}": 1e12})
    for number in range(waiting):
        redis.zadd(f"{BASE}:waiting:", {b'["q","w%d"]\n{"w":%d}' % (number, number): number})
        redis.zadd(f"{BASE}:turns", {"": 1})
        redis.sadd("aw:limits:waiting", BASE)


def contents(redis):
    """Return every key without the times by the server's clock."""
    found = {}
    for key in sorted(redis.keys("*")):
        kind = redis.type(key)
        if kind == b"zset":
            found[key] = [line.split(b',"concurrency_limit_buffered_at":')[0] for line in redis.zrange(key, 0, -1)]
            if key.endswith(b":running"):
                # Their scores are times by the server's clock: of one call they are equal, of several they are not.
                found[key].sort()
        elif kind == b"hash":
            found[key] = {name: value for name, value in redis.hgetall(key).items() if name != b"since"}
        elif kind == b"list":
            found[key] = [line.split(b',"concurrency_limit_buffered_at":')[0] for line in redis.lrange(key, 0, -1)]
        else:
            found[key] = redis.get(key) if kind == b"string" else redis.smembers(key)
        found[key, "expires"] = redis.ttl(key) > 0
    return found


def one_by_one(redis, jobs, limit, share, keep_ms, *, refuses):
    states = []
    for number, job in enumerate(jobs):
        lock, jid, state = keys.lock(str(number)), f"j{number}", [1, 0, 0, 0]
        if limit is not None:
            held = {"key": lock, "owner": jid, "keep_ms": 90_000, "after_ms": 60_000}
            holds = dumps({"lock": held, "slots": []}) if job["lock"] else ""
            facts = [payload(number), f"{ME} {jid}", jid, "q", limit, 180, "7.000000" if job["waited"] else ""]
            state = TAKE_SLOT(
                redis, [WORKING, BASE], [*facts, job["scope"], share, "refuse" if refuses else "wait", holds]
            )
        elif not job["ours"]:
            state = [-1, 0, 0, 0]
        if state[0] == 1 and job["lock"]:
            START_LOCKED(redis, [lock], [jid, "C", keep_ms, "0"])
        if state[0] == 1 and job["tracked"]:
            redis.set(keys.status(jid), "running", ex=60)
        states.append(state)
    return states


def together(redis, jobs, limit, share, keep_ms, *, refuses):
    limited = {"limit": str(limit), "share": str(share), "ttl_s": "180", "owner": ME, "refuses": refuses}
    locked = {"keep_ms": str(keep_ms), "hold_ms": 90_000, "after_ms": 60_000}
    classes, numbers, limits, names, arguments = [], [], [], [], []
    for number, job in enumerate(jobs):
        jid = f"j{number}"
        names += [keys.lock(str(number))] if job["lock"] else []
        names += [keys.status(jid)] if job["tracked"] else []
        since = "7.000000" if job["waited"] else ""
        told = since or job["scope"]
        shared = {"class": "C", "queue": "q"} | ({} if limit is None else limited) | (locked if job["lock"] else {})
        shared |= ({"status_s": "60"} if job["tracked"] else {}) | ({"waited": True} if told else {})
        if shared not in classes:
            classes.append(shared)
            limits += [] if limit is None else [BASE]
        numbers.append(classes.index(shared) + 1)
        arguments += [payload(number), jid, *([since, job["scope"]] if told else [])]
    reply = ADMIT(redis, [WORKING, *limits, *names], [dumps([classes, numbers]), *arguments])
    return [1] * len(jobs) if reply == 1 else reply


def states_of(answers):
    """Return the answers, those of jobs that start without counts: nothing reads these."""
    return [1 if answer == 1 or answer[0] == 1 else answer for answer in answers]


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    jobs=JOBS,
    limit=st.sampled_from([None, -1, 0, 1, 2, 5]),
    share=st.sampled_from([0, 1, 2]),
    keep_ms=st.sampled_from([0, 60_000]),
    waiting=st.integers(0, 3),
    refuses=st.booleans(),
)
def test_admit_equals_the_steps_of_one_job_each(redis, jobs, limit, share, keep_ms, waiting, refuses):
    found = []
    for way in (one_by_one, together):
        prepare(redis, jobs, waiting=waiting, refuses=refuses)
        states = way(redis, jobs, limit, share, keep_ms, refuses=refuses)
        found.append((states_of(states), contents(redis)))
    assert found[0] == found[1]


@pytest.mark.parametrize("wrong", [BASE, f"{BASE}:running", keys.lock("1")])
def test_admit_reports_an_error_for_its_job_only(redis, wrong):
    jobs = [{"ours": True, "scope": "", "lock": lock, "tracked": False, "waited": False} for lock in (None, "own")]
    prepare(redis, jobs, waiting=0)
    redis.delete(wrong)
    redis.rpush(wrong, "a list")
    states = [answer if answer == 1 else answer[0] for answer in together(redis, jobs, 5, 0, 60_000, refuses=False)]
    assert states == ([1, 1] if wrong == keys.lock("1") else [3, 3])
    assert redis.llen(WORKING) == 2
