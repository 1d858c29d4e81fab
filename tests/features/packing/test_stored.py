"""Pack jobs into a payload store, and bring them back: nothing is lost while the store or its objects are away."""

import json
import shutil
import time

import pytest

from framework.admin.cancel import cancel_on_shard
from framework.admin.diagnosis.diagnose import diagnose
from framework.admin.diagnosis.facts import DiagnosisScope, Installation
from framework.admin.explain import KnownClasses
from framework.admin.groups import draw_indexes
from framework.admin.job_record import JobQuota, job_filter
from framework.admin.job_search import parse_query, search_shard
from framework.admin.queue_actions import clear_queue, drop_job
from framework.admin.search import JobStore, search, search_list_steps
from framework.admin.shard_job_set import ShardJobSet
from framework.admin.statistics import count_jobs_by_class, ignore_progress
from framework.all_settings import load
from framework.errors import PayloadError, StoredBlocksError
from framework.features.encryption import stored_blocks
from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import BLOBS, PayloadOffload
from framework.features.encryption.stored_blocks import StoredBlocks
from framework.features.encryption.sweep import PayloadSweeper
from framework.features.packing.deferred_packer import DeferredPacker
from framework.features.packing.held_packer import HeldPacker
from framework.features.packing.packer import QueuePacker
from framework.features.packing.problems import packing_problems
from framework.features.pause.admission import resume
from framework.fetch.blocks import return_jobs, unpack
from framework.fetch.deferred_blocks import blocks_of, unpack_deferred
from framework.fetch.held_blocks import unpack_next
from framework.route.router import LoadedWorkers
from framework.settings.model import SizeLimitSettings
from framework.store.block_store import IN_REDIS, attach_store
from framework.store.script import FETCH, PUSH_FAIR
from framework.wire import blocks, keys
from tests.admin.conftest import shard
from tests.features.packing.test_deferred_packer import WORKER, deferred, start
from tests.features.packing.test_deferred_packer import waiting as waiting_deferred
from tests.features.packing.test_held_packer import PAUSED, held
from tests.features.packing.test_held_packer import waiting as waiting_held
from tests.features.packing.test_packer import DEPTH, QUEUE, RUN, drained, packed, waiting
from tests.fetch.conftest import FetcherBench
from tests.harness import IDENTITY, encoded, until

__all__ = ["shard", "start"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "payloads"


@pytest.fixture
def store(redis, folder, monkeypatch):
    """Blocks in a store that was made before, which is asked again at once after an error; objects are deleted at once."""
    monkeypatch.setattr(stored_blocks, "_RETRY_S", 0.0)
    monkeypatch.setattr(stored_blocks, "_KEPT_S", 0.0)
    offload = PayloadOffload(FolderStore(folder), folder.as_uri(), 1_000, made_before=True)
    offload.make_store()
    made = StoredBlocks(offload)
    attach_store(redis, made)
    yield made
    attach_store(redis, IN_REDIS)


def objects(folder):
    return [one.name for one in FolderStore(folder).list(BLOBS)]


def held_in_store(redis, numbers, store):
    jobs = held(redis, PAUSED, range(numbers))
    one = HeldPacker(redis, PAUSED.encode(), DEPTH, RUN, store)
    while one.step():
        pass
    return jobs


def deferred_in_store(redis, numbers, start, store):
    jobs = deferred(redis, range(numbers), start)
    one = DeferredPacker(redis, 5, RUN, 2, store=store)
    while one.step():
        pass
    return jobs


def test_queue_has_references_and_runs_in_order(redis, store, folder):
    jobs = packed(redis, 30, step=2, store=store)
    elements = redis.lrange(QUEUE, 0, -1)
    # The last block grows in Redis, until it has room for no other step.
    assert [blocks.stored_id(one) is not None for one in elements] == [True] * 4 + [False] * 13
    assert blocks.count(elements[4]) == 2
    assert max(map(len, elements[:4])) < 500
    assert not any(blocks.JOBS.encode() in one for one in elements[:4])
    assert len(objects(folder)) == 4
    assert waiting(redis) == jobs[::-1]
    assert drained(redis) == jobs
    assert objects(folder) == []
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS)


def test_held_jobs_have_references_and_return(redis, store, folder):
    jobs = held_in_store(redis, 30, store)
    assert sum(blocks.stored_id(one) is not None for one in redis.zrange(PAUSED, 0, -1)) == len(objects(folder)) == 4
    assert waiting_held(redis, PAUSED) == jobs
    assert resume(redis, "Job", b"", class_known=True).moved == 30
    assert redis.lrange(QUEUE, 0, -1) == [data.partition(b"\n")[2] for data, _ in reversed(jobs)]
    assert objects(folder) == []


