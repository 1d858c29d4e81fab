"""I19: a script whose reply was lost runs again, and the second run changes nothing.

Compared is all that there is: lists in their order, members of sets and sorted sets, fields, strings. Not the times: they go on.
"""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.features.batches.push import BatchGroup, BatchWrite, NewBatch
from framework.wire.accepted import AcceptedLimit, CountedJobs
from framework.wire.json import dumps
from framework.wire.resources import Lock, LockDetails, LockRequest, LockTerms, UniqueJobs, WindowJobs, WindowTerms
from tests.harness import examples
from tests.lua import SCRIPTS
from tests.tables import each_row

LEASE, WORKING, QUEUE, QUEUES, SET, DEAD, REGISTRY, RUNS, BEATS = (
    *("lease", "working", "queue:q", "queues", "set", "dead", "registry", "runs", "beats"),
)
NEW = b"as it is stored"

JOBS = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6, unique=True)
"""Any bytes: no script reads them."""


def held(redis, jobs):
    redis.set(LEASE, 1, px=60_000)
    redis.rpush(WORKING, *jobs)


def each_moved(jobs, word):
    """Return the arguments for several jobs of a working list, and for one that is not there."""
    return [part for job in (*jobs, b"not there") for part in (job, NEW + job, word, "")]


def each_with_lock(jobs):
    """Return the arguments for several jobs of a working list, of which the first has a lock, and for one that is not there."""
    return [
        part
        for at, job in enumerate((*jobs, b"not there"))
        for part in (job, "" if at else HOLDS, f"lock{at or ''}", "j")
    ]


HOLDS = dumps({"lock": {"key": "lock", "owner": "j", "keep_ms": 0}, "slots": [["limit", "me j"]]})


def iterating(redis, jobs):
    held(redis, jobs)
    redis.hset("state", mapping={"ex": 1, "c": "null", "aw_run": "token"})


def holding(redis, jobs):
    held(redis, jobs)
    redis.hset("lock", "jid", "j")
    redis.zadd("limit:running", {"me j": 1, "me k": 1})


def parts_of(jobs):
    """One ended job held a slot and a lock and has a state, another one runs."""
    ended = [
        "slot",
        "limit",
        "",
        1,
        "1",
        "me j",
        "lock",
        "",
        "",
        2,
        "1",
        "lock",
        "j",
        "state",
        "completed",
        60,
        1,
        "1",
        "one",
    ]
    runs = ["running", "running", 60, 2, "", jobs[1], "two"] if len(jobs) > 1 else []
    return [LEASE, WORKING, QUEUE], [60_000, 0, 1, jobs[0], 9, "", *ended, *runs]


def left_behind(redis, jobs):
    redis.rpush(WORKING, *jobs)
    redis.zadd(REGISTRY, {"me": time.time() - 100})
    redis.hset(RUNS, "slots", 7)


def due(redis, jobs):
    redis.zadd(SET, {job: number for number, job in enumerate(jobs, 1)})


def due_holding(redis, jobs):
    due(redis, jobs)
    redis.hset("lock", "jid", "j")


def dead_and_empty(redis, jobs):
    redis.zadd(REGISTRY, {"me": time.time() - 100})
    redis.hset(RUNS, "slots", 7)


def promoted(jobs, word):
    queues, stored = [b"q"] * len(jobs), [NEW + job for job in jobs]
    places = [QUEUE] * len(jobs)
    return [SET, QUEUES, DEAD, *places], [len(jobs), 100, 1e9, 60, *jobs, *[word] * len(jobs), *stored, *queues]


def landed(jobs):
    places = [key for number in range(len(jobs)) for key in (f"guard:{number}", QUEUE)]
    return [QUEUES, *places], [len(jobs), 60_000, now_plus(60), *jobs, *[b"q"] * len(jobs)]


def given_back(jobs):
    return [WORKING, QUEUES, *[QUEUE] * len(jobs)], [
        len(jobs),
        *jobs,
        *[NEW + job for job in jobs],
        *[b"q"] * len(jobs),
    ]


def aside(redis, jobs):
    redis.set(LEASE, 1, px=60_000)
    redis.lpush(WORKING, *jobs)


def migrated(jobs):
    """The first job goes to another place."""
    places = [LEASE, WORKING, QUEUES, QUEUE, "queue:r"]
    counts = [60_000, 10, 1_000_000, len(jobs), 2, "q", "r"]
    return places, [*counts, *jobs, NEW, *[b""] * (len(jobs) - 1), 2, *[1] * (len(jobs) - 1)]


def leaving(redis, jobs):
    """One job is in flight."""
    redis.lpush("list", *jobs)
    redis.hset("pages", "1 q", "old 1")
    redis.hset("aw:lock:1", "jid", "j1")


def nothing(redis, jobs):
    """The jobs are on another shard."""


def received(jobs, queue):
    merge = {"at": 1, "counter": "n", "positions": {}, "mark": ["SET", "aw:status:j9", "discarded"]}
    had = {
        "locks": [{"key": "aw:lock:1", "jid": "j9", "ms": 60_000, "fields": ["jid", "j9"], "merge": merge}],
        "hashes": [["it-1", 60_000, 1, 2]],
        "strings": [["aw:status:1", 0, 3]],
        "cancelled": [["5", "1"]],
        "told": [{"accepted": ["C", "10", "1"]}],
    }
    words = [now_plus(60), 60_000, queue, dumps(had), 3, "c", "[1]", "queued"]
    return ["guard", QUEUE if queue else SET, QUEUES], [*words, *jobs]


BLOCK = b'{ "class":"aw.Packed","aw_count":6}'


def in_queue(redis, jobs):
    redis.rpush(QUEUE, b"newer", *jobs, b"older")


