"""Push the jobs of batches to real servers, end them by the scripts, and look at the callbacks."""

import asyncio
import json
import os
from datetime import timedelta

import pytest

from framework.batches import Batch, BatchCancelledError, BatchError, UnknownBatchError
from framework.declare.policy_options import Deduplicate
from framework.errors import ArgumentsError, ShardUnavailableError, UnknownShardError
from framework.features.batches import keys as batch_keys
from framework.features.batches import push
from framework.store.script import FINISH
from framework.wire import keys
from framework.wire.resources import JobResources
from framework.wire.waiters import awaited_job_of
from tests.harness import opened
from tests.push.conftest import Pusher, closed_circuit, jobs, push_mode, pusher, worker

__all__ = ["closed_circuit", "jobs", "push_mode", "pusher"]

EVENTS = ("complete", "success", "death", "finished")


def row_worker(**attributes):
    return worker("Row", queue="default", **attributes)


def end(redis, batch, jid, how="done"):
    """Move a job as the scripts of the product do."""
    redis.rpush("working", jid)
    FINISH(
        redis,
        ["working"],
        [jid, JobResources(awaited=awaited_job_of({"bid": batch.bid, "jid": jid}), end_word=how).on_end()],
    )


def with_callbacks(**options):
    """Return a batch with a callback for each event, which is named after it."""
    batch = Batch(**options)
    callback = worker("Callback", queue="callbacks")
    for event in EVENTS:
        getattr(batch, f"on_{event}")(callback, event)
    return batch


def filled(batch, count=2):
    """Push jobs of the batch; return their ids."""
    with batch.jobs():
        return row_worker().perform_bulk([(number,) for number in range(count)])


@pytest.fixture
def fired(jobs):
    """Return the events whose callbacks were enqueued, in order."""
    return lambda: [job["args"][0] for job in jobs("callbacks")]


def test_jobs_are_written_at_the_end_of_the_block(push_mode, jobs, redis):
    batch, row = Batch(description="import", callback_queue="later"), row_worker()
    with batch.jobs():
        jid = row.perform_async(1)
        others = row.perform_bulk([(2,), (3,)])
        assert jobs() == [], "nothing is written before the end"
    assert [(job["jid"], job["args"], job["bid"]) for job in jobs()] == [
        (one, [number], batch.bid) for number, one in enumerate([jid, *others], 1)
    ]
    status = batch.status
    assert (status.total, status.pending, status.failures, status.description) == (3, 3, 0, "import")
    assert (status.shard, status.open, status.complete, status.callback_queue) == ("main", False, False, "later")
    assert redis.zrange(batch_keys.BATCHES, 0, -1) == [batch.bid.encode()]


def test_other_pushes_meanwhile_are_no_jobs_of_the_batch(pusher, jobs):
    async def push():
        with Batch().jobs():
            # Another task, which began outside of the block.
            await other

    async def outside():
        await row.aperform_async(1)

    row = row_worker()

    async def both():
        nonlocal other
        other = asyncio.ensure_future(outside())
        await push()

    other = None
    asyncio.run(both())
    assert ["bid" in job for job in jobs()] == [False]


def test_error_in_the_block_writes_nothing(pusher, redis):
    batch, row = Batch(), row_worker()
    with pytest.raises(ZeroDivisionError), batch.jobs():
        row.perform_async(1)
        _ = 1 / 0
    assert redis.keys("*") == []
    with pytest.raises(UnknownBatchError, match="has no jobs yet"):
        _ = batch.status
    assert len(filled(batch)) == 2  # the batch can be used again


def test_event_of_an_empty_batch_enqueues_its_callbacks(pusher, fired, redis):
    batch = with_callbacks()
    with batch.jobs():
        pass
    assert fired() == ["complete", "success", "finished"]
    assert batch.status.succeeded
    counted = {name.decode(): int(count) for name, count in redis.hgetall(keys.COUNTERS).items()}
    events = {f'batch_events_total{{event="{name}"}}': 1 for name in ("created", "complete", "success", "finished")}
    assert counted == events | {f'batch_callbacks_total{{event="{name}"}}': 1 for name in fired()}


