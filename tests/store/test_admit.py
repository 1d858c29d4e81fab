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


def one_by_one(redis, jobs, limit, share, keep_ms, *, refuses, numbers=None):
    states = []
    for number, job in enumerate(jobs):
        if numbers is not None and number not in numbers:
            continue
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
        states.append(state)
    return states


def together(redis, jobs, limit, share, keep_ms, *, refuses):
    """Ask for all jobs by one call, grouped by what their arguments have in common; return the states in the order of the jobs.

    The first of them starts now; the others are neighbours in the working list, unless one of them is gone.
    """
    groups = {}
    for number, job in enumerate(jobs):
        more = "scope" if job["scope"] or share else "since" if job["waited"] else ""
        groups.setdefault((job["lock"] is not None, more if limit is not None else ""), []).append(number)
    ends = [payload(1), payload(len(jobs) - 1)] if len(jobs) > 1 else ["", ""]
    names, arguments, order = [WORKING], [payload(0), len(jobs) - 1, *ends], []
    for (locked, more), numbers in groups.items():
        limited = ["", "", "", "", ""] if limit is None else [limit, share, 180, ME, "1" if refuses else ""]
        lock = [keep_ms, 90_000, 60_000, ""] if locked else ["", "", "", ""]
        arguments += [len(numbers), "C", "q", *limited, *lock, more, " ".join(map(str, numbers))]
        names += [] if limit is None else [BASE]
        for number in numbers:
            names += [keys.lock(str(number))] if locked else []
            since = "7.000000" if jobs[number]["waited"] else ""
            arguments += [f"j{number}", *[since, jobs[number]["scope"]][: ["", "since", "scope"].index(more)]]
        order += numbers
    reply = ADMIT(redis, names, arguments)
    states = [1] * len(jobs) if reply == 1 else reply
    return [state for _, state in sorted(zip(order, states, strict=True), key=lambda pair: pair[0])]


def in_groups(jobs):
    """Return the jobs in the order of ``together``: those with like arguments are neighbours."""
    return sorted(jobs, key=lambda job: (job["lock"] is not None, bool(job["scope"]), job["waited"]))


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
    # One group without scopes is decided in one pass: its jobs have their order, and so has the other way of this test.
    jobs, found = in_groups(jobs), []
    for way in (one_by_one, together):
        prepare(redis, jobs, waiting=waiting, refuses=refuses)
        states = way(redis, jobs, limit, share, keep_ms, refuses=refuses)
        # The process asks for each of these alone.
        undecided = [number for number, answer in enumerate(states) if answer != 1 and answer[0] == 3]
        alone = one_by_one(redis, jobs, limit, share, keep_ms, refuses=refuses, numbers=undecided)
        for number, answer in zip(undecided, alone, strict=True):
            states[number] = answer
        found.append((states_of(states), contents(redis)))
    assert found[0] == found[1]


@pytest.mark.parametrize("wrong", [BASE, f"{BASE}:running", keys.lock("1")])
def test_admit_reports_an_error_for_its_job_only(redis, wrong):
    jobs = [{"ours": True, "scope": "", "lock": lock, "waited": False} for lock in (None, "own")]
    prepare(redis, jobs, waiting=0)
    redis.delete(wrong)
    redis.rpush(wrong, "a list")
    states = [answer if answer == 1 else answer[0] for answer in together(redis, jobs, 5, 0, 60_000, refuses=False)]
    assert states == ([1, 1] if wrong == keys.lock("1") else [3, 3])
    assert redis.llen(WORKING) == 2


@pytest.mark.parametrize("scopes", [(), ("",)])
def test_admit_holds_no_job_that_lies_elsewhere(redis, scopes):
    """The process may know its jobs in another order than they lie in the working list."""
    for number in range(6):
        redis.lpush(WORKING, payload(number))
    known_as = [0, 1, 3, 2, 4, 5]
    values = [value for number in known_as for value in (f"j{number}", *(["", *scopes] if scopes else []))]
    group = [
        6,
        "C",
        "q",
        1,
        1 if scopes else 0,
        180,
        ME,
        "",
        "",
        "",
        "",
        "",
        "scope" if scopes else "",
        "0 1 2 3 4 5",
        *values,
    ]
    answers = ADMIT(redis, [WORKING, BASE], [payload(0), 5, payload(1), payload(5), *group])
    assert [1 if answer == 1 else answer[0] for answer in answers] == [1, 0, 3, 3, 0, 0]
    assert redis.lrange(WORKING, 0, -1) == [payload(3), payload(2), payload(0)]