def beside_blocks(redis, jobs):
    redis.rpush(QUEUE, b"newer", BLOCK, *jobs, BLOCK, b"older")
    redis.hset("packed", "q", 12)
    redis.hset("blocks", "q", 2)


def in_block(redis, jobs):
    redis.rpush(QUEUE, b"newer", BLOCK, b"older")
    redis.hset("packed", "q", 2 * len(jobs))
    redis.hset("blocks", "q", 2)


DUE_MEMBERS = ["5", "first", "6", "second"]
NAMES = ["names", "bytes", "beyond"]


def deferred_members(redis, jobs):
    redis.zadd(SET, {"first": 5, "second": 6, "third": 7})


def deferred_block(redis, jobs):
    redis.zadd("names", {"id 2 Job": 5, "other 2 Job": 5})
    redis.hset("bytes", mapping={"id": BLOCK, "other": BLOCK})
    redis.hset("beyond", "names", 2)


def packing_deferred():
    return [SET, *NAMES, "none"], ["id 2 Job", "id", BLOCK, *DUE_MEMBERS]


def unpacking_deferred(rest):
    return [SET, *NAMES, DEAD, "counters", "none"], ["id 2 Job", "id", "5", 2, *rest]


def packing(jobs, most_moved, old=b""):
    return [QUEUE, "packed", "blocks", "none"], ["q", 100, most_moved, BLOCK + b" ", old, *jobs]


def unpacking(jobs, entry):
    places = [QUEUE, "packed", "blocks", DEAD, "counters", "none"]
    return places, ["q", BLOCK, len(jobs), 1, entry, "series", *([] if entry else jobs)]


MEMBERS = ["1.5", b'["q"]\na', "2.5", b'["q"]\nb']


def held_members(redis, _jobs):
    redis.zadd(SET, {b'["q"]\na': 1.5, b'["q"]\nb': 2.5, b'["q"]\nc': 3.5})


def held_block(redis, _jobs):
    redis.zadd(SET, {BLOCK: 1.5, b'["q"]\na': 3.5})
    redis.hset("beyond", SET, 5)


def fetched_block(redis, _jobs):
    redis.rpush(WORKING, BLOCK)
    redis.hset("packed", "q", 4)
    redis.hset("blocks", "q", 2)


def now_plus(seconds):
    return time.time() + seconds


def paused_queues(redis, jobs):
    held(redis, jobs)
    redis.sadd("paused", "q", "r")
    redis.hset("ends", mapping={"q": time.time() - 60, "r": time.time() + 600, "gone": 1})


def limited(redis, jobs):
    """One slot is taken, one was reserved for a job that never came, and the other jobs wait."""
    held(redis, jobs)
    redis.zadd("aw:limit:C:running", {"other j0": time.time() + 60, " lost": 1})
    redis.zadd("aw:limit:C:turns", {"": 1})
    redis.zadd("aw:limit:C:waiting:", {b'["q","%d"]\n%b' % (at, job): at for at, job in enumerate(jobs)})
    redis.sadd("aw:limits:waiting", "aw:limit:C")
    redis.hset("aw:limit:C", mapping={"limit": 2, "known": time.time()})


def slot_request(jobs, limit):
    job = b'{"job":%b}' % dumps(jobs[0].hex())
    return [WORKING, "aw:limit:C"], [job, "me j1", "j1", "q", limit, 180, "", "", 0, "wait", ""]


def slot_request_in_flight(redis, jobs):
    redis.lpush(WORKING, slot_request(jobs, 0)[1][0])


def slot_request_behind_others(redis, jobs):
    limited(redis, jobs)
    slot_request_in_flight(redis, jobs)


def admitted(jobs, limit):
    """The first job has everything: a limit and a lock."""
    job = slot_request(jobs, limit)[1][0]
    terms = [1, "C", "q", limit, 0, 180, "me", "", 0, 1, 1, "", "", "0"]
    return [WORKING, "aw:limit:C", "aw:lock:1"], [job, 0, "", "", *terms, "j1"]


def claim(number):
    return LockRequest(
        Lock(f"aw:lock:{number}", f"j{number}", 60, "C"), drop_duplicate=True, counter="n", wal_positions={}
    ).encode()


def pushed(jobs, place, queue, token="", **facts):
    owners = [(f"aw:lock:{number}", f"j{number}", LockDetails({}, **facts)) for number in range(len(jobs))]
    unique = UniqueJobs.of(LockTerms("C", 60, True, "n").encode, jobs, *zip(*owners, strict=True))
    return [QUEUES, place], [len(jobs), queue, token, 60_000, *unique.arguments(0, len(jobs))]


def turns(redis, jobs):
    redis.rpush("queue:q~b", *jobs)
    redis.zadd("aw:turns:q", {"b": 1, "gone": 2})


def windowed(jobs, mode, delay_s=60.0, token=""):
    terms = WindowTerms("C", 60, mode, 90.0, 10, 1_000, "n")
    names = [f"aw:lock:{number // 2}" for number in range(len(jobs))], [f"j{number}" for number in range(len(jobs))]
    unique = WindowJobs(
        terms.encode(LockDetails({}, delay_s=delay_s)), [b'{"args":[["a"]]}' + job for job in jobs], *names
    )
    return [SET], [len(jobs), token, 60_000, *unique.arguments(0, len(jobs))]


def claiming(call, jobs):
    places, arguments = call
    return places, [*arguments, *[claim(number) for number in range(len(jobs))]]


def running_with_duplicates(redis, jobs):
    held(redis, jobs)
    redis.hset("aw:lock:1", mapping={"jid": "j1", "duplicates": 2, "wal:main": "0/1"})


def once_more(jobs):
    places = [WORKING, QUEUES, QUEUE, "aw:lock:1"]
    return places, [jobs[0], HOLDS, "j1", NEW, "j2", "C", "q", 60_000, "status", "queued", 60]