def test_callback_is_a_job_of_its_own(push_mode, jobs):
    batch = Batch(callback_queue="callbacks")
    batch.on_success(worker("Publish", retry=7), 42)
    batch.on_success(worker("Mail").set(queue="mails", tags=("x",)), 1)
    with batch.jobs():
        pass
    (publish,), (mail,) = jobs("callbacks"), jobs("mails")
    assert (publish["class"], publish["args"], publish["retry"], publish["queue"]) == ("Publish", [42], 7, "callbacks")
    assert publish["aw_batch_event"] == [batch.bid, "success"]
    assert "bid" not in publish
    assert publish["created_at"] == publish["enqueued_at"] == pytest.approx(batch.status.success_at)
    assert (mail["class"], mail["tags"]) == ("Mail", ["x"])


@pytest.mark.proves("I21")
def test_events_come_in_the_order_of_the_ends(pusher, redis, fired):
    batch = with_callbacks()
    one, two, three = filled(batch, 3)
    end(redis, batch, one)
    end(redis, batch, two, "failed")
    assert fired() == []
    end(redis, batch, three, "failed")
    assert fired() == ["complete"]
    assert set(batch.failed_jids()) == {two, three}
    end(redis, batch, three, "dead")
    assert fired() == ["complete", "death"]
    end(redis, batch, two)
    assert fired() == ["complete", "death", "finished"]
    status = batch.status
    assert (status.total, status.pending, status.failures, status.dead) == (3, 1, 1, 1)
    assert list(batch.dead_jids()) == [three]
    # An operator enqueues the dead job again, and it succeeds: late, but the batch has succeeded.
    end(redis, batch, three, "revived")
    assert (batch.status.dead, batch.status.failures) == (0, 1)
    end(redis, batch, three)
    assert fired() == ["complete", "death", "finished", "success"]


def test_removed_job_ends_the_batch_without_success(pusher, redis, fired):
    batch = with_callbacks()
    one, two = filled(batch)
    end(redis, batch, one, "removed")
    end(redis, batch, two)
    assert fired() == ["complete", "finished"]
    assert (batch.status.removed, batch.status.pending) == (1, 1)


def test_dead_job_that_is_deleted_stays_dead(pusher, redis):
    batch = Batch()
    one, _ = filled(batch)
    end(redis, batch, one, "dead")
    end(redis, batch, one, "removed")
    assert (batch.status.dead, batch.status.removed) == (1, 0)


def test_job_that_is_dropped_when_due_is_not_counted(pusher, redis, fired):
    batch = with_callbacks()
    one, two = filled(batch)
    end(redis, batch, one, "skipped")
    end(redis, batch, two)
    assert (batch.status.total, fired()) == (1, ["complete", "success", "finished"])


def test_nested_batch_holds_up_the_batch_around_it(pusher, redis, jobs, fired):
    outer, row = with_callbacks(), row_worker()
    with outer.jobs():
        first = row.perform_async(1)
        inner = Batch()
        inner.on_success(worker("Inner", queue="inner"), "inner")
        with inner.jobs():
            second = row.perform_async(2)
    assert (outer.status.total, outer.status.children, inner.status.parent) == (1, 1, outer.bid)
    assert [one.bid for one in outer.children()] == [inner.bid]
    end(redis, outer, first)
    assert fired() == []
    end(redis, inner, second)
    # The callback of the nested batch is a job of the batch around it, which waits for it.
    (callback,) = jobs("inner")
    assert (callback["bid"], fired(), outer.status.pending) == (outer.bid, [], 1)
    end(redis, outer, callback["jid"])
    assert fired() == ["complete", "success", "finished"]


def test_death_in_a_nested_batch_is_one_around_it(pusher, redis, fired):
    outer = with_callbacks()
    with outer.jobs():
        (jid,) = filled(inner := Batch(), 1)
    end(redis, inner, jid, "dead")
    assert fired() == ["death", "complete", "finished"]
    assert (outer.status.death_at, outer.status.success_at) != (None, None)
    assert outer.status.success_at is None


def test_job_of_the_batch_adds_jobs_to_it(pusher, redis, fired):
    batch = with_callbacks()
    (one,) = filled(batch, 1)
    (two,) = filled(Batch(batch.bid), 1)
    end(redis, batch, one)
    assert fired() == []
    end(redis, batch, two)
    assert fired() == ["complete", "success", "finished"]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (end, "it has succeeded"),
        (lambda redis, batch, jid: batch.cancel(), "it was cancelled"),
        (lambda redis, batch, jid: batch.delete(), "no shard has it"),
    ],
)
def test_jobs_are_refused_that_come_too_late(pusher, redis, prepare, message):
    batch = Batch()
    (jid,) = filled(batch, 1)
    prepare(redis, batch, jid)
    before = redis.llen("queue:default")
    with pytest.raises(BatchError, match=message):
        filled(batch, 1)
    assert redis.llen("queue:default") == before


