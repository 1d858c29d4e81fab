"""The fetcher with threads on a real server: which jobs start, in which order, and how their ends are acknowledged."""

import pytest
from redis import Redis

from framework.fetch.requeue import requeue
from framework.fetch.unit_of_work import UnitOfWork
from framework.wire import keys
from tests.fetch.conftest import FetcherBench
from tests.harness import IDENTITY, full_memory, until

QUEUE = "queue:default"
WORKING = keys.working(IDENTITY)


@pytest.mark.proves("I12")
def test_fetcher_starts_oldest_first_up_to_concurrency(bench, redis):
    redis.lpush(QUEUE, *(f"{number}" for number in range(5)))
    one = bench(slots=2).start()
    assert sorted(one.got(2)) == [b"0", b"1"]
    assert redis.lrange(QUEUE, 0, -1) == [b"4", b"3", b"2"]
    assert one.working() == [b"1", b"0"]
    one.end(one.unit(b"0"))
    assert one.got(3)[2] == b"2"
    assert sorted(one.working()) == [b"1", b"2"]  # acknowledged in the same round trip


def test_finished_jobs_leave_working_list_and_memory(bench, redis):
    redis.lpush(QUEUE, "a", "b", "c")
    one = bench(slots=3).start()
    one.got(3)
    one.end(one.unit(b"b"))
    until(lambda: sorted(one.working()) == [b"a", b"c"])
    redis.lrem(WORKING, 0, "a")
    one.end(one.unit(b"a"), settled=True)  # its retry has moved it
    one.end(one.unit(b"c"))
    until(lambda: one.in_flight.payloads() == set())
    assert one.working() == []
    assert one.fenced_units == []


@pytest.mark.proves("R22")
def test_late_acknowledgement_is_reported_as_fenced(bench, redis):
    redis.lpush(QUEUE, "a", "b")
    one = bench(slots=2).start()
    one.got(2)
    redis.lrem(WORKING, 0, "a")  # another process owns it
    one.end(*one.units)
    until(lambda: one.in_flight.payloads() == set())
    assert [unit.data for unit in one.fenced_units] == [b"a"]


def test_many_ends_take_several_calls_and_none_is_lost(bench, redis):
    redis.lpush(QUEUE, *(f"{number}" for number in range(100)))
    one = bench(slots=100).start()
    one.got(100)
    one.end(*one.units)
    until(lambda: one.working() == [])
    until(lambda: one.in_flight.payloads() == set())
    assert one.fenced_units == []


def test_strict_order_empties_the_first_queue_first(bench, redis):
    redis.lpush("queue:a", "a1", "a2")
    redis.lpush("queue:b", "b1", "b2")
    one = bench(queues=(("b", 0), ("a", 0)), slots=3).start()
    assert sorted(one.got(3)) == [b"a1", b"b1", b"b2"]
    assert one.working() == [b"a1", b"b2", b"b1"]
    assert {unit.data: unit.queue for unit in one.units} == {b"b1": "b", b"b2": "b", b"a1": "a"}


# --- idle -----------------------------------------------------------------------------------------------------------


def test_idle_process_wakes_for_a_job_of_any_queue(bench, redis):
    one = bench(queues=(("a", 0), ("b", 0), ("c", 0)), slots=2).start()
    until(one.idle, "three blocking calls")
    redis.lpush("queue:b", "job")
    assert one.got(1) == [b"job"]
    assert (one.units[0].queue, one.working()) == ("b", [b"job"])
    redis.lpush("queue:c", "next")
    assert one.got(2)[1] == b"next"


def test_job_without_capacity_returns_to_its_place(bench, redis):
    one = bench(queues=(("a", 0), ("b", 0)), slots=1).start()
    until(one.idle)
    redis.lpush("queue:a", "first")
    one.got(1)
    redis.lpush("queue:b", "x")  # the blocking call of b takes it
    until(lambda: one.blocked_calls() == 0)
    redis.lpush("queue:b", "y")
    until(lambda: redis.lrange("queue:b", 0, -1) == [b"y", b"x"], "back at the right end")
    assert one.working() == [b"first"]
    assert redis.smembers(keys.QUEUES) == {b"b"}
    one.end(one.units[0])
    assert one.got(2) == [b"first", b"x"]


def test_queues_beyond_the_blocking_calls_are_swept(bench, redis):
    queues = [(f"q{number}", 0) for number in range(20)]
    one = bench(queues=queues, slots=4).start()
    until(one.idle, "sixteen blocking calls")
    redis.lpush("queue:q19", "far")
    assert one.got(1) == [b"far"]


def test_stop_cancels_blocking_calls_and_fetches_no_more(bench, redis):
    one = bench(queues=(("a", 0), ("b", 0)), slots=2).start()
    until(one.idle)
    one.pool.stop()
    one.pool.stop()
    one.join()
    one.fetcher.shutdown(20)
    until(lambda: one.blocked_calls() == 0)
    redis.lpush("queue:a", "late")
    assert redis.lrange("queue:a", 0, -1) == [b"late"]
    assert one.units == []


def test_quiet_process_fetches_nothing_and_acknowledges(bench, redis):
    redis.lpush(QUEUE, "a")
    one = bench(slots=3).start()
    one.got(1)
    one.fetcher.quiet()
    one.fetcher.quiet()
    until(lambda: one.blocked_calls() == 0)
    redis.lpush(QUEUE, "b")
    one.end(one.units[0])
    # A blocking call that was sent before the process became quiet may take "b", and then returns it.
    until(lambda: one.working() == [] and redis.lrange(QUEUE, 0, -1) == [b"b"])
    assert len(one.units) == 1
    assert all(thread.is_alive() for thread in one.threads)


