"""Check the size limits of arguments in every kind of push, with and without a client middleware."""

import base64
import json
import logging
import random
import zlib

import pytest

from framework.declare import registry
from framework.errors import BulkPushError, ExceedLimitError
from framework.process_clock import process_clock
from framework.push.argument_checks import LOG_INTERVAL_S, OversizeReporter, SizeLimiter, SizeLimits
from framework.telemetry.sentry import LazyTracker
from framework.wire import keys
from framework.wire.compress import decompress_arguments, deflate_arguments
from framework.wire.json import dumps
from tests.push.conftest import LetPass, worker
from tests.tables import each_row


@pytest.fixture(params=["quick", "middleware"])
def opened_with(request, pusher):
    """Open the client with limits, with and without a client middleware."""
    middleware = [LetPass] if request.param == "middleware" else []

    def open_(limits=None, **more):
        pusher.open(*middleware, limits=limits, **more)

    return open_


METHODS = {
    "async": lambda cls, *args: cls.perform_async(*args),
    "in": lambda cls, *args: cls.perform_in(60, *args),
    "set": lambda cls, *args: cls.set(retry=1).perform_async(*args),
    "bulk": lambda cls, *args: cls.perform_bulk([("small",), args, ("last",)])[1],
    "bulk_in": lambda cls, *args: cls.perform_bulk_in(60, [("small",), args, ("last",)])[1],
    "bulk_for": lambda cls, *args: cls.perform_bulk_for(
        [("small",), args, ("last",)], arguments=lambda one: cls.arguments(*one), context=lambda one: {"n": 1}
    )[1],
}
each_method = each_row("method", METHODS, around=registry.isolated)
single_and_bulk = pytest.mark.parametrize("method", ["async", "bulk_in"])
"""For decisions of the one limiter that all methods call, which two tests with ``each_method`` show."""


def stored(redis, jid):
    """Return the job with this id, from any key."""
    found = [*redis.lrange(keys.queue("default"), 0, -1), *redis.zrange(keys.SCHEDULE, 0, -1)]
    (job,) = [job for job in map(json.loads, found) if job["jid"] == jid]
    return job


def marker_fields(job):
    return {name: job[name] for name in ("compressed", "original_job_size_bytes", "size_limiter") if name in job}


