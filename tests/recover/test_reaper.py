import json
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.recover.reaper import FailureDetector, Reaper, mark_dead
from framework.recover.suspects import MAX_UNACKNOWLEDGED, InterruptionLimit, SuspectRunner
from framework.store.script import HEARTBEAT, RECLAIM
from framework.timings import STANDARD
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.harness import IDENTITY, compressed, encoded, full_memory, hold, unwrapped
from tests.servers.guarded import narrowed

OTHER = "host:2:000000000def"
SLOTS = 2
LIMITS = SetLimits(10_000, 86_400.0)


def beat(redis, identity, slots=SLOTS):
    places = [keys.lease(identity), keys.REGISTRY, keys.process(identity), keys.STEADY_SINCE]
    HEARTBEAT(redis, places, [identity, 60_000, slots, 60_000])


def die(redis, identity, since_s=20, slots=SLOTS):
    """Kill a process: no heartbeat for longer than the lease."""
    beat(redis, identity, slots)
    redis.delete(keys.lease(identity))
    redis.zadd(keys.REGISTRY, {identity: redis.time()[0] - since_s})


def fresh(redis):
    """Register a process by its first heartbeat."""
    grace = FailureDetector(15.0, 3.0)
    seconds, microseconds = redis.time()
    grace.record_heartbeat(seconds + microseconds / 1e6, lease_held=False)
    return grace


def long_up(redis):
    """Return a detector after a long steady period of heartbeats of other processes."""
    redis.set(keys.STEADY_SINCE, redis.time()[0] - 30, px=60_000)
    return fresh(redis)


@pytest.fixture
def recovered():
    return []


@pytest.fixture
def reaper(redis, granted, recovered):
    with registry.isolated():
        yield Reaper(granted, recovered.append, long_up(redis), LIMITS)