def filled(jobs):
    places = ["aw:limit:C", QUEUES, *[QUEUE] * len(jobs)]
    return places, [3, 600, len(jobs), *jobs, *[f"j{at}" for at in range(len(jobs))], *["q"] * len(jobs)]


def held_arguments(jobs, holds):
    """The oldest job, at the tail of the list, starts now; all others are its neighbours."""
    *others, first = jobs
    ends = [others[-1], others[0]] if others else ["", ""]
    entries = [
        part for at, job in enumerate(reversed(jobs)) for part in (at, b'["q"]\n%b' % job, holds if not at else "")
    ]
    return ["C", "f", "", "strategy", 60_000, first, len(others), *ends, *entries]


def acted(jobs, word, holds=b"", score=""):
    n = len(jobs)
    places = [SET, QUEUES, DEAD, "counts", *[QUEUE] * n]
    stored, queues = [NEW + job for job in jobs], [b"q"] * n
    return places, [n, word, 100, 1e9, score, *jobs, *stored, *queues, *[holds] * n, *[b"" if score else b"n"] * n]


def kept_deleted(jobs):
    n = len(jobs)
    places = [SET, QUEUES, DEAD, "counts", *["aw:deleted"] * n]
    return places, [n, "remove", 100, 1e9, "", *jobs, *[b"dead"] * n, *[b""] * n, *[HOLDS] * n, *[b"n"] * n]


def due_with_tickets(redis, jobs):
    """The youngest job cannot move: the key of its queue is not a list."""
    redis.set("queue:odd", 1)
    redis.zadd(SET, {b'["%b"]\n%b' % (b"odd" if job is jobs[-1] else b"q", job): at for at, job in enumerate(jobs)})
    redis.sadd("pauses", "C")


ASIDE = "queue:q~aside^C"
TICK = "1700000060"


def cron_state(redis, jobs):
    held(redis, jobs)
    redis.hset("crons", "entry", "1700000000 print last")
    redis.set("aw:status:last", "running")


def cron_tick(jobs, tick, lock="", skips="", outcome="", room=b""):
    places = ["crons", "ticks", QUEUES, QUEUE]
    more = [outcome, "j1", jobs[0], "q", lock, skips, 60]
    return places, ["entry", "1700000000 print last", tick, "print", *more, 10, 60_000, room]


def lease_held(redis, jobs):
    redis.hset("aw:exclusive_lease:l", mapping={"token": "t", "holder": "h", "since": "1"})
    redis.zadd("aw:exclusive_leases", {"l": now_plus(60)})


def lease_call(*more):
    return ["aw:exclusive_lease:l", "aw:exclusive_leases"], ["l", *more]


def limiter_in_use(redis, jobs):
    redis.hset("aw:limiter:l", mapping={"taken": 7, "rule": limiter_rule("concurrent", 2, lock_s=60)})
    redis.zadd("aw:limiter:l:", {"other": now_plus(60)})


def limiter_rule(kind, limit, **facts):
    return dumps({"kind": kind, "limit": limit, **facts})


def limiter_call(kind, limit=3, **facts):
    return ["aw:limiter:l", "aw:limiter:l:key", "aw:limiters"], [
        "l",
        limiter_rule(kind, limit, **facts),
        1,
        "t",
        "1",
        60,
        "",
    ]


def limiter_lock(limit):
    return ["aw:limiter:l", "aw:limiter:l:", "aw:limiters"], [
        "l",
        limiter_rule("concurrent", limit, lock_s=60),
        "h",
        "1",
        60,
    ]


BATCH = "aw:batch:aw-b"


def batch(redis, jobs):
    """A batch of all jobs, which died once, with a callback of each event, in another batch."""
    held(redis, jobs)
    callback = dumps([["q", '{"class":"Callback","jid":"c"}']])
    counts = {"total": len(jobs), "pending": len(jobs), "ttl_s": 60, "parent": "aw-p", "open": 0}
    redis.hset(BATCH, mapping={**counts, "on_success": callback, "on_death": callback})
    redis.hset("aw:batch:aw-p", mapping={"pending": 1, "ttl_s": 60, "children": 1})
    redis.zadd("batches", {"aw-b": 1})


def batch_ends(jobs, how):
    return [WORKING], [jobs[0], dumps({"slots": [], "batch": ["aw-b", "j", how]})]


def batch_write(jobs, **more):
    write = BatchWrite("aw-n", "token", 60, NewBatch("text", "aw-p", "", {}), groups=[BatchGroup("q", jobs)], **more)
    return ["aw:batch:aw-n", "batches", "token", QUEUES, SET, QUEUE], [write.head(60_000), *write.payloads()]


def limited_batch_write(jobs, most=50):
    limit = AcceptedLimit("Print", most)
    group = BatchGroup("q", jobs, limit=limit, each=100)
    head = BatchWrite(
        "aw-n",
        "token",
        60,
        NewBatch("text", "aw-p", "", {}),
        groups=[group],
        requests=[limit.request(len(jobs), 100 * len(jobs))],
    ).head(60_000)
    return ["aw:batch:aw-n", "batches", "token", QUEUES, SET, QUEUE], [head, *jobs]


def room_of(most, drop_counter=""):
    return dumps({**AcceptedLimit("Print", most).request(1, 100), "x": drop_counter})


def batch_change(action, *more):
    return [BATCH, "batches", "marks"], ["aw-b", action, *more]


def workflow(redis, jobs):
    """A workflow whose first step has written its jobs, and whose second one is computed."""
    batch(redis, jobs)
    fields = {"ttl_s": 60, "steps": "one two", "one:state": "running", "name": "w"}
    redis.hset("aw:workflow:wf-w", mapping=fields)
    redis.rpush("aw:workflow:wf-w:jobs:one", "[]")
    redis.rpush("computed", "[]")