def test_ends_after_the_stop_are_acknowledged_on_request(bench, redis):
    redis.lpush(QUEUE, "a", "b")
    one = bench(slots=2).start()
    one.got(2)
    one.pool.stop()
    one.fetcher.shutdown(20)
    one.end(one.unit(b"a"))
    until(lambda: len(one.in_flight.running()) == 1)
    one.fetcher.acknowledge_all()
    assert one.working() == [b"b"]


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("R19")
def test_without_a_lease_nothing_is_fetched(bench, redis):
    one = bench()
    redis.delete(keys.lease(IDENTITY))
    redis.lpush(QUEUE, "a")
    one.start()
    until(lambda: one.calls() >= 3, "it asks again and again whether its lease is back")
    assert redis.lrange(QUEUE, 0, -1) == [b"a"]
    assert one.lost == 1
    one.beat()
    assert one.got(1) == [b"a"]


def test_lost_lease_does_not_spin(bench, redis):
    one = bench()
    redis.delete(keys.lease(IDENTITY))
    one.start()
    until(lambda: one.lost)
    before = one.calls()
    for _ in range(2_000):
        redis.ping()
    assert one.calls() - before < 50  # a fetcher that spins would send about one call per ping


def test_lease_lost_while_waiting_cancels_blocking_calls(bench, redis):
    one = bench(queues=(("a", 0), ("b", 0)), slots=2).start()
    until(one.idle)
    redis.lpush("queue:a", "1")
    one.got(1)
    redis.delete(keys.lease(IDENTITY))
    one.end(one.units[0])  # makes it speak to the server
    until(lambda: one.lost)
    until(lambda: one.blocked_calls() == 0, "the blocking calls end: else they would fetch jobs")


@pytest.mark.proves("R1")
def test_broken_connection_is_replaced(bench, redis):
    one = bench().start()
    until(one.idle)
    redis.client_kill_filter(_type="normal", skipme=True)
    until(lambda: one.errors)
    redis.lpush(QUEUE, "a")
    assert one.got(1) == [b"a"]


@pytest.mark.proves("R1")
def test_restarted_server_is_served_again(make_server):
    own = make_server()
    client: Redis = own.open()
    one = FetcherBench(client, own.url)
    try:
        client.lpush(QUEUE, "held")
        one.start()
        one.got(1)
        own.kill()
        one.end(one.units[0])  # while it is away
        until(lambda: one.errors)
        own.start()
        one.beat()
        client.lpush(QUEUE, "next")
        assert one.got(2) == [b"held", b"next"]
        until(lambda: one.working() == [b"next"], "the acknowledgement came through")
    finally:
        one.stop()
        client.close()


@pytest.mark.proves("F14", "R14")
def test_server_at_maxmemory_is_served(bench, redis):
    redis.lpush(QUEUE, "a")
    one = bench(queues=(("default", 0), ("b", 0)), slots=1)
    redis.lpush("queue:b", "b")
    with full_memory(redis):
        one.start()
        one.got(1)
        one.end(one.units[0])
        assert one.got(2) == [b"a", b"b"]
        one.end(one.units[1])
        until(lambda: one.working() == [])
        redis.config_set("maxmemory", 0)
        redis.lpush(QUEUE, "c")
        redis.config_set("maxmemory", 1)
        assert one.got(3)[2] == b"c"


@pytest.mark.proves("F40")
def test_queue_of_wrong_type_is_reported_and_stops_no_other(bench, redis):
    redis.set("queue:bad", "text")
    redis.lpush(QUEUE, "a")
    one = bench(queues=(("bad", 0), ("default", 0)), slots=2).start()
    assert one.got(1) == [b"a"]
    redis.lpush(QUEUE, "b")
    assert one.got(2) == [b"a", b"b"]
    assert set(one.refused) == {"bad"}
    assert one.errors == []


def test_more_jobs_than_lua_unpacks_are_fetched(bench, redis):
    redis.lpush(QUEUE, *range(9_000))
    one = bench(slots=10_000, job=lambda unit: None).start()  # as async jobs: they keep their slots and no thread
    assert len(one.got(9_000)) == 9_000
    assert redis.llen(WORKING) == 9_000
    assert one.errors == []


# --- requeue --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("I12")
def test_requeue_keeps_the_order(redis):
    redis.lpush(QUEUE, "waiting")
    redis.lpush(WORKING, "1", "2", "3")
    units = [(UnitOfWork("default", data), data + b"!") for data in (b"1", b"2", b"4")]
    assert requeue(redis, IDENTITY, units) == 2
    assert redis.lrange(QUEUE, 0, -1) == [b"waiting", b"2!", b"1!"]
    assert redis.lrange(WORKING, 0, -1) == [b"3"]
    assert requeue(redis, IDENTITY, []) == 0


@pytest.mark.parametrize("count", [1, 500])
def test_requeue_returns_any_number_at_once(redis, count):
    redis.lpush(WORKING, *(f"{number}" for number in range(count)))
    units = [(UnitOfWork("default", b"%d" % number), b"%d" % number) for number in range(count)]
    assert requeue(redis, IDENTITY, units) == count
    assert redis.lrange(QUEUE, 0, -1) == [b"%d" % number for number in reversed(range(count))]
