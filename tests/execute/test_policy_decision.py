"""Jobs that are admitted together: one call for many, each with its own answer, and nothing kept by a job that does not start."""

import json
import threading

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.execute.admission import AdmissionChain, LimitSlots
from framework.features.concurrency.admission import CapacityLimit, ClassLimit, QueueLimit
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker
from framework.features.concurrency.limits import FleetSlots, Limits
from framework.features.deduplication.admission import DedupLock
from framework.recover.reaper import Reaper
from framework.store.channel import ChannelPool
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.execute.processor_bench import WORKING, ProcessorBench, state, worker
from tests.harness import IDENTITY, enqueue, until
from tests.recover.test_reaper import die, long_up

BASE = keys.limit("Job")
ALL = {"concurrency_limit": 100, "idempotent": True, "deduplicate": Deduplicate("until_executed")}


@pytest.fixture
def start(redis, redis_url):
    """Return a function that starts a process with the policies of limits and locks."""
    made = []

    def started(slots=1, *, quick=True, queues=None):
        one = ProcessorBench(redis, redis_url, slots, ())
        client = one.shard.client
        limits, granted = Limits(FleetSlots(client), queues or {}), LimitSlots(client, IDENTITY)
        one.policies._remote = (
            QueueLimit(granted, limits),
            ClassLimit(granted, limits),
            CapacityLimit(granted, limits),
            DedupLock(client),
        )
        if quick:  # as if ten thousands of jobs had ended: jobs are fetched ahead of free capacity
            one.fetcher._pipeline.prefetch._per_second = 100_000.0
        made.append(one)
        return one.start()

    with registry.isolated():
        yield started
        for one in made:
            one.stop()


@pytest.fixture
def calls(monkeypatch):
    """Count the jobs of each call of the script."""
    counted, run_script = [], ChannelPool.run_script

    def admit(*call):
        values, at, jobs = call[-1], 4, 0
        while at < len(values):
            count, more = values[at], values[at + 12]
            jobs, at = jobs + count, at + 14 + count * {"": 1, "since": 2, "scope": 3}[more]
        counted.append(jobs)
        return run_script(*call)

    monkeypatch.setattr(ChannelPool, "run_script", admit)
    return counted


def lock_of(number):
    return keys.lock(f"of {number}")


def push(redis, count, **fields):
    for number in range(count):
        redis.hset(lock_of(number), "jid", str(number))
        enqueue(
            redis,
            "Job",
            jid=str(number),
            args=[number],
            idempotency_key=lock_of(number),
            status_expiration=60,
            **fields,
        )


def held_keys(redis):
    return redis.keys("aw:lock:*"), redis.zrange(f"{BASE}:running", 0, -1), redis.keys(f"{BASE}:waiting:*")


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async"])
def test_buffered_jobs_are_admitted_by_few_calls(start, calls, redis, is_async):
    ran = []

    def perform(self, number: int):
        ran.append(number)

    async def perform_async(self, number: int):
        ran.append(number)

    worker(perform_async if is_async else perform, **ALL)
    push(redis, 60)
    one = start(60)
    until(one.done)
    assert sorted(ran) == list(range(60))
    assert sum(calls) >= 60  # a job that waits for 10 ms on a busy machine is admitted again
    assert max(calls) > 20
    assert held_keys(redis) == ([], [], [])
    assert {state(redis, str(number)) for number in range(60)} == {"completed"}
    assert (one.died, one.unwritten_states, one.release_errors) == ([], [], [])


def test_each_job_of_a_call_gets_its_own_answer(start, calls, redis):
    begun, end = threading.Event(), threading.Event()

    def perform(self, number: int):
        begun.set()
        end.wait(20)

    worker(perform, concurrency_limit=1, idempotent=True, deduplicate=Deduplicate("until_executed"))
    push(redis, 8)
    one = start()
    assert begun.wait(20)
    assert calls[0] > 1
    # A return of the buffered jobs leaves those that are held: a thread still has to write their lines.
    one.fetcher._leader.rearm()
    until(lambda: not one.fetcher._leader._rearm_requested)
    end.set()
    until(lambda: one.done() and not redis.keys(f"{BASE}:waiting:*"))
    statuses = [line["job_status"] for line in one.lines()]
    assert statuses.count("done") == 8
    assert statuses.count("concurrency_limit") >= calls[0] - 1
    assert held_keys(redis) == ([], [], [])


