"""Pack deferred jobs on a real server, bring them back in time, and read them meanwhile."""

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework import ApplicationWorker, admin
from framework.admin.groups import draw_members, read_all, sized_stores
from framework.admin.pages import ranked_pages
from framework.admin.search import JobStore, list_job_stores, search
from framework.admin.statistics import count_jobs_by_class, ignore_progress, read_stats
from framework.declare import registry
from framework.features.backlog.memory import measure_memory
from framework.features.deferral.admin import run_sooner, summarize_deferrals
from framework.features.observability.fleet import FleetReader
from framework.features.packing.deferred_packer import _FILLED, AHEAD_S, STAYS_S, DeferredPacker, DeferredReturner
from framework.fetch.deferred_blocks import blocks_of, count_packed, unpack_deferred
from framework.fetch.held_blocks import packed_held
from framework.migrate.plan import FixedTarget, MigrationPlan, MigrationReport, Quota
from framework.migrate.queues import SetMigrator
from framework.store.steps import UNPACED
from framework.wire import keys
from framework.wire.json import loads_object
from tests.admin.conftest import shard
from tests.harness import ROOT, encoded, examples

__all__ = ["shard"]

DEPTH, RUN = 5, 4
STORE = JobStore("scheduled", keys.DEFERRED_PACKED.encode())


class ReportWorker(ApplicationWorker):
    """A class of this application: jobs of others are not packed."""

    feature_category = "not_owned"

    def perform(self) -> None: ...


WORKER = ReportWorker.declaration().wire_name


@pytest.fixture
def start(redis):
    """Return the time of the first deferred job: none of these is due soon."""
    return round(time.time()) + STAYS_S + 100.0


def deferred(redis, numbers, start, worker=WORKER):
    """Schedule so many deferred jobs; return them with their times, the first due first."""
    jobs = {
        encoded(worker, jid=f"{number:024}", deferred=True, deferred_by="feature_flag", tags=[f"t{number}"]): start
        + number
        for number in numbers
    }
    redis.zadd(keys.SCHEDULE, jobs)
    return list(jobs.items())


def packed(redis, numbers, start):
    jobs = deferred(redis, range(numbers), start)
    one = DeferredPacker(redis, DEPTH, RUN, 2)
    while one.step():
        pass
    return jobs


def waiting(redis):
    """Return the scheduled jobs with their times, wherever they are, and check the count of those in blocks."""
    plain = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    inside = [one for page in ranked_pages(redis, keys.DEFERRED_PACKED) for one in page]
    blocks = redis.zcard(keys.DEFERRED_PACKED)
    assert redis.hlen(keys.DEFERRED_BLOCKS) == blocks
    assert packed_held(redis).get(keys.DEFERRED_PACKED.encode(), 0) == len(inside) - blocks
    return sorted([*plain, *((one.data, one.score) for one in inside)], key=lambda one: one[1])


def never(_declaration, _payload):
    return 0.0


def test_pack_leaves_the_first_jobs_and_those_of_ruby(redis, start):
    foreign = deferred(redis, range(100, 120), start, "Ruby::Worker")
    plain = {encoded(WORKER, jid=f"plain{number:019}"): start + number for number in range(20)}
    redis.zadd(keys.SCHEDULE, plain)
    jobs = packed(redis, 17, start)
    assert redis.zcard(keys.SCHEDULE) == DEPTH + 20 + 20
    assert [one.jobs for one in blocks_of(redis, WORKER)] == [4, 4, 4]
    assert sorted(waiting(redis)) == sorted([*jobs, *foreign, *plain.items()])


def test_jobs_that_are_due_soon_are_not_packed(redis):
    now = time.time()
    packed(redis, 17, now)
    assert redis.zcard(keys.SCHEDULE) == 17


def test_block_returns_before_its_first_job_is_due(redis, start):
    jobs = packed(redis, 17, start)
    returner = DeferredReturner(redis, never)
    assert not returner.step()
    (first, *_) = blocks_of(redis, WORKER)
    # As if time had passed: the jobs keep their distances.
    due = round(time.time()) + AHEAD_S - 1
    redis.zadd(keys.DEFERRED_PACKED, {first.name: due})
    assert returner.step()
    assert not returner.step()
    assert [redis.zscore(keys.SCHEDULE, data) for data, _ in jobs[DEPTH : DEPTH + 4]] == [due + at for at in range(4)]
    assert len(waiting(redis)) == 17


def test_block_waits_near_full_memory_while_its_queue_is_full(redis, start):
    packed(redis, 17, start)
    names = [one.name for one in blocks_of(redis, WORKER)]
    redis.zadd(keys.DEFERRED_PACKED, dict.fromkeys(names[:2], time.time()))
    redis.lpush(keys.queue("default"), *["x"] * 1_000)
    returner = DeferredReturner(redis, never)
    redis.set(keys.MEMORY_PRESSURE, "short")
    assert not returner.step()
    assert len(blocks_of(redis, WORKER)) == 3
    # Jobs that are due soon count as those in the queue.
    redis.rpop(keys.queue("default"))
    assert [returner.step(), returner.step()] == [True, False]
    redis.set(keys.MEMORY_PRESSURE, "near")
    assert returner.step()