def workflow_change(action, *more):
    names = ["aw:workflow:wf-w", "workflows", *(["computed", "aw:workflow:wf-w:jobs:two"] if action == "plan" else [])]
    return names, ["wf-w", action, *more]


def workflow_advance(event):
    return ["aw:workflow:wf-w", BATCH, "aw:workflow:wf-w:jobs:one"], ["one", event, "two", ""]


BREAKER = "aw:breaker:C"
DIVISION = "aw:portions:C"
BREAKER_RULE = dumps(
    {"deaths": 3, "failures": 0.5, "within": 600, "runs": 1, "probe_after": 60, "longest_wait": 3600, "steady": 15}
)


def breaker_closed(redis, jobs):
    """A process that runs the class is gone, and jobs of the class are held."""
    held(redis, jobs)
    redis.zadd(f"{BREAKER}:owners", {"gone": 1})
    redis.zadd(SET, {job: number for number, job in enumerate(jobs, 1)})
    redis.zadd("aw:processes", {"me": time.time()})
    redis.set("aw:lease:me", 1)


def breaker_is(state):
    def prepare(redis, jobs):
        breaker_closed(redis, jobs)
        redis.delete(f"{BREAKER}:owners")
        fields = {"cause": "failures", "reason": "r", "wait": 60, "until": 1, "probe": "j", "owner": "me"}
        redis.hset(BREAKER, mapping={"state": state, **fields})
        redis.set("marker", "=breaker: r")

    return prepare


def breaker_start(jid):
    return [BREAKER], ["C", "me", jid, BREAKER_RULE, 0, 0]


def breaker_tend(runs=0, probe="", end=""):
    return [BREAKER, SET, "marker"], ["C", "me", BREAKER_RULE, 0, 0, runs, probe, end, 60_000, "=breaker"]


def breaker_change(action):
    return [BREAKER, "marker"], ["C", action, "r", 60, 600]


def counting(call, count, first_key, done_key="", in_set=False):
    """Return the call of a script that counts its jobs, for a class with a limit that they reach."""
    names, arguments = call
    # Without a token a second call counts what it writes again, which no caller sends: there is room for it.
    jobs = CountedJobs(AcceptedLimit("C", count if done_key else 2 * count, None), 100)
    return names, [*arguments, jobs.argument(count, first_key, in_set=in_set, done_key=done_key)]


