"""Packed jobs are seen, counted, found, moved and dropped as all others."""

from framework import admin
from framework.admin.explain import Explainer, KnownClasses
from framework.admin.explain_class import ClassExplainer
from framework.admin.explain_reader import ShardSnapshot
from framework.admin.groups import read_all, sized_stores
from framework.admin.held_set import MatchingHeldJobs
from framework.admin.job_queue import matching_jobs
from framework.admin.job_record import JobFilter
from framework.admin.queue_actions import clear_queue, drop_job
from framework.admin.queue_reader import next_jobs, read_live_queues, read_queues, scan_queue
from framework.admin.search import JobStore, search
from framework.admin.statistics import count_jobs_by_class, ignore_progress, read_stats
from framework.features.backlog.memory import measure_memory
from framework.features.observability.fleet import FleetReader
from framework.features.packing.packer import QueuePacker
from framework.migrate.plan import FixedTarget, MigrationPlan, MigrationReport, Quota
from framework.migrate.queues import QueueMigrator
from framework.wire import blocks, keys
from framework.wire.json import loads_object
from tests.admin.conftest import shard
from tests.features.packing.test_held_packer import packed as packed_held_jobs
from tests.features.packing.test_held_packer import waiting as waiting_of
from tests.features.packing.test_packer import QUEUE, drained, packed, waiting
from tests.harness import encoded

__all__ = ["shard"]

STORE = JobStore("queue", QUEUE.encode())


def all_packed(redis, numbers):
    redis.sadd(keys.QUEUES, "default")
    return packed(redis, numbers, depth=5, run=3)


def test_readers_show_true_sizes(shard, redis):
    jobs = all_packed(redis, 32)
    assert redis.llen(QUEUE) < 20
    (state,) = read_queues(shard)
    assert (state.size, admin.Queue("default").size, read_stats(shard).enqueued) == (32, 32, 32)
    assert sized_stores(redis, [STORE]) == [(STORE, 32)]
    assert [found.waiting for _, found in read_live_queues({"main": shard})] == [{"default": 32}]
    assert [data for _, data in next_jobs(redis, "default", 20)] == jobs[:20]
    assert list(scan_queue(redis, "default")) == jobs[::-1]
    assert [data for _, data, _ in read_all(redis, [(STORE, 32)])] == jobs[::-1]
    assert count_jobs_by_class(redis, {"Job": "Job"}, lambda _place, _jobs: None)["Job"] == {"queue default": 32}
    memory = measure_memory(redis, admin.port.current().settings.size_limit, exact=True)
    assert [one.jobs for one in memory.parts if one.cls == "Job"] == [32]


def test_metrics_count_packed_jobs(shard, redis):
    all_packed(redis, 32)
    found = FleetReader(admin.port.current().settings).read("main", redis).figures
    assert [one.value for one in found if one.name == "sidekiq_queue_size"] == [32]


def test_latency_is_that_of_the_oldest_packed_job(shard, redis):
    all_packed(redis, 32)
    before = read_queues(shard)[0].latency
    redis.ltrim(QUEUE, 0, -6)
    assert blocks.is_block(redis.lindex(QUEUE, -1))
    assert abs(read_queues(shard)[0].latency - before) < 60


def test_job_in_a_block_is_found_and_dropped(shard, redis):
    jobs = all_packed(redis, 32)
    # The first, a middle and the last one of a block, and one that is in none.
    for number in (31, 15, 13, 14, 2):
        jid = loads_object(jobs[number])["jid"]
        (found,) = search(redis, jid, ignore_progress)
        assert (found.store.name, found.data) == ("default", jobs[number])
        queued = admin.Queue("default").find(jid)
        assert queued is not None
        assert queued.delete()
        assert not queued.delete()
    left = [job for number, job in enumerate(jobs) if number not in (31, 15, 13, 14, 2)]
    assert waiting(redis) == left[::-1]
    assert drained(redis) == left
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS)


def test_search_counts_the_jobs_before_a_packed_one(redis):
    jobs = all_packed(redis, 32)
    other = [encoded(jid="x", queue="other")]
    redis.lpush(keys.queue("other"), *other)
    redis.sadd(keys.QUEUES, "other")
    for number, job in enumerate(jobs, start=1):
        (found,) = search(redis, loads_object(job)["jid"], ignore_progress)
        assert (found.position, found.total) == (number, 32)
    (found,) = search(redis, "x", ignore_progress)
    assert (found.position, found.total) == (1, 1)


def test_search_goes_on_behind_blocks_in_small_steps(redis, monkeypatch):
    jobs = all_packed(redis, 32)
    monkeypatch.setattr("framework.admin.search.STEP_BYTES", 1)
    for number, job in enumerate(jobs, start=1):
        (found,) = search(redis, loads_object(job)["jid"], ignore_progress)
        assert (found.position, found.total) == (number, 32)


def test_equal_jobs_in_a_block_are_dropped_one_by_one(shard, redis):
    jobs = all_packed(redis, 32)
    redis.delete(QUEUE, keys.PACKED, keys.PACKED_BLOCKS)
    redis.lpush(QUEUE, *[jobs[0]] * 9)
    assert QueuePacker(redis, "default", 0, 3).pack()
    for left in range(8, -1, -1):
        assert drop_job(redis, "default", jobs[0], from_left=True)
        assert waiting(redis) == [jobs[0]] * left