def test_deferred_jobs_have_references_and_return(redis, store, folder, start):
    jobs = deferred_in_store(redis, 17, start, store)
    assert all(blocks.stored_id(one) for one in redis.hvals(keys.DEFERRED_BLOCKS))
    assert len(objects(folder)) == 3
    assert waiting_deferred(redis) == jobs
    for block in blocks_of(redis, WORKER):
        assert unpack_deferred(redis, block)
    assert redis.zrange(keys.SCHEDULE, 0, -1, withscores=True) == jobs
    assert objects(folder) == []


def test_object_stays_for_a_while_after_its_reference(redis, stored, tmp_path):
    packed(redis, 14, store=stored)
    reference = redis.lindex(QUEUE, 0)
    assert drained(redis)
    # As after a failover that has lost the last write.
    assert len(blocks.unpack(stored.read(reference))) == RUN
    assert len(objects(tmp_path / "payloads")) == 1


def test_store_that_is_away_packs_nothing_and_loses_nothing(redis, store, folder, start):
    jobs = packed(redis, 30, store=store)
    held_jobs, deferred_jobs = held_in_store(redis, 30, store), deferred_in_store(redis, 17, start, store)
    redis.lpush(QUEUE, *[encoded(jid=f"new{number:021}") for number in range(2 * RUN)])
    away = folder.rename(folder.with_name("away"))
    before = {key: redis.dump(key) for key in redis.scan_iter()}
    oldest = next(one for one in reversed(redis.lrange(QUEUE, 0, -1)) if blocks.is_block(one))
    steps = [
        QueuePacker(redis, "default", DEPTH, RUN, store=store).pack,
        lambda: unpack(redis, "default", oldest, behind=DEPTH),
        lambda: unpack_next(redis, PAUSED, 100),
        lambda: unpack_deferred(redis, blocks_of(redis, WORKER)[0]),
        lambda: waiting(redis),
        lambda: search(redis, "0" * 24, ignore_progress),
    ]
    for step in steps:
        with pytest.raises(StoredBlocksError, match="packed jobs wait in the payload store"):
            step()
    # Those that could leave have left: the next one is in a block.
    assert resume(redis, "Job", b"", class_known=True).moved == DEPTH
    redis.zadd(PAUSED, dict(held_jobs[:DEPTH]))
    redis.ltrim(QUEUE, DEPTH, -1)
    assert {key: redis.dump(key) for key in redis.scan_iter() if key != b"queues"} == {
        key: value for key, value in before.items() if key != b"queues"
    }
    away.rename(folder)
    assert waiting_held(redis, PAUSED) == held_jobs
    assert waiting_deferred(redis) == deferred_jobs
    assert drained(redis)[:30] == jobs


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_object_moves_its_reference_to_the_dead_set(redis, store, folder, damage):
    jobs = packed(redis, 14, store=store)
    reference = redis.lindex(QUEUE, 0)
    (path,) = [folder / name for name in objects(folder)]
    if damage == "missing":
        path.unlink()
    else:
        # Another block, which only the digest tells from this one.
        path.write_bytes(blocks.pack("default", [encoded(jid="f" * 24)] * RUN))
    before = path.read_bytes() if damage == "changed" else b""
    assert drained(redis) == jobs[:DEPTH]
    (entry,) = map(json.loads, redis.zrange(keys.DEAD, 0, -1))
    assert entry.items() >= {"aw_stored": blocks.stored_id(reference), "queue": "default", "aw_count": RUN}.items()
    assert ("has no blob" if damage == "missing" else "is damaged") in entry["error_message"]
    assert "Restore this object of the payload store, and retry this entry" in entry["error_message"]
    assert [name for name in redis.hkeys(keys.COUNTERS) if b"malformed" in name]
    # It may be restored in place.
    time.sleep(0.01)
    store.forget(b"")
    assert not before or path.read_bytes() == before


def retried(redis, shard):
    """Retry all that is dead as an operator does, and fetch it; return what was fetched."""
    entries = ShardJobSet(shard, "dead", load({}))
    for data in redis.zrange(keys.DEAD, 0, -1):
        assert entries.act_on("retry", data) == "done"
    found = []
    while data := redis.lmove(QUEUE, keys.working(IDENTITY), "RIGHT", "LEFT"):
        found.append(data)
    return found


