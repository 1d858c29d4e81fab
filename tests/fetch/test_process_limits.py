"""Process limits: the jobs of a limited queue that a process fetches, and those that it leaves in the queue."""

from framework.fetch.process_limits import ProcessLimits
from framework.fetch.state import InFlight
from framework.fetch.unit_of_work import UnitOfWork
from tests.harness import until

QUEUES = (("a", 0), ("b", 0))


def running(one, queue):
    return sum(unit.queue == queue for unit in one.in_flight.unfinished())


def test_process_limit_bounds_jobs_in_flight(bench, redis):
    redis.lpush("queue:a", *[f"a{number}" for number in range(9)])
    redis.lpush("queue:b", *[f"b{number}" for number in range(2)])
    one = bench(queues=QUEUES, slots=6, limits={"a": 2}).start()
    one.got(4)
    until(lambda: one.blocked_calls() == 1, "only the other queue is waited at")
    assert (running(one, "a"), running(one, "b"), redis.llen("queue:a")) == (2, 2, 7)
    redis.lpush("queue:b", "b2")
    one.got(5)
    for count in range(6, 13):
        ended = next(unit for unit in one.units if unit.queue == "a" and unit in one.in_flight.running())
        one.end(ended)
        one.got(count)
        assert running(one, "a") <= 2
    assert [data for data in one.got(12) if data.startswith(b"a")] == [b"a%d" % number for number in range(9)]


def test_process_limit_counts_a_blocking_call(bench, redis):
    one = bench(queues=QUEUES, slots=6, limits={"a": 1, "b": 3}).start()
    until(lambda: one.blocked_calls() == 2, "both are waited at")
    redis.lpush("queue:b", *[f"b{number}" for number in range(5)])
    one.got(3)
    redis.lpush("queue:a", "a0", "a1")
    one.got(4)
    until(lambda: one.blocked_calls() == 0, "there is no more room")
    assert (running(one, "a"), running(one, "b")) == (1, 3)
    assert (redis.llen("queue:a"), redis.llen("queue:b")) == (1, 2)
    one.end(one.unit(b"a0"))
    assert one.got(5)[-1] == b"a1"


def test_process_limit_counts_requested_jobs():
    in_flight = InFlight(5)
    limits = ProcessLimits({"a": 2}, in_flight)
    assert limits.reserve_for_blocking("a")
    assert limits.quotas([("a", 9), ("b", 9)]) == [("a", -1), ("b", 9)]
    limits.fetch_ended()
    in_flight.add([UnitOfWork("a", b"1")])
    limits.keep_blocking_only([])
    assert limits.quotas([("a", 9)]) == [("a", -1)]
    assert not limits.reserve_for_blocking("a")
    assert limits.queues_with_room(["a", "b"]) == ["b"]
    limits.fetch_ended()
    assert limits.queues_with_room(["a", "b"]) == ["a", "b"]
    unit = in_flight.start(0.0)
    in_flight.end(unit, settled=False)  # its acknowledgement is to be sent
    assert limits.quotas([("a", 1)]) == [("a", -1)]
    assert limits.reserve_for_blocking("a")
