"""The leader and its hand-over between threads: there is always one, no job is missed, none is kept without capacity."""

import random
import select
import threading
from dataclasses import replace
from functools import partial

import pytest

from framework.fetch import leader
from framework.fetch.leader import STALLED_S
from framework.fetch.pipeline import clock
from framework.fetch.unit_of_work import UnitOfWork
from framework.timings import STANDARD
from framework.wire import keys
from tests.harness import IDENTITY, full_memory, until

QUEUE = "queue:default"
WORKING = keys.working(IDENTITY)
SLOW = replace(STANDARD, block_timeout_s=200.0)
"""A blocking call ends by itself after the limit of each wait here: a leader that is not woken fails its test."""


@pytest.fixture
def bench(bench):
    return partial(bench, timings=SLOW)


# --- there is always a leader -----------------------------------------------------------------------------------------


def test_leader_watches_a_queue_that_another_thread_found_empty(bench, redis, monkeypatch):
    """The leader fell asleep, be it for a short time, when the queue might still have jobs."""
    one = bench(slots=3).start()
    until(one.idle)
    redis.lpush(QUEUE, "a")
    one.got(1)
    until(lambda: one.leader.sleeping and one.blocked_calls() == 1)
    monkeypatch.setattr(leader, "STALLED_S", 600.0)  # the short sleep, while an acknowledgement is not sent
    with one.pipeline._lock:
        one.end(one.unit(b"a"))
        until(lambda: one.in_flight.done)
        one.state.expect_jobs()
        redis.lpush(QUEUE, "b")  # it takes the blocking call along
        one.got(2)
        until(lambda: one.leader.sleeping)
        assert one.blocked_calls() == 0
    one.end(one.unit(b"b"))
    until(one.idle)


def test_leader_leaves_quick_jobs_to_the_thread_that_runs_them(bench, redis):
    one = bench(slots=3, job=lambda unit: False)
    one.pipeline.prefetch.quick = True
    one.in_flight.add([UnitOfWork("default", b"a")])
    one.in_flight.last_started_at = clock()
    assert one.state.ready
    assert not one.leader._must_start
    one.leader._rearm_requested = True  # the next step returns the buffered jobs to their queues
    assert one.leader._must_start
    one.leader._rearm_requested = False
    one.in_flight.last_started_at -= 2 * leader.QUIET_S  # a slow job runs
    assert one.leader._must_start


@pytest.mark.parametrize("slots", [1, 3])
def test_a_thread_leads_while_every_other_runs_a_job(bench, redis, slots):
    redis.lpush(QUEUE, *range(slots))
    one = bench(slots=slots).start()
    one.got(slots)
    until(one.leader.lock.locked)
    until(lambda: one.leader.sleeping)
    assert len(one.threads) <= slots + 1
    one.fetcher.pause(["other"])  # the leader notices
    until(lambda: not one.leader._rearm_requested)


def test_jobs_and_threads_never_exceed_the_concurrency(bench, redis):
    slots, count = 8, 4_000
    redis.lpush(QUEUE, *range(count))

    def job(unit):
        if int(unit.data) % 50 == 0:
            redis.ping()  # gives the others their turn
        return False

    one = bench(slots=slots, job=job).start()
    assert sorted(one.got(count), key=int) == [b"%d" % number for number in range(count)]
    until(lambda: one.working() == [])
    assert 1 <= one.most_at_once <= slots
    assert len(one.threads) <= slots + 1


def test_slow_jobs_run_on_all_threads_at_once(bench, redis):
    meeting = threading.Barrier(6)
    redis.lpush(QUEUE, *range(12))
    one = bench(slots=6, job=lambda unit: meeting.wait(20) < 0).start()
    one.got(12)
    until(lambda: one.working() == [])
    assert one.most_at_once == 6


@pytest.mark.proves("I12")
@pytest.mark.parametrize("reason", ["stalled", "quiet"])
def test_reply_under_way_returns_behind_older_jobs(bench, redis, reason):
    one = bench(slots=1)
    redis.lpush(WORKING, "running", "older")
    one.in_flight.add([UnitOfWork("default", b"running", clock()), UnitOfWork("default", b"older", clock() - 1)])
    one.in_flight.start(clock() - 1)
    redis.lpush(QUEUE, "younger", "waiting")
    one.pipeline._call.send([], [("default", 1)], 1, clock())
    if reason == "quiet":
        one.fetcher.quiet()
    one.fetcher._leader.wake()  # no thread sleeps
    with one.leader.lock:
        one.leader._step()
    assert redis.lrange(QUEUE, 0, -1) == [b"waiting", b"younger", b"older"]
    assert one.working() == [b"running"]


