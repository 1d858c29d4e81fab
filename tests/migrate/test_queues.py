"""Migrate live queues: no job is lost or doubled and order is kept, while others push, fetch, stop or die."""

import json
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from framework.errors import QueueReplacedError
from framework.migrate import queues as module
from framework.migrate.plan import FixedTarget, MigrationPlan, MigrationReport, Quota
from framework.migrate.queues import QueueMigrator
from framework.recover.reaper import FailureDetector, Reaper
from framework.store.connect import Endpoint, open_client
from framework.timings import STANDARD
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.harness import encoded, examples, forked, full_memory
from tests.migrate.ways import EACH_WAY
from tests.proofs.crash_points.wire import WAYS, Fault, Line, install

OLD, NEW = keys.queue("old"), keys.queue("new")
HOLDER = keys.migration_identity("old")
ASIDE = keys.working(HOLDER)


def job(serial, name="MoveWorker", queue="old"):
    return encoded(name, queue=queue, jid=f"{serial:024x}", args=[serial])


def mixed(count, start=0):
    """Every third stays, every seventh is no job."""
    made = []
    for serial in range(start, start + count):
        if serial % 7 == 3:
            made.append(b"\xff no job %d" % serial)
        else:
            made.append(job(serial, "StayWorker" if serial % 3 == 0 else "MoveWorker"))
    return made


def stays(data):
    return b"MoveWorker" not in data


def arrived(data):
    """Return the same job in the target queue."""
    return data if stays(data) else data.replace(b'"queue":"old"', b'"queue":"new"')


def migration(redis, limit=None, report=lambda _: None):
    plan = MigrationPlan(FixedTarget("new", ["MoveWorker"], ()), ["old"], ["MoveWorker"])
    account, allowance = MigrationReport(), Quota(limit)
    return QueueMigrator(redis, plan, account, allowance, report), account, allowance


def waiting(redis, key):
    """Return the jobs, the next to run first."""
    return redis.lrange(key, 0, -1)[::-1]


def all_members(redis):
    return Counter(data for key in (OLD, NEW, ASIDE) for data in redis.lrange(key, 0, -1))


def nothing_left(redis):
    """Return whether only the keys of a finished migration are left."""
    return {key.decode() for key in redis.keys("*")} <= {OLD, NEW, keys.QUEUES, keys.STEADY_SINCE}


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(module, "PAGE", (7, 7))
    monkeypatch.setattr(module, "SCAN_PAGE", 5)


@pytest.mark.parametrize("memory", ["room", "full"])
def test_migrate_queue_moves_jobs_and_keeps_order(redis, granted, small_pages, memory):
    jobs, there = mixed(60), job(1000, queue="new")
    redis.lpush(NEW, there)
    redis.lpush(OLD, *jobs)
    counts = []
    queues, account, _ = migration(granted, report=counts.append)
    if memory == "full":
        with full_memory(redis):
            queues.migrate("old")
    else:
        queues.migrate("old")
    assert waiting(redis, OLD) == [data for data in jobs if stays(data)]
    assert waiting(redis, NEW) == [there, *(arrived(data) for data in jobs if not stays(data))]
    assert account.moved == {("old", "new"): len([data for data in jobs if not stays(data)])}
    assert not account.still_receiving
    assert sum(counts) >= 60
    assert redis.smembers(keys.QUEUES) == {b"old", b"new"}
    assert nothing_left(redis)
    before = redis.info("commandstats")["cmdstat_renamenx"]["calls"]
    queues.migrate("old")  # without a job to move no job is put aside
    assert redis.info("commandstats")["cmdstat_renamenx"]["calls"] == before


def test_migrate_queue_preview_counts_and_changes_nothing(redis, granted, small_pages):
    jobs = mixed(40)
    redis.lpush(OLD, *jobs)
    moving = sum(not stays(data) for data in jobs)
    for limit, count in ((None, moving), (3, 3)):
        queues, account, _ = migration(granted, limit)
        queues.preview("old")
        assert account.moved == {("old", "new"): count}
    assert waiting(redis, OLD) == jobs
    assert nothing_left(redis)
    assert queues.length("old") == 40


