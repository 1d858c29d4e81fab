"""Check a bulk push that failed midway: the jobs its error names, and its resumption without writing a job twice."""

import json

import pytest

from framework.declare.policy_options import Deduplicate
from framework.errors import BulkPushError, ShardUnavailableError
from framework.process_clock import process_clock
from framework.shard.connection import TOKEN_S
from framework.shard.shard import Shard
from framework.wire import keys
from tests.harness import full_memory, opened
from tests.push.conftest import LetPass, Pusher, failed, worker
from tests.servers.proxy import Proxy
from tests.tables import pairwise

COUNT = 2_500


class Split:
    """Sends jobs with even numbers to another queue, and counts its calls."""

    calls = 0

    def call(self, cls, job, queue, pool):
        Split.calls += 1
        job["queue"] = f"default{'' if job['args'][0] % 2 else '_even'}"
        yield


KINDS = {
    "plain": {},
    "tracked": {"status_expiration": 600},
    "deduplicated": {"idempotent": True},
    "twice": {"deduplicate": Deduplicate()},
    "scheduled": {"idempotent": True, "deduplicate": Deduplicate(including_scheduled=True)},
}
PUSHES = {
    "now": lambda job, args: job.perform_bulk(args),
    "in": lambda job, args: job.perform_bulk_in(300, args),
    "at": lambda job, args: job.perform_bulk_in(4_000_000_000, args, batch_size=700, batch_delay=10),
}


@pytest.fixture
def behind_proxy(pusher, redis_url):
    """A client behind a proxy that loses the replies that a test chooses."""
    with Proxy(redis_url) as proxy:
        shard = opened(proxy.url)
        made = Pusher({"main": shard})
        made.proxy = proxy
        yield made
        shard.close()


def numbers(redis):
    """Return the first argument of every job, in any key."""
    found = [data for key in redis.keys("queue:*") for data in reversed(redis.lrange(key, 0, -1))]
    found += redis.zrange(keys.SCHEDULE, 0, -1)
    return sorted(json.loads(data)["args"][0] for data in found)


def jids_of(redis):
    found = [data for key in redis.keys("queue:*") for data in redis.lrange(key, 0, -1)]
    found += redis.zrange(keys.SCHEDULE, 0, -1)
    return {json.loads(data)["args"][0]: json.loads(data)["jid"] for data in found}


@pytest.mark.proves("R17", "I2")
@pairwise(middleware=[(), (LetPass,), (Split,)], kind=KINDS, push=PUSHES, lost=[1, 2, 3])
def test_resume_after_a_lost_reply_writes_every_job_once(behind_proxy, redis, middleware, kind, push, lost):
    behind_proxy.open(*middleware)
    job = worker(queue="default", **KINDS[kind])
    job.perform_bulk([(-1,)])  # the server knows the scripts
    redis.flushall()
    Split.calls = 0
    behind_proxy.proxy.lose_replies(rb"LPUSH|ZADD|\nqueue:|\nschedule\r", {lost})
    error = failed(lambda: PUSHES[push](job, ((number,) for number in range(COUNT))))
    assert error.maybe_written
    assert error.failed_from == len(error.jids) == error.failed_from // 1_000 * 1_000
    assert len(error.in_doubt) == min(1_000, COUNT - error.failed_from)
    assert "resume()" in str(error)
    assert "may run those jobs twice" in str(error)
    rest = error.resume()
    assert len(rest) == COUNT - error.failed_from
    assert rest[: len(error.in_doubt)] == error.in_doubt
    assert numbers(redis) == list(range(COUNT))
    assert jids_of(redis) == dict(enumerate([*error.jids, *rest]))
    assert error.resume() == rest  # asked again, it does nothing
    assert len(numbers(redis)) == COUNT
    assert Split.calls in (0, COUNT)  # the chain does not run again for the chunk in doubt
    tokens = redis.keys("aw:push:*")
    assert tokens
    assert all(TOKEN_S - 60 < redis.ttl(token) <= TOKEN_S for token in tokens)


