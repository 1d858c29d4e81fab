"""Check pushes that wait for further ones: a debounced job is replaced, an accumulating one is extended, and none is lost."""

import json
import logging
import threading
import time
from datetime import timedelta

import pytest

from framework.declare.policy_options import Deduplicate
from framework.declare.request import DueTime
from framework.errors import BulkPushError, ConfigurationError, ShardUnavailableError
from framework.features.reliable_push.kept_push import KeptPush
from framework.features.reliable_push.replay import write_kept_push
from framework.push.argument_checks import SizeLimits
from framework.push.protection import Edits, PayloadProtection
from framework.wire import keys
from framework.wire.job import generate_jid
from framework.wire.resources import items_place
from tests.harness import full_memory, opened
from tests.push.conftest import LetPass, Pusher, worker
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.usefixtures("room")

WINDOW = timedelta(seconds=30)


def debounced(**attributes):
    policy = Deduplicate("debounce", window=WINDOW, max_window=timedelta(seconds=45))

    def perform(self, page: int, text: str):
        """Accept a page."""

    hook = {"idempotency_arguments": classmethod(lambda cls, args: args[:1])}
    return worker(
        **{"perform": perform, "queue": "default", "idempotent": True, "deduplicate": policy, **hook, **attributes}
    )


def collecting(**options):
    def perform(self, page: int, texts: list[str]):
        """Accept texts of a page."""

    policy = Deduplicate("accumulate", **{"window": WINDOW, **options})
    return worker(perform=perform, queue="default", idempotent=True, deduplicate=policy)


def waiting(redis):
    """Return the jobs of the schedule set, each with the time at which it is due."""
    return [(json.loads(data), due) for data, due in redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)]


def take_due(redis):
    """Move the job that is due first to its queue, as a poller does."""
    member = redis.zrange(keys.SCHEDULE, 0, 0)[0]
    redis.lpush("queue:default", member)
    redis.zrem(keys.SCHEDULE, member)
    return json.loads(member)


def counted(redis, strategy):
    return int(redis.hget(keys.COUNTERS, f'sidekiq_jobs_deduplicated_total{{strategy="{strategy}",worker="Job"}}') or 0)


def test_debounced_push_replaces_the_waiting_job(pusher, redis, caplog):
    for round_, middleware in enumerate([(), (LetPass,)]):
        redis.flushall()
        caplog.clear()
        pusher.open(*middleware)
        job = debounced(status_expiration=60)
        first = job.perform_async(1, "old")
        began = redis.time()[0]
        redis.zadd(keys.SCHEDULE, {redis.zrange(keys.SCHEDULE, 0, 0)[0]: began + 5})
        with caplog.at_level(logging.INFO, logger="framework"):
            other, last = job.perform_async(2, "other"), job.perform_async(1, "new")
        assert len({first, other, last}) == 3
        assert [(one["jid"], one["args"]) for one, _ in waiting(redis)] == [(other, [2, "other"]), (last, [1, "new"])]
        assert all(began + 30 <= due <= redis.time()[0] + 31 for _, due in waiting(redis))
        assert "enqueued_at" not in waiting(redis)[0][0]
        (line,) = [record.getMessage() for record in caplog.records if "deduplicated" in record.getMessage()]
        assert f"JID-{first}: deduplicated: debounce" in line
        assert f"duplicate-of='{last}'" in line
        assert "deduplication.options.window=30.0" in line
        assert counted(redis, "debounce") == 1
        assert [redis.get(keys.status(jid)) for jid in (first, last)] == [b"discarded", b"queued"]
        # Not later than max_window after the first push of the window.
        (lock,) = [key for key in redis.keys("aw:lock:*") if redis.hget(key, "jid") == last.encode()]
        redis.hset(lock, "first", began - 40)
        newest = job.perform_bulk([(1, "a"), (1, "b")])[-1]
        assert [(one["jid"], due == began + 5) for one, due in waiting(redis)] == [(newest, True), (other, False)]
        # The window is over: the job waits in its queue, and the next push begins a window of its own.
        assert take_due(redis)["jid"] == newest
        later = job.perform_async(1, "later")
        assert [one["jid"] for one, _ in waiting(redis)] == [other, later]
        assert redis.llen("queue:default") == 1, round_
        # A time of its own is no window.
        assert job.perform_in(60, 1, "planned")
        assert len(waiting(redis)) == 3


def test_accumulated_items_are_in_exactly_one_job(pusher, redis, caplog):
    for middleware in [(), (LetPass,)]:
        redis.flushall()
        pusher.open(*middleware, limits=SizeLimits(compression_threshold=2_000))
        job = collecting(max_items=5, max_bytes=1_500)
        with caplog.at_level(logging.INFO, logger="framework"):
            first = job.perform_async(1, [])
            due = redis.zscore(keys.SCHEDULE, redis.zrange(keys.SCHEDULE, 0, 0)[0])
            assert job.perform_async(1, ['a"]],é']) == first
            assert job.perform_bulk([(1, ["b", "c"]), (1, []), (2, ["x"])])[:2] == [first, first]
        lines = [record.getMessage() for record in caplog.records if "deduplicated: accumulate" in record.getMessage()]
        assert f"duplicate-of='{first}'" in lines[-1]
        assert [one["args"] for one, _ in waiting(redis)] == [[1, ['a"]],é', "b", "c"]], [2, ["x"]]]
        assert redis.zscore(keys.SCHEDULE, redis.zrange(keys.SCHEDULE, 0, 0)[0]) == due
        assert counted(redis, "accumulate") == 3
        # Full: too many items, then too many bytes, then compressed. Each begins the next job.
        full = [job.perform_async(1, ["d", "e", "f"]), job.perform_async(1, ["g"] * 2)]
        full += [job.perform_async(1, ["h" * 1_400]), job.perform_async(1, ["s"]), job.perform_async(1, ["i" * 3_000])]
        full.append(job.perform_async(1, ["j"]))
        assert full[0] == full[1]
        assert len({first, *full}) == 6
        assert [one["jid"] for one, _ in waiting(redis) if one.get("compressed")] == [full[4]]
        # A lock that is lost or wrong, and a job that has left: a job more, and no item less.
        take_due(redis)
        redis.delete(*redis.keys("aw:lock:*"))
        alone = job.perform_async(1, ["k"])
        (lock,) = redis.keys("aw:lock:*")
        redis.delete(lock)
        redis.set(lock, "garbage")
        assert len({job.perform_async(1, ["l"]), alone}) == 2
        # A cancelled job ends without a run, so it gets no items.
        cancelled = job.perform_async(3, ["m"])
        pusher.shards["main"].cancel([cancelled])
        assert job.perform_async(3, ["n"]) != cancelled
        caplog.clear()


