"""Check the poller against a real server."""

import json
import random
import threading
import time

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.features.deduplication.push import Deduplicator
from framework.finish.status_writer import StatusWriter
from framework.process_clock import process_clock
from framework.push.argument_checks import SizeLimiter, SizeLimits
from framework.route.router import Router
from framework.schedule import poller as poller_module
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.schedule.poller import PAGE_SIZE, Poller, PollTiming
from framework.store.steps import SHARE, UNPACED
from framework.wire import keys
from framework.wire.footprint import MemoryBudget
from framework.wire.json import dumps
from framework.wire.keys import SetLimits
from tests.harness import compressed, decompressed, encoded, full_memory, opened, payload, until, unwrapped

LONG_AGO = 1_000_000_000.0
FAR = 99_999_999_999.0


LIMITER = SizeLimiter(SizeLimits(decompressed_limit=1_000_000), None)


class Events:
    def __init__(self):
        self.unreadable, self.failed, self.dropped = [], [], []
        self.refused_sets, self.shards, self.queues, self.trims, self.shard_errors = [], [], [], [], []

    def due_job_malformed(self, source, data, error):
        self.unreadable.append((source, data))

    def due_job_failed(self, source, error):
        self.failed.append((source, error))

    def due_job_dropped(self, source, payload):
        self.dropped.append((source, payload["jid"]))

    def due_set_wrong_type(self, source, error):
        self.refused_sets.append(source)

    def shard_failed(self, shard, error):
        self.shards.append(shard)
        self.shard_errors.append(error)

    def queue_wrong_type(self, queue):
        self.queues.append(queue)

    def trimmed(self, count):
        self.trims.append(count)


@pytest.fixture
def events():
    return Events()


def poller(url, events, *middleware, dead_set=None, timing=None, limiter=None, budget=None):
    """The poller of a process that knows one shard and no rules."""
    shard = opened(url)
    client = shard.client
    transfer = CrossShardTransfer(client, "main", {"main": shard}, events)
    destinations = DestinationResolver(Router([], ["main"]), "main")
    states = StatusWriter(shard, lambda *facts: events.failed.append(facts))
    preparation = DueJobPlanner(
        events,
        destinations,
        transfer,
        states,
        middleware=middleware,
        limiter=limiter or LIMITER,
        locks=Deduplicator(),
        budget=budget,
    )
    return Poller(client, events, preparation, transfer, timing or PollTiming(client, 1.0), dead_set or SetLimits())