def test_migrate_queue_quota_moves_the_oldest_only(redis, granted, small_pages):
    jobs = mixed(60)
    redis.lpush(OLD, *jobs)
    movers = [data for data in jobs if not stays(data)]
    queues, account, _ = migration(granted, 9)
    queues.migrate("old")
    assert waiting(redis, NEW) == [arrived(data) for data in movers[:9]]
    assert waiting(redis, OLD) == [data for data in jobs if data not in movers[:9]]
    assert account.moved.total() == 9
    assert nothing_left(redis)
    # A fetch that finds a sub-queue set aside takes its turn: the jobs that stay get another one.
    redis.delete(OLD)
    redis.lpush(keys.queue("old~a"), *jobs[:6])
    migration(granted)[0].migrate("old~a")
    kept = [data for data in jobs[:6] if stays(data)]
    assert (waiting(redis, OLD), waiting(redis, keys.queue("old~a"))) == (kept[:1], kept[1:])
    assert redis.zrange(keys.turns("old"), 0, -1) == [b"a"]


def test_migrate_queue_stop_request_puts_jobs_back(redis, granted, small_pages):
    jobs = mixed(60)
    redis.lpush(OLD, *jobs)

    counts = []

    def stop(_count):
        counts.append(_count)
        allowance.stopped = len(counts) >= 3

    queues, account, allowance = migration(granted, report=stop)
    queues.migrate("old")
    movers = [data for data in jobs if not stays(data)]
    moved = account.moved.total()
    assert 0 < moved < len(movers)
    assert waiting(redis, NEW) == [arrived(data) for data in movers[:moved]]
    assert waiting(redis, OLD) == [data for data in jobs if data not in movers[:moved]]
    assert nothing_left(redis)


def test_migrate_queue_large_jobs_move_in_small_steps(redis, granted):
    jobs = [encoded("MoveWorker", queue="old", args=["x" * 300_000, serial]) for serial in range(4)]
    redis.lpush(OLD, *jobs)
    redis.config_resetstat()
    migration(granted)[0].migrate("old")
    assert waiting(redis, NEW) == [arrived(data) for data in jobs]
    assert redis.info("commandstats")["cmdstat_ltrim"]["calls"] == 4


def test_migrate_queue_target_of_wrong_type_keeps_jobs(redis, granted, small_pages, monkeypatch):
    jobs = mixed(30)
    redis.lpush(OLD, *jobs)
    redis.set(NEW, "no list")
    queues, account, _ = migration(granted)
    queues.migrate("old")
    assert account.incomplete
    assert {reason for reason, _, _ in account.skipped["old"]} == {"wrong type"}
    assert sum(found.jobs for found in account.skipped["old"].values()) == sum(not stays(data) for data in jobs)
    # And when that is seen by the script only:
    monkeypatch.setattr(QueueMigrator, "_is_list", lambda *_: True)
    monkeypatch.setattr(module, "MAX_ROUNDS", 1)
    queues, account, _ = migration(granted)
    queues.migrate("old")
    assert not account.moved
    assert waiting(redis, OLD) == jobs
    assert redis.get(NEW) == b"no list"


def test_migrate_queue_replaced_key_says_where_jobs_are(redis, granted, small_pages):
    jobs = mixed(30)
    redis.lpush(OLD, *jobs)

    def replace(_count):
        redis.delete(OLD)
        redis.set(OLD, "no list")

    with pytest.raises(QueueReplacedError, match=ASIDE):
        migration(granted, report=replace)[0].migrate("old")
    with pytest.raises(ResponseError, match="WRONGTYPE"):  # as the key of any queue
        migration(granted)[0].preview("old")
    redis.delete(OLD)
    migration(granted)[0].migrate("old")
    assert nothing_left(redis)


def test_migrate_queue_further_pushes_are_reported(redis, granted, small_pages):
    redis.lpush(OLD, *mixed(20))
    serials = iter(range(10_000, 20_000))
    queues, account, _ = migration(granted)
    hand_on = queues._move_all

    def push_one_more(queue, lease):
        hand_on(queue, lease)
        redis.lpush(OLD, job(next(serials)))

    queues._move_all = push_one_more
    queues.migrate("old")
    assert account.still_receiving == {"old"}
    assert account.incomplete


# --- other processes at the same queue --------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", ["lease", "reaper"])
def test_migrate_queue_expired_lease_continues(redis, granted, small_pages, pause):
    """The jobs of the expired migration are still in its key, or a reaper has put them back."""
    jobs = mixed(80)
    redis.lpush(OLD, *jobs)
    counts = []

    def stop_and_wake(_count):
        counts.append(_count)
        if len(counts) == 4:
            expire(redis)
            if pause == "reaper":
                assert reap(granted) > 0
                assert not redis.exists(ASIDE)

    migration(granted, report=stop_and_wake)[0].migrate("old")
    assert waiting(redis, OLD) == [data for data in jobs if stays(data)]
    assert waiting(redis, NEW) == [arrived(data) for data in jobs if not stays(data)]
    assert nothing_left(redis)