def test_block_of_a_class_that_is_off_is_postponed(redis, start):
    packed(redis, 17, start)
    names = [one.name for one in blocks_of(redis, WORKER)]
    redis.zadd(keys.DEFERRED_PACKED, dict.fromkeys(names[:2], 1.0))
    asked = []

    def hour(declaration, payload):
        asked.append((declaration.wire_name, payload["deferred_by"]))
        return 3_600.0

    assert DeferredReturner(redis, hour).step()
    assert asked == [(WORKER, "feature_flag")] * 2
    assert redis.zcard(keys.DEFERRED_PACKED) == 3
    assert min(one.due for one in blocks_of(redis, WORKER) if one.name in names[:2]) > time.time() + 3_000


def test_block_is_unpacked_by_one_of_two_processes(redis, start):
    packed(redis, 10, start)
    (block,) = blocks_of(redis, WORKER)
    assert not unpack_deferred(redis, block._replace(due=block.due + 1))
    assert [unpack_deferred(redis, block) for _ in range(2)] == [True, False]
    assert not redis.exists(keys.DEFERRED_PACKED, keys.DEFERRED_BLOCKS, keys.PACKED_HELD)


@pytest.mark.parametrize("damage", [b"", b"{ no block"])
def test_damaged_block_moves_to_the_dead_set(redis, start, damage):
    packed(redis, 10, start)
    (block,) = blocks_of(redis, WORKER)
    redis.hdel(keys.DEFERRED_BLOCKS, block.id)
    if damage:
        redis.hset(keys.DEFERRED_BLOCKS, block.id, damage)
    assert unpack_deferred(redis, block)
    assert redis.zcard(keys.DEAD) == 1
    assert not redis.exists(keys.DEFERRED_PACKED, keys.DEFERRED_BLOCKS, keys.PACKED_HELD)


def test_readers_show_packed_deferred_jobs(shard, redis, start):
    jobs = packed(redis, 17, start)
    scheduled = admin.scheduled()
    assert (scheduled.size, read_stats(shard).scheduled, count_packed(redis, WORKER)) == (17, 17, 12)
    assert [one.data for one in scheduled] == [data for data, _ in jobs]
    assert sized_stores(redis, [STORE]) == [(STORE, 12)]
    assert [data for _, data, _ in read_all(redis, [(STORE, 12)])] == [data for data, _ in jobs[DEPTH:]]
    assert len(list(draw_members(redis, [(STORE, 12, 30)]))) == 30
    assert count_jobs_by_class(redis, {WORKER: WORKER}, ignore_progress)[WORKER] == {"schedule": 17}
    memory = measure_memory(redis, admin.port.current().settings.size_limit, exact=True)
    assert [(one.place, one.jobs) for one in memory.parts if one.cls == WORKER] == [("deferred", 17)]
    figures = FleetReader(admin.port.current().settings).read("main", redis).figures
    found = {one.name: one.value for one in figures}
    assert (found["sidekiq_jobs_scheduled_size"], found["application_worker_deferred_size"]) == (17, 17)
    (summary,) = summarize_deferrals(redis, ignore_progress)
    assert (summary.worker, summary.jobs) == (WORKER, 17)


def test_summary_has_the_first_due_time_wherever_it_is(redis, start):
    deferred(redis, range(8), start)
    one = DeferredPacker(redis, 0, RUN, 2)
    while one.step():
        pass
    assert redis.zcard(keys.SCHEDULE) == 0
    dues = [deferral.next_due for deferral in summarize_deferrals(redis, ignore_progress)]
    deferred(redis, [9], start + 3_600)
    dues += [deferral.next_due for deferral in summarize_deferrals(redis, ignore_progress)]
    assert dues == [start, start]


def test_packed_deferred_job_is_found_with_its_place(redis, start):
    jobs = packed(redis, 17, start)
    assert STORE in list_job_stores(redis)
    (found,) = search(redis, f"{10:024}", ignore_progress)
    assert (found.data, found.position, found.total, found.score) == (jobs[10][0], 11, 17, start + 10)


@pytest.mark.parametrize("action", ["delete", "kill", "enqueue_now"])
def test_packed_deferred_job_is_acted_on(shard, redis, start, action):
    packed(redis, 17, start)
    entry = admin.scheduled().find(f"{10:024}")
    assert getattr(entry, action)()
    done = getattr(admin.scheduled().where(tag="t15"), action)()
    assert (done.matched, done.done) == (1, 1)
    left = [loads_object(data)["jid"] for data, _ in waiting(redis)]
    assert left == [f"{number:024}" for number in range(17) if number not in (10, 15)]