def test_clear_drops_packed_jobs_and_keeps_the_others(redis):
    jobs = all_packed(redis, 32)
    assert clear_queue(redis, "default", lambda _: None, lambda data: jobs.index(data) % 3 == 0) == 11
    assert waiting(redis) == [job for number, job in enumerate(jobs) if number % 3][::-1]
    assert clear_queue(redis, "default", lambda _: None) == 21
    assert not redis.exists(QUEUE, keys.PACKED, keys.PACKED_BLOCKS)


def test_migration_moves_packed_jobs_in_order(redis):
    jobs = all_packed(redis, 32)
    plan = MigrationPlan(FixedTarget("new", ["Job"], ()), ["default"], ["Job"])
    report = MigrationReport()
    migrator = QueueMigrator(redis, plan, report, Quota(None))
    assert migrator.length("default") == 32
    migrator.preview("default")
    migrator.migrate("default")
    assert not redis.exists(QUEUE, keys.PACKED, keys.PACKED_BLOCKS)
    moved = [loads_object(data)["jid"] for data in redis.lrange(keys.queue("new"), 0, -1)]
    assert moved == [loads_object(data)["jid"] for data in jobs[::-1]]


def test_top_counts_packed_jobs(shard, redis):
    all_packed(redis, 32)
    found = admin.top("queue:default", exact=True)
    assert [(group.name, group.jobs) for group in found.groups] == [("Job", 32)]


def test_cancel_marks_the_jobs_of_blocks(shard, redis):
    jobs = all_packed(redis, 32)
    done = admin.cancel_jobs(cls="Job")
    assert (done.matched, done.marked) == (32, 32)
    assert {jid.decode() for jid in redis.zrange(keys.CANCELLED, 0, -1)} == {loads_object(job)["jid"] for job in jobs}
    assert waiting(redis) == jobs[::-1]


def test_explain_tells_the_position_of_a_packed_job(shard, redis):
    jobs = all_packed(redis, 32)
    (found,) = search(redis, loads_object(jobs[14])["jid"], ignore_progress)
    snapshot = ShardSnapshot(redis, "main")
    assert Explainer(snapshot, KnownClasses()).explain(found).where == "queue default, number 15 of 32"
    one = ClassExplainer(snapshot, Explainer(snapshot, KnownClasses())).explain("Job", (), None, ignore_progress)
    assert (one.queue, one.backlog.places, len(one.backlog.entered)) == ("default", {"queue default": 32}, 32)


def test_list_has_the_matching_jobs_of_blocks(shard, redis):
    jobs = all_packed(redis, 32)
    jid = loads_object(jobs[14])["jid"]
    sizes = admin.port.current().settings.size_limit
    for wanted, expected in ((JobFilter(cls="Job"), jobs[::-1]), (JobFilter(text=jid), [jobs[14]])):
        found = matching_jobs(shard, "default", wanted, sizes, ignore_progress)
        assert [one.data for one in found] == expected


# --- of held jobs

HELD_KEY = keys.paused_jobs("Job")


def held_and_packed(redis, numbers):
    redis.sadd(keys.PAUSED_CLASSES, "Job")
    return [data for data, _ in packed_held_jobs(redis, HELD_KEY, numbers)]


def test_readers_show_true_sizes_of_held_jobs(shard, redis):
    jobs = held_and_packed(redis, 32)
    assert redis.zcard(HELD_KEY) < 24
    (place,) = admin.held().places()
    assert (place.jobs, admin.held().size, read_stats(shard).held, len(list(admin.held().where(cls="Job")))) == (
        32,
    ) * 4
    store = JobStore("paused", HELD_KEY.encode())
    assert sized_stores(redis, [store]) == [(store, 32)]
    assert [data for _, data, _ in read_all(redis, [(store, 32)])] == jobs
    found = FleetReader(admin.port.current().settings).read("main", redis).figures
    assert [one.value for one in found if one.name == "application_worker_held_size"] == [32]
    memory = measure_memory(redis, admin.port.current().settings.size_limit, exact=True)
    assert [(one.jobs, one.bytes > 0) for one in memory.parts if one.place == "paused"] == [(32, True)]


def test_held_job_in_a_block_is_found_and_dropped(shard, redis):
    jobs = held_and_packed(redis, 32)
    for number in (2, 10, 13, 31):
        jid = f"{number:024}"
        (found,) = search(redis, jid, ignore_progress)
        assert (found.data, found.position, found.total) == (jobs[number].partition(b"\n")[2], number + 1, 32)
    assert MatchingHeldJobs(None, JobFilter(text=f"{13:024}")).delete().done == 1
    assert admin.held().find(f"{13:024}") is None
    del jobs[13]
    assert [data for data, _ in waiting_of(redis, HELD_KEY)] == jobs


def test_some_held_jobs_of_each_block_are_dropped(shard, redis):
    jobs = held_and_packed(redis, 32)
    dropped = [loads_object(job.partition(b"\n")[2])["jid"] for job in jobs[::2]]
    done = MatchingHeldJobs(None, JobFilter(jids=frozenset(dropped))).delete()
    assert (done.matched, done.done, done.completed) == (16, 16, True)
    assert [data for data, _ in waiting_of(redis, HELD_KEY)] == jobs[1::2]
    assert MatchingHeldJobs(None, JobFilter(cls="Job")).delete().done == 16
    assert not redis.zcard(HELD_KEY)