def test_migrate_queue_two_at_once_lose_no_job(redis, granted, small_pages):
    """The second migration runs at each command of the first, and ends before the first continues."""
    for moment in range(1, 14):
        redis.flushall()
        jobs = mixed(80)
        redis.lpush(OLD, *jobs)
        counts = []

        def second(_count, moment=moment, counts=counts):
            counts.append(_count)
            if len(counts) == moment:
                migration(granted)[0].migrate("old")

        migration(granted, report=second)[0].migrate("old")
        assert len(counts) >= moment
        assert waiting(redis, OLD) == [data for data in jobs if stays(data)]
        assert waiting(redis, NEW) == [arrived(data) for data in jobs if not stays(data)]
        assert nothing_left(redis)


def test_migrate_queue_killed_run_is_put_back_by_the_next(redis, granted):
    aside, there = [job(1, "StayWorker"), b"\xff"], job(9, "StayWorker")
    redis.lpush(ASIDE, *aside)
    redis.lpush(OLD, there)
    migration(granted)[0].migrate("old")
    assert waiting(redis, OLD) == [there, *aside]
    assert nothing_left(redis)


class Others:
    """Producers, consumers, and a process that returns its fetched jobs: each takes its next step between two pages."""

    def __init__(self, redis, jobs, steps):
        self.redis = redis
        self.pushed, self.taken, self.given = list(jobs), [], set()
        self._serials = iter(range(100_000, 200_000))
        self._steps = iter(steps)

    def act(self, _count):
        what, times = next(self._steps, ("nothing", 1))
        for _ in range(times):
            getattr(self, what.replace(" ", "_"))()

    def nothing(self):
        pass

    def push_old(self, name="MoveWorker", queue="old"):
        data = job(next(self._serials), name, queue)
        self.pushed.append(data)
        self.redis.lpush(keys.queue(queue), data)

    def push_new(self):
        self.push_old(queue="new")

    def push_stay(self):
        self.push_old("StayWorker")

    def take_old(self, key=OLD):
        data = self.redis.rpop(key)
        self.taken += [data] if data else []

    def take_new(self):
        self.take_old(NEW)

    def give_back(self):
        if self.taken:
            data = self.taken.pop()
            self.given.add(arrived(data))
            self.redis.rpush(NEW if b'"queue":"new"' in data else OLD, data)


WORDS = ["push old", "push new", "push stay", "take old", "take new", "give back"]


@pytest.mark.proves("I1", "I12")
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(count=st.integers(0, 70), steps=st.lists(st.tuples(st.sampled_from(WORDS), st.integers(1, 9)), max_size=40))
def test_migrate_queue_concurrent_clients_lose_no_job(redis, granted, small_pages, count, steps):
    redis.flushall()
    jobs = mixed(count)
    if jobs:
        redis.lpush(OLD, *jobs)
    others = Others(redis, jobs, steps)
    migration(granted, report=others.act)[0].migrate("old")
    assert not redis.exists(ASIDE)
    migration(granted)[0].migrate("old")  # jobs that arrived after the last page
    left = {True: waiting(redis, OLD), False: waiting(redis, NEW)}
    assert Counter(map(arrived, [*others.taken, *left[True], *left[False]])) == Counter(map(arrived, others.pushed))
    assert all(map(stays, left[True]))
    # The jobs that waited at the start, in the order in which they ran and will run; a returned job runs again.
    place = {arrived(data): index for index, data in enumerate(jobs) if arrived(data) not in others.given}
    for kept in (True, False):
        ran = [data for data in others.taken if stays(data)] if kept else []
        ranks = [place[data] for data in [*ran, *left[kept]] if data in place]
        assert ranks == sorted(ranks)