def test_jobs_of_a_large_block_are_written_in_steps(pusher, redis, jobs, fired):
    batch, row = with_callbacks(), row_worker()
    with batch.jobs(autoflush=3):
        jids = [row.perform_async(number) for number in range(4)]
        assert (len(jobs()), batch.status.open) == (3, True)
        for jid in jids[:3]:
            end(redis, batch, jid)
        assert fired() == [], "the last step has not come"
    end(redis, batch, jids[3])
    assert (fired(), batch.status.open) == (["complete", "success", "finished"], False)


def test_error_after_a_step_says_what_is_written(pusher):
    batch, row = Batch(), row_worker()
    with pytest.raises(ZeroDivisionError) as caught, batch.jobs(autoflush=1):
        row.perform_async(1)
        _ = 1 / 0
    assert "1 job is written of the block" in caught.value.__notes__[0]
    assert batch.status.open


@pytest.mark.proves("R45")
def test_write_whose_reply_is_lost_is_done_once(pusher, redis, monkeypatch):
    original, lost = push.write_batch, [True, True]

    def write(*args):
        reply = original(*args)
        if lost and lost.pop():
            raise ShardUnavailableError("main", "lost", maybe_written=True)
        return reply

    monkeypatch.setattr(push, "write_batch", write)
    batch = Batch()
    filled(batch, 2)
    assert (batch.status.total, redis.llen("queue:default"), lost) == (2, 2, [])


def test_refused_write_leaves_nothing(pusher, redis):
    redis.set("queue:default", "no list")
    batch = Batch()
    with pytest.raises(ShardUnavailableError, match="holds no jobs"):
        filled(batch, 2)
    assert sorted(redis.keys("*")) == [b"queue:default"]


def test_delayed_jobs_wait_in_the_schedule_set(push_mode, redis):
    batch, row = Batch(), row_worker()
    with batch.jobs():
        row.perform_in(timedelta(hours=1), 1)
        row.perform_at(2_000_000_000, 2)
        row.perform_bulk_in(60, [(3,), (4,)], batch_size=1, batch_delay=10)
    now, _ = redis.time()
    found = {json.loads(data)["args"][0]: at for data, at in redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)}
    assert found == {
        1: pytest.approx(now + 3_600, abs=60),
        2: 2e9,
        3: pytest.approx(now + 60, abs=60),
        4: found[3] + 10,
    }
    assert batch.status.total == 4


def test_duplicates_of_a_deduplicated_class_are_not_counted(push_mode, redis, jobs):
    policy = Deduplicate("until_executing", including_scheduled=True)
    row = row_worker(idempotent=True, deduplicate=policy, status_expiration=60)
    first = row.perform_async(1)
    batch = Batch()
    with batch.jobs():
        duplicate, other = row.perform_async(1), row.perform_async(2)
        again, later = row.perform_async(2), row.perform_in(600, 3)
    assert [job["jid"] for job in jobs()] == [first, other]
    assert (batch.status.total, batch.status.pending) == (2, 2)
    assert [redis.get(keys.status(jid)) for jid in (duplicate, other, again)] == [b"discarded", b"queued", b"discarded"]
    lock = next(key for key in redis.keys("aw:lock:*") if redis.hget(key, "jid") == later.encode())
    assert redis.ttl(lock) > 600


def test_job_without_a_lock_is_written_beside_a_deduplicated_one(push_mode, redis, jobs):
    """Both are of one queue, so one group of the script has a lock for one of its jobs only."""
    unique = worker("Unique", queue="default", idempotent=True, deduplicate=Deduplicate("until_executed"))
    batch, row = Batch(), row_worker()
    with batch.jobs():
        written = [row.perform_async(1), unique.perform_async(2), row.perform_async(3)]
        assert unique.perform_async(2) is None or push_mode
    assert [job["jid"] for job in jobs()] == written
    assert batch.status.total == 3


def test_job_that_a_client_middleware_drops_is_not_counted(pusher, fired):
    class Drop:
        def call(self, cls, job, queue, pool):
            if job["args"] != [13]:
                yield

    pusher.open(Drop)
    batch, row = with_callbacks(), row_worker()
    with batch.jobs():
        assert row.perform_async(13) is None
        row.perform_async(1)
    assert batch.status.total == 1