def queued(redis, name="default"):
    """Return the jobs of a queue, oldest first."""
    return [json.loads(data) for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


@pytest.mark.proves("R28", "I13")
def test_poller_moves_due_jobs_in_order(redis, redis_url, events):
    redis.zadd(keys.SCHEDULE, {encoded(jid="b"): LONG_AGO + 1, encoded(jid="a"): LONG_AGO, encoded(jid="later"): FAR})
    redis.zadd(keys.RETRY, {encoded(jid="r", retry_count=2, bid="B-1"): LONG_AGO})
    assert poller(redis_url, events).poll() == 3
    jobs = queued(redis)
    assert [job["jid"] for job in jobs] == ["r", "a", "b"]
    assert jobs[0]["retry_count"] == 2
    assert jobs[0]["bid"] == "B-1"
    assert all(isinstance(job["enqueued_at"], float) and "at" not in job for job in jobs)
    assert redis.zcard(keys.SCHEDULE) == 1
    assert redis.smembers(keys.QUEUES) == {b"default"}


def test_clock_of_a_scheduled_job_begins_when_it_is_due(redis, redis_url, events):
    first = {"expires_in": 60, "created_at": LONG_AGO - 500.5}
    redis.zadd(keys.SCHEDULE, {encoded(jid="a", **first): LONG_AGO + 0.5, encoded(jid="b"): LONG_AGO + 1})
    redis.zadd(keys.SCHEDULE, {encoded(jid="deferred", expiry=LONG_AGO + 7.5, **first): LONG_AGO + 2})
    redis.zadd(keys.RETRY, {encoded(jid="r", enqueued_at=LONG_AGO - 400.5, **first): LONG_AGO})
    poller(redis_url, events).poll()
    moments = {job["jid"]: job.get("expiry") for job in queued(redis)}
    assert moments == {"a": LONG_AGO + 60.5, "b": None, "deferred": LONG_AGO + 7.5, "r": LONG_AGO - 340.5}


def test_poller_keeps_the_count_of_a_deferred_job(redis, redis_url, events):
    job = encoded(jid="d", deferred=True, deferred_by="feature_flag", deferred_count=3)
    redis.zadd(keys.SCHEDULE, {job: LONG_AGO})
    poller(redis_url, events).poll()
    (moved,) = queued(redis)
    assert "deferred" not in moved
    assert (moved["deferred_by"], moved["deferred_count"]) == ("feature_flag", 3)


@pytest.mark.proves("R50", "I13")
def test_poller_uses_the_servers_clock(redis, redis_url, events):
    seconds, _ = redis.time()
    redis.zadd(keys.SCHEDULE, {encoded(jid="now"): seconds - 1, encoded(jid="not yet"): seconds + 3600})
    with process_clock.override(lambda: LONG_AGO):
        assert poller(redis_url, events).poll() == 1
    assert [job["jid"] for job in queued(redis)] == ["now"]


@pytest.mark.proves("R34", "R53")
@pytest.mark.parametrize("member", [b"\xff\x00 no JSON", b"[]", b'{"class":"X","args":[]}', b'{"args":[],"queue":"q"}'])
def test_poller_moves_a_malformed_member_to_the_dead_set(redis, redis_url, events, member):
    redis.zadd(keys.RETRY, {member: LONG_AGO, encoded(jid="fine"): LONG_AGO + 1})
    poller(redis_url, events).poll()
    (stored,) = redis.zrange(keys.DEAD, 0, -1)
    assert unwrapped(stored) == member
    assert [job["jid"] for job in queued(redis)] == ["fine"]
    assert events.unreadable == [(keys.RETRY, member)]
    assert redis.zcard(keys.RETRY) == 0


LARGE_JOB = dumps(compressed([[[]] * 60_000], queue="default"))
"""A payload that takes 6 MB of memory when it is decoded."""


def opening(worker, job, queue, pool):
    """A middleware makes the poller decompress."""
    yield


def limited(decoded_limit):
    return SizeLimiter(SizeLimits(decompressed_limit=1_000_000, decoded_limit=decoded_limit), None)


@pytest.mark.parametrize("raw", [False, True])
def test_poller_keeps_the_bytes_of_a_too_large_job(redis, redis_url, events, raw):
    member = encoded(args=[[[]] * 60_000], error_message="before") if raw else LARGE_JOB
    redis.zadd(keys.RETRY, {member: LONG_AGO, encoded(jid="fine"): LONG_AGO + 1})
    poller(redis_url, events, opening, limiter=limited(5_000_000)).poll()
    (stored,) = redis.zrange(keys.DEAD, 0, -1)
    entry = json.loads(stored)
    assert "size_limit.decoded_limit" in entry["error_message"]
    error_fields = {name: entry[name] for name in ("error_class", "error_message", "failed_at")}
    assert entry == {**json.loads(member), **error_fields}
    assert [job["jid"] for job in queued(redis)] == ["fine"]


def test_poller_delays_a_large_job_without_memory(redis, redis_url, events):
    budget = MemoryBudget(8_000_000)
    one = poller(redis_url, events, opening, limiter=limited(10_000_000), budget=budget)
    assert budget.acquire(8_000_000, lambda: False)
    redis.zadd(keys.SCHEDULE, {LARGE_JOB: LONG_AGO, encoded(jid="fine"): LONG_AGO + 1})
    one.poll()
    assert [job["jid"] for job in queued(redis)] == ["fine"]
    ((member, due),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert member == LARGE_JOB
    assert due > time.time() + 30
    assert events.failed == []
    budget.release(8_000_000)
    redis.zadd(keys.SCHEDULE, {LARGE_JOB: LONG_AGO})
    one.poll()
    assert len(queued(redis)) == 2
    assert budget._used == 0


def test_poller_runs_the_client_middlewares(redis, redis_url, events):
    seen = []

    def reroute(worker, job, queue, pool):
        seen.append((worker, job["jid"], queue))
        job["queue"] = "elsewhere"
        yield

    def drop(worker, job, queue, pool):
        if job["jid"] != "dropped":
            yield

    for jid in ("goes", "dropped"):
        redis.zadd(keys.SCHEDULE, {encoded(jid=jid, status_expiration=60): LONG_AGO})
        redis.set(keys.status(jid), "queued")
    assert poller(redis_url, events, reroute, drop).poll() == 2
    assert sorted(seen) == [("Job", "dropped", "default"), ("Job", "goes", "default")]
    assert [job["jid"] for job in queued(redis, "elsewhere")] == ["goes"]
    assert redis.zcard(keys.SCHEDULE) == 0
    assert events.dropped == [(keys.SCHEDULE, "dropped")]
    assert (redis.get(keys.status("goes")), redis.get(keys.status("dropped"))) == (b"queued", b"discarded")


@pytest.mark.proves("R35")
def test_poller_keeps_a_job_whose_middleware_fails(redis, redis_url, events):
    def fail(worker, job, queue, pool):
        if job["jid"] == "bad":
            raise RuntimeError("no")
        yield

    redis.zadd(keys.SCHEDULE, {encoded(jid="bad"): LONG_AGO, encoded(jid="good"): LONG_AGO + 1})
    assert poller(redis_url, events, fail).poll() == 2
    assert [source for source, _ in events.failed] == [keys.SCHEDULE]
    ((member, score),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    assert json.loads(member)["jid"] == "bad"
    assert score > redis.time()[0]


@pytest.mark.proves("R33", "R35")
def test_poller_moves_jobs_behind_a_page_of_failing_ones(redis, redis_url, events):
    def fail(worker, job, queue, pool):
        if job["jid"].startswith("bad"):
            raise RuntimeError("no")
        yield

    redis.zadd(keys.RETRY, {encoded(jid=f"bad{n}"): LONG_AGO + n for n in range(PAGE_SIZE)})
    redis.zadd(keys.RETRY, {encoded(jid="good"): LONG_AGO + PAGE_SIZE})
    one = poller(redis_url, events, fail)
    assert [one.poll(), one.poll(), one.poll()] == [PAGE_SIZE, 1, 0]
    assert [job["jid"] for job in queued(redis)] == ["good"]
    assert redis.zcard(keys.RETRY) == PAGE_SIZE


@pytest.mark.proves("R51")
def test_poller_keeps_compressed_bytes_after_middlewares(redis, redis_url, events):
    plain = ["x" * 1000, 2**70]
    job = compressed(plain)
    shown = []

    def look(worker, job, queue, pool):
        shown.append((job["args"], "compressed" in job))
        yield

    redis.zadd(keys.RETRY, {dumps(job): LONG_AGO})
    poller(redis_url, events, look).poll()
    assert shown == [(plain, False)]
    (moved,) = queued(redis)
    assert {**moved, "enqueued_at": job["enqueued_at"]} == job


def test_poller_without_middleware_decompresses_nothing(redis, redis_url, events):
    job = compressed(["x" * 1000], args=["not what the marks say"])
    redis.zadd(keys.SCHEDULE, {dumps(job): LONG_AGO})
    poller(redis_url, events).poll()
    (moved,) = queued(redis)
    assert {**moved, "enqueued_at": job["enqueued_at"]} == {**job, "scheduled_at": LONG_AGO + 0.000001}


def test_enqueued_job_says_when_it_was_due(redis, redis_url, events):
    redis.zadd(keys.SCHEDULE, {encoded(jid="scheduled"): LONG_AGO + 0.5})
    redis.zadd(keys.RETRY, {encoded(jid="retried", scheduled_at=LONG_AGO): LONG_AGO + 0.5})
    poller(redis_url, events).poll()
    moved = {job["jid"]: job.get("scheduled_at") for job in queued(redis)}
    assert moved == {"scheduled": LONG_AGO + 0.5, "retried": None}


SMALL = SizeLimits(compression_threshold=100, limit=200, decompressed_limit=10_000)
TEXT = ["x" * 500]


def replace(job):
    job["args"] = ["y" * 300]


def replace_inside(job):
    job["args"][0] = "y" * 300


def shrink(job):
    job["args"][:] = ["small"]


def retype(job):
    job["args"] = [True, *job["args"][1:]]


@pytest.mark.parametrize(
    ("before", "act", "after"),
    [
        (compressed(TEXT), replace, compressed(["y" * 300])),
        (compressed(TEXT), replace_inside, compressed(["y" * 300])),
        (compressed(TEXT), shrink, payload(args=["small"])),
        (payload(args=TEXT, size_limiter="tracked"), shrink, payload(args=["small"])),
        (payload(args=["small"]), replace, compressed(["y" * 300])),
        (payload(args=["small"]), replace_inside, compressed(["y" * 300])),
        (payload(args=TEXT), replace_inside, compressed(["y" * 300])),
        (compressed([1, *TEXT]), retype, compressed([True, *TEXT])),
        (payload(args=TEXT), lambda job: None, payload(args=TEXT)),  # Ruby wrote it so, without a limiter
        (compressed(TEXT), lambda job: None, compressed(TEXT)),
        (compressed(TEXT, size_limiter="tracked"), lambda job: None, compressed(TEXT, size_limiter="tracked")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_poller_limits_arguments_changed_by_middlewares(redis, redis_url, events, before, act, after):
    def middleware(worker, job, queue, pool):
        act(job)
        yield

    redis.zadd(keys.RETRY, {dumps(before): LONG_AGO})
    poller(redis_url, events, middleware, limiter=SizeLimiter(SMALL, None)).poll()
    found = [{**job, "enqueued_at": after["enqueued_at"]} for job in queued(redis)]
    if before == after:
        assert found == [after]  # the same bytes
    assert [decompressed(job) for job in found] == [decompressed(after)]
    assert events.failed == []


BIG = random.Random(1).randbytes(2_000).hex()


@pytest.mark.parametrize("before", [compressed(TEXT), payload(args=["small"])], ids=("compressed", "plain"))
@pytest.mark.parametrize(
    ("value", "words"), [(BIG, "the limit is 200"), (float("nan"), "not finite"), ("x" * 500 + "\ud800", "JSON")]
)
def test_poller_keeps_a_job_that_became_too_large(redis, redis_url, events, before, value, words):
    def middleware(worker, job, queue, pool):
        job["args"].append(value)
        yield

    redis.zadd(keys.RETRY, {dumps(before): LONG_AGO})
    poller(redis_url, events, middleware, limiter=SizeLimiter(SMALL, None)).poll()
    assert redis.zrange(keys.RETRY, 0, -1) == [dumps(before)]
    ((_, error),) = events.failed
    assert words in str(error)
    assert redis.keys("*") == [keys.RETRY.encode()]


def test_poller_allows_any_size_for_big_payload(redis, redis_url, events):
    def middleware(worker, job, queue, pool):
        job["args"].append(BIG)
        yield

    body = {"feature_category": "not_owned", "wire_name": "Job", "perform": lambda self, *args: None}
    with registry.isolated():
        type("JobWorker", (ApplicationWorker,), {**body, "queue": "default", "big_payload": True})
        redis.zadd(keys.RETRY, {encoded(args=["small"]): LONG_AGO})
        poller(redis_url, events, middleware, limiter=SizeLimiter(SMALL, None)).poll()
    (job,) = queued(redis)
    assert job["compressed"]


def test_poller_in_track_mode_reports_oversize(redis, redis_url, events):
    def middleware(worker, job, queue, pool):
        job["args"].append("x" * 500)
        yield

    class Reports(list):
        report = list.append

    reports = Reports()
    limiter = SizeLimiter(SizeLimits("track", 100, 200), reports)
    redis.zadd(keys.RETRY, {encoded(args=["small"]): LONG_AGO})
    poller(redis_url, events, middleware, limiter=limiter).poll()
    (job,) = queued(redis)
    assert (job["size_limiter"], len(reports)) == ("tracked", 1)


@pytest.mark.parametrize("argument", [b"1e999", b"[" * 90 + b"1.50" + b"]" * 90], ids=["infinite", "deep"])
def test_poller_keeps_odd_json_through_middlewares(redis, redis_url, events, argument):
    def look(worker, job, queue, pool):
        yield

    member = b'{"class":"Ruby", "args":[' + argument + b'],"queue":"q","jid":"j"}'
    redis.zadd(keys.SCHEDULE, {member: LONG_AGO})
    poller(redis_url, events, look).poll()
    (moved,) = redis.lrange(keys.queue("q"), 0, -1)
    assert b'"args":[' + argument + b"]," in moved


@pytest.mark.proves("R32")
def test_pollers_competing_move_each_job_once(redis, redis_url, events):
    redis.zadd(keys.SCHEDULE, {encoded(jid=f"{n:05d}"): LONG_AGO + n for n in range(5 * PAGE_SIZE)})

    def work():
        competing_poller = poller(redis_url, events)
        while competing_poller.poll():
            pass

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job["jid"] for job in queued(redis)) == [f"{n:05d}" for n in range(5 * PAGE_SIZE)]
    assert redis.zcard(keys.SCHEDULE) == 0


@pytest.mark.proves("F14", "R14")
def test_poller_moves_jobs_at_maxmemory(redis, redis_url, events):
    redis.zadd(keys.RETRY, {encoded(jid="r"): LONG_AGO})
    with full_memory(redis):
        assert poller(redis_url, events).poll() == 1
    assert [job["jid"] for job in queued(redis)] == ["r"]


@pytest.mark.parametrize(
    "error", [FileNotFoundError("a file of the application"), RedisConnectionError("another server")]
)
def test_poller_with_a_middlewares_io_error_moves_others(redis, redis_url, events, error):
    class InvalidJsonMiddleware:
        def call(self, worker, job, queue, pool):
            if job["jid"] == "bad":
                raise error
            yield

    redis.zadd(keys.RETRY, {encoded(jid="bad"): LONG_AGO, encoded(jid="good"): LONG_AGO + 1})
    assert poller(redis_url, events, InvalidJsonMiddleware().call).poll() == 2
    assert [job["jid"] for job in queued(redis)] == ["good"]
    assert redis.zcard(keys.RETRY) == 1
    assert events.failed == [(keys.RETRY, error)]


def test_poller_keeps_a_member_made_no_json(redis, redis_url, events):
    def set_nan_field(worker, job, queue, pool):
        job["odd"] = float("nan")
        yield

    redis.zadd(keys.RETRY, {encoded(jid="kept"): LONG_AGO})
    poller(redis_url, events, set_nan_field).poll()
    assert redis.zrange(keys.RETRY, 0, -1) == [encoded(jid="kept")]
    assert [source for source, _ in events.failed] == [keys.RETRY]
    assert redis.zcard(keys.DEAD) == 0


@pytest.mark.proves("R51", "R54", "I5")
@pytest.mark.parametrize("argument", [b"1e999", b"[" * 90 + b"1.50" + b"]" * 90], ids=["infinite", "deep"])
def test_poller_keeps_the_bytes_of_odd_json(redis, redis_url, events, argument):
    member = b'{"class":"Ruby", "args":[' + argument + b'],"queue":"q","jid":"j"}'
    redis.zadd(keys.SCHEDULE, {member: LONG_AGO})
    poller(redis_url, events).poll()
    (moved,) = redis.lrange(keys.queue("q"), 0, -1)
    assert b'"args":[' + argument + b"]," in moved
    assert b'"enqueued_at":' in moved


@pytest.mark.proves("R37", "I16")
def test_poller_trims_the_dead_set_and_reports_it(redis, redis_url, events):
    now = redis.time()[0]
    redis.zadd(keys.DEAD, {f"old-{n}": now - 1000 + n for n in range(5)})
    redis.zadd(keys.RETRY, {b"poison-1": LONG_AGO, b"poison-2": LONG_AGO})
    poller(redis_url, events, dead_set=SetLimits(max_jobs=4)).poll()
    kept, *malformed = redis.zrange(keys.DEAD, 0, -1)
    assert (kept, set(map(unwrapped, malformed))) == (b"old-4", {b"poison-1", b"poison-2"})
    assert events.trims == [4]


@pytest.mark.proves("F40")
@pytest.mark.parametrize(("broken", "other"), [(keys.RETRY, keys.SCHEDULE), (keys.SCHEDULE, keys.RETRY)])
@pytest.mark.parametrize("method", ["step", "poll"])
def test_poller_skips_a_set_of_another_type(redis, redis_url, events, broken, other, method):
    redis.set(broken, "text")
    redis.zadd(other, {encoded(jid="goes"): LONG_AGO})
    getattr(poller(redis_url, events), method)()
    assert [job["jid"] for job in queued(redis)] == ["goes"]
    assert events.refused_sets == [broken]


@pytest.mark.proves("F40", "R34")
def test_poller_accepts_any_score(redis, redis_url, events):
    scores = {"-inf": True, "-1e308": True, "0": True, "1e-308": True, "1e308": False, "inf": False}
    redis.zadd(keys.SCHEDULE, {encoded(jid=score): float(score) for score in scores})
    one = poller(redis_url, events)
    assert 0.0 <= one.step() < 60.0
    assert {job["jid"] for job in queued(redis)} == {score for score, due in scores.items() if due}
    assert redis.zcard(keys.SCHEDULE) == 2


def test_poller_delays_jobs_of_a_queue_of_another_type(redis, redis_url, events):
    redis.set(keys.queue("broken"), "text")
    redis.zadd(keys.RETRY, {encoded(jid="bad", queue="broken"): LONG_AGO, encoded(jid="good"): LONG_AGO + 1})
    poller(redis_url, events).poll()
    assert [job["jid"] for job in queued(redis)] == ["good"]
    assert redis.zrange(keys.RETRY, 0, -1) == [encoded(jid="bad", queue="broken")]
    assert events.queues == ["broken"]


@pytest.mark.proves("R33", "I13")
def test_step_returns_the_time_of_the_next_step(redis, redis_url, events):
    seconds, microseconds = redis.time()
    redis.zadd(keys.RETRY, {encoded(jid=f"{n:05d}"): LONG_AGO + n for n in range(PAGE_SIZE + 1)})
    redis.zadd(keys.SCHEDULE, {encoded(jid="soon"): seconds + microseconds / 1e6 + 0.6})
    one = poller(redis_url, events)
    pauses = [one.step(), one.step(), one.step()]
    assert pauses[0] == 0.0  # a full page: the rest is due too
    assert 0 < pauses[1] < 0.1
    assert pauses[2] < 0.7  # the poller knows the next due time
    until(lambda: one.step() >= 0 and len(queued(redis)) == PAGE_SIZE + 2, "the scheduled job")
    assert one.step() > 0


def test_pages_behind_a_burst_take_the_share_of_the_process(redis, redis_url, events, monkeypatch):
    monkeypatch.setattr(poller_module, "PAGE_SIZE", 2)
    monkeypatch.setattr(poller_module, "BURST_PAGES", 2)
    redis.zadd(keys.REGISTRY, {f"host:{n}:00000000000e": LONG_AGO for n in range(4)})
    redis.zadd(keys.SCHEDULE, {encoded(jid=f"{n}"): LONG_AGO + n for n in range(7)})
    one, paces = poller(redis_url, events), []
    for _ in range(4):
        one.step()
        paces.append((one._steps._rate, one._steps._share))
    assert len(queued(redis)) == 7
    unpaced = (UNPACED, SHARE)
    assert paces == [unpaced, (None, SHARE / 4), (None, SHARE / 4), unpaced]


@pytest.mark.proves("R57")
def test_step_of_an_idle_poller_sends_few_commands(redis, redis_url, events, set_clock):
    redis.zadd(keys.SCHEDULE, {encoded(jid="far"): FAR})
    set_clock.monotonic = 0.0
    client = opened(redis_url).client
    one = poller(redis_url, events, timing=PollTiming(client, 1.0))
    before = commands(redis)
    while set_clock.monotonic < 60:
        set_clock.monotonic += one.step()
    assert commands(redis) - before <= 60 * 1.35


def test_step_period_grows_with_the_processes(redis, redis_url, events, set_clock):
    redis.zadd(keys.REGISTRY, {f"host:{n}:00000000000e": LONG_AGO for n in range(5)})
    set_clock.monotonic = 0.0
    one = poller(redis_url, events, timing=PollTiming(opened(redis_url).client, 1.0))
    looks = 0
    while set_clock.monotonic < 400:
        set_clock.monotonic += one.step()
        looks += 1
    assert 60 < looks < 160  # a look every 4 s, the retry set every fifth time


def commands(redis):
    """Return the number of commands that the server ran, including commands inside scripts, without this query."""
    return redis.info("stats")["total_commands_processed"]