def test_jobs_of_a_restored_object_return_to_their_queue(redis, shard, store, folder, start):
    queued = packed(redis, 14, store=store)[DEPTH:]
    held_jobs = [data.partition(b"\n")[2] for data, _ in held_in_store(redis, 30, store)][DEPTH : DEPTH + RUN]
    deferred_jobs = {data for data, _ in deferred_in_store(redis, 17, start, store)}
    hidden = [(path := folder / name, path.read_bytes()) for name in objects(folder)]
    for path, _ in hidden:
        path.unlink()
    drained(redis)
    assert unpack_next(redis, PAUSED, 100)
    assert unpack_deferred(redis, blocks_of(redis, WORKER)[0])
    assert redis.zcard(keys.DEAD) == 3
    # The queue has other blocks.
    redis.hset(keys.PACKED, "default", 8)
    redis.hset(keys.PACKED_BLOCKS, "default", 2)
    counts = {key: redis.hgetall(key) for key in (keys.PACKED, keys.PACKED_BLOCKS, keys.PACKED_HELD)}
    references = retried(redis, shard)
    for data in references:
        with pytest.raises(PayloadError, match="has no blob"):
            return_jobs(redis, keys.working(IDENTITY), "default", data)
    for path, data in hidden:
        path.write_bytes(data)
    for data in references:
        assert return_jobs(redis, keys.working(IDENTITY), "default", data)
    found = redis.lrange(QUEUE, 0, -1)[::-1]
    assert queued == held_jobs
    runs = [found[at : at + RUN] for at in range(len(found))]
    assert runs.count(queued) == 2
    assert len({*found}.intersection(deferred_jobs)) == len(found) - 2 * RUN > 1
    assert {key: redis.hgetall(key) for key in counts} == counts
    assert redis.llen(keys.working(IDENTITY)) == DEPTH


@pytest.mark.campaign
def test_worker_runs_the_jobs_of_a_restored_object(site, redis, folder):
    """A retried reference whose object is still missing is dead again at once."""
    site.write("application.yml", {"packing_depth": 10_000, "payload_offload": {"url": folder.as_uri()}})
    offload = PayloadOffload(FolderStore(folder), folder.as_uri(), 1_000)
    jobs = [encoded("NoopWorker", jid=f"{number:024}") for number in range(RUN)]
    redis.sadd(keys.QUEUES, "default")
    offload.make_store()
    reference = StoredBlocks(offload).keep(blocks.pack("default", jobs))
    path = folder / objects(folder)[0]
    before = path.read_bytes()
    path.unlink()
    pipeline = redis.pipeline()
    pipeline.hset(keys.PACKED, "default", RUN)
    pipeline.hset(keys.PACKED_BLOCKS, "default", 1)
    pipeline.lpush(QUEUE, reference)
    pipeline.execute()
    site.worker("-q", "default").ready()
    deaths = set()
    for _ in range(2):
        until(lambda: redis.zcard(keys.DEAD) == 1, "it is dead")
        (entry,) = redis.zrange(keys.DEAD, 0, -1)
        assert "Restore this object" in json.loads(entry)["error_message"]
        deaths.add(entry)
        if len(deaths) == 2:
            path.write_bytes(before)
        assert site.run("-m", "framework", "jobs", "retry", "--all", "--yes").returncode == 0
    until(lambda: len({*redis.lrange("proof:noop", 0, -1)}) == RUN, "the jobs run")
    assert not redis.exists(keys.DEAD, keys.PACKED, keys.PACKED_BLOCKS)


def test_jobs_in_the_store_are_found_counted_and_dropped(redis, shard, store, folder):
    attach_store(shard.client, store)
    redis.sadd(keys.QUEUES, "default")
    jobs = packed(redis, 30, store=store)
    inside = jobs[20]
    (found,) = search(redis, f"{20:024}", ignore_progress)
    assert (found.data, found.position, found.total) == (inside, 21, 30)
    assert count_jobs_by_class(redis, ["Job"], ignore_progress)["Job"].total() == 30
    wanted = job_filter(cls="Job")
    done = cancel_on_shard(
        shard, wanted, load({}), time.monotonic() + 60, ignore_progress, quota=JobQuota(wanted), dry_run=True
    )
    assert done.marked == 30
    assert drop_job(redis, "default", inside, from_left=False)
    assert waiting(redis) == [job for job in reversed(jobs) if job != inside]
    assert len(objects(folder)) == 4
    assert clear_queue(redis, "default", lambda _: None) == 29
    assert objects(folder) == []