def test_migrate_queue_busy_clients_see_each_job_once(redis, granted, redis_url):
    """20,000 jobs, four threads that push and take: each pushed job was taken or waits."""
    jobs = [job(serial, "StayWorker" if serial % 2 else "MoveWorker") for serial in range(20_000)]
    redis.lpush(OLD, *jobs)
    done, pushed, taken = threading.Event(), ([], []), ([], [])

    def produce(number):
        with open_client(Endpoint(redis_url), name="producer") as client:
            serial = 1_000_000 * (number + 1)
            while not done.is_set():
                serial += 1
                data = job(serial, "StayWorker", "old") if serial % 2 else job(serial, queue="new")
                pushed[number].append(data)
                client.lpush(OLD if serial % 2 else NEW, data)

    def consume(number):
        with open_client(Endpoint(redis_url), name="consumer") as client:
            while not done.is_set():
                for key in (OLD, NEW):
                    taken[number].extend(client.rpop(key, 3) or [])

    threads = [threading.Thread(target=act, args=(number,)) for act in (produce, consume) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        queues, account, _ = migration(granted)
        queues.migrate("old")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not account.still_receiving
    found = Counter([*taken[0], *taken[1]]) + all_members(redis)
    assert max(found.values()) == 1
    whole = {arrived(data) for data in [*jobs, *pushed[0], *pushed[1]]}
    assert {arrived(data) for data in found} == whole
    assert not [data for data in redis.lrange(OLD, 0, -1) if not stays(data)]
    for key in (OLD, NEW):  # the jobs of the start keep their order
        first = [serial for serial in (json.loads(data)["args"][0] for data in waiting(redis, key)) if serial < 20_000]
        assert first == sorted(first)


# --- deaths ---------------------------------------------------------------------------------------------------------


def expire(redis):
    """The lease has expired, and no heartbeat has come for the time that makes a process dead."""
    redis.delete(keys.lease(HOLDER))
    if redis.zscore(keys.REGISTRY, HOLDER) is not None:
        redis.zadd(keys.REGISTRY, {HOLDER: redis.time()[0] - STANDARD.unregister_after_s - 5})


def reap(redis):
    """Sweep, as any process of the shard does every few seconds."""
    grace = FailureDetector(15.0, 3.0)
    redis.set(keys.STEADY_SINCE, redis.time()[0] - 30, px=60_000)
    grace.record_heartbeat(redis.time()[0], lease_held=False)
    return Reaper(redis, lambda _: None, grace, SetLimits(100, 1000.0)).sweep()


def interrupted(url, fault, folder, status):
    """Migrate in a process of its own, with a fault; return the names of the commands that it sent."""
    sent = folder / "sent"

    def act():
        with sent.open("w", buffering=1) as file:
            install(Line(fault, lambda _number, name: file.write(f"{name}\n"), lambda: False, greetings=False))
            with open_client(Endpoint(url), name="interrupted") as client:
                migration(client)[0].migrate("old")

    assert forked(act) == status
    return sent.read_text().split()


@pytest.mark.proves("I1", "I2", "F1")
@pytest.mark.parametrize("way", EACH_WAY)
def test_migrate_queue_fault_anywhere_next_run_completes(redis, granted, redis_url, tmp_path, way, monkeypatch):
    """Run the same command again at once; or later, when reapers have put back the jobs."""
    monkeypatch.setattr(module, "PAGE", (7, 7))
    jobs = mixed(20)
    movers = [data for data in jobs if not stays(data)]
    for _ in range(2):  # the first run also sends the source of each script that the server does not know yet
        redis.flushall()
        redis.lpush(OLD, *jobs)
        names = interrupted(redis_url, None, tmp_path, 0)
    assert {"RENAMENX", "heartbeat", "migrate", "mark_dead", "unregister"} <= {*names}
    for at, name in enumerate(names, 1):
        redis.flushall()
        redis.lpush(OLD, *jobs)
        interrupted(redis_url, Fault(at, way), tmp_path, -9 if way.startswith("die") else 1)
        assert Counter(map(arrived, all_members(redis).elements())) == Counter(map(arrived, jobs)), name
        if (at + WAYS.index(way)) % 2:
            expire(redis)
            reap(granted)
            assert not redis.exists(ASIDE)
            there = waiting(redis, NEW)
            assert there == [arrived(data) for data in movers[: len(there)]]
            assert waiting(redis, OLD) == [data for data in jobs if data not in movers[: len(there)]]
        migration(granted)[0].migrate("old")
        assert waiting(redis, OLD) == [data for data in jobs if stays(data)]
        assert waiting(redis, NEW) == [arrived(data) for data in movers]
        if redis.zscore(keys.REGISTRY, HOLDER) is not None:  # a name that remains is unregistered like any dead process
            expire(redis)
            reap(granted)
        assert nothing_left(redis)