@pytest.mark.parametrize("kind", ["plain", "twice"])
def test_jids_in_doubt_of_two_queues_keep_the_order_of_the_jobs(behind_proxy, redis, kind):
    behind_proxy.open(Split)
    job = worker(queue="default", **KINDS[kind])
    job.perform_bulk([(-1,)])
    redis.flushall()
    behind_proxy.proxy.lose_replies(rb"LPUSH|\nqueue:", {1})
    error = failed(lambda: job.perform_bulk((number,) for number in range(10)))
    assert error.resume() == error.in_doubt
    assert jids_of(redis) == dict(enumerate(error.in_doubt))


@pytest.mark.parametrize("kind", ["plain", "tracked", "deduplicated", "twice"])
def test_resume_writes_no_job_that_has_run_meanwhile(behind_proxy, redis, kind):
    """A worker has run the chunk in doubt and released its locks: only the token shows that it was written."""
    job = worker(queue="default", **KINDS[kind])
    job.perform_bulk([(-1,)])
    redis.flushall()
    behind_proxy.proxy.lose_replies(rb"\nqueue:default\r", {1})
    error = failed(lambda: job.perform_bulk((number,) for number in range(100)))
    assert redis.llen("queue:default") == 100
    redis.delete("queue:default", *redis.keys("aw:lock:*"))
    for key in redis.keys("aw:status:*"):
        redis.set(key, "completed", keepttl=True)
    assert error.resume() == error.in_doubt
    assert redis.llen("queue:default") == 0
    assert {redis.get(key) for key in redis.keys("aw:status:*")} <= {b"completed"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("middleware", [(), (LetPass,)], ids=("quick", "middleware"))
def test_resume_after_a_refusal_writes_the_jobs(pusher, redis, kind, middleware):
    pusher.open(*middleware)
    job = worker(queue="default", **KINDS[kind])
    with full_memory(redis):
        error = failed(lambda: job.perform_bulk((number,) for number in range(1_500)))
        again = failed(error.resume)
    assert (error.maybe_written, error.in_doubt, error.failed_from) == (False, [], 0)
    assert "no later job" in str(error)
    assert (again.maybe_written, again.in_doubt, again.failed_from, again.jids) == (False, [], 0, [])
    jids = again.resume()
    assert jids_of(redis) == dict(enumerate(jids))
    assert len(jids) == 1_500


def test_resume_that_fails_counts_from_the_first_job(behind_proxy, redis):
    job = worker(queue="default")
    behind_proxy.proxy.lose_replies(b"LPUSH", {1})
    first = failed(lambda: job.perform_bulk((number,) for number in range(COUNT)))
    behind_proxy.proxy.lose_replies(b"LPUSH", {2})
    second = failed(first.resume)
    assert (first.failed_from, second.maybe_written) == (0, True)
    assert second.failed_from in (1_000, 2_000)
    assert second.jids[:1_000] == first.in_doubt
    assert len(second.jids + second.resume()) == COUNT
    assert numbers(redis) == list(range(COUNT))


def test_resume_makes_a_late_first_try_write_nothing(pusher, redis):
    """A network may deliver an abandoned packet after the second one."""
    shard = pusher.shards["main"]
    kept = []

    late = Shard("main", shard.endpoint, role="tests")
    write = late._connection.write

    def write_late(packet, *args, **named):
        if not kept:
            kept.append(packet)
            raise ShardUnavailableError("main", "no answer", maybe_written=True)
        write(packet, *args, **named)

    late._connection.write = write_late
    job = worker(queue="default")
    Pusher({"main": late})
    error = failed(lambda: job.perform_bulk([(1,), (2,)]))
    error.resume()
    channel = late._connection._channel_pool.acquire()
    channel.send_packet(kept[0])
    assert channel.replies(9)[-1] is None
    assert numbers(redis) == [1, 2]
    late.close()


def test_resume_after_a_middleware_error_runs_the_chain_again(pusher, redis):
    class Breaks:
        broken = True

        def call(self, cls, job, queue, pool):
            if Breaks.broken and job["args"][0] == 1_200:
                raise LookupError("mine")
            yield

    pusher.open(Breaks)
    job = worker(queue="default")
    error = failed(lambda: job.perform_bulk((number,) for number in range(1_500)))
    assert (error.failed_from, error.maybe_written, error.in_doubt) == (1_000, False, [])
    assert isinstance(error.__cause__, LookupError)
    Breaks.broken = False
    jids = error.jids + error.resume()
    assert jids_of(redis) == dict(enumerate(jids))


def test_resume_after_nine_minutes_sends_nothing(behind_proxy, redis, monkeypatch):
    job = worker(queue="default")
    now = [0.0]
    monkeypatch.setattr(process_clock, "monotonic", lambda: now[0])
    behind_proxy.proxy.lose_replies(b"LPUSH", {1})
    error = failed(lambda: job.perform_bulk([(1,), (2,)]))
    now[0] = TOKEN_S - 29.0
    late = failed(error.resume)
    assert "more than 570 s ago" in str(late)
    assert (late.maybe_written, late.in_doubt) == (True, error.in_doubt)
    assert numbers(redis) == [1, 2]
    now[0] = TOKEN_S - 31.0
    assert late.resume() == error.in_doubt


ALL_KEYS, NO_TOKENS = ("~*",), ("~queue*", "~schedule")


@pytest.mark.refused("narrow *")
@pytest.mark.parametrize(
    "rights",
    [
        (*NO_TOKENS, "+@all"),
        (*ALL_KEYS, "+@all", "-multi"),
        (*ALL_KEYS, "+@all", "-multi", "-rpush"),
        (*ALL_KEYS, "+@all", "-lmove"),
        (*NO_TOKENS, "+@all", "-multi"),
    ],
    ids=("tokens", "transactions", "transactions and RPUSH", "LMOVE", "tokens and transactions"),
)
def test_resume_without_rights_on_tokens_writes_nothing(redis, redis_url, pusher, rights):
    redis.execute_command("ACL", "SETUSER", "narrow", "on", ">secret", *rights)
    try:
        with Proxy(redis_url) as proxy:
            shard = opened(proxy.url.replace("redis://", "redis://narrow:secret@"))
            Pusher({"main": shard})
            job = worker(queue="default")
            assert len(job.perform_bulk([(1,), (2,)])) == 2
            proxy.lose_replies(b"LPUSH", {1})
            error = failed(lambda: job.perform_bulk([(3,)]))
            assert error.maybe_written
            again = failed(error.resume)
            assert "acl producer" in str(again)
            assert again.maybe_written
            assert numbers(redis) == [1, 2, 3]
            shard.close()
    finally:
        redis.execute_command("ACL", "DELUSER", "narrow")


def test_resume_of_an_error_made_by_hand_is_refused():
    with pytest.raises(Exception, match="cannot be resumed"):
        BulkPushError([], 0, ValueError("x")).resume()


@pytest.mark.parametrize("key", ["queue:default", keys.SCHEDULE])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("lost", [False, True], ids=("refused", "refused and lost"))
def test_resume_writes_jobs_whose_key_was_of_another_type(behind_proxy, redis, key, count, lost):
    """If the reply is lost as well, only the token decides: a token without its jobs would lose them."""
    redis.set(key, "text")
    job = worker(queue="default")
    jobs = [(number,) for number in range(count)]
    if lost:
        behind_proxy.proxy.lose_replies(b"LMOVE|ZADD", {1})
    error = failed(lambda: job.perform_bulk(jobs) if key != keys.SCHEDULE else job.perform_bulk_in(300, jobs))
    assert error.maybe_written is lost
    redis.delete(key)
    jids = error.resume()
    assert jids_of(redis) == dict(enumerate(jids))
    assert error.resume() == jids
    assert len(numbers(redis)) == count
