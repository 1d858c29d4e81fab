"""Push many jobs at once."""

import json

import pytest

from framework.errors import ArgumentsError, BulkPushError, ShardUnavailableError
from framework.telemetry import context
from framework.wire import keys
from tests.push.conftest import worker


@pytest.fixture(autouse=True)
def room(redis):
    yield
    redis.config_set("maxmemory", 0)


def numbered(count):
    return [(number,) for number in range(count)]


def test_bulk_returns_ids_in_input_order(pusher, jobs):
    jids = worker(queue="default").perform_bulk(numbered(2_500))
    assert len(set(jids)) == 2_500
    assert [(job["jid"], job["args"]) for job in jobs()] == [(jid, [number]) for number, jid in enumerate(jids)]
    assert all("enqueued_at" in job for job in jobs())


@pytest.mark.parametrize(("count", "trips"), [(1, 1), (999, 1), (1_000, 1), (1_001, 2), (2_500, 3)])
def test_bulk_takes_one_round_trip_per_1000_jobs(pusher, calls, redis, count, trips):
    calls("exec"), calls("sadd")
    worker(queue="default").perform_bulk(numbered(count))
    assert (calls("exec"), calls("sadd")) == (trips, trips)
    assert redis.llen("queue:default") == count


def test_bulk_of_nothing_sends_nothing(pusher, redis):
    assert worker().perform_bulk([]) == []
    assert redis.dbsize() == 0


def test_bulk_with_a_batch_delay_is_spread(pusher, redis):
    jids = worker(queue="default").perform_bulk_in(100, numbered(5), batch_size=2, batch_delay=10)
    found = [(json.loads(member), due) for member, due in redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)]
    assert {job["jid"] for job, _ in found} == set(jids)
    start = found[0][1]
    assert sorted((job["args"][0], round(due - start)) for job, due in found) == [
        (0, 0),
        (1, 0),
        (2, 10),
        (3, 10),
        (4, 20),
    ]
    assert not any("enqueued_at" in job or "at" in job for job, _ in found)
    assert redis.exists(keys.QUEUES) == 0


def test_bulk_scheduled_and_large_arrives_whole(pusher, redis):
    jids = worker(queue="default").perform_bulk_in(100, numbered(1_300))
    assert redis.zcard(keys.SCHEDULE) == 1_300
    assert {json.loads(member)["jid"] for member in redis.zrange(keys.SCHEDULE, 0, -1)} == set(jids)


def test_bulk_spread_over_chunks_keeps_its_spacing(pusher, redis):
    worker(queue="default").perform_bulk_in(100, numbered(2_100), batch_size=700, batch_delay=10)
    found = {json.loads(member)["args"][0]: due for member, due in redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)}
    assert [round(found[number] - found[0]) for number in range(2_100)] == [0] * 700 + [10] * 700 + [20] * 700


def test_bulk_for_objects_sets_arguments_and_context(pusher, jobs):
    cls = worker(queue="default")
    with context.bound("cafe", user="u"):
        cls.perform_bulk_for("ab", arguments=lambda one: cls.arguments(one * 2), context=lambda one: {"letter": one})
    assert [(job["args"], job["meta.letter"], job["meta.user"], job["correlation_id"]) for job in jobs()] == [
        (["aa"], "a", "u", "cafe"),
        (["bb"], "b", "u", "cafe"),
    ]


def test_bulk_returns_none_for_dropped_jobs(pusher, jobs):
    class Odd:
        def call(self, cls, job, queue, pool):
            if job["args"][0] % 2:
                yield

    pusher.open(Odd)
    jids = worker(queue="default").perform_bulk(numbered(4))
    assert [jid is None for jid in jids] == [True, False, True, False]
    assert [job["jid"] for job in jobs()] == [jids[1], jids[3]]
    assert worker(queue="default").perform_bulk([(0,), (2,)]) == [None, None]


def test_bulk_with_middleware_writes_to_several_queues(pusher, jobs, redis):
    class Split:
        def call(self, cls, job, queue, pool):
            job["queue"] = f"q{job['args'][0] % 2}"
            yield

    pusher.open(Split)
    worker(queue="default").perform_bulk(numbered(4))
    assert [job["args"] for job in jobs("q0")] == [[0], [2]]
    assert [job["args"] for job in jobs("q1")] == [[1], [3]]
    assert redis.smembers(keys.QUEUES) == {b"q0", b"q1"}


def passing_middleware():
    class LetPass:
        def call(self, cls, job, queue, pool):
            yield

    return LetPass


@pytest.mark.parametrize("middleware", [(), (passing_middleware(),)], ids=("quick", "middleware"))
@pytest.mark.parametrize("kind", [list, iter], ids=("list", "generator"))
def test_bulk_checks_all_arguments_before_writing(pusher, redis, middleware, kind):
    pusher.open(*middleware)
    for wrong in ((object(),), (1, "\ud800"), 7):
        with pytest.raises(ArgumentsError, match="job 1500 of the bulk"):
            worker(queue="default").perform_bulk(kind([*numbered(1_500), wrong, *numbered(9)]))
    assert redis.dbsize() == 0