def test_jobs_are_awaited_in_an_async_block(pusher, jobs):
    row = row_worker()

    async def push():
        batch = Batch()
        async with batch.jobs():
            await asyncio.gather(*(row.aperform_async(number) for number in range(20)))
        await batch.ainvalidate()
        return await batch.astatus(), await batch.avalid()

    status, valid = asyncio.run(push())
    assert (status.total, len(jobs()), valid) == (20, 20, False)


def test_invalid_batch_makes_nested_ones_invalid(pusher):
    outer = Batch()
    with outer.jobs():
        filled(inner := Batch(), 1)
    assert (outer.valid, inner.valid) == (True, True)
    outer.invalidate()
    assert (outer.valid, inner.valid, Batch(outer.bid).status.invalidated_at) != (True, True, None)
    assert (outer.valid, inner.valid) == (False, False)


def test_batch_and_its_mark_outlive_a_job_due_later(pusher, redis):
    day = 86_400
    batch, gone = Batch(), Batch()
    for one in (batch, gone):
        with one.jobs():
            row_worker().perform_in(timedelta(days=100), 1)
        one.cancel()
    assert 129 * day < redis.ttl(batch_keys.batch(batch.bid)) <= 131 * day
    assert redis.ttl(keys.CANCELLED) > 129 * day
    redis.delete(batch_keys.batch(gone.bid))
    now = redis.time()[0]
    redis.zadd(keys.CANCELLED, {batch.bid: now - 99 * day, gone.bid: now - 99 * day, "job": now - 99 * day})
    pusher.shards["main"].cancel(["other"])
    assert set(redis.zrange(keys.CANCELLED, 0, -1)) == {batch.bid.encode(), b"other"}
    assert redis.ttl(keys.CANCELLED) > 129 * day


def test_cancelled_batch_marks_itself_and_nested_ones(pusher, redis, fired):
    outer = with_callbacks()
    with outer.jobs():
        (jid,) = filled(inner := Batch(), 1)
    outer.cancel()
    outer.cancel()
    assert redis.ttl(keys.CANCELLED) > keys.CANCELLED_TTL_S - 60
    assert set(redis.zrange(keys.CANCELLED, 0, -1)) == {outer.bid.encode(), inner.bid.encode()}
    end(redis, inner, jid, "removed")
    assert redis.exists(keys.CANCELLED) == 0
    assert fired() == ["complete", "finished"]


def test_batch_cancelled_while_open_never_succeeds(pusher, redis, fired, jobs):
    batch, row = with_callbacks(), row_worker()
    with pytest.raises(KeyboardInterrupt), batch.jobs(autoflush=2):
        row.perform_bulk([(number,) for number in range(3)])
        raise KeyboardInterrupt  # its writer is killed
    written = [job["jid"] for job in jobs()]
    for jid in written:
        end(redis, batch, jid)
    assert (batch.status.open, fired()) == (True, [])
    Batch(batch.bid).cancel()
    assert fired() == ["complete", "finished"]
    status = batch.status
    assert (status.pending, status.success_at, status.cancelled_at is not None) == (0, None, True)


def test_cancelled_batch_with_ended_jobs_never_succeeds(pusher, redis, fired):
    outer = with_callbacks()
    with outer.jobs():
        (one,) = filled(inner := Batch(), 1)
    inner.cancel()
    # It ran to its end nevertheless: it never asked.
    end(redis, inner, one)
    assert fired() == ["complete", "finished"]
    assert (inner.status.succeeded, outer.status.succeeded) == (False, False)


def test_succeeded_batch_is_not_cancelled_afterwards(pusher, redis):
    batch = Batch()
    (jid,) = filled(batch, 1)
    end(redis, batch, jid)
    batch.cancel()
    assert (batch.status.succeeded, batch.status.cancelled_at) == (True, None)


def test_deleted_batch_keeps_its_jobs_cancelled(pusher, redis):
    batch = Batch()
    filled(batch, 1)
    batch.cancel()
    batch.delete()
    assert redis.zrange(keys.CANCELLED, 0, -1) == [batch.bid.encode()]


def test_nested_batch_of_a_cancelled_one_is_refused(pusher):
    outer = Batch()
    filled(outer, 1)
    with pytest.raises(BatchCancelledError, match="was cancelled"), Batch(outer.bid).jobs():
        inner = Batch()
        outer.cancel()
        filled(inner, 1)