@pytest.mark.parametrize("limit", [2, lambda: 2], ids=["number", "function"])
def test_waiting_jobs_come_with_the_slots_of_ended_ones(start, calls, redis, limit):
    """Each job is asked for once; a limit that is a function is asked for again, since it may have changed.

    On a busy machine a job that waits for 10 ms is asked for again too. If all waiting jobs were, there would be 46 questions.
    """
    running, most, ran = set(), [], []

    def perform(self, number: int):
        running.add(number)
        most.append(len(running))
        ran.append(number)
        # Others start meanwhile, if they may.
        for _ in range(5):
            redis.ping()
        running.discard(number)

    worker(perform, concurrency_limit=limit)
    for number in range(24):
        enqueue(redis, "Job", jid=f"{number:024x}", args=[number])
    one = start(6, quick=False)
    until(lambda: one.done() and not redis.keys(f"{BASE}:waiting:*"))
    assert sorted(ran) == list(range(24))
    assert max(most) <= 2
    assert callable(limit) or sum(calls) < 40
    assert held_keys(redis) == ([], [], [])


def test_admitted_job_that_returns_keeps_only_its_lock(start, calls, redis):
    begun, end = threading.Event(), threading.Event()

    def perform(self, number: int):
        begun.set()
        end.wait(20)

    worker(perform, **ALL)
    push(redis, 3)
    one = start()
    assert begun.wait(20)
    assert calls == [3]
    # With the only place taken, the other two return after 10 ms, in the step that releases what they got.
    until(lambda: redis.llen("queue:default") == 2)
    waiting = [json.loads(data)["jid"] for data in redis.lrange("queue:default", 0, -1)]
    assert redis.zrange(f"{BASE}:running", 0, -1) == [f"{IDENTITY} 0".encode()]
    assert waiting == ["2", "1"]
    until(lambda: [state(redis, str(number)) for number in range(3)] == ["running", None, None])
    assert [redis.hget(lock_of(number), "jid") for number in range(3)] == [b"0", b"1", b"2"]
    end.set()
    until(one.done)
    assert held_keys(redis) == ([], [], [])


@pytest.mark.parametrize("runs", [False, True], ids=["not run", "reply lost"])
def test_jobs_of_a_failed_call_are_asked_for_alone(start, redis, monkeypatch, runs):
    ran, run_script = [], ChannelPool.run_script

    def fail(*call):
        if runs:
            run_script(*call)
        raise RedisConnectionError("no reply")

    monkeypatch.setattr(ChannelPool, "run_script", fail)
    worker(lambda self, number: ran.append(number), **ALL)
    push(redis, 20)
    one = start()
    until(one.done)
    assert sorted(ran) == list(range(20))
    assert held_keys(redis) == ([], [], [])
    assert {state(redis, str(number)) for number in range(20)} == {"completed"}


