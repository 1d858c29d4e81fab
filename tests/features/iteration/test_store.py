"""Iterating jobs on a real processor and a real server: their cursors, their stops, and the process that may write."""

import asyncio
import json
import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.declare import registry
from framework.errors import Discard
from framework.execute.stats import RunningJobs
from framework.features.deferral.admission import DropFlag, SkipTracker
from framework.features.flags.flag import Flag, drop_flag
from framework.features.flags.redis_flags import RedisFlags, set_flag
from framework.features.iteration.store import ITERATIONS, SAVE_ITERATION, START_ITERATION, Iterations, RedisIteration
from framework.finish.endings import YIELDED_JOBS
from framework.telemetry.counters import counters
from framework.wire import keys
from tests.execute.processor_bench import WORKING, ProcessorBench
from tests.features.iteration.iterable_jobs import async_iterable, iterable
from tests.harness import IDENTITY, encoded, enqueue, full_memory, hold, until

STATE = keys.iteration("j")


@pytest.fixture
def slots(redis, redis_url, monkeypatch):
    monkeypatch.setattr(counters, "_counts", {})
    made = []

    def start(policies=()):
        made.append(ProcessorBench(redis, redis_url, 1, (), policies))
        return made[-1].start()

    with registry.isolated():
        yield start
        for one in made:
            one.stop()


def queued(redis):
    return [json.loads(data) for data in redis.lrange("queue:default", 0, -1)]


def shown(redis):
    """Return the facts of the job that Sidekiq's pages show."""
    runs, cursor, seconds = redis.hmget(STATE, "ex", "c", "rt")
    assert float(seconds) >= 0
    return int(runs), json.loads(cursor)


def test_iteration_runs_every_item_and_leaves_no_key(slots, redis):
    _, done = iterable(3)
    enqueue(redis, "Job", jid="j")
    one = slots()
    until(one.done)
    assert done == ["start", 0, 1, 2, "stop", "complete"]
    until(lambda: not redis.exists(STATE), "the acknowledgement removes the cursor")
    (line,) = one.lines(job_status="done")
    assert (line["iterations"], line["iterations_done"], line["iteration_run"]) == (3, 3, 1)
    assert [name for name in counters._counts if name.startswith(ITERATIONS)] == [f'{ITERATIONS}{{worker="Job"}}']


def test_quiet_process_puts_the_job_back_with_its_cursor(slots, redis):
    def stop(self, item):
        if item == 2:
            one.runs.quiet = True
            one.fetcher.quiet()

    _, done = iterable(5, stop)
    fields = {"interrupted_count": 2, "aw_death_count": 1, "expires_in": 600, "enqueued_at": time.time() - 1}
    one = slots()
    enqueue(redis, "Job", jid="j", foreign=[1], **fields)
    until(lambda: queued(redis) and done)
    assert done == ["start", 0, 1, 2, "stop"]
    (job,) = queued(redis)
    # It has begun in time, and its items show that it does not kill its process.
    assert not {*fields, "expiry", "retry_count", "failed_at"} & job.keys() - {"enqueued_at"}
    assert (job["foreign"], job["enqueued_at"] > fields["enqueued_at"]) == ([1], True)
    assert shown(redis) == (1, 3)
    assert 2_000_000 < redis.ttl(STATE) <= keys.ITERATION_TTL_S
    (line,) = one.lines(job_status="yielded")
    assert (line["yield_reason"], line["iterations"], line["iteration_run"]) == ("stop", 3, 1)
    assert [name for name in counters._counts if name.startswith(YIELDED_JOBS)]
    one.runs.quiet = False
    until(slots().done)
    assert done[5:] == ["resume", 3, 4, "stop", "complete"]
    until(lambda: not redis.exists(STATE))


def test_max_runtime_lets_the_other_jobs_go_first(slots, redis):
    order = []
    iterable(2, lambda self, item: order.append((self.jid, item)), max_iteration_runtime=0.000001)
    for jid in ("a", "b"):
        enqueue(redis, "Job", jid=jid)
    one = slots()
    until(one.done)
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert {line["yield_reason"] for line in one.lines(job_status="yielded")} == {"max_runtime"}


def test_error_keeps_the_cursor_of_its_item(slots, redis):
    def fail(self, item):
        if item == 2:
            raise ValueError("two")

    _, done = iterable(4, fail)
    enqueue(redis, "Job", jid="j", retry=3)
    one = slots()
    until(lambda: redis.zcard(keys.RETRY))
    assert done == ["start", 0, 1, 2, "stop"]
    assert shown(redis) == (1, 2)
    (job,) = map(json.loads, redis.zrange(keys.RETRY, 0, -1))
    assert job["retry_count"] == 0
    (line,) = one.lines(job_status="fail")
    assert (line["iterations"], line["iterations_done"]) == (2, 2)