def test_deleted_nested_batch_is_not_waited_for(pusher, redis, fired):
    outer = with_callbacks()
    with outer.jobs():
        (jid,) = filled(inner := Batch(), 1)
    inner.delete()
    assert fired() == ["complete", "success", "finished"]
    end(redis, inner, jid)
    with pytest.raises(UnknownBatchError):
        inner.delete()
    assert redis.exists(batch_keys.batch(inner.bid)) == 0


def test_callback_is_added_until_its_event(pusher, redis, fired):
    batch, callback = Batch(), worker("Callback", queue="callbacks")
    (jid,) = filled(batch, 1)
    batch.on_success(callback, "late")
    end(redis, batch, jid)
    assert fired() == ["late"]
    with pytest.raises(BatchError, match="has happened already"):
        batch.on_success(callback, "too late")


def test_batch_expires_after_its_last_change(pusher, redis):
    batch = Batch(expires_in=timedelta(hours=1))
    one, two = filled(batch)
    names = [
        batch_keys.batch(batch.bid),
        f"{batch_keys.batch(batch.bid)}:failed",
        f"{batch_keys.batch(batch.bid)}:dead",
    ]
    assert 3_500 < redis.ttl(names[0]) <= 3_600
    end(redis, batch, one, "failed")
    assert 3_500 < redis.ttl(names[1]) <= 3_600
    end(redis, batch, one, "dead")
    # As long as the dead set keeps the job, so that a later success counts.
    assert all(redis.ttl(name) > 179 * 86_400 for name in (names[0], names[2]))
    end(redis, batch, one)
    end(redis, batch, two)
    assert 86_000 < redis.ttl(names[0]) <= 86_400


def test_batch_expiry_is_renewed_after_a_tenth_of_its_time(pusher, redis):
    batch = Batch(expires_in=timedelta(hours=1))
    one, two, _ = filled(batch, 3)
    name = batch_keys.batch(batch.bid)
    redis.expire(name, 3_300)
    end(redis, batch, one)
    assert redis.ttl(name) <= 3_300
    redis.expire(name, 3_200)
    end(redis, batch, two)
    assert 3_500 < redis.ttl(name) <= 3_600


def test_names_of_expired_batches_are_removed(pusher, redis):
    redis.zadd(batch_keys.BATCHES, {"aw-gone": 1})
    filled(batch := Batch(), 1)
    assert redis.zrange(batch_keys.BATCHES, 0, -1) == [batch.bid.encode()]


@pytest.fixture
def two_shards(redis, redis_url, second_redis, second_redis_url, pusher):
    shards = {"main": pusher.shards["main"], "second": opened(second_redis_url, "second")}
    yield Pusher(shards).open(rules=[("tags=there", "there", "second"), ("*", None)])
    shards["second"].close()


def test_job_of_another_shard_is_refused(two_shards, redis, second_redis):
    batch = Batch()
    with pytest.raises(BatchError, match="goes to second"), batch.jobs():
        worker("Here").perform_async()
        worker("There", tags=("there",)).perform_async()
    assert (redis.keys("*"), second_redis.keys("*")) == ([], [])


def test_batch_lives_on_the_shard_of_its_jobs(two_shards, redis, second_redis):
    batch = Batch()
    batch.on_success(worker("Here"), 1)
    with batch.jobs():
        jid = worker("There", tags=("there",)).perform_async()
    assert (batch.status.shard, redis.keys("*")) == ("second", [])
    end(second_redis, batch, jid)
    # A poller moves it to its shard.
    ((callback, _),) = second_redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert json.loads(callback)["class"] == "Here"
    assert Batch(batch.bid).status.succeeded


def test_nested_batch_of_another_shard_is_refused(two_shards, redis, second_redis):
    outer = Batch()
    with pytest.raises(BatchError, match="nested batches are of one shard"), outer.jobs():
        worker("Here").perform_async()
        with Batch().jobs():
            worker("There", tags=("there",)).perform_async()
    assert second_redis.keys("*") == []


def test_callback_of_a_nested_batch_stays_on_its_shard(two_shards):
    with pytest.raises(BatchError, match="callback goes to the shard second"), Batch().jobs():
        inner = Batch()
        inner.on_success(worker("There", tags=("there",)))
        with inner.jobs():
            worker("Here").perform_async()