# --- no job is missed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_each_of_many_single_jobs_wakes_the_leader(bench, redis, slots):
    """Each job comes after the end of the last one: at once, or after all threads have fallen asleep."""
    chance = random.Random(slots)
    one = bench(slots=slots, job=lambda unit: False).start()
    for number in range(300):
        redis.lpush(QUEUE, number)
        until(lambda: len(one.units) > number, f"number {number}")  # noqa: B023
        if chance.random() < 0.3:
            until(one.idle, f"asleep after {number}")
    until(lambda: one.working() == [])
    assert [unit.data for unit in one.units] == [b"%d" % number for number in range(300)]


@pytest.mark.parametrize("slots", [1, 3])
def test_process_that_was_full_fetches_the_next_job(bench, redis, slots):
    redis.lpush(QUEUE, *range(slots))
    one = bench(slots=slots).start()
    one.got(slots)
    until(lambda: one.leader.sleeping and not one.blocked_calls())
    one.end(*one.units)
    until(one.idle, "a blocking call waits at the queue again")
    redis.lpush(QUEUE, "next")
    until(lambda: len(one.units) > slots, "the next")


def test_end_outside_worker_threads_is_acknowledged(bench, redis):
    """An async job frees its place on the event loop while every thread sleeps."""
    redis.lpush(QUEUE, "a")
    one = bench(slots=1, job=lambda unit: None).start()
    one.got(1)
    until(lambda: one.leader.sleeping)
    one.fetcher.finish(one.units[0])
    one.pool.request_acknowledgement()
    until(lambda: one.working() == [])
    redis.lpush(QUEUE, "b")
    until(lambda: len(one.units) == 2)


def test_capacity_freed_as_threads_fall_asleep_is_seen(bench, redis):
    redis.lpush(QUEUE, "a", "b")
    one = bench(slots=1, job=lambda unit: None)
    wait = one.blocking.wait

    def settled_in_between(timeout_s):
        if len(one.units) == 1 and one.in_flight.running():
            redis.lrem(WORKING, 0, "a")
            one.fetcher.finish(one.units[0], settled=True)  # a retry: nothing to acknowledge
            one.pool.request_acknowledgement()
        return wait(timeout_s)

    one.blocking.wait = settled_in_between
    one.start()
    until(lambda: len(one.units) == 2, "the second")


# --- no job is kept without capacity ----------------------------------------------------------------------------------


def buffered(one, *names):
    units = [UnitOfWork("default", name, clock()) for name in names]
    one.redis.lpush(WORKING, *names)
    one.in_flight.add(units)


@pytest.mark.proves("I12", "I16")
@pytest.mark.parametrize("slots", [1, 2])
def test_jobs_behind_slow_ones_return_in_order(bench, redis, slots):
    one = bench(slots=slots)
    redis.lpush(QUEUE, "later")
    running = [b"running-%d" % number for number in range(slots)]
    buffered(one, *running, b"1", b"2", b"3")
    one.start()
    assert sorted(one.got(slots)) == running
    until(lambda: redis.lrange(QUEUE, 0, -1) == [b"later", b"3", b"2", b"1"])
    assert sorted(one.working()) == running
    until(lambda: one.in_flight.payloads() == set(running))  # it learns so from the reply, after Redis has done it
    one.end(one.units[0])
    assert one.got(slots + 1)[-1] == b"1"


def test_buffer_stays_while_capacity_is_free(bench):
    one = bench(slots=1)
    buffered(one, b"1", b"2")
    one.leader.stepped_at = clock() + 60
    assert not one.leader._stalled()  # a slot is free
    started = clock()
    one.in_flight.start(started)
    one.in_flight.buffer[0].fetched_at = started - 1
    for passed, stalled in ((STALLED_S / 2, False), (STALLED_S * 1.01, True)):
        one.leader.stepped_at = started + passed
        assert one.leader._stalled() is stalled
    one.in_flight.buffer[0].fetched_at = started + STALLED_S
    assert not one.leader._stalled()  # it has only just come


def test_buffer_that_could_not_return_is_in_flight(bench, redis, monkeypatch):
    one = bench(slots=1)
    buffered(one, b"1", b"2")
    redis.client_kill_filter(_type="normal", skipme=True)
    monkeypatch.setattr(one.leader, "_client", BrokenClient())
    with pytest.raises(ConnectionResetError):
        one.leader._return_buffer()
    assert [unit.data for unit in one.in_flight.buffer] == [b"1", b"2"]
    assert one.in_flight.payloads() == {b"1", b"2"}
    monkeypatch.undo()


class BrokenClient:
    def execute_command(self, *args):
        raise ConnectionResetError