@pytest.mark.parametrize(("retry", "left"), [(0, True), (False, False)])
def test_dead_job_keeps_its_cursor_and_a_deleted_one_does_not(slots, redis, retry, left):
    def fail(self, item):
        if item == 1:
            raise ValueError("one")

    iterable(2, fail)
    enqueue(redis, "Job", jid="j", retry=retry)
    one = slots()
    until(one.done)
    assert redis.exists(STATE) == left
    if left:
        assert shown(redis) == (1, 1)
        assert redis.ttl(STATE) > 2_000_000


def test_discarded_job_leaves_no_key(slots, redis):
    def end(self, item):
        raise Discard("enough")

    iterable(2, end)
    enqueue(redis, "Job", jid="j")
    flags = RedisFlags(redis, "main")
    one = slots([DropFlag(flags, SkipTracker(flags))])
    until(one.done)
    assert not redis.exists(STATE)
    # Of an earlier run, if the job has no further one: it is too old now, or operators drop it.
    redis.hset(STATE, "ex", 1)
    enqueue(redis, "Job", jid="j", expires_in=1, enqueued_at=1.0)
    until(lambda: one.lines(job_status="expired"))
    until(lambda: not redis.exists(STATE))
    set_flag(redis, Flag(drop_flag("Job"), 100), None)
    flags.read()
    one.policies.invalidate()
    redis.hset(STATE, "ex", 1)
    enqueue(redis, "Job", jid="j")
    until(lambda: one.lines(job_status="dropped"))
    until(lambda: not redis.exists(STATE))


def test_job_cancelled_by_ruby_before_its_run_has_no_item(slots, redis):
    _, done = iterable(2)
    redis.hset(STATE, "cancelled", 1_795_284_241)
    enqueue(redis, "Job", jid="j")
    one = slots()
    until(one.done)
    assert done == ["cancel", "stop"]
    assert [line["job_status"] for line in one.lines(jid="j")] == ["start", "cancelled"]
    assert not redis.exists(STATE)


def test_job_cancelled_by_ruby_stops_at_its_next_save(slots, redis):
    def cancel(self, item):
        if item == 1:
            redis.hsetnx(STATE, "cancelled", 5)

    _, done = iterable(1_000, cancel, flush_interval=0.000001)
    enqueue(redis, "Job", jid="j")
    one = slots()
    until(one.done)
    assert done == ["start", 0, 1, "cancel", "stop"]
    assert one.lines(job_status="cancelled")
    assert not redis.exists(STATE)


def test_job_cancelled_by_us_stops_at_its_next_item(slots, redis):
    def cancel(self, item):
        if item == 1:
            one.shard.cancel(["j"])
            one.cancellations.refresh()

    _, done = iterable(1_000, cancel)
    one = slots()
    enqueue(redis, "Job", jid="j")
    until(one.done)
    assert done == ["start", 0, 1, "cancel", "stop"]
    assert not redis.exists(STATE, keys.CANCELLED)


def test_job_of_a_cancelled_batch_stops_at_its_next_item(slots, redis):
    def cancel(self, item):
        if item == 1:
            redis.zadd(keys.CANCELLED, {"aw-batch": time.time()})
            one.cancellations.refresh()

    _, done = iterable(1_000, cancel)
    one = slots()
    enqueue(redis, "Job", jid="j", bid="aw-batch")
    until(one.done)
    assert done == ["start", 0, 1, "cancel", "stop"]


def test_cancel_sets_the_mark_that_a_ruby_job_reads(slots, redis):
    one = slots()
    redis.hset(keys.iteration("ruby"), mapping={"ex": 1, "c": "[7]", "rt": "0.5"})
    assert one.shard.cancel(["ruby", "other"]) == [True, True]
    assert redis.hget(keys.iteration("ruby"), "c") == b"[7]"
    assert abs(int(redis.hget(keys.iteration("ruby"), "cancelled")) - time.time()) < 600
    assert redis.hget(keys.iteration("other"), "c") == b"null"  # without it a page of Sidekiq answers 500
    assert redis.ttl(keys.iteration("other")) > 2_000_000


def test_run_of_a_lost_job_ends_and_writes_no_cursor(slots, redis):
    def lose(self, item):
        if item == 1:
            redis.delete(WORKING)
            redis.hset(STATE, mapping={"aw_run": "another", "c": "100"})

    _, done = iterable(1_000, lose, flush_interval=0.000001)
    enqueue(redis, "Job", jid="j")
    one = slots()
    until(lambda: one.fenced_units)
    assert done == ["start", 0, 1, "stop"]
    assert shown(redis) == (1, 100)
    assert not queued(redis)