def test_jobs_that_another_process_owns_do_not_run(start, redis, monkeypatch):
    ran, run_script = [], ChannelPool.run_script

    def take_away(*call):
        redis.delete(WORKING)
        return run_script(*call)

    monkeypatch.setattr(ChannelPool, "run_script", take_away)
    worker(lambda self, number: ran.append(number), **ALL)
    push(redis, 5)
    one = start()
    until(one.done)
    assert ran == []
    assert {line["job_status"] for line in one.lines()} == {"fenced"}
    assert not redis.exists(f"{BASE}:running")
    assert [redis.hget(lock_of(number), "jid") for number in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_job_with_an_unusable_limit_is_asked_for_alone_and_runs(start, redis):
    ran = []
    redis.set(BASE, "no hash")
    worker(lambda self, number: ran.append(number), **ALL)
    push(redis, 5)
    one = start()
    until(one.done)
    assert sorted(ran) == list(range(5))
    assert {state(redis, str(number)) for number in range(5)} == {"completed"}
    assert redis.keys("aw:lock:*") == []


def test_jobs_that_must_be_asked_for_alone_are_not_taken_along(start, calls, redis):
    ran = []
    worker(lambda self, *args: ran.append(args), **ALL)
    push(redis, 1)
    enqueue(redis, "Job", jid="versioned", args=[1], version=0, idempotency_key=lock_of("v"))
    redis.lpush("queue:default", b"no JSON")
    enqueue(redis, "Unknown", jid="unknown")
    enqueue(redis, "Job", jid="last", args=[2], idempotency_key=lock_of("l"))
    one = start()
    until(one.done)
    assert calls[0] == 2  # the first job and the last
    assert len(ran) == 3
    assert (len(one.bad), one.unknown) == (1, ["Unknown"])


def test_jobs_of_a_limited_queue_are_admitted_together(start, calls, redis):
    ran, together = [], threading.Barrier(3)

    def perform(self, number: int):
        together.wait(20)  # three of the thirty at a time
        ran.append(number)

    worker(perform, idempotent=True)
    push(redis, 30)
    one = start(10, queues={"default": 3})
    until(lambda: one.done() and not redis.keys("aw:limit:*:waiting:*"))
    assert sorted(ran) == list(range(30))
    assert max(calls) > 3
    assert redis.hget(keys.limit("queue/default"), "limit") == b"3"
    assert {line["concurrency_limit_name"] for line in one.lines() if line["job_status"] == "concurrency_limit"} == {
        "queue/default"
    }
    assert redis.keys("aw:limit:*:running") == []


def test_job_that_needs_two_slots_is_asked_for_alone(start, calls, redis):
    ran = []
    worker(lambda self, number: ran.append(number), **ALL)
    push(redis, 10)
    one = start(10, queues={"default": 100})
    until(one.done)
    assert sorted(ran) == list(range(10))
    assert calls == []
    assert held_keys(redis) == ([], [], [])


def test_job_of_an_unlimited_queue_asks_nothing(start, calls, redis):
    ran = []
    worker(lambda self, number: ran.append(number))
    for number in range(10):
        enqueue(redis, "Job", jid=str(number), args=[number])
    one = start(10, queues={"other": 100})
    until(one.done)
    assert sorted(ran) == list(range(10))
    assert calls == []


def test_superfluous_jobs_of_a_call_end_without_a_run(start, calls, redis):
    begun, end, ran = threading.Event(), threading.Event(), []

    class Job(LimitedCapacityWorker):
        feature_category = "not_owned"
        wire_name = "Job"
        max_running_jobs = 1

        def perform_work(self, number: int) -> None:
            ran.append(number)
            begun.set()
            end.wait(20)

        def remaining_work_count(self, number: int) -> int:
            return 0

    for number in range(4):
        enqueue(redis, "Job", jid=str(number), args=[number])
    one = start(4)
    assert begun.wait(20)
    until(lambda: [line["job_status"] for line in one.lines()].count("dropped") == 3)
    assert calls[0] == 4
    end.set()
    until(one.done)
    assert ran == [0]
    assert held_keys(redis) == ([], [], [])


def test_held_job_whose_limit_ends_does_not_run_twice(start, calls, redis):
    begun, end, ran = threading.Event(), threading.Event(), []

    def perform(self, number: int):
        ran.append(number)
        begun.set()
        end.wait(20)

    worker(perform, concurrency_limit=1)
    for number in range(5):
        enqueue(redis, "Job", jid=str(number), args=[number])
    one = start()
    assert begun.wait(20)
    assert calls == [5]
    one.policies._remote = ()
    one.policies.invalidate()
    end.set()
    until(lambda: one.done() and not redis.keys(f"{BASE}:waiting:*"))
    assert sorted(ran) == list(range(5))
    assert [line["job_status"] for line in one.lines()].count("concurrency_limit") == 4


@pytest.fixture
def blocked(start, calls, redis):
    """Return a function that starts a process whose one place is taken by the first of three jobs, all admitted by one call."""
    begun, end, ran = threading.Event(), threading.Event(), []

    def perform(self, number: int):
        ran.append(number)
        begun.set()
        end.wait(20)

    def started(before_return):
        worker(perform, idempotent=True)
        push(redis, 3)
        one = start()
        return_buffer = one.fetcher._leader._return_buffer

        def returning():
            before_return(one)
            return_buffer()

        one.fetcher._leader._return_buffer = returning
        assert begun.wait(20)
        assert calls == [3]
        return one, ran, end.set

    yield started
    end.set()


def test_jobs_that_release_their_locks_at_start_join_a_call(start, calls, redis):
    ran = []
    worker(lambda self, number: ran.append(number), idempotent=True)
    push(redis, 30)
    one = start(30)
    until(one.done)
    assert sorted(ran) == list(range(30))
    assert max(calls) > 10
    assert held_keys(redis) == ([], [], [])


def test_job_that_goes_back_before_its_start_keeps_its_lock(blocked, redis):
    one, ran, end = blocked(lambda one: None)
    until(lambda: redis.llen("queue:default") == 2)
    assert [redis.hget(lock_of(number), "jid") for number in range(3)] == [None, b"1", b"2"]
    end()
    until(one.done)
    assert ran == [0, 1, 2]
    assert held_keys(redis) == ([], [], [])


@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
def test_job_whose_lock_a_duplicate_took_stays_and_starts(blocked, redis, stops):
    def take_lock(one):
        redis.hset(lock_of(1), "jid", "duplicate")

    one, ran, end = blocked(take_lock)
    until(lambda: redis.llen("queue:default") == 1)
    if stops:
        one.processor.stop()
        one.fetcher.shutdown(20)
    assert [json.loads(data)["jid"] for data in redis.lrange(WORKING, 0, -1)] == ["1", "0"]
    assert [redis.hget(lock_of(number), "jid") for number in (1, 2)] == [b"duplicate", b"2"]
    end()
    until(lambda: one.processor.join(0.1) if stops else one.done())
    assert ran == ([0, 1] if stops else [0, 1, 2])
    assert redis.hget(lock_of(1), "jid") == b"duplicate"


@pytest.mark.proves("F44", "R38")
def test_death_after_the_release_of_locks_loses_no_duplicate(blocked, redis):
    """Which of the admitted jobs had begun is not known: each runs again as a suspect, and so does the duplicate of one."""
    returning, kept = threading.Event(), threading.Event()

    def keep(one):
        returning.set()
        kept.wait(60)

    blocked(keep)
    assert returning.wait(20)  # nothing goes back, and the leader fetches no more
    redis.hset(lock_of(1), "jid", "duplicate")
    enqueue(redis, "Job", jid="duplicate", args=[1], idempotency_key=lock_of(1))
    die(redis, IDENTITY, slots=1)
    with registry.isolated():
        assert Reaper(redis, lambda job: None, long_up(redis), SetLimits(100, 3600.0)).sweep() == 3
    found = [json.loads(data) for data in reversed(redis.lrange("queue:default", 0, -1))]
    kept.set()
    assert [(job["jid"], job.get("aw_suspect")) for job in found] == [
        *((str(number), True) for number in range(3)),
        ("duplicate", None),
    ]
    assert [redis.hget(lock_of(number), "jid") for number in range(3)] == [b"0", b"duplicate", b"2"]


def test_job_of_a_process_without_a_lease_does_not_stay(blocked, redis):
    def take_lock(one):
        redis.hset(lock_of(1), "jid", "duplicate")
        one.fetcher._pipeline.suspend()  # any process may take the working list over

    blocked(take_lock)
    until(lambda: redis.llen("queue:default") == 2)
    assert [redis.hget(lock_of(number), "jid") for number in (1, 2)] == [b"duplicate", b"2"]


def test_terms_last_unless_a_function_decides_the_limit(redis):
    answers = iter((3, 7))
    limits = Limits(FleetSlots(redis), callable_ttl_s=0.0)
    chain = AdmissionChain((ClassLimit(LimitSlots(redis, IDENTITY), limits), DedupLock(redis)))

    def terms(declared):
        return chain.policies_for(declared).terms_of(declared, "q")

    with registry.isolated():
        fixed = worker(lambda self: None, concurrency_limit=5, idempotent=True).declaration()
        asked = worker(lambda self: None, wire_name="Asked", concurrency_limit=lambda: next(answers)).declaration()
    known = terms(fixed)
    assert (known.base, known.limit, known.owner, known.has_lock, known.alone) == (BASE, "5", IDENTITY, True, False)
    assert terms(fixed) is known
    chain.invalidate()
    assert terms(fixed) is not known
    assert [terms(asked).limit, terms(asked).limit] == ["3", "7"]