def sized(size):
    """Arguments whose JSON takes ``size`` bytes, in characters of two bytes."""
    text = "é" * ((size - 4) // 2) + "x" * (size % 2)
    assert len(dumps([text])) == size
    return text


def random_text(size):
    """A text of this JSON size that loses a quarter when it is compressed."""
    return random.Random(1).randbytes(size).hex()[: size - 4]


# --- memory ---------------------------------------------------------------------------------------------------------

MEMORY_HEAVY = [[]] * 20_000
"""60 kB of JSON, 2 MB of memory."""


@each_method
@each_row("mode", ["compress", "track"])
def test_push_above_the_memory_limit_writes_nothing(opened_with, redis, method, mode):
    opened_with(SizeLimits(mode, limit=0, decoded_limit=1_000_000))
    for attributes in ({}, {"big_payload": True}, {"idempotent": True}):
        with registry.isolated():
            cls = worker(**attributes)
            with pytest.raises(ExceedLimitError, match=r"memory when decoded.*size_limit\.decoded_limit") as caught:
                try:
                    METHODS[method](cls, MEMORY_HEAVY)
                except BulkPushError as error:  # with a middleware sizes are known only chunk by chunk
                    raise error.__cause__ from None
        assert caught.value.size > caught.value.size_limit == 1_000_000
        assert caught.value.job == (1 if "bulk" in method else None)
    assert not redis.keys("*")


@single_and_bulk
def test_push_within_the_memory_limit_is_written(opened_with, redis, method):
    opened_with(SizeLimits(limit=0, decoded_limit=2_200_000))
    assert stored(redis, METHODS[method](worker(queue="default"), MEMORY_HEAVY))["args"] == [MEMORY_HEAVY]


# --- compression ----------------------------------------------------------------------------------------------------


@each_method
@each_row(("size", "compressed"), [(99_999, False), (100_000, True), (100_001, True)])
def test_arguments_from_100000_bytes_are_compressed(opened_with, redis, method, size, compressed):
    opened_with()
    text = sized(size)
    job = stored(redis, METHODS[method](worker(queue="default"), text))
    if compressed:
        assert marker_fields(job) == {"compressed": True, "original_job_size_bytes": size, "size_limiter": "validated"}
        assert json.loads(zlib.decompress(base64.b64decode(job["args"][0], validate=True))) == [text]
        decompress_arguments(job, 10**9)
    else:
        assert marker_fields(job) == {}
    assert job["args"] == [text]


@pytest.mark.parametrize("method", ["bulk", "bulk_in", "bulk_for"])
def test_small_jobs_of_a_bulk_with_a_large_one_stay_plain(opened_with, redis, method):
    opened_with()
    large = METHODS[method](worker(queue="default"), "x" * 200_000)
    found = [*reversed(redis.lrange("queue:default", 0, -1)), *redis.zrange(keys.SCHEDULE, 0, -1)]
    others = [job for job in map(json.loads, found) if job["jid"] != large]
    assert sorted(job["args"] for job in others) == [["last"], ["small"]]
    assert [marker_fields(job) for job in others] == [{}, {}]


def test_large_jobs_of_many_chunks_are_compressed(opened_with, redis):
    opened_with(SizeLimits(compression_threshold=300, limit=10_000))
    jobs = [("x" * 400,) if number % 700 == 3 else (f"{number}%b",) for number in range(2_500)]
    worker(queue="default").perform_bulk(jobs)
    found = [json.loads(data) for data in reversed(redis.lrange("queue:default", 0, -1))]
    assert [number for number, job in enumerate(found) if job.get("compressed")] == [3, 703, 1403, 2103]
    for job in found:
        decompress_arguments(job, 10_000)
    assert [tuple(job["args"]) for job in found] == jobs


def test_threshold_of_0_compresses_everything(opened_with, redis):
    opened_with(SizeLimits(compression_threshold=0))
    job = stored(redis, worker(queue="default").perform_async())
    assert (
        marker_fields(job)["original_job_size_bytes"],
        json.loads(zlib.decompress(base64.b64decode(job["args"][0]))),
    ) == (
        2,
        [],
    )


# --- the limit ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("R59")
@single_and_bulk
@pytest.mark.parametrize("size", [5_000_000, 5_000_001])
def test_limit_is_the_largest_size_allowed(opened_with, redis, method, size):
    opened_with(SizeLimits(compression_threshold=10**9))
    push = METHODS[method]
    if size == 5_000_000:
        job = stored(redis, push(worker(queue="default"), sized(size)))
        assert marker_fields(job) == {"size_limiter": "validated"}
        return
    with pytest.raises(ExceedLimitError, match="5,000,001 bytes, the limit is 5,000,000"):
        push(worker(queue="default"), sized(size))
    assert redis.dbsize() == 0


@single_and_bulk
def test_limit_counts_stored_bytes_after_compression(opened_with, redis, method):
    text = random_text(2_000)
    size = len(deflate_arguments(dumps([text]))) + 4
    assert size < 2_000
    opened_with(SizeLimits(compression_threshold=200, limit=size))
    job = stored(redis, METHODS[method](worker(queue="default"), text))
    assert len(dumps(job["args"])) == size
    redis.flushall()
    opened_with(SizeLimits(compression_threshold=200, limit=size - 1))
    with pytest.raises(ExceedLimitError) as caught:
        METHODS[method](worker(queue="default"), text)
    error = caught.value
    assert (error.worker_class, error.size, error.size_limit, error.setting) == (
        "Job",
        size,
        size - 1,
        "size_limit.limit",
    )
    assert error.job == (1 if "bulk" in method else None)
    assert ("(job 1 of the bulk)" in str(error)) == ("bulk" in method)
    assert "big_payload" in str(error)
    assert text[:20] not in str(error)
    assert redis.dbsize() == 0


@pytest.mark.proves("R59")
def test_incompressible_megabytes_are_refused_by_default(opened_with, redis):
    opened_with()
    with pytest.raises(ExceedLimitError, match="the limit is 5,000,000"):
        worker(queue="default").perform_async(random_text(7_500_000))
    assert redis.dbsize() == 0
    assert worker(queue="default").perform_async("x" * 6_000_000)  # arguments that compress well are accepted


LIMITS = SizeLimits(compression_threshold=200, limit=400)


@single_and_bulk
def test_big_payload_class_is_compressed_without_limit(opened_with, redis, method):
    opened_with(LIMITS)
    job = stored(redis, METHODS[method](worker(queue="default", big_payload=True), random_text(2_000)))
    assert marker_fields(job) == {"compressed": True, "original_job_size_bytes": 2_000, "size_limiter": "validated"}


@single_and_bulk
def test_limit_of_0_allows_any_size(opened_with, redis, method):
    opened_with(SizeLimits(compression_threshold=200, limit=0))
    assert marker_fields(stored(redis, METHODS[method](worker(queue="default"), random_text(2_000))))["compressed"]


@pytest.mark.proves("R60")
@single_and_bulk
@pytest.mark.parametrize("attributes", [{}, {"big_payload": True}], ids=["plain", "big_payload"])
@pytest.mark.parametrize("limit", [0, 400])
def test_push_above_the_decompression_limit_is_refused(opened_with, redis, method, attributes, limit):
    opened_with(SizeLimits(compression_threshold=200, limit=limit, decompressed_limit=5_000))
    cls = worker(queue="default", **attributes)
    job = stored(redis, METHODS[method](cls, "x" * 4_996))
    decompress_arguments(job, 5_000)
    redis.flushall()
    with pytest.raises(ExceedLimitError, match=r"5,001 bytes, the limit is 5,000.*size_limit\.decompressed_limit"):
        METHODS[method](cls, "x" * 4_997)
    assert redis.dbsize() == 0


@pytest.mark.proves("R59")
def test_bulk_with_one_job_too_large_writes_nothing(pusher, redis):
    pusher.open(limits=LIMITS)
    jobs = [(number,) for number in range(2_500)]
    jobs[1_500] = (random_text(1_000),)
    for given in (jobs, iter(jobs)):
        with pytest.raises(ExceedLimitError, match=r"\(job 1500 of the bulk\)") as caught:
            worker(queue="default").perform_bulk(given)
        assert caught.value.job == 1_500
    assert redis.dbsize() == 0


def test_bulk_with_middleware_keeps_chunks_before_the_error(pusher, redis):
    """Sizes are known only after the middleware has run."""
    pusher.open(LetPass, limits=LIMITS)
    jobs = [(number,) for number in range(2_500)]
    jobs[1_500] = (random_text(1_000),)
    with pytest.raises(BulkPushError, match=r"\(job 1500 of the bulk\)") as caught:
        worker(queue="default").perform_bulk(jobs)
    assert (caught.value.failed_from, redis.llen("queue:default")) == (1_000, 1_000)
    assert isinstance(caught.value.__cause__, ExceedLimitError)


@pytest.mark.parametrize(("args", "compressed"), [(["x" * 1_000], True), (["small"], False)])
def test_arguments_changed_by_a_middleware_are_limited(pusher, redis, args, compressed):
    class Change:
        def call(self, cls, job, queue, pool):
            job["args"][:] = args
            yield

    pusher.open(Change, limits=LIMITS)
    job = stored(redis, worker(queue="default").perform_async(random_text(2_000) if not compressed else 1))
    assert bool(marker_fields(job)) == compressed
    decompress_arguments(job, 10_000)
    assert job["args"] == args


# --- the mode track -------------------------------------------------------------------------------------------------


@single_and_bulk
def test_track_mode_writes_marks_and_reports(opened_with, redis, method):
    reports = Reports()
    opened_with(SizeLimits("track", 200, 400), reporter=reports)
    text = random_text(2_000)
    job = stored(redis, METHODS[method](worker(queue="default"), text))
    assert (marker_fields(job), job["args"]) == ({"size_limiter": "tracked"}, [text])
    (error,) = reports
    assert (error.worker_class, error.size, error.size_limit) == ("Job", 2_000, 400)


@single_and_bulk
@pytest.mark.parametrize(("size", "tracked"), [(400, False), (401, True)])
def test_track_mode_and_the_limit(opened_with, redis, method, size, tracked):
    reports = Reports()
    opened_with(SizeLimits("track", 200, 400), reporter=reports)
    job = stored(redis, METHODS[method](worker(queue="default"), sized(size)))
    assert marker_fields(job) == {"size_limiter": "tracked" if tracked else "validated"}
    assert len(reports) == tracked
    big = stored(redis, METHODS[method](worker("Big", queue="default", big_payload=True), sized(size)))
    assert marker_fields(big) == {"size_limiter": "validated"}
    assert len(reports) == tracked


class Tracker:
    def __init__(self, failure=None):
        self.seen, self.failure = [], failure

    def capture(self, error, tags, transaction):
        if self.failure is not None:
            raise self.failure
        self.seen.append((error, tags, transaction))


class Reports(list):
    report = list.append


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "framework"]