# --- which process may write ----------------------------------------------------------------------------------------------

PLACES = [WORKING, STATE]


def begin(redis, data, token):
    found = START_ITERATION(redis, PLACES, [data, token, 60])
    return dict(zip(found[::2], found[1::2], strict=True))


def test_later_run_fences_the_earlier(redis):
    unit = hold(redis, encoded(jid="j"))
    assert begin(redis, unit.data, "first")[b"ex"] == b"1"
    assert SAVE_ITERATION(redis, PLACES, [unit.data, "first", 60, "c", "7"]) == 1
    assert begin(redis, unit.data, "second") | {b"aw_run": b""} == {
        b"ex": b"2",
        b"c": b"7",
        b"rt": b"0",
        b"aw_run": b"",
    }
    assert SAVE_ITERATION(redis, PLACES, [unit.data, "first", 60, "c", "8"]) == 0
    assert redis.hget(STATE, "c") == b"7"
    redis.delete(STATE)  # the second run has ended
    assert SAVE_ITERATION(redis, PLACES, [unit.data, "second", 60, "c", "9"]) == 0
    assert not redis.exists(STATE)


def test_process_without_the_job_begins_no_run(redis):
    assert begin(redis, b"gone", "token") == {}
    assert not redis.exists(STATE)


def test_cursor_is_saved_at_maxmemory(redis):
    unit = hold(redis, encoded(jid="j"))
    with full_memory(redis):
        assert begin(redis, unit.data, "t")[b"ex"] == b"1"
        assert SAVE_ITERATION(redis, PLACES, [unit.data, "t", 60, "c", "7"]) == 1


def test_save_waits_until_redis_answers(redis, granted, monkeypatch):
    unit = hold(redis, encoded(jid="j"))
    run = RedisIteration(Iterations(granted, IDENTITY, RunningJobs()), unit, {"class": "Job", "jid": "j"})
    failures = [RedisConnectionError("away"), OSError("away")]
    real = run._run_script

    def answer(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(run, "_run_script", answer)
    assert run.begin().runs == 1
    assert failures == []


def test_save_ends_when_the_process_stops_while_redis_is_away(granted, redis, monkeypatch):
    unit = hold(redis, encoded(jid="j"))
    runs = RunningJobs()
    runs.interrupted = True
    run = RedisIteration(Iterations(granted, IDENTITY, runs), unit, {"class": "Job", "jid": "j"})
    monkeypatch.setattr(run, "_run_script", lambda *arguments: (_ for _ in ()).throw(RedisConnectionError("away")))
    run.begin()
    assert run.stopped_by == "stop"
    assert unit.resources is None


def test_refused_state_fails_the_job_with_its_reason(slots, redis):
    iterable(2)
    redis.set(STATE, "no hash")
    enqueue(redis, "Job", jid="j", retry=0)
    one = slots()
    until(one.done)
    assert "WRONGTYPE" in str(one.failed[0])
    assert redis.get(STATE) == b"no hash"


# --- async ------------------------------------------------------------------------------------------------------------


async def no_wait(self, item):
    await asyncio.sleep(0)


def test_async_iteration_runs_every_item(slots, redis):
    _, done = async_iterable(3, no_wait, flush_interval=0.000001)
    enqueue(redis, "Job", jid="j")
    one = slots()
    until(one.done)
    assert done == ["start", 0, 1, 2, "stop", "complete"]
    until(lambda: not redis.exists(STATE))


def test_async_iteration_yields_and_resumes(slots, redis):
    async def stop(self, item):
        one.runs.quiet = item == 1

    def go_on(self):
        done.append("stop")
        one.runs.quiet = False

    _, done = async_iterable(3, stop, on_stop=go_on)
    one = slots()
    enqueue(redis, "Job", jid="j")
    until(one.done)
    assert done == ["start", 0, 1, "stop", "resume", 2, "stop", "complete"]


def test_cancelled_async_iteration_calls_its_hooks(slots, redis):
    async def wait(self, item):
        if item == 1:
            await asyncio.Event().wait()

    _, done = async_iterable(3, wait)
    enqueue(redis, "Job", jid="j")
    one = slots()
    until(lambda: 1 in done)
    one.shard.cancel(["j"])
    one.cancellations.refresh()
    until(one.done)
    assert done == ["start", 0, 1, "cancel", "stop"]
    assert one.lines(job_status="cancelled")