CALLS = {
    # Without ended runs: each call adds them to the counts, and no caller sends them again (tests/features/breaker).
    "breaker/start": (breaker_closed, lambda jobs: breaker_start("j")),
    "breaker/start, as the probe": (breaker_is("open"), lambda jobs: breaker_start("j")),
    "breaker/start, beside the probe": (breaker_is("probing"), lambda jobs: breaker_start("k")),
    "breaker/tend": (breaker_closed, lambda jobs: breaker_tend(runs=1)),
    "breaker/tend, open": (breaker_is("open"), lambda jobs: breaker_tend(runs=1)),
    "breaker/tend, after the probe": (breaker_is("probing"), lambda jobs: breaker_tend(probe="j", end="succeeded")),
    "breaker/tend, after its failure": (
        breaker_is("probing"),
        lambda jobs: breaker_tend(probe="j", end="failed"),
    ),
    "breaker/tend, after an undecided probe": (
        breaker_is("probing"),
        lambda jobs: breaker_tend(probe="j", end="undecided"),
    ),
    "breaker/change, open": (breaker_closed, lambda jobs: breaker_change("open")),
    "breaker/change, close": (breaker_is("open"), lambda jobs: breaker_change("close")),
    "backlog/watch": (
        held,
        lambda jobs: (["lease of the watcher", "report", "pressure"], ["me", 30_000, "r", 30_000, "short", 30_000]),
    ),
    "backlog/set_aside": (
        held,
        lambda jobs: ([WORKING, QUEUE, ASIDE, QUEUES, "aside"], [jobs[0], "q~aside^C", "class", "waited", 10, HOLDS]),
    ),
    "backlog/return_aside": (
        lambda redis, jobs: redis.lpush(ASIDE, *jobs),
        lambda jobs: ([ASIDE, QUEUE, QUEUES, "aside"], [10, "q~aside^C", "q"]),
    ),
    "backlog/read_waiting": (held, lambda jobs: (["aw:limit:C"], [])),
    "observability/report": (held, lambda jobs: (["lease of the reporter"], ["me", 30_000])),
    # Without seconds: each call adds them, and no caller sends them again (tests/features/concurrency/test_database_load.py).
    "concurrency/add_seconds": (held, lambda jobs: (["m0", "m1", "m2"], ["main|C", 0])),
    "workflows/change, create": (workflow, lambda jobs: workflow_change("create", dumps({"ttl_s": 60, "fields": {}}))),
    "workflows/change, plan": (workflow, lambda jobs: workflow_change("plan", "two", 1, 3)),
    "workflows/change, cancel": (workflow, lambda jobs: workflow_change("cancel")),
    "workflows/change, delete": (workflow, lambda jobs: workflow_change("delete")),
    "workflows/advance, success": (workflow, lambda jobs: workflow_advance("success")),
    "workflows/advance, finished": (workflow, lambda jobs: workflow_advance("finished")),
    "batches/push": (batch, batch_write),
    "batches/push, opening": (batch, lambda jobs: batch_write(jobs, opens=True)),
    "batches/push, of a class with a limit": (batch, limited_batch_write),
    "batches/push, of a class without room": (batch, lambda jobs: limited_batch_write(jobs, most=1)),
    "batches/change, invalidate": (batch, lambda jobs: batch_change("invalidate")),
    "batches/change, cancel": (batch, lambda jobs: batch_change("cancel")),
    "batches/change, delete": (batch, lambda jobs: batch_change("delete")),
    "batches/change, callback": (batch, lambda jobs: batch_change("callback", "complete", dumps(["q", "{}"]))),
    "finish, called": (
        held,
        lambda jobs: ([WORKING], [jobs[0], dumps({"slots": [], "answer": ["j", "done", "60", "c", '{"value":1}']})]),
    ),
    "finish, of a batch": (batch, lambda jobs: batch_ends(jobs, "done")),
    "finish, dead of a batch": (batch, lambda jobs: batch_ends(jobs, "dead")),
    "finish, removed of a batch": (batch, lambda jobs: batch_ends(jobs, "removed")),
    "push_unique_counted": (
        held,
        lambda jobs: counting(pushed(jobs, QUEUE, "q", token="token"), len(jobs), 2, "token"),
    ),
    "push_window_counted": (
        held,
        lambda jobs: counting(windowed(jobs, "debounce", token="token"), len(jobs), 1, "token", in_set=True),
    ),
    "push_fair_counted": (
        turns,
        lambda jobs: counting(
            ([QUEUES, "queue:q~a"], ["token", 60_000, "", "q~a", len(jobs), *jobs]), len(jobs), 2, "token"
        ),
    ),
    "push_delayed_counted": (
        held,
        lambda jobs: counting(([SET], [60, jobs[0], "status", 60]), 1, 1, in_set=True),
    ),
    "push_scheduled_counted": (
        held,
        lambda jobs: counting(
            ([SET], ["token", 60_000, '[["state", "queued"]]', *(part for job in jobs for part in (7, job))]),
            len(jobs),
            1,
            "token",
            in_set=True,
        ),
    ),
    "finish, counted": (
        held,
        lambda jobs: ([WORKING], [jobs[0], dumps({"slots": [], "accepted": ["C", "7", "-1"]})]),
    ),
    "push_unique": (held, lambda jobs: pushed(jobs, QUEUE, "q", status=("queued", "EX", 60))),
    "push_unique, due later": (held, lambda jobs: pushed(jobs, SET, "", due=now_plus(60))),
    "push_unique, due after a delay": (held, lambda jobs: pushed(jobs, SET, "", delay_s=60.0)),
    "push_unique, under a token": (held, lambda jobs: pushed(jobs, QUEUE, "q", token="token")),
    "push_unique_in_reserve": (held, lambda jobs: pushed(jobs, QUEUE, "q", token="token")),
    "push_fair_in_reserve": (
        turns,
        lambda jobs: ([QUEUES, "queue:q~a"], ["token", 60_000, "", "q~a", len(jobs), *jobs]),
    ),
    "push_window, under a token": (held, lambda jobs: windowed(jobs, "debounce", token="token")),
    "push_fair": (
        turns,
        lambda jobs: ([QUEUES, "queue:q~a"], ["token", 60_000, '[["state", "queued"]]', "q~a", len(jobs), *jobs]),
    ),
    "push_fair, to several": (
        turns,
        lambda jobs: (
            [QUEUES, "queue:q~a", "queue:q~high^b", "queue:q~c"],
            ["token", 60_000, "", "q~a", 1, "q~high^b", len(jobs), "q~c", 1, b"one", *jobs, b"other"],
        ),
    ),
    "ring": (turns, lambda jobs: ([], ["q"])),
    "fairness/change_priority": (
        turns,
        lambda jobs: (["queue:q~b", "queue:q~high^b", QUEUES], [jobs[0], NEW, "q~b", "q~high^b"]),
    ),
    "admit": (slot_request_in_flight, lambda jobs: admitted(jobs, 1)),
    "admit, and wait": (slot_request_behind_others, lambda jobs: admitted(jobs, 2)),
    "take_slot": (slot_request_in_flight, lambda jobs: slot_request(jobs, 1)),
    "take_slot, and wait": (slot_request_behind_others, lambda jobs: slot_request(jobs, 2)),
    "register_orphan": (held, lambda jobs: ([REGISTRY, "lease of no process", RUNS], ["me", "capsule:slow"])),
    "end_pauses": (paused_queues, lambda jobs: (["paused", "ends"], [])),
    "note_start": (held, lambda jobs: ([LEASE, RUNS], [60_000, "digest", *jobs])),
    "heartbeat": (held, lambda jobs: ([LEASE, REGISTRY, RUNS, BEATS], ["me", 60_000, 7, 60_000, "capsule:slow", 2])),
    "kill": (held, lambda jobs: ([WORKING, DEAD], [100, 1e9, 0, jobs[0], NEW, "", ""])),
    "kill, several": (held, lambda jobs: ([WORKING, DEAD], [100, 1e9, 0, *each_moved(jobs, "")])),
    "kill, holding": (holding, lambda jobs: ([WORKING, DEAD], [100, 1e9, 2, jobs[0], NEW, "1", HOLDS])),
    "finish": (held, lambda jobs: ([WORKING], [jobs[0], ""])),
    "finish, holding": (holding, lambda jobs: ([WORKING], [jobs[0], HOLDS])),
    "finish, and run once more": (running_with_duplicates, once_more),
    "finish_unless_duplicated": (holding, lambda jobs: ([WORKING], each_with_lock(jobs))),
    "finish_unless_duplicated, all stay": (
        running_with_duplicates,
        lambda jobs: ([WORKING], [part for job in jobs for part in (job, HOLDS, "aw:lock:1", "j1")]),
    ),
    "push_delayed": (held, lambda jobs: ([SET], [60, jobs[0], "status", 60])),
    "cron/lead": (held, lambda jobs: (["leader"], ["me", 60_000])),
    "cron/lead, and release": (held, lambda jobs: (["leader"], ["me", 0])),
    "cron/push": (cron_state, lambda jobs: cron_tick(jobs, TICK)),
    "cron/push, between ticks": (cron_state, lambda jobs: cron_tick(jobs, "")),
    "cron/push, with its lock": (cron_state, lambda jobs: cron_tick(jobs, TICK, lock=claim(0))),
    "cron/push, while the last job runs": (cron_state, lambda jobs: cron_tick(jobs, TICK, skips="1")),
    "cron/push, while a run waits": (cron_state, lambda jobs: cron_tick(jobs, TICK, skips="queue")),
    "cron/push, of a class with a limit": (cron_state, lambda jobs: cron_tick(jobs, TICK, room=room_of(5))),
    "cron/push, of a class without room": (cron_state, lambda jobs: cron_tick(jobs, TICK, room=room_of(0))),
    "cron/push, dropped for lack of room": (cron_state, lambda jobs: cron_tick(jobs, TICK, room=room_of(0, "dropped"))),
    "cron/push, without a job": (cron_state, lambda jobs: cron_tick(jobs, TICK, outcome="missed")),
    "note_pushed": (due, lambda jobs: (["token", SET], [60_000])),
    "note_pushed, to a key of another type": (held, lambda jobs: (["token", LEASE], [60_000])),
    "drop_held": (due, lambda jobs: ([SET, "counts"], [1, "n", *(part for job in jobs for part in (job, "", 1))])),
    "drop_held, holding": (
        due_holding,
        lambda jobs: ([SET, "counts"], [1, "n", jobs[0], HOLDS[:-1] + b',"status":["status","discarded","60"]}', 1]),
    ),
    "act_on_entries, to its queue": (due_holding, lambda jobs: acted(jobs, "queue", HOLDS)),
    "act_on_entries, to the dead": (due_holding, lambda jobs: acted(jobs, "dead", HOLDS)),
    "act_on_entries, remove": (due_holding, lambda jobs: acted(jobs, "remove", HOLDS)),
    "act_on_entries, remove and keep": (due_holding, kept_deleted),
    "undo_delete": (
        lambda redis, jobs: redis.zadd("aw:deleted", {b"dead 1\n" + job: 1 for job in jobs}),
        lambda jobs: (["aw:deleted", SET], [b"dead 1\n" + jobs[0], 1, jobs[0], HOLDS]),
    ),
    "act_on_entries, another time": (due, lambda jobs: acted(jobs, "time", score=now_plus(60))),
    "drop_queued": (
        aside,
        lambda jobs: (
            [WORKING, "counts"],
            [0, len(jobs), 1, *jobs, *[""] * len(jobs), *[1] * len(jobs), "n"],
        ),
    ),
    "drop_queued, holding": (holding, lambda jobs: ([WORKING, "counts"], [-1, 1, 1, jobs[0], HOLDS, 1, "n"])),
    "drop_retired": (held, lambda jobs: ([WORKING, "counts"], [jobs[0], "Old"])),
    "read_due": (due, lambda jobs: ([SET], [10])),
    "read_hashes": (held, lambda jobs: (["flags", SET], ["field"])),
    "read_processes": (held, lambda jobs: (["processes", "registered"], [0, 10, 1, "info"])),
    "read_queues": (held, lambda jobs: ([QUEUES, "paused", "packed", "blocks"], [0, 10, 1])),
    "deduplication/start_locked, and let go": (
        running_with_duplicates,
        lambda jobs: (["aw:lock:1"], ["j1", "C", 0, "2"]),
    ),
    "deduplication/start_locked, and keep": (
        running_with_duplicates,
        lambda jobs: (["aw:lock:1"], ["j1", "C", 60_000, "2"]),
    ),
    "deduplication/start_locked, and take": (held, lambda jobs: (["aw:lock:1"], ["j1", "C", 60_000, "0"])),
    "inspect_dead": (left_behind, lambda jobs: ([LEASE, WORKING, REGISTRY, RUNS, BEATS], ["me", 10, 15, 18])),
    "renew_children": (dead_and_empty, lambda jobs: ([REGISTRY, LEASE], [15_000, 6, 120, 0, 1, "me"])),
    "fetch": (held, lambda jobs: ([LEASE, WORKING, QUEUE], [60_000, 0, len(jobs) - 1, *jobs[1:], 9])),
    "fetch, holding": (
        holding,
        lambda jobs: ([LEASE, WORKING, QUEUE], [60_000, 0, 1, jobs[0], 9, b"[[1,%s]]" % HOLDS]),
    ),
    "fetch, in parts": (holding, parts_of),
    "push_up_to": (limited, filled),
    "unregister": (dead_and_empty, lambda jobs: ([LEASE, REGISTRY, "processes", WORKING, RUNS], ["me", 50, 1])),
    "receive_transfer": (held, landed),
    "receive_transfer, of jobs that stay": (held, lambda jobs: landed([b""] * len(jobs))),
    "receive_transfer, with their locks": (held, lambda jobs: claiming(landed(jobs), jobs)),
    "migrate": (aside, migrated),
    "moves/take": (due, lambda jobs: ([SET, "list"], jobs)),
    "moves/take_held, of a limit": (
        limited,
        lambda jobs: (
            ["aw:limit:C:waiting:", "list", "aw:limits:waiting", "aw:limit:C:turns", "aw:limit:C:full"],
            ["aw:limit:C", "", *(b'["q","%d"]\n%b' % (at, job) for at, job in enumerate(jobs))],
        ),
    ),
    "moves/take_held, of a pause": (
        held_members,
        lambda jobs: ([SET, "list", "classes", "none", "none"], ["C", "", *MEMBERS[1::2]]),
    ),
    "moves/take_aside": (
        lambda redis, jobs: redis.lpush(ASIDE, *jobs),
        lambda jobs: ([ASIDE, "list", QUEUES, "aside"], ["q~aside^C", len(jobs), *jobs, *[1] * (len(jobs) - 1), 0]),
    ),
    "moves/page": (
        leaving,
        lambda jobs: (
            ["pages", "list", "counts"],
            [
                "1 q",
                "new",
                2,
                1_000,
                "old",
                "1",
                dumps(
                    {
                        "fence_ms": 60_000,
                        "locks": [["aw:lock:1", "j1"]],
                        "keys": ["k"],
                        "told": [{"accepted": ["C", "1", "-1"]}],
                    }
                ),
            ],
        ),
    ),
    "moves/mark_locks": (leaving, lambda jobs: (["aw:lock:1", "none"], ["guard", "j1", "j2"])),
    # Without notes of duplicates: each call counts them, and a push that comes again runs at most once more for them.
    "find_owners": (leaving, lambda jobs: (["aw:lock:1", "none"], [dumps(["j2", "j1"]), "", 60_000, ""])),
    "moves/receive": (nothing, lambda jobs: received(jobs, "q")),
    "moves/receive, with an equal job": (leaving, lambda jobs: received(jobs, "q")),
    "moves/receive, into a set": (nothing, lambda jobs: received([b"5\n" + job for job in jobs], "")),
    "moves/restore": (leaving, lambda jobs: (["pages", "list", QUEUE, QUEUES], ["1 q", 100, "q", ""])),
    "packing/pack": (in_queue, lambda jobs: packing(jobs, 10)),
    "packing/pack, far from the end": (in_queue, lambda jobs: packing(jobs, -1)),
    "packing/pack, into the block behind": (beside_blocks, lambda jobs: packing(jobs, 10, BLOCK)),
    "packing/pack, into the block before": (beside_blocks, lambda jobs: packing(jobs, -1, BLOCK)),
    "unpack": (in_block, lambda jobs: unpacking(jobs, "")),
    "unpack, damaged": (in_block, lambda jobs: unpacking(jobs, "entry")),
    "packing/pack_held": (held_members, lambda jobs: ([SET, "beyond", "none"], [BLOCK, *MEMBERS])),
    "unpack_held": (held_block, lambda jobs: ([SET, "beyond", DEAD, "counters", "none"], [BLOCK, 2, "", "", *MEMBERS])),
    "unpack_held, damaged": (
        held_block,
        lambda jobs: ([SET, "beyond", DEAD, "counters", "none"], [BLOCK, 2, "entry", "series"]),
    ),
    "packing/pack_deferred": (deferred_members, lambda jobs: packing_deferred()),
    "unpack_deferred": (deferred_block, lambda jobs: unpacking_deferred(["", "", *DUE_MEMBERS])),
    "unpack_deferred, damaged": (deferred_block, lambda jobs: unpacking_deferred(["entry", "series"])),
    "return_block": (
        fetched_block,
        lambda jobs: ([WORKING, QUEUE, QUEUES, "packed", "blocks"], [BLOCK, "q", len(jobs), *jobs]),
    ),
    "return_block, from the dead set": (
        fetched_block,
        lambda jobs: ([WORKING, QUEUE, QUEUES, "packed", "blocks"], [BLOCK, "q", 0, *jobs]),
    ),
    "split_block": (
        in_block,
        lambda jobs: ([QUEUE, "packed", "blocks", "none"], ["q", BLOCK, BLOCK + b" ", jobs[0], BLOCK + b"  "]),
    ),
    "pause/hold": (held, lambda jobs: ([WORKING, SET, "pauses", "flags", "mark"], held_arguments(jobs, ""))),
    "pause/hold, holding": (
        holding,
        lambda jobs: ([WORKING, SET, "pauses", "flags", "mark"], held_arguments(jobs, HOLDS)),
    ),
    "schedule": (held, lambda jobs: ([WORKING, SET], [jobs[0], NEW, 60, ""])),
    "schedule, several": (held, lambda jobs: ([WORKING, SET], each_moved(jobs, 60))),
    "schedule, holding": (holding, lambda jobs: ([WORKING, SET], [jobs[0], NEW, 60, HOLDS])),
    "enqueue_due, to its queue": (due, lambda jobs: promoted(jobs, b"queue")),
    "enqueue_due, to the dead": (due, lambda jobs: promoted(jobs, b"dead")),
    "enqueue_due, with their locks": (due, lambda jobs: claiming(promoted(jobs, b"queue"), jobs)),
    "enqueue_due, marked": (due, lambda jobs: promoted(jobs, b"mark")),
    "enqueue_due, delay": (due, lambda jobs: promoted(jobs, b"delay")),
    "enqueue_due, remove": (due, lambda jobs: promoted(jobs, b"remove")),
    "reclaim": (
        left_behind,
        lambda jobs: ([LEASE, WORKING, QUEUE, QUEUES], [jobs[0], NEW, now_plus(60), "q", 100, 100]),
    ),
    "reclaim, to a set": (
        left_behind,
        lambda jobs: ([LEASE, WORKING, DEAD, QUEUES], [jobs[0], NEW, now_plus(60), "", 100, 100]),
    ),
    "interrupt": (
        holding,
        lambda jobs: ([WORKING, QUEUE, QUEUES, SET], [jobs[0], NEW, "q", "", HOLDS, 10, 100, "status", "failed", 60]),
    ),
    "interrupt, back": (holding, lambda jobs: ([WORKING, QUEUE, QUEUES], [jobs[0], NEW, "q", HOLDS])),
    "leases/obtain": (lease_held, lambda jobs: lease_call("t", "h", 60_000)),
    "leases/obtain, held": (lease_held, lambda jobs: lease_call("other", "h", 60_000)),
    "leases/renew": (lease_held, lambda jobs: lease_call("t", 60_000)),
    "leases/renew, ends": (lease_held, lambda jobs: lease_call("t", 0)),
    "limiters/take": (limiter_in_use, lambda jobs: limiter_call("bucket", interval_s=60)),
    "limiters/take, window": (limiter_in_use, lambda jobs: limiter_call("window", interval_s=60)),
    "limiters/take, points": (limiter_in_use, lambda jobs: limiter_call("points", refill=0.000001)),
    "limiters/take, over the limit": (limiter_in_use, lambda jobs: limiter_call("bucket", limit=0, interval_s=60)),
    "limiters/lock": (limiter_in_use, lambda jobs: limiter_lock(2)),
    "limiters/lock, over the limit": (limiter_in_use, lambda jobs: limiter_lock(1)),
    "limiters/unlock": (limiter_in_use, lambda jobs: (["aw:limiter:l:"], ["other"])),
    "limiters/read": (
        limiter_in_use,
        lambda jobs: (["aw:limiter:l", "aw:limiter:l:"], [limiter_rule("concurrent", 2)]),
    ),
    "renew_slots": (limited, lambda jobs: (["aw:limit:C:running", "none"], [180, "other j0", "gone"])),
    "replace": (due, lambda jobs: ([SET], [len(jobs), *jobs, *[NEW + job for job in jobs]])),
    "requeue": (held, given_back),
    "yield_job": (
        holding,
        lambda jobs: ([WORKING, QUEUE, QUEUES], [jobs[0], NEW, "q", "last", HOLDS]),
    ),
    "iteration/start": (held, lambda jobs: ([WORKING, "state"], [jobs[0], "token", 60])),
    "iteration/save": (iterating, lambda jobs: ([WORKING, "state"], [jobs[0], "token", 60, "c", "7", "aw_done", 7])),
    "search": (held, lambda jobs: ([WORKING, QUEUE], [jobs[0], 0, 1_000_000, 100, 1])),
    "restore": (left_behind, lambda jobs: ([LEASE, WORKING, QUEUE, QUEUES], [now_plus(60), 10, 1_000_000, "q"])),
    "release_waiting": (limited, lambda jobs: (["aw:limit:C"], ["", 0, 100, 60])),
    "concurrency/throttle": (held, lambda jobs: (["aw:limit:C"], [10, "hard", 60, 25, 1800])),
    "concurrency/read_portions": (limited, lambda jobs: (["aw:limits:shared"], ["aw:limit:C"])),
    "concurrency/divide": (held, lambda jobs: ([DIVISION, "aw:portions"], ["C", "a", 5, 0, 0, 0, 9, 8, "a"])),
    "concurrency/use_portion": (limited, lambda jobs: (["aw:limit:C"], [5, 1, "", 100])),
    "mark_dead": (left_behind, lambda jobs: ([LEASE, REGISTRY], ["me"])),
    "mark_cancelled": (held, lambda jobs: (["marks", "status"], [60, "j1"])),
    # LPUSH adds a record or a signal again: its callers do not send it twice.
    "write": (
        held,
        lambda jobs: (["none", "members", "fields", "fields"], ["SADD", 1, "a", "HSET", 2, "f", 1, "HDEL", 1, "f"]),
    ),
    # It appends an entry at each call: a record too many is no harm, and its callers do not send it twice.
    "record_action": (held, lambda jobs: (["none", "log"], [10, 60, "actor", "a"])),
    "set_status": (held, lambda jobs: (["status"], ["completed", 60])),
    # Reads only: the further calls of a scrape, for more queues than one call reads.
    "observability/read_fleet": (held, lambda jobs: ([], ["7", 10, 0])),
    "pause/release": (
        due_with_tickets,
        lambda jobs: ([SET, "pauses", QUEUES, "flags", "mark"], ["C", "f", "", "", 10, 1_000_000, 0]),
    ),
}