def queued(redis, name="default"):
    """Return the jobs of a queue, the next to run first."""
    return [json.loads(data) for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


@pytest.mark.proves("R18", "R21", "I8")
def test_reaper_takes_jobs_of_dead_processes_only(reaper, redis, recovered):
    beat(redis, IDENTITY)
    die(redis, OTHER)
    hold(redis, encoded(jid="alive"), IDENTITY)
    hold(redis, encoded(jid="orphan", bid="x"), OTHER)
    assert reaper.sweep() == 1
    (job,) = queued(redis)
    assert job == {**json.loads(encoded(jid="orphan", bid="x")), "aw_death_count": 1, "aw_suspect": True}
    assert redis.lrange(keys.working(IDENTITY), 0, -1) == [encoded(jid="alive")]
    assert redis.smembers(keys.QUEUES) == {b"default"}
    ((owner, back, destination, quarantined),) = [(r.owner, r.job.jid, r.destination, r.quarantined) for r in recovered]
    assert (owner, back, destination, quarantined) == (OTHER, "orphan", "queue:default", False)
    assert reaper.sweep() == 0


@pytest.mark.proves("F44", "R38", "R40")
@pytest.mark.parametrize(
    ("interrupted", "owner"), [(0, None), (0, "orphan"), (0, "another"), (9, "orphan"), (9, "another")]
)
def test_reclaimed_job_has_its_lock_for_its_class_ttl(reaper, redis, interrupted, owner):
    lock = keys.lock("of equal jobs")
    if owner:
        redis.hset(lock, "jid", owner)
        redis.pexpire(lock, 5_000)
    with registry.isolated():
        body = {"feature_category": "not_owned", "wire_name": "Job", "perform": lambda self: None}
        policy = Deduplicate("until_executed", ttl=timedelta(seconds=100))
        type("JobWorker", (ApplicationWorker,), {**body, "idempotent": True, "deduplicate": policy})
        die(redis, OTHER)
        hold(redis, encoded(jid="orphan", idempotency_key=lock, aw_death_count=interrupted), OTHER)
        assert reaper.sweep() == 1
    assert redis.zcard(keys.INTERRUPTED) == bool(interrupted)
    found = redis.hget(lock, "jid")
    if owner == "another":
        assert found == b"another"
        assert redis.pttl(lock) <= 5_000
    elif interrupted:
        assert found is None
    else:
        assert found == b"orphan"
        assert 90_000 < redis.pttl(lock) <= 100_000


def test_compressed_arguments_keep_their_bytes(reaper, redis):
    die(redis, OTHER)
    job = compressed(["x" * 1_000])
    hold(redis, json.dumps(job).encode(), OTHER)
    assert reaper.sweep() == 1
    assert queued(redis) == [{**job, "aw_death_count": 1, "aw_suspect": True}]


def test_sweep_skips_its_own_process(reaper, redis):
    die(redis, IDENTITY)
    hold(redis, encoded(), IDENTITY)
    assert reaper.sweep(own=IDENTITY) == 0
    assert redis.llen(keys.working(IDENTITY)) == 1


@pytest.mark.proves("R21")
def test_process_that_returns_keeps_the_rest(reaper, redis, recovered, monkeypatch):
    die(redis, OTHER)
    for number in range(3):
        hold(redis, encoded(jid=str(number)), OTHER)

    def reviving(client, calls):
        first = RECLAIM(client, *calls[0])
        beat(redis, OTHER)
        return [first, *(RECLAIM(client, *call) for call in calls[1:])]

    monkeypatch.setattr(RECLAIM, "each", reviving)
    assert reaper.sweep() == 1
    assert len(recovered) == 1
    assert redis.llen(keys.working(OTHER)) == 2


@pytest.mark.proves("R12")
def test_page_is_reclaimed_after_script_flush(reaper, redis, recovered):
    die(redis, OTHER)
    for number in range(60):
        hold(redis, encoded(jid=str(number)), OTHER)
    redis.script_flush()
    assert reaper.sweep() == 60
    assert [job["jid"] for job in queued(redis)] == [*map(str, range(60))]
    assert len(recovered) == 60


@pytest.mark.refused("default queue:forbidden")
def test_error_in_a_page_hides_no_reclaimed_job(reaper, redis, recovered):
    """An ACL forbids writes to one of the queues."""
    die(redis, OTHER)
    for queue in ("default", "forbidden", "default"):
        hold(redis, encoded(queue=queue), OTHER)
    with narrowed(redis, "resetkeys", "~queue:default", "~queues", "~aw:*"), pytest.raises(NoPermissionError):
        reaper.sweep()
    assert len(recovered) == len(queued(redis)) == 2
    assert redis.llen(keys.working(OTHER)) == 1


@pytest.mark.proves("I12")
def test_reaper_keeps_order_over_many_pages(reaper, redis):
    redis.lpush("queue:default", encoded(jid="waiting"))
    die(redis, OTHER)
    for number in range(450):
        hold(redis, encoded(jid=f"{number}"), OTHER)
    assert reaper.sweep() == 450
    counts = [job.get("aw_death_count") for job in queued(redis)]
    assert counts == [1] * SLOTS + [None] * (451 - SLOTS)
    suspects = [job.get("aw_suspect") for job in queued(redis)]
    assert suspects == [True] * (SLOTS + MAX_UNACKNOWLEDGED) + [None] * (451 - SLOTS - MAX_UNACKNOWLEDGED)
    assert [job["jid"] for job in queued(redis)] == [*map(str, range(450)), "waiting"]


def test_reclaimed_job_goes_to_its_own_queue(reaper, redis):
    die(redis, OTHER)
    hold(redis, encoded(jid="a", queue="one"), OTHER)
    hold(redis, encoded(jid="b", queue="two"), OTHER)
    assert reaper.sweep() == 2
    assert [[job["jid"] for job in queued(redis, name)] for name in ("one", "two")] == [["a"], ["b"]]


def limited(limit):
    body = {"feature_category": "not_owned", "wire_name": "Limited", "perform": lambda self: None}
    return type("Limited", (ApplicationWorker,), {**body, "max_retries_after_interruption": limit})


def test_quarantined_jobs_are_counted_in_the_step_of_the_move(reaper, redis):
    """The process that recovers a job may die before its next heartbeat, for example by that job."""
    limited(0)
    die(redis, OTHER)
    # Names that other programs write must not make series without end.
    for data in (encoded("Limited"), encoded("Gone", aw_death_count=9), b'{"class":"Limited","args":[1,]}', b"\xff"):
        hold(redis, data, OTHER)
    reaper.sweep()
    assert redis.hgetall(keys.COUNTERS) == {
        b'sidekiq_jobs_quarantined_total{cause="death",worker="Limited"}': b"1",
        b'sidekiq_jobs_quarantined_total{cause="death",worker=""}': b"1",
        b'sidekiq_jobs_quarantined_total{cause="malformed",worker=""}': b"2",
    }
    reaper.sweep()
    assert sum(map(int, redis.hvals(keys.COUNTERS))) == 4


@pytest.mark.proves("R24", "I6")
@pytest.mark.parametrize(
    ("name", "before", "destination"),
    [
        ("Unknown", None, "queue:default"),
        ("Unknown", 1, "queue:default"),
        ("Unknown", 2, "interrupted"),
        ("Unknown", "odd", "queue:default"),
        ("Two", 0, "queue:default"),
        ("Two", 1, "interrupted"),
        ("Zero", None, "interrupted"),
        ("Never", 1_000, "queue:default"),
    ],
)
def test_jobs_interrupted_too_often_are_quarantined(reaper, redis, recovered, name, before, destination):
    for wire_name, limit in (("Two", 2), ("Zero", 0), ("Never", -1)):
        type(wire_name, (limited(limit),), {"wire_name": wire_name})
    die(redis, OTHER)
    data = encoded(name) if before is None else encoded(name, aw_death_count=before)
    hold(redis, data, OTHER)
    reaper.sweep()
    (one,) = recovered
    assert (one.destination, one.quarantined) == (destination, destination == "interrupted")
    stored = redis.zrange(keys.INTERRUPTED, 0, -1) if one.quarantined else redis.lrange("queue:default", 0, -1)
    count = before + 1 if isinstance(before, int) else 1
    assert [json.loads(member) for member in stored] == [
        {**json.loads(data), "aw_death_count": count, "aw_suspect": True}
    ]
    assert redis.llen(keys.working(OTHER)) == 0


def test_interruption_setting_counts_without_a_class_limit(reaper, redis, granted, recovered):
    type("Two", (limited(2),), {"wire_name": "Two"})
    die(redis, OTHER)
    for name in ("Two", "Unknown"):
        hold(redis, encoded(name, jid=name), OTHER)
    Reaper(granted, recovered.append, long_up(redis), LIMITS, interruption_limit=InterruptionLimit(1)).sweep()
    assert {one.job.worker: one.quarantined for one in recovered} == {"Two": False, "Unknown": True}


def test_stops_do_not_count_as_deaths(reaper, redis, recovered):
    die(redis, OTHER)
    hold(redis, encoded("Unknown", interrupted_count=1_000), OTHER)
    reaper.sweep()
    assert [one.quarantined for one in recovered] == [False]


@pytest.mark.parametrize(
    "forbidden",
    [False, pytest.param(True, marks=pytest.mark.refused("default aw:status:*"))],
    ids=["allowed", "forbidden by an ACL"],
)
def test_quarantined_job_gets_its_state_in_one_step(reaper, redis, recovered, forbidden):
    """A reaper that died between the move and a later write of the state would leave ``running`` for ever."""
    die(redis, OTHER)
    redis.set(keys.status("often"), "running")
    hold(redis, encoded(jid="often", aw_death_count=2, status_expiration=60), OTHER)
    hold(redis, encoded(jid="once", status_expiration=60), OTHER)
    with narrowed(redis, "resetkeys", "~[^a]*", "~aw:[^s]*", "~aw:steady*") if forbidden else nullcontext():
        assert reaper.sweep() == 2
    assert [one.quarantined for one in recovered] == [False, True]
    assert redis.get(keys.status("often")) == (b"running" if forbidden else b"failed")
    assert forbidden or 0 < redis.ttl(keys.status("often")) <= 60
    assert redis.get(keys.status("once")) is None


@pytest.mark.proves("F38", "R53")
@pytest.mark.parametrize("data", [b"\x00\xff not json", b'{"class":"A","args":[],"jid":"no queue"}', b"[]"])
def test_sweep_moves_malformed_payload_to_dead_set(reaper, redis, recovered, data):
    die(redis, OTHER)
    hold(redis, data, OTHER)
    hold(redis, encoded(jid="good"), OTHER)
    assert reaper.sweep() == 2
    (stored,) = redis.zrange(keys.DEAD, 0, -1)
    assert unwrapped(stored) == data
    assert [job["jid"] for job in queued(redis)] == ["good"]
    assert {one.destination for one in recovered} == {"dead", "queue:default"}


@pytest.mark.proves("F14", "R14")
def test_recovery_works_at_maxmemory(reaper, redis):
    die(redis, OTHER)
    hold(redis, encoded(), OTHER)
    with full_memory(redis):
        assert reaper.sweep() == 1
    assert len(queued(redis)) == 1


@pytest.mark.proves("I24")
def test_dead_process_is_unregistered_after_blocking_calls(reaper, redis):
    die(redis, OTHER, since_s=STANDARD.unregister_after_s - 5)
    reaper.sweep()
    assert redis.zscore(keys.REGISTRY, OTHER) is not None
    hold(redis, encoded(), OTHER)  # a blocking call that Redis still held moved it
    assert reaper.sweep() == 1
    redis.sadd(keys.PROCESSES, OTHER, IDENTITY)
    for key in (OTHER, *keys.work(OTHER)):
        redis.hset(key, "a", "b")
    redis.lpush(keys.signals(OTHER), "TSTP")
    die(redis, OTHER, since_s=STANDARD.unregister_after_s + 5)
    reaper.sweep()
    assert redis.zscore(keys.REGISTRY, OTHER) is None
    assert redis.smembers(keys.PROCESSES) == {IDENTITY.encode()}
    assert not [key for key in redis.keys("*") if OTHER.encode() in key]


def test_capsules_of_a_dead_process_count_their_own_starts(reaper, redis, granted, recovered):
    """The slots of the process are those of all capsules; each list is judged by the slots of its own."""
    capsules = ["capsule:slow", 1]
    HEARTBEAT(
        granted,
        [keys.lease(OTHER), keys.REGISTRY, keys.process(OTHER), keys.STEADY_SINCE],
        [OTHER, 60_000, 3, 60_000, *capsules],
    )
    for number in range(3):
        hold(redis, encoded(jid=f"own {number}"), OTHER)
        hold(redis, encoded(jid=f"slow {number}", queue="slow"), f"{OTHER}/slow")
    mark_dead(granted, OTHER)
    assert reaper.sweep() == 6
    assert [job.get("aw_death_count") for job in queued(redis)] == [1, 1, None]
    assert [job.get("aw_death_count") for job in queued(redis, "slow")] == [1, None, None]
    assert {one.owner for one in recovered} == {OTHER}
    assert redis.zscore(keys.REGISTRY, OTHER) is not None  # a blocking call of either capsule may still bring a job


def test_mark_dead_makes_a_process_dead_at_once(reaper, redis, granted):
    beat(redis, OTHER)
    redis.sadd(keys.PROCESSES, OTHER, IDENTITY)
    for key in (OTHER, *keys.work(OTHER)):
        redis.hset(key, "a", "b")
    hold(redis, encoded(), OTHER)
    assert reaper.sweep() == 0
    mark_dead(granted, OTHER)
    assert redis.smembers(keys.PROCESSES) == {IDENTITY.encode()}
    assert not redis.exists(OTHER, *keys.work(OTHER))
    assert reaper.sweep() == 1


@pytest.mark.proves("R18", "I3")
@pytest.mark.parametrize("owner", [OTHER, f"{OTHER}/slow"])
def test_working_list_without_owner_is_found(reaper, redis, recovered, owner):
    """A process stops before a blocking call, is unregistered, continues, gets a job by that call, and is killed."""
    hold(redis, encoded(jid="lost"), owner)
    hold(redis, encoded(jid="of a living one"), IDENTITY)
    beat(redis, IDENTITY)
    for number in range(3_000):  # it may take several sweeps to come to it
        redis.set(f"another key {number}", "")
    for _ in range(20):
        assert reaper.sweep() == 0  # a registered process has a whole lease for its first heartbeat
    redis.zadd(keys.REGISTRY, {OTHER: redis.time()[0] - 20}, xx=True)
    assert reaper.sweep() == 1
    assert queued(redis) == [{**json.loads(encoded(jid="lost")), "aw_suspect": True}]  # no evidence shows that it ran
    assert [one.owner for one in recovered] == [OTHER]
    assert redis.llen(keys.working(IDENTITY)) == 1


@pytest.mark.proves("R18", "I8")
def test_queue_of_a_dead_migration_is_restored(reaper, redis, recovered):
    """The jobs return undecoded and in order, before jobs pushed meanwhile: none can have run."""
    holder = keys.migration_identity("q:1")
    jobs = [b"\xff no job", *(encoded(jid=str(number), queue="other") for number in range(1_200))]
    redis.lpush(keys.working(holder), *jobs)
    redis.lpush(keys.queue("q:1"), "handed on before", "pushed meanwhile")
    beat(redis, holder, slots=0)
    assert reaper.sweep() == 0
    die(redis, holder, STANDARD.unregister_after_s + 1, slots=0)
    assert reaper.sweep() == 1_201
    back = redis.lrange(keys.queue("q:1"), 0, -1)[::-1]
    assert back == [b"handed on before", b"pushed meanwhile", *jobs]
    ((owner, destination, unread),) = [(one.owner, one.destination, one.migration_jobs) for one in recovered]
    assert (owner, destination, unread) == (holder, "queue:q:1", 1_201)
    assert redis.smembers(keys.QUEUES) == {b"q:1"}
    assert not redis.exists(keys.REGISTRY, keys.process(holder), keys.working(holder))


@pytest.mark.refused("default scan")
def test_sweep_continues_where_scan_is_forbidden(reaper, redis):
    die(redis, OTHER)
    hold(redis, encoded(), OTHER)
    with narrowed(redis, "-scan"):
        assert reaper.sweep() == 1


@pytest.mark.proves("F7")
def test_after_an_outage_only_marked_processes_are_dead(redis, granted, recovered):
    die(redis, IDENTITY, since_s=100)
    die(redis, OTHER, since_s=100)
    for identity in (IDENTITY, OTHER):
        hold(redis, encoded(jid=identity), identity)
    redis.delete(keys.STEADY_SINCE)
    reaper = Reaper(granted, recovered.append, fresh(redis), LIMITS)
    assert reaper.sweep() == 0
    beat(redis, "host:3:000000000abc")  # the first to come back
    assert reaper.sweep() == 0
    assert reaper.reclaim(OTHER) == 0
    mark_dead(granted, OTHER)
    assert reaper.sweep() == 1
    assert redis.llen(keys.working(IDENTITY)) == 1


@pytest.mark.proves("R57")
def test_sweep_without_dead_costs_two_commands(reaper, redis):
    for number in range(100):
        beat(redis, f"host:{number}:000000000abc")
    before = redis.info("stats")["total_commands_processed"]
    assert reaper.sweep() == 0
    assert (
        redis.info("stats")["total_commands_processed"] - before <= 3
    )  # reads of late processes and of some keys, and an INFO


@pytest.mark.proves("F40")
def test_process_with_odd_keys_hides_no_other(reaper, redis):
    die(redis, IDENTITY, since_s=100)
    die(redis, OTHER)
    redis.set(keys.working(IDENTITY), "no list")
    hold(redis, encoded(), OTHER)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        reaper.sweep()
    assert len(queued(redis)) == 1


@pytest.mark.proves("R37", "I16")
@pytest.mark.parametrize(("key", "limit", "count"), [(keys.INTERRUPTED, 10_000, 2), (keys.DEAD, 5, None)])
def test_full_sets_are_trimmed_and_reported(redis, granted, recovered, key, limit, count):
    now = redis.time()[0]
    redis.zadd(key, {"too old": now - 91 * 86_400, **{str(number): now for number in range(limit + 3)}})
    die(redis, OTHER)
    data = b"not json" if count is None else encoded(aw_death_count=count)
    hold(redis, data, OTHER)
    with registry.isolated():
        assert Reaper(granted, recovered.append, long_up(redis), SetLimits(5, 86_400.0)).sweep() == 1
    assert redis.zcard(key) == limit - 1
    assert redis.zscore(key, "too old") is None
    assert [(one.destination, one.trimmed) for one in recovered] == [(key, 6)]  # limit + 5 entries were there


def run_until_killed(redis, identity, unacknowledged=17):
    """A process of concurrency 2 fetches 100 jobs, runs the oldest, acknowledges late, and runs the killer."""
    beat(redis, identity)
    announcer = SuspectRunner(redis, identity, 2)
    working = keys.working(identity)
    while redis.llen(working) < 100 and redis.lmove("queue:default", working, "RIGHT", "LEFT"):
        pass
    for position, data in enumerate(reversed(redis.lrange(working, 0, -1))):
        job = json.loads(data)
        suspected = "aw_suspect" in job
        if suspected:
            announcer.begin(data, job.get("aw_death_count", 0))
        if job["jid"] == "killer":
            break
        if suspected:
            announcer.end(data)
        if position >= unacknowledged:
            redis.rpop(working)
    mark_dead(redis, identity)  # its parent has seen it die


@pytest.mark.proves("R25")
@pytest.mark.parametrize("before", [0, 1, 20, 60])
def test_killing_job_is_quarantined_and_others_are_not(reaper, redis, before):
    jobs = [f"innocent-{number}" for number in range(200)]
    jobs.insert(before, "killer")
    for jid in jobs:
        redis.lpush("queue:default", encoded(jid=jid))
    process_number = 0
    while not redis.zcard(keys.INTERRUPTED):
        assert process_number < 4, "three deaths suffice when it was among the oldest, four otherwise"
        run_until_killed(redis, f"host:{process_number + 1}:000000000abc")
        reaper.sweep()
        process_number += 1
    (killer,) = redis.zrange(keys.INTERRUPTED, 0, -1)
    assert (json.loads(killer)["jid"], json.loads(killer)["aw_death_count"]) == ("killer", 3)
    counts = Counter(job.get("aw_death_count", 0) for job in queued(redis))
    assert set(counts) <= {0, 1}
    assert counts[1] <= 4


@pytest.mark.campaign
@pytest.mark.proves("R19", "R20")
def test_five_hundred_starts_at_once_cause_no_death(redis, granted, recovered):
    """Heartbeats have been steady, so the detector allows deaths; and every process is late with its second heartbeat."""
    for number in range(500):
        redis.lpush("queue:default", encoded(jid=f"j{number}"))
    with registry.isolated():
        for number in range(500):
            identity = f"host:{number}:000000000abc"
            beat(redis, identity)
            redis.zadd(keys.REGISTRY, {identity: redis.time()[0] - 20})
            redis.lmove("queue:default", keys.working(identity), "RIGHT", "LEFT")
            if number % 10 == 0:
                assert Reaper(granted, recovered.append, long_up(redis), LIMITS).sweep(own=identity) == 0
    assert recovered == []
    assert redis.llen("queue:default") == 0
