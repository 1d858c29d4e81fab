"""A stream of jobs: one chunk at a time, and after a failure every job once."""

import json
import tracemalloc

import pytest

from framework.errors import ArgumentsError, ExceedLimitError
from framework.push.argument_checks import SizeLimits
from framework.wire import keys
from tests.harness import full_memory, opened
from tests.push.conftest import LetPass, Pusher, failed, worker
from tests.servers.proxy import Proxy


def arguments(redis):
    found = reversed(redis.lrange("queue:default", 0, -1))
    return [json.loads(data)["args"][0] for data in found]


def numbered(count, then=None):
    """Yield jobs, and raise ``then`` after the last."""
    for number in range(count):
        yield (number,)
    if then is not None:
        raise then


def test_stream_writes_chunks_as_they_are_read(push_mode, redis):
    seen = []

    def jobs():
        for number in range(2_500):
            seen.append(redis.llen("queue:default"))
            yield (number,)

    assert worker(queue="default").perform_bulk_stream(jobs()) == 2_500
    assert arguments(redis) == list(range(2_500))
    # When job number 2,400 is read, the two chunks before it are written.
    assert (seen[999], seen[1_000], seen[2_400]) == (0, 1_000, 2_000)


def test_stream_counts_written_jobs_only(pusher):
    assert worker(queue="default", idempotent=True).perform_bulk_stream([(1,), (1,), (2,)]) == 2
    assert worker("Other", queue="default").perform_bulk_stream([]) == 0


def test_stream_can_be_spread(pusher, redis):
    assert worker(queue="default").perform_bulk_stream(numbered(1_500), spread_interval=60) == 1_500
    assert redis.zcard(keys.SCHEDULE) == 1_500


def test_wrong_spread_is_refused_before_a_job_is_read(pusher):
    jobs = numbered(1)
    with pytest.raises(ArgumentsError, match="spread_interval"):
        worker(queue="default").perform_bulk_stream(jobs, spread_interval="soon")
    assert next(jobs) == (0,)


def test_wrong_job_of_the_first_chunk_writes_nothing(push_mode, redis):
    with pytest.raises(ArgumentsError, match=r"\(job 1 of the bulk\)"):
        worker(queue="default").perform_bulk_stream([(1,), (b"",)])
    assert redis.dbsize() == 0


def test_wrong_job_of_a_later_chunk_names_its_index(push_mode, redis):
    jobs = [*numbered(1_200), (b"",), *numbered(900)]
    error = failed(lambda: worker(queue="default").perform_bulk_stream(iter(jobs)))
    assert (error.failed_from, error.jids, error.maybe_written) == (1_000, [], False)
    assert "(job 1200 of the bulk)" in str(error)
    assert "The 1,000 jobs before it are written, and no later job" in str(error)
    assert isinstance(error.__cause__, ArgumentsError)
    # Nothing is skipped: the same job is refused again.
    assert failed(error.resume).failed_from == 1_000
    assert arguments(redis) == list(range(1_000))


def test_too_large_job_of_a_later_chunk_names_its_index(pusher, redis):
    pusher.open(limits=SizeLimits(limit=200))
    error = failed(lambda: worker(queue="default").perform_bulk_stream([*numbered(1_001), ("x" * 300,)]))
    assert isinstance(error.__cause__, ExceedLimitError)
    assert error.__cause__.job == 1_001


def test_iterator_that_raises_is_not_taken_for_its_end(pusher, redis):
    error = failed(lambda: worker(queue="default").perform_bulk_stream(numbered(1_500, LookupError("database"))))
    assert error.failed_from == 1_000
    assert "resume()" not in str(error)
    assert isinstance(error.__cause__, LookupError)
    assert arguments(redis) == list(range(1_000))
    with pytest.raises(LookupError):
        worker(queue="default").perform_bulk_stream(numbered(10, LookupError("database")))
    assert redis.llen("queue:default") == 1_000


@pytest.mark.proves("R17", "I2")
@pytest.mark.parametrize("middleware", [(), (LetPass,)], ids=("quick", "middleware"))
@pytest.mark.parametrize("kind", [{}, {"idempotent": True}], ids=("plain", "deduplicated"))
def test_resumed_stream_writes_every_job_once(pusher, redis, redis_url, middleware, kind):
    with Proxy(redis_url) as proxy:
        shard = opened(proxy.url)
        behind = Pusher({"main": shard}).open(*middleware)
        job = worker(queue="default", **kind)
        job.perform_bulk([(-1,)])
        redis.flushall()
        proxy.lose_replies(rb"LPUSH|\nqueue:", {5})
        error = failed(lambda: job.perform_bulk_stream(numbered(3_500)))
        assert error.failed_from in (1_000, 2_000)
        assert (error.maybe_written, len(error.in_doubt)) == (True, 1_000)
        rest = error.resume()
        del behind
        shard.close()
    assert rest[:1_000] == error.in_doubt
    assert len(set(rest)) == 3_500 - error.failed_from
    assert arguments(redis) == list(range(3_500))


def test_stream_refused_by_redis_can_be_resumed(pusher, redis):
    job = worker(queue="default")
    jobs = numbered(2_100)
    with full_memory(redis):
        error = failed(lambda: job.perform_bulk_stream(jobs))
        assert (error.failed_from, error.maybe_written) == (0, False)
        assert failed(error.resume).failed_from == 0
    assert len(error.resume()) == 2_100
    assert arguments(redis) == list(range(2_100))


def test_stream_holds_no_more_than_a_chunk(pusher, redis):
    job = worker(queue="default")

    def highest(count):
        tracemalloc.start()
        assert job.perform_bulk_stream((number, "x" * 100) for number in range(count)) == count
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        redis.flushall()
        return most

    job.perform_bulk_stream(numbered(1_000))
    assert highest(10_000) < 1.5 * highest(2_000)