def database_content(redis):
    read = {
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"zset": lambda key: sorted(redis.zrange(key, 0, -1)),
        b"set": redis.smembers,
        b"hash": redis.hgetall,
        b"string": redis.get,
        b"stream": bool,
    }
    content = {key: read[redis.type(key)](key) for key in redis.keys("*")}
    for field in (b"until", b"opened_at"):
        content.get(BREAKER.encode(), {}).pop(field, None)
    content.get(DIVISION.encode(), {}).pop(b"a:at", None)
    return content


def test_every_script_is_run_twice():
    assert {name.partition(",")[0] for name in CALLS} == SCRIPTS.keys()


@pytest.mark.proves("I19")
@pytest.mark.parametrize("script_name", SCRIPTS)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(jobs=JOBS)
def test_script_run_twice_changes_nothing(redis, script_name, jobs):
    for name, (prepare, call) in CALLS.items():
        if name.partition(",")[0] != script_name:
            continue
        redis.flushall()
        prepare(redis, jobs)
        arguments = call(jobs)
        SCRIPTS[script_name](redis, *arguments)
        once = database_content(redis)
        SCRIPTS[script_name](redis, *arguments)
        assert database_content(redis) == once, name


MOVES_FROM_A_WORKING_LIST = (
    *(
        "kill",
        "kill, several",
        "schedule",
        "schedule, several",
        "interrupt",
        "interrupt, back",
        "requeue",
        "yield_job",
        "pause/hold",
        "drop_retired",
        "reclaim",
    ),
    "reclaim, to a set",
)


@pytest.mark.proves("I19")
@each_row("name", MOVES_FROM_A_WORKING_LIST)
def test_move_run_again_after_the_job_has_ended_writes_nothing(redis, name):
    """The reply of the move was lost, and before its second run another process took the job and ended it."""
    prepare, call = CALLS[name]
    prepare(redis, [b"job"])
    run = SCRIPTS[name.partition(",")[0]]
    arguments = call([b"job"])
    run(redis, *arguments)
    redis.delete(QUEUE, SET, DEAD, "counts")
    ended = database_content(redis)
    run(redis, *arguments)
    assert database_content(redis) == ended