def test_track_mode_reports_once_a_minute(caplog):
    now, tracker = [0.0], Tracker()
    reporter = OversizeReporter(LazyTracker(lambda: tracker))
    with process_clock.override(monotonic=lambda: now[0]):
        for _ in range(3):
            reporter.report(ExceedLimitError("Job", 500, 400))
        reporter.report(ExceedLimitError("Other", 600, 400))
        now[0] = LOG_INTERVAL_S
        reporter.report(ExceedLimitError("Job", 700, 400))
    assert [(error.size, tags, transaction) for error, tags, transaction in tracker.seen] == [
        (500, {"class": "Job"}, "Job"),
        (600, {"class": "Other"}, "Other"),
        (700, {"class": "Job"}, "Job"),
    ]
    first, _, last = lines(caplog)
    for words in ("event_name='payload.oversize'", "class='Job'", "size=500", "size_limit=400", "suppressed=0"):
        assert words in first
    assert "suppressed=2" in last


def test_track_mode_with_a_failing_tracker_pushes(pusher, redis, caplog):
    reporter = OversizeReporter(LazyTracker(lambda: Tracker(RuntimeError("no network"))))
    pusher.open(limits=SizeLimits("track", 200, 400), reporter=reporter)
    assert worker(queue="default").perform_async(random_text(2_000))
    assert redis.llen("queue:default") == 1
    assert ["payload.oversize" in line for line in lines(caplog)] == [True, False]