def test_all_deferred_jobs_are_cancelled(shard, redis, start):
    packed(redis, 17, start)
    done = admin.cancel_jobs(cls=WORKER)
    assert (done.matched, done.ended) == (17, 17)
    assert not waiting(redis)


def test_run_sooner_moves_the_times_of_blocks(redis, start):
    packed(redis, 17, start)
    now = time.time()
    assert run_sooner(redis, WORKER, 17, 1.0, ignore_progress) == 17
    assert redis.zcard(keys.DEFERRED_PACKED) == 3
    assert max(score for _, score in waiting(redis)) < now + 60


def migrator(client, classes=(WORKER,), limit=None):
    report = MigrationReport()
    plan = MigrationPlan(FixedTarget("new", classes, ()), [], classes)
    return SetMigrator(client, plan, report, Quota(limit), rate=UNPACED), report


def test_migration_moves_packed_jobs_and_keeps_their_times(redis, granted, start):
    jobs = packed(redis, 17, start)
    before = redis.zrange(keys.DEFERRED_PACKED, 0, -1)
    mover, report = migrator(granted)
    assert mover.length(keys.SCHEDULE) == 17
    mover.preview(keys.SCHEDULE)
    assert report.moved == {("default", "new"): 17}
    assert redis.zrange(keys.DEFERRED_PACKED, 0, -1) == before
    mover, report = migrator(granted)
    mover.migrate(keys.SCHEDULE)
    assert report.moved == {("default", "new"): 17}
    assert {(loads_object(data)["jid"], score) for data, score in waiting(redis)} == {
        (loads_object(data)["jid"], score) for data, score in jobs
    }
    assert all(loads_object(data)["queue"] == "new" for data, _ in waiting(redis))


def test_migration_unpacks_no_block_without_need(redis, granted, start):
    packed(redis, 17, start)
    other, report = migrator(granted, ["Other"])
    other.migrate(keys.SCHEDULE)
    few, few_report = migrator(granted, limit=6)
    few.migrate(keys.SCHEDULE)
    assert (report.moved.total(), few_report.moved.total()) == (0, 6)
    assert redis.zcard(keys.DEFERRED_PACKED) == 1
    assert len(waiting(redis)) == 17


def test_migration_finds_jobs_that_are_packed_meanwhile(redis, granted, start, monkeypatch):
    packed(redis, 13, start)
    mover, report = migrator(granted)
    scan = mover._scan

    def packs_first(key, *, dry_run):
        deferred(redis, range(20, 40), start)
        one = DeferredPacker(redis, DEPTH, RUN, 2)
        while one.step():
            pass
        assert redis.zcard(keys.DEFERRED_PACKED) > 0
        scan(key, dry_run=dry_run)

    monkeypatch.setattr(mover, "_scan", packs_first)
    mover.migrate(keys.SCHEDULE)
    assert report.moved == {("default", "new"): 33}
    assert all(loads_object(data)["queue"] == "new" for data, _ in waiting(redis))


def test_migration_reports_packed_jobs_that_stay(redis, granted, start):
    packed(redis, 17, start)
    report = MigrationReport()
    plan = MigrationPlan(FixedTarget("new", (), ()), [], ())
    with registry.isolated():
        SetMigrator(granted, plan, report, Quota(), rate=UNPACED).migrate(keys.SCHEDULE)
    assert [found.jobs for found in report.skipped[keys.SCHEDULE].values()] == [17]
    assert redis.zcard(keys.DEFERRED_PACKED) == 3


STEPS = st.lists(
    st.tuples(st.sampled_from(["defer", "pack", "unpack", "postpone", "leave"]), st.integers(0, 9)), max_size=20
)


@given(STEPS)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_every_deferred_job_stays_whoever_acts(redis, steps):
    redis.flushdb()
    start, jobs = round(time.time()) + 1_000.0, set()
    one = DeferredPacker(redis, 0, RUN, 2, period_s=0.0)
    for name, number in steps:
        found = blocks_of(redis, WORKER)
        match name:
            case "defer":
                jobs.update(data for data, _ in deferred(redis, range(10 * number, 10 * number + 7), start))
            case "pack":
                one.step()
            case "leave":
                for data in redis.zrange(keys.SCHEDULE, number, number):
                    redis.zrem(keys.SCHEDULE, data)
                    jobs.discard(data)
            case "unpack" if found:
                unpack_deferred(redis, found[number % len(found)])
            case "postpone" if found:
                redis.zadd(keys.DEFERRED_PACKED, {found[number % len(found)].name: start + 10 * number})
            case _:
                pass
        assert {data for data, _ in waiting(redis)} == jobs


def test_deferred_jobs_have_the_room_of_held_jobs():
    script = (ROOT / "framework" / "store" / "scripts" / "parts" / "room.lua").read_text()
    (table,) = re.findall(r"local FILLED = {(.+)}", script)
    assert {word.encode(): int(jobs) for word, jobs in re.findall(r"(\w+) = (\d+)", table)} == _FILLED