def test_concurrent_pushes_and_moves_lose_no_item(pusher, redis):
    job, answers = collecting(), {}

    def push(base):
        for number in range(base, base + 100):
            answers[str(number)] = job.perform_async(1, [str(number)])

    threads = [threading.Thread(target=push, args=(base,)) for base in range(0, 400, 100)]
    for thread in threads:
        thread.start()
    moved = []
    while any(thread.is_alive() for thread in threads) or redis.zcard(keys.SCHEDULE):
        # As a poller: the removal that finds the member moves it.
        moved += [json.loads(one) for one in redis.zrange(keys.SCHEDULE, 0, 0) if redis.zrem(keys.SCHEDULE, one)]
    items = {item: one["jid"] for one in moved for item in one["args"][1]}
    assert sum(len(one["args"][1]) for one in moved) == 400
    assert items == answers


def test_failed_pushes_leave_the_waiting_job(pusher, redis, redis_url):
    for declare, form in ((debounced, str), (collecting, list)):
        redis.flushall()
        job = declare()
        push = lambda text, job=job, form=form: job.perform_async(1, form(text))  # noqa: E731
        first = push("a")
        before = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
        with full_memory(redis), pytest.raises(ShardUnavailableError, match="OOM"):
            push("b")
        assert redis.zrange(keys.SCHEDULE, 0, -1, withscores=True) == before
        redis.rename(keys.SCHEDULE, "saved")
        redis.set(keys.SCHEDULE, "of another type")
        with pytest.raises(ShardUnavailableError, match="WRONGTYPE"):
            push("b")
        redis.rename("saved", keys.SCHEDULE)
        assert push("c")
        assert [one["args"][1] in ("c", ["a", "c"]) for one, _ in waiting(redis)] == [True], first
    with Proxy(redis_url) as proxy:
        shard = opened(proxy.url)
        try:
            redis.flushall()
            Pusher({"main": shard})
            job = collecting()
            job.perform_async(1, ["a"])
            proxy.lose_replies(b"EVALSHA", {1})
            with pytest.raises(BulkPushError) as lost:
                job.perform_bulk([(1, ["b"]), (1, ["c"])])
            # The step was done: it is not done again.
            assert len(set(lost.value.resume())) == 1
            assert [one["args"] for one, _ in waiting(redis)] == [[1, ["a", "b", "c"]]]
        finally:
            shard.close()


class Editing(PayloadProtection):
    def __init__(self, edits):
        self._edits = edits

    def edits(self, declaration):
        return self._edits


def test_accumulation_needs_payloads_that_redis_may_edit(pusher):
    pusher.open(protection=Editing(Edits((dict.copy,))))
    job = collecting()
    with pytest.raises(ConfigurationError, match="does not fit signed or encrypted payloads"):
        job.perform_async(1, ["a"])
    pusher.open(protection=Editing(Edits((dict.clear,), min_bytes=100_000)))
    assert job.perform_async(1, ["a"]) == job.perform_async(1, ["b"])
    places = {
        b'{"args":[1,["a","b"]],"jid":"j"}': "12,19,2",
        b'{"x":{"args":[["a"]]},"args":[["a"]]}': "",
        b'{"args":[[]]}': "10,10,0",
        b'{"args":["text"]}': "",
        b'{"args":[]}': "",
    }
    assert {data: items_place(data) for data in places} == places


def test_kept_push_waits_for_further_ones_at_its_replay(pusher, redis):
    """A push that an outage kept in a file is written as a push of its window, however late."""
    for declare, texts in ((debounced, "a"), (collecting, ["a"])):
        redis.flushall()
        job = declare()
        plan, _ = pusher.client.build_one(job.declaration(), [1, texts], {}, {})
        now = time.time()
        batch = plan.payloads.one([1, texts], DueTime(now + 30, 30.0), plan.locks(scheduled=False), {})
        kept = KeptPush.decode(KeptPush("main", batch, generate_jid(), now - 60, False, False).encode())
        shard = pusher.shards["main"]
        for _ in range(2):
            write_kept_push(shard, kept, now, now)
        ((payload, due),) = waiting(redis)
        assert payload["args"] == [1, texts]
        # Redis subtracts the age that the push had at `now` from its own time.
        assert now - 30.01 <= due <= time.time() - 29.99
        assert job.perform_async(1, texts)
        assert [one["args"] for one, _ in waiting(redis)] == [[1, texts if texts == "a" else ["a", "a"]]]