def test_small_arguments_are_not_measured(pusher, redis, caplog, monkeypatch):
    """Small arguments cost one comparison and no measurement."""
    monkeypatch.setattr(SizeLimiter, "encode_arguments", None)
    with caplog.at_level(logging.DEBUG):
        cls = worker(queue="default")
        cls.perform_async("x" * 99_995)
        cls.perform_bulk([("x" * 99_995,), (1,)])
    assert redis.llen("queue:default") == 3


# --- left uncompressed ------------------------------------------------------------------------------------------------


@single_and_bulk
@pytest.mark.parametrize(
    ("attributes", "queues"),
    [({"compress": False}, ()), ({}, ("default",)), ({}, ("other", "def*"))],
    ids=("attribute", "queue", "pattern"),
)
def test_push_of_large_arguments_is_left_uncompressed(opened_with, redis, method, attributes, queues):
    opened_with(SizeLimits(uncompressed_queues=queues))
    text = "x" * 200_000
    job = stored(redis, METHODS[method](worker(queue="default", **attributes), text))
    assert job["args"] == [text]
    assert marker_fields(job) == {"size_limiter": "validated"}


def test_push_to_another_queue_is_compressed(opened_with, redis):
    opened_with(SizeLimits(uncompressed_queues=("ruby", "ruby:*")))
    job = worker(queue="default")
    ruby = job.set(queue="ruby:mails").perform_async("x" * 200_000)
    assert marker_fields(stored(redis, job.perform_async("x" * 200_000)))["compressed"] is True
    (data,) = redis.lrange(keys.queue("ruby:mails"), 0, -1)
    assert json.loads(data)["jid"] == ruby
    assert marker_fields(json.loads(data)) == {"size_limiter": "validated"}


def test_queue_chosen_by_a_middleware_decides_on_compression(pusher, redis):
    class ToRuby:
        def call(self, cls, job, queue, pool):
            job["queue"] = "ruby"
            yield

    pusher.open(ToRuby, limits=SizeLimits(uncompressed_queues=("ruby",)))
    worker(queue="default").perform_async("x" * 200_000)
    (data,) = redis.lrange(keys.queue("ruby"), 0, -1)
    assert marker_fields(json.loads(data)) == {"size_limiter": "validated"}


@pytest.mark.parametrize(
    ("attributes", "queues", "words"),
    [
        ({"compress": False}, (), "left uncompressed (attribute: compress = False)"),
        ({}, ("default",), "left uncompressed (setting: size_limit.uncompressed_queues)"),
    ],
)
@single_and_bulk
def test_push_uncompressed_above_the_limit_is_refused(opened_with, redis, method, attributes, queues, words):
    opened_with(SizeLimits(limit=150_000, uncompressed_queues=queues))
    with pytest.raises((ExceedLimitError, BulkPushError)) as refused:
        METHODS[method](worker(queue="default", **attributes), "x" * 200_000)
    error = refused.value.__cause__ if isinstance(refused.value, BulkPushError) else refused.value
    assert words in str(error)
    assert (error.size, error.size_limit, error.setting) == (200_004, 150_000, "size_limit.limit")
    assert not redis.keys("*")


@single_and_bulk
def test_push_that_fits_only_uncompressed_stays_so(opened_with, redis, method):
    """A text that deflates by less than base64 adds: raw it takes 140,000 bytes, compressed more."""
    text = base64.b85encode(random.Random(2).randbytes(112_000)).decode().replace("\\", "-").replace('"', "'")
    size = len(dumps([text]))
    packed = len(deflate_arguments(dumps([text]))) + 4
    assert 100_000 < size < packed
    opened_with(SizeLimits(limit=size))
    job = stored(redis, METHODS[method](worker(queue="default"), text))
    assert job["args"] == [text]
    assert marker_fields(job) == {"size_limiter": "validated"}


def test_push_that_fits_both_ways_is_compressed(opened_with, redis):
    opened_with(SizeLimits(limit=1_000_000))
    text = base64.b85encode(random.Random(2).randbytes(112_000)).decode().replace("\\", "-").replace('"', "'")
    assert marker_fields(stored(redis, worker(queue="default").perform_async(text)))["compressed"] is True