def test_shutdown_returns_jobs_that_have_not_started(bench, redis):
    one = bench(slots=1)
    redis.lpush(QUEUE, "later")
    one.start()
    assert one.got(1) == [b"later"]
    one.pool.stop()
    buffered(one, b"1", b"2")
    one.fetcher.shutdown(20)
    assert redis.lrange(QUEUE, 0, -1) == [b"2", b"1"]
    assert one.working() == [b"later"]
    assert one.in_flight.payloads() == {b"later"}


# --- queues ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("I15")
def test_paused_queues_are_not_fetched_from(bench, redis):
    one = bench(queues=(("a", 0), ("b", 0)), slots=4).start()
    until(one.idle)
    one.fetcher.pause(["a"])
    until(lambda: one.blocked_calls() == 1)
    redis.lpush("queue:a", "paused")
    redis.lpush("queue:b", "goes on")
    assert one.got(1) == [b"goes on"]
    until(lambda: one.blocking.queues == {"b"})
    assert redis.lrange("queue:a", 0, -1) == [b"paused"]
    one.fetcher.pause([])
    assert one.got(2)[1] == b"paused"


@pytest.mark.proves("I15")
def test_queue_paused_from_the_start_is_never_read(bench, redis):
    redis.lpush("queue:a", "1")
    redis.lpush("queue:b", "2")
    one = bench(queues=(("a", 0), ("b", 0)), slots=2)
    one.fetcher.pause(["a", "b"])
    one.start()
    until(lambda: one.leader.sleeping)
    assert (one.blocked_calls(), one.units) == (0, [])
    one.fetcher.pause(["a"])
    assert one.got(1) == [b"2"]


@pytest.mark.proves("F35", "I14")
def test_one_busy_queue_of_a_thousand_is_found(bench, redis):
    redis.lpush("queue:q999", "far")
    one = bench(queues=[(f"q{number}", 0) for number in range(1_000)], slots=2, job=lambda unit: False).start()
    assert one.got(1) == [b"far"]
    until(one.idle)
    redis.lpush("queue:q3", "near")  # it has a blocking call
    assert one.got(2)[1] == b"near"
    redis.lpush("queue:q500", *range(200))
    redis.lpush("queue:q700", "other")
    assert one.got(203)[2:].index(b"other") >= 0
    assert len(one.units) == 203


@pytest.mark.proves("F35", "I14")
def test_newly_filled_queue_is_found_while_others_are_busy(bench, redis):
    """Busy queues are read every time, all queues periodically: none starves."""
    stop = threading.Event()

    def job(unit):
        if not stop.is_set():
            redis.lpush("queue:q10", "again")  # never empty
        return False

    redis.lpush("queue:q10", *["busy"] * 300)
    one = bench(queues=[(f"q{number}", 1) for number in range(100)], slots=2, job=job).start()
    one.got(500)
    redis.lpush("queue:q90", "new")
    until(lambda: any(unit.data == b"new" for unit in list(one.units)), "the new one")
    stop.set()


def test_hot_queues_of_many_are_fetched_alone(bench, redis):
    asked = []
    one = bench(queues=[(f"q{number}", 0) for number in range(100)], slots=2, job=lambda unit: False)
    send = one.pipeline._call.send

    def look(ended, queues, *rest):
        asked.append([name for name, _ in queues])
        send(ended, queues, *rest)

    one.pipeline._call.send = look
    redis.lpush("queue:q10", *range(500))
    one.start()
    one.got(500)
    assert len(asked[0]) == 100
    assert ["q10"] in asked


@pytest.mark.proves("F14")
def test_server_that_refuses_blmove_is_swept(bench, redis):
    one = bench()
    with full_memory(redis):
        one.start()
        until(lambda: one.calls("blmove"), "a blocking call was refused")
        redis.config_set("maxmemory", 0)
        redis.lpush(QUEUE, "a")
        redis.config_set("maxmemory", 1)
        assert one.got(1) == [b"a"]
    assert one.errors == []  # the refusal is no error
    assert one.blocking.connection_lost_at is None


def test_wake_up_is_sent_only_to_a_sleeping_leader(bench):
    one = bench()

    def wake_ups():
        return select.select([one.state.wake_up], [], [], 0)[0]

    assert not one.fetcher.wake_sleeping_leader()
    assert not wake_ups(), "no thread leads: the wake-up would cost each job a system call"
    with one.leader.lock:
        assert one.fetcher.wake_sleeping_leader()
        assert not wake_ups(), "the leader looks for work before it sleeps"
        one.leader.sleeping = True
        assert one.fetcher.wake_sleeping_leader()
        assert wake_ups()
        one.leader.sleeping = False