WRONG_USES = [
    (lambda: Batch("xyz"), ValueError, "no id of a batch"),
    (lambda: Batch(5), ValueError, "no id of a batch"),
    (lambda: Batch("aw-x", description="y"), TypeError, "takes no other argument"),
    (lambda: Batch(description=5), TypeError, "give a str"),
    (lambda: Batch(description="\ud800"), ValueError, "is not Unicode text"),
    (lambda: Batch(callback_queue="a b"), ValueError, "callback_queue='a b'"),
    (lambda: Batch(expires_in=5), ValueError, "from a minute to ten years"),
    (lambda: Batch(expires_in=float("nan")), ValueError, "from a minute to ten years"),
    (lambda: Batch().jobs(autoflush=0), ValueError, "from 1 to 50,000"),
    (lambda: Batch().on_success(print), TypeError, "give a worker class"),
    (lambda: Batch().on_success(worker("W", perform=lambda self, n: None)), ArgumentsError, "W"),
    (lambda: Batch().on_death(worker("W"), object()), ArgumentsError, "W"),
    (lambda: Batch("aw-unknown").invalidate(), UnknownBatchError, "no shard has it"),
    (lambda: Batch("aw-unknown").status, UnknownBatchError, "no shard has it"),
    (lambda: list(Batch("aw-unknown").failed_jids()), UnknownBatchError, "no shard has it"),
    (lambda: filled(Batch("aw-unknown")), UnknownBatchError, "no shard has it"),
    (lambda: filled(Batch(shard="nowhere")), UnknownShardError, "nowhere"),
]


def test_wrong_use_is_an_error_that_says_what_to_do(pusher):
    for call, error, message in WRONG_USES:
        with pytest.raises(error, match=message):
            call()
    assert not Batch("aw-unknown").valid


def test_block_is_entered_once(pusher):
    block = Batch().jobs()
    with block:
        pass
    with pytest.raises(BatchError, match="entered before"), block:
        pass


def test_batch_key_of_another_type_stops_no_job(pusher, redis):
    """The job has left its place: only its count is lost."""
    redis.set(batch_keys.batch("aw-x"), "no hash")
    end(redis, Batch("aw-x"), "j")
    assert redis.llen("working") == 0


def test_block_after_an_error_closes_the_batch(pusher, redis, fired):
    batch, row = with_callbacks(), row_worker()
    with pytest.raises(ZeroDivisionError), batch.jobs(autoflush=1):
        first = row.perform_async(1)
        _ = 1 / 0
    assert batch.status.open
    with batch.jobs():
        second = row.perform_async(2)
    assert not batch.status.open
    for jid in (first, second):
        end(redis, batch, jid)
    assert fired() == ["complete", "success", "finished"]


def test_overlapping_blocks_do_not_pile_up(pusher):
    """Threads of a busy process open a block before that of another thread ends, without a pause."""
    block = Batch().jobs()
    block.__enter__()
    for _ in range(1_200):
        following = Batch().jobs()
        following.__enter__()
        block._stack.close()
        block = following
    row_worker().perform_async(1)
    block._stack.close()


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_batch_of_many_jobs_takes_little_of_redis(pusher, redis):
    """``BATCH_JOBS=1000000`` makes it as large as the promise of the guide."""
    count, row = int(os.environ.get("BATCH_JOBS", "100000")), row_worker()

    def used(push):
        redis.execute_command("FLUSHALL", "SYNC")
        before = redis.info("memory")["used_memory"]
        push()
        assert redis.llen("queue:default") == count
        return redis.info("memory")["used_memory"] - before

    plain = used(lambda: row.perform_bulk((number,) for number in range(count)))
    batch = with_callbacks(description="many")

    def fill():
        with batch.jobs():
            row.perform_bulk((number,) for number in range(count))

    more = (used(fill) - plain) / count
    for data in redis.lrange("queue:default", -1_000, -1):
        end(redis, batch, json.loads(data)["jid"])
    kept = sum(redis.memory_usage(key) for key in redis.keys(f"{batch_keys.batch(batch.bid)}*"))
    print(f"{count:,} jobs: {more:.1f} bytes more for each that waits; the batch itself: {kept:,} bytes")  # noqa: T201
    assert more < 100
    assert kept < 10_000
    assert (batch.status.total, batch.status.pending) == (count, count - 1_000)