def test_payload_store_needs_a_store():
    workers = LoadedWorkers(load({"FRAMEWORK_PACKING_PLACE": "payload_store"}), (), from_modules=True, whole=True)
    (found,) = packing_problems(workers)
    assert (found.key, "set payload_offload.url" in found.message) == ("packing_place", True)


def test_store_that_is_away_is_a_cause(redis, shard, store, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FRAMEWORK_VAR_DIR", str(tmp_path))
    attach_store(shard.client, store)
    packed(redis, 30, store=store)
    held_in_store(redis, 30, store)
    redis.sadd(keys.PAUSED_CLASSES, "Job")
    redis.sadd(keys.QUEUES, "default")

    def away():
        found = diagnose([shard], Installation(load({}), KnownClasses()), DiagnosisScope())
        return [one for one in found.causes if one.code == "packed_jobs_away"]

    redis.ltrim(QUEUE, 0, -DEPTH - 1)
    redis.zremrangebyrank(PAUSED, 0, DEPTH - 1)
    assert away() == []
    folder.rename(folder.with_name("away"))
    (one,) = away()
    assert one.queues == {"default", "Job"}
    assert (one.jobs, "no payload store" in one.evidence[0]) == (20, True)


def test_sample_reads_few_objects_of_a_deep_queue(redis, store, monkeypatch):
    packed(redis, 200, depth=0, store=store)
    reads = []
    real = store.read
    monkeypatch.setattr(store, "read", lambda data: reads.append(data) or real(data))
    drawn = list(draw_indexes(redis, [(JobStore("queue", QUEUE.encode()), 200, 100)]))
    assert len(drawn) > 100
    assert 1 <= len({*reads}) <= 10


def test_search_reads_few_objects_before_it_can_end_and_go_on(redis, store, monkeypatch):
    jobs = packed(redis, 400, depth=0, store=store)
    other = encoded(jid="o" * 24)
    redis.lpush(keys.queue("other"), other)
    reads, shown = [], []
    real = store.read
    monkeypatch.setattr(store, "read", lambda data: reads.append(data) or real(data))
    stores = [JobStore("queue", keys.queue(name).encode()) for name in ("other", "default")]
    found = list[bytes]()
    for step in search_list_steps(redis, stores, b"", lambda key, _: shown.append(key)):
        assert len(reads) <= 20
        reads.clear()
        found += [one.data for one in step.found]
        done, start = step.done, step.start
        if len(found) > 200:
            break
    assert shown.count("queue:default") >= 2
    for step in search_list_steps(redis, stores[done:], b"", ignore_progress, start):
        found += [one.data for one in step.found]
    assert found == [other, *jobs[::-1]]


def test_search_of_sets_in_the_store_ends_and_goes_on(redis, shard, store, start, monkeypatch):
    attach_store(shard.client, store)
    held_in_store(redis, 300, store)
    deferred_in_store(redis, 17, start, store)
    reads = []
    real = store.read
    monkeypatch.setattr(store, "read", lambda data: reads.append(data) or real(data))
    query, found, resume, calls = parse_query("queue:default"), set[tuple[str, str]](), None, 0
    while True:
        arguments = lambda job: job.display_args  # noqa: E731 - short
        step = search_shard(shard, query, arguments, SizeLimitSettings(), time_limit_s=0.0, most=10_000, resume=resume)
        # A scan may return some more than it is asked for.
        assert len(reads) < 60
        reads.clear()
        found |= {(one.store.kind, one.job.jid) for one in step.found}
        calls, resume = calls + 1, step.resume
        if resume is None:
            break
    assert calls > 2
    kinds = [("paused", number) for number in range(300)] + [("scheduled", number) for number in range(17)]
    assert found == {(kind, f"{number:024}") for kind, number in kinds}


def test_sweep_keeps_what_a_block_names_and_deletes_orphans(redis, store, folder, start):
    packed(redis, 14, store=store)
    held_in_store(redis, 30, store)
    deferred_in_store(redis, 17, start, store)
    # A job in the last block has arguments in the store itself.
    offload = PayloadOffload(FolderStore(folder), "", 1_000)
    arguments = offload.put(b"arguments")
    redis.lpush(QUEUE, *[encoded(jid=f"n{number:023}", args=[arguments], aw_offloaded=9) for number in range(RUN)])
    assert QueuePacker(redis, "default", DEPTH, RUN, store=store).pack()
    named = {*objects(folder)}
    assert len(named) == 1 + 4 + 3 + 2
    # As after a death between the object and its script.
    store.keep(blocks.pack("default", [encoded()]))
    for _ in range(2):
        time.sleep(0.01)
        PayloadSweeper(offload, 0.0, {"main": redis}).sweep()
    assert {*objects(folder)} == named
    away = folder.rename(folder.with_name("away"))
    with pytest.raises(OSError, match="payload store"):
        list(
            PayloadSweeper(PayloadOffload(FolderStore(away), "", 1_000), 0.0, {"main": redis})._named_blobs(
                lambda *_: None
            )
        )
    shutil.rmtree(away)


def sub_queue(redis, key, numbers, store):
    """Let jobs wait in a sub-queue, all in blocks; return them, the oldest first."""
    name = f"default~{key}"
    jobs = [encoded(jid=f"{key}{number:020}") for number in range(numbers)]
    redis.lpush(keys.queue(name), *jobs)
    redis.sadd(keys.QUEUES, "default", name)
    redis.zadd(keys.turns("default"), {key: redis.zcard(keys.turns("default")) + 1})
    one = QueuePacker(redis, name, 0, RUN, RUN, store)
    while one.pack():
        pass
    return jobs


@pytest.mark.parametrize("place", ["redis", "store"])
@pytest.mark.parametrize("others", ["b", "low^b"])
def test_sub_queue_waits_at_a_block_and_the_others_go_on(redis, request, place, others):
    jobs = sub_queue(redis, "a", 2 * RUN, request.getfixturevalue("store") if place == "store" else IN_REDIS)
    free = [encoded(jid=f"b{number:020}") for number in range(3)]
    redis.lpush(keys.queue(f"default~{others}"), *free)
    redis.zadd(keys.turns("default"), {others: -1 if others == "b" else 2**44 + 1})

    def fetched_fair():
        redis.set(keys.lease(IDENTITY), 1, px=60_000)
        reply = FETCH(redis, [keys.lease(IDENTITY), keys.working(IDENTITY), QUEUE], [60_000, 10, 0, "~10"])
        pairs = list(zip(reply[3::2], reply[4::2], strict=True))
        return [job for at, found in pairs if at == 1 for job in found], [found for at, found in pairs if at == -1]

    found, (block,) = fetched_fair()
    assert found == free
    assert fetched_fair() == ([], [block])
    assert redis.zrange(keys.turns("default"), 0, -1) == [b"a"]
    assert not redis.exists(QUEUE)
    for run in (jobs[:RUN], jobs[RUN:]):
        assert unpack(redis, "default~a", block)
        # A process that waits there is woken.
        assert redis.lrange(QUEUE, 0, -1) == run[:1]
        found, more = fetched_fair()
        assert found == run
        block = more[0] if more else b""
    assert not redis.exists(keys.PACKED, keys.PACKED_BLOCKS, keys.turns("default"))


def test_fair_fetcher_waits_for_the_store_and_goes_on(redis, redis_url, store, folder):
    jobs = sub_queue(redis, "a", 5 * RUN, store)
    away = folder.rename(folder.with_name("away"))
    ran = []
    bench = FetcherBench(
        redis, redis_url, slots=1, job=lambda unit: ran.append(unit.data) or True, fair=frozenset({"default"})
    )
    attach_store(bench.pipeline._client, store)
    bench.start()
    try:
        until(lambda: "default~a" in bench.pipeline._stored._next, "the sub-queue waits")
        free = [encoded(jid=f"b{number:020}") for number in range(3)]
        names = [keys.QUEUES, keys.queue("default~b")]
        PUSH_FAIR(redis, names, ["", 60_000, "", "default~b", len(free), *free])
        until(lambda: ran == free, "another sub-queue goes on")
        away.rename(folder)
        until(lambda: len(ran) == len(jobs) + len(free), "all jobs run")
        assert ran[3:] == jobs
    finally:
        bench.stop()
    assert not bench.errors


def test_fetcher_waits_for_the_store_and_goes_on(redis, redis_url, store, folder):
    jobs = packed(redis, 30, store=store)
    away = folder.rename(folder.with_name("away"))
    ran = []
    bench = FetcherBench(redis, redis_url, slots=1, job=lambda unit: ran.append(unit.data) or True)
    attach_store(bench.pipeline._client, store)
    bench.start()
    try:
        until(lambda: len(ran) == DEPTH, "the jobs before the blocks run")
        until(lambda: bench.pipeline._stored.waiting == {"default"}, "the queue waits")
        # Another queue goes on.
        assert ran == jobs[:DEPTH]
        away.rename(folder)
        until(lambda: len(ran) == len(jobs), "all jobs run")
        assert ran == jobs
    finally:
        bench.stop()
    assert not bench.errors
