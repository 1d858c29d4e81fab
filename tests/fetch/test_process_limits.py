"""A queue of which this process runs only so many at a time: how often it is asked, and who runs the rest."""

from framework.fetch.in_flight import InFlight
from framework.fetch.process_limits import ProcessLimits
from framework.fetch.unit_of_work import UnitOfWork
from tests.harness import until

QUEUES = (("a", 0), ("b", 0))


def running(one, queue):
    return sum(unit.queue == queue for unit in one.in_flight.unfinished())


def test_no_more_of_a_queue_come_than_there_is_room_for_and_each_end_makes_some(bench, redis):
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


def test_a_parked_call_is_room_that_is_taken(bench, redis):
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


def test_what_is_waited_for_and_what_is_asked_for_is_no_room():
    custody = InFlight(5)
    local = ProcessLimits({"a": 2}, custody)
    assert local.reserve_for_blocking("a")
    assert local.quotas([("a", 9), ("b", 9)]) == [("a", -1), ("b", 9)]
    local.fetch_ended()
    custody.add([UnitOfWork("a", b"1")])
    local.keep_blocking_only([])
    assert local.quotas([("a", 9)]) == [("a", -1)]
    assert not local.reserve_for_blocking("a")
    assert local.queues_with_room(["a", "b"]) == ["b"]
    local.fetch_ended()
    assert local.queues_with_room(["a", "b"]) == ["a", "b"]
    unit = custody.start(0.0)
    custody.end(unit, settled=False)  # its acknowledgement is to be sent
    assert local.quotas([("a", 1)]) == [("a", -1)]
    assert local.reserve_for_blocking("a")