def test_bulk_from_a_failing_generator_writes_nothing(pusher, redis):
    def jobs():
        yield from numbered(1_500)
        raise LookupError("mine")

    with pytest.raises(LookupError):
        worker(queue="default").perform_bulk(jobs())
    assert redis.dbsize() == 0


class Row(list):
    """Arguments that count their living instances."""

    alive = most = 0

    def __init__(self, values):
        super().__init__(values)
        Row.alive += 1
        Row.most = max(Row.most, Row.alive)

    def __del__(self):
        Row.alive -= 1


def test_bulk_from_a_generator_keeps_no_objects(pusher, jobs):
    Row.alive = Row.most = 0
    jids = worker(queue="default").perform_bulk(Row([number, {"k": "v"}]) for number in range(5_500))
    assert [job["args"] for job in jobs()] == [[number, {"k": "v"}] for number in range(5_500)]
    assert [job["jid"] for job in jobs()] == jids
    assert Row.most <= 2_001


@pytest.mark.parametrize("middleware", [(), (passing_middleware(),)], ids=("quick", "middleware"))
def test_bulk_with_and_without_middleware_writes_equal_fields(pusher, jobs, redis, middleware):
    pusher.open(*middleware)
    cls = worker(queue="default", version=3, tags=("a",))
    with context.bound("cafe", user="u"):
        jids = cls.set(retry=2).perform_bulk([(1, "é"), [2, {"k": [None, 0.5]}], ()])
    alike = {"class": "Job", "retry": 2, "queue": "default", "version": 3, "tags": ["a"]}
    alike |= {"correlation_id": "cafe", "meta.user": "u"}
    found = jobs()
    assert [{**job, "created_at": 0, "enqueued_at": 0} for job in found] == [
        {**alike, "args": args, "jid": jid, "created_at": 0, "enqueued_at": 0}
        for args, jid in zip([[1, "é"], [2, {"k": [None, 0.5]}], []], jids, strict=True)
    ]
    assert len(set(jids)) == 3
    redis.flushall()
    cls.perform_bulk([(1,), (2,)])
    assert [job["correlation_id"] for job in jobs()] == [job["jid"] for job in jobs()]


def test_bulk_for_objects_over_chunks_keeps_contexts(pusher, jobs):
    cls = worker(queue="default")
    cls.perform_bulk_for(range(1_200), arguments=cls.arguments, context=lambda number: {"number": number})
    assert all(job["meta.number"] == job["args"][0] == place for place, job in enumerate(jobs()))
    assert len(jobs()) == 1_200
    assert all(job["correlation_id"] == job["jid"] for job in jobs())


def at_job(number, act):
    """Return a client middleware that calls ``act`` when it sees this job."""

    class Act:
        def call(self, cls, job, queue, pool):
            if job["args"] == [number]:
                act(pool)
            yield

    return Act


def check_interrupted(caught, jobs, redis):
    """Only the first chunk is written, and the error names it."""
    error = caught.value
    assert error.failed_from == 1_000
    assert error.jids == [job["jid"] for job in jobs()]
    assert [job["args"] for job in jobs()] == [[number] for number in range(1_000)]
    assert "index 1000" in str(error)
    return error.__cause__


def test_bulk_on_a_server_filling_up_says_what_is_written(pusher, jobs, redis):
    pusher.open(at_job(1_500, lambda pool: redis.config_set("maxmemory", 1)))
    with pytest.raises(BulkPushError, match="maxmemory") as caught:
        worker(queue="default").perform_bulk(numbered(2_500))
    assert isinstance(check_interrupted(caught, jobs, redis), ShardUnavailableError)


def test_bulk_on_a_new_replica_says_what_is_written(pusher, jobs, redis):
    pusher.open(at_job(1_500, lambda pool: redis.execute_command("REPLICAOF", "127.0.0.1", "1")))
    try:
        with pytest.raises(BulkPushError, match="read only replica") as caught:
            worker(queue="default").perform_bulk(numbered(2_500))
    finally:
        redis.execute_command("REPLICAOF", "NO", "ONE")
    assert isinstance(check_interrupted(caught, jobs, redis), ShardUnavailableError)


def test_bulk_with_a_failing_middleware_says_what_is_written(pusher, jobs, redis):
    def fail(pool):
        raise LookupError("mine")

    pusher.open(at_job(1_500, fail))
    with pytest.raises(BulkPushError, match="mine") as caught:
        worker(queue="default").perform_bulk(numbered(2_500))
    assert isinstance(check_interrupted(caught, jobs, redis), LookupError)


def test_bulk_failing_in_its_first_chunk_raises_the_cause(pusher, redis):
    pusher.open(at_job(5, lambda pool: redis.config_set("maxmemory", 1)))
    with pytest.raises(BulkPushError) as caught:
        worker(queue="default").perform_bulk(numbered(10))
    assert (caught.value.jids, caught.value.failed_from) == ([], 0)

    def fail(pool):
        raise LookupError("mine")

    pusher.open(at_job(5, fail))
    with pytest.raises(LookupError, match="mine"):  # no job is written: the plain error is enough
        worker(queue="default").perform_bulk(numbered(10))
