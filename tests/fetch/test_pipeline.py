"""Round trips: the jobs that a call fetches and acknowledges, the time when its reply is read, and a reply that never arrives."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from framework.fetch import fetcher as fetcher_module
from framework.fetch import pipeline as pipeline_module
from framework.fetch.pipeline import ACK_BATCH, clock
from framework.fetch.unit_of_work import Move, UnitOfWork
from framework.recover.suspects import MAX_UNACKNOWLEDGED
from framework.store.script import FETCH, FINISH_UNLESS_DUPLICATED, KILL, SCHEDULE
from framework.timings import STANDARD
from framework.wire import keys
from tests.harness import IDENTITY, encoded, until
from tests.proofs.places import unwrapped

QUEUE = "queue:default"
WORKING = keys.working(IDENTITY)


def taken(one, count):
    """Add ``count`` units as after a fetch: in the working list and in the buffer."""
    units = [UnitOfWork("default", b"%d" % number, clock()) for number in range(count)]
    one.redis.lpush(WORKING, *(unit.data for unit in units))
    one.in_flight.add(units)
    return units


def ended(one, count):
    for _ in range(count):
        one.in_flight.end(one.in_flight.start(clock()), settled=False)


def test_flush_between_two_jobs_does_not_wait(bench, redis):
    one = bench(slots=2)
    taken(one, 60)
    ended(one, ACK_BATCH)
    with one.mute():
        one.pipeline.flush_if_due(clock())  # returns although the server is silent
        assert one.pipeline.unfinished
        assert one.in_flight.sent == ACK_BATCH
        ended(one, 3)
    assert one.pipeline.fetch_and_wait()
    until(lambda: redis.llen(WORKING) == 60 - ACK_BATCH)
    assert not one.in_flight.sent
    assert one.in_flight.unsent == 3


def test_fetch_after_script_flush_sends_the_source(bench, redis):
    one = bench(slots=2)
    redis.lpush(QUEUE, "a")
    redis.script_flush()
    assert one.pipeline.fetch_and_wait()
    assert redis.lrange(WORKING, 0, -1) == [b"a"]
    assert redis.script_exists(FETCH.digest) == [True]


def test_ended_jobs_are_acknowledged_in_batches(bench):
    one = bench(slots=2)
    taken(one, 60)
    now = clock()
    ended(one, ACK_BATCH)
    one.pipeline.flush_if_due(now)
    ended(one, ACK_BATCH - 1)
    one.pipeline.flush_if_due(now)
    assert (one.in_flight.sent, one.in_flight.unsent) == (ACK_BATCH, ACK_BATCH - 1)
    ended(one, 1)
    one.pipeline.flush_if_due(now)
    assert (one.in_flight.sent, one.in_flight.unsent) == (ACK_BATCH, 0)


def test_few_ended_jobs_are_acknowledged_after_an_interval(bench):
    one = bench(slots=2)
    taken(one, 60)
    now = clock()
    ended(one, ACK_BATCH)
    one.pipeline.flush_if_due(now)
    ended(one, 1)
    one.pipeline.flush_if_due(now + 1.001 * pipeline_module.ACK_INTERVAL_S)
    assert one.in_flight.sent == 1


@pytest.mark.proves("R9", "R17")
def test_lost_reply_repeats_acknowledgements(bench, redis):
    """The call ran and its reply is lost: no job is acknowledged twice, and its jobs are in the working list."""
    redis.lpush(QUEUE, "new")
    one = bench(slots=4)
    units = taken(one, 3)
    ended(one, 2)
    one.pipeline._send(clock(), 32)
    until(lambda: redis.llen(QUEUE) == 0)
    channel = one.pipeline._call._channel
    assert channel._socket.recv(1 << 16)  # the reply is on its way, and gets lost
    redis.client_kill_filter(_type="normal", skipme=True)
    one.state.queues_empty = True  # this pass needs no more jobs
    one.pipeline.fetch_and_wait()
    assert one.state.failures == 1
    assert len(one.errors) == 1
    assert list(one.in_flight.done) == units[:2]
    assert {unit.data for unit in units} <= one.in_flight.payloads()
    assert redis.lrange(WORKING, 0, -1) == [b"new", b"2"]  # reconciliation finds it: memory does not know it
    one.pipeline.probe(lambda: None)
    assert (one.state.failures, one.in_flight.payloads()) == (0, {b"2"})
    assert one.units == []


def test_call_that_never_arrived_is_repeated(bench, redis):
    one = bench(slots=4)
    units = taken(one, 3)
    ended(one, 2)
    with one.mute():
        one.pipeline._send(clock(), 32)
        redis.client_kill_filter(_type="normal", skipme=True)
    one.pipeline.fetch_and_wait()
    assert list(one.in_flight.done) == units[:2]
    one.pipeline.probe(lambda: None)
    until(lambda: one.working() == [b"2"])
    assert len(one.fenced_units) in {0, 2}  # Redis may have run the call


@pytest.mark.proves("I16")
def test_silent_redis_bounds_unconfirmed_ends(bench, redis, monkeypatch):
    one = bench(slots=2, job=lambda unit: False)
    # Two jobs that the machine stops for 10 ms would make the leader return the others to their queue.
    monkeypatch.setattr(one.leader, "_stalled", lambda: False)
    taken(one, 200)
    with one.mute():
        one.start()
        until(lambda: one.in_flight.acknowledgements_full and not one.in_flight.running())
        assert MAX_UNACKNOWLEDGED <= len(one.units) < MAX_UNACKNOWLEDGED + one.slots
        assert len(one.in_flight.done) == len(one.units)
    one.got(200)
    until(lambda: one.working() == [])
    assert len({unit.data for unit in one.units}) == len(one.units) == 200


def test_acknowledge_all_waits_for_a_call_under_way(bench):
    one = bench(slots=1)
    taken(one, 1)
    with ThreadPoolExecutor(2) as pool:
        with one.mute():
            ended(one, 1)
            other = pool.submit(one.pipeline.fetch_and_wait)
            until(lambda: one.pipeline._call.pending, "the other waits for the reply")
            waiting = pool.submit(one.fetcher.acknowledge_all)
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
        waiting.result(20)
        assert one.working() == []
        other.result(20)


def test_acknowledge_all_waits_for_a_thread_that_sends(bench, monkeypatch):
    one = bench(slots=1)
    taken(one, 1)
    ended(one, 1)
    sending, go = threading.Event(), threading.Event()
    send = one.pipeline._call._channel.send

    def slow(*commands):
        sending.set()
        assert go.wait(20)
        send(*commands)

    monkeypatch.setattr(one.pipeline._call._channel, "send", slow)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(one.pipeline.fetch_and_wait)
        assert sending.wait(20)
        waiting = pool.submit(one.fetcher.acknowledge_all)
        try:
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
        finally:
            go.set()
        waiting.result(20)
        other.result(20)
    assert one.working() == []


def test_one_thread_at_a_time_makes_calls(bench):
    one = bench(slots=2)
    taken(one, 40)
    with one.pipeline._lock:
        ended(one, ACK_BATCH)
        one.pipeline.flush_if_due(clock())
        assert not one.pipeline.fetch_and_wait()
        assert len(one.in_flight.done) == ACK_BATCH
    one.pipeline.flush_if_due(clock())
    assert one.in_flight.sent == ACK_BATCH


# --- an unread reply is no lost reply ---------------------------------------------------------------------------------


def test_fetched_job_is_not_lost_before_its_reply_is_read(bench, redis):
    one = bench(slots=2)
    redis.lpush(QUEUE, encoded())
    one.pipeline._send(clock(), 32)
    until(lambda: redis.llen(QUEUE) == 0)
    one.reconciler.reconcile()
    for _ in range(2):  # the leader polls, but another thread must read the reply
        one.leader._wait_for_jobs()
    assert [one.reconciler.reconcile(), one.reconciler.reconcile()] == [0, 0]
    one.pipeline._read_reply()
    assert [one.reconciler.reconcile(), one.reconciler.reconcile()] == [0, 0]
    assert one.working() == list(one.in_flight.payloads()) == [encoded()]


def test_blocking_job_is_not_lost_before_its_reply_is_read(bench, redis):
    one = bench(slots=2)
    one.state.queues_empty = True
    one.leader._arm_queues()
    redis.lpush(QUEUE, encoded())
    assert [one.reconciler.reconcile() for _ in range(3)] == [0, 0, 0]
    one.leader._wait_for_jobs()
    assert [one.reconciler.reconcile() for _ in range(3)] == [0, 0, 0]
    assert one.working() == list(one.in_flight.payloads()) == [encoded()]


def test_lost_job_returns_after_all_replies_are_read(bench, redis):
    one = bench(slots=2, timings=replace(STANDARD, block_timeout_s=200.0)).start()
    until(one.idle)
    redis.lpush(WORKING, encoded(queue="elsewhere"))
    assert one.reconciler.reconcile() == 0
    until(one.reconciler.reconcile, "the leader, which sleeps for 200 s, is woken to poll")
    assert redis.lrange("queue:elsewhere", 0, -1) == [encoded(queue="elsewhere")]


# --- jobs that may not start --------------------------------------------------------------------------------------


@pytest.mark.proves("F6", "R22")
def test_buffered_jobs_return_after_a_clock_jump(bench, redis, monkeypatch):
    one = bench(slots=2)
    redis.lpush(QUEUE, "waiting")
    taken(one, 3)
    redis.delete(keys.lease(IDENTITY))  # the process slept for longer than the lease
    real = clock
    for module in (pipeline_module, fetcher_module):
        monkeypatch.setattr(module, "clock", lambda: real() + 60)
    one.start()
    until(lambda: redis.lrange(QUEUE, 0, -1) == [b"waiting", b"2", b"1", b"0"], "given back, in order")
    assert one.units == []
    assert one.lost == 1
    assert one.state.suspended
    one.beat()
    assert sorted(one.got(2)) == [b"0", b"1"]


@pytest.mark.proves("F6", "R22")
def test_process_stopped_just_before_a_start_starts_nothing(bench, redis, monkeypatch):
    one = bench(slots=1)
    taken(one, 2)
    redis.delete(keys.lease(IDENTITY))
    real, looks = clock, []

    def stopped_after_the_first_look():
        looks.append(1)
        return real() + (60 if len(looks) > 1 else 0)

    monkeypatch.setattr(fetcher_module, "clock", stopped_after_the_first_look)
    one.start()
    until(lambda: redis.lrange(QUEUE, 0, -1) == [b"1", b"0"], "given back, in order")
    assert one.units == []


@pytest.mark.proves("F6", "R22")
def test_jobs_of_a_stale_reply_are_not_started(bench, redis, monkeypatch):
    """The process was suspended while the reply waited: another process may own its jobs."""
    one = bench(slots=2)
    redis.lpush(QUEUE, "a")
    one.pipeline._send(clock(), 32)
    until(lambda: redis.llen(WORKING) == 1)
    redis.delete(keys.lease(IDENTITY))
    real = clock
    for module in (pipeline_module, fetcher_module):
        monkeypatch.setattr(module, "clock", lambda: real() + 60)
    one.start()
    until(lambda: one.state.suspended or one.units)
    assert one.units == []


@pytest.mark.proves("F6", "R22")
def test_lost_lease_returns_the_buffer(bench, redis):
    one = bench(slots=1)
    redis.lpush(QUEUE, "waiting")
    taken(one, 2)
    redis.delete(keys.lease(IDENTITY))
    one.pipeline.probe(lambda: None)
    assert one.state.suspended
    one.start()
    until(lambda: redis.lrange(QUEUE, 0, -1) == [b"waiting", b"1", b"0"], "given back, in order")
    until(lambda: not one.in_flight.payloads())
    assert (one.units, one.lost) == ([], 1)
    one.beat()
    assert one.got(1) == [b"0"]


@pytest.mark.proves("F10", "I1")
def test_running_jobs_survive_an_outage(bench, redis):
    """Connections die again and again under load: each job runs once, except jobs whose reply was lost.

    The process finds these in its working list. They name no queue, so they move to the dead set, in an object with their bytes.
    """
    redis.lpush(QUEUE, *range(3_000))
    one = bench(slots=4, job=lambda unit: False).start()
    for count in range(500, 3_000, 500):
        until(lambda: len(one.units) >= count or not redis.llen(QUEUE), "progress")  # noqa: B023
        redis.client_kill_filter(_type="normal", skipme=True)
    until(lambda: redis.llen(QUEUE) == 0 and not one.in_flight.payloads() and one.state.queues_empty)
    names = [unit.data for unit in one.units] + [unwrapped(entry) for entry in redis.zrange(keys.DEAD, 0, -1)]
    assert sorted(names, key=int) == [b"%d" % number for number in range(3_000)]


# --- quotas ---------------------------------------------------------------------------------------------------------


def fetched(redis, wanted, **quotas):
    redis.set("lease", 1)
    names = [f"queue:{name}" for name in quotas]
    reply = FETCH(redis, ["lease", WORKING, *names], [5_000, wanted, 0, *quotas.values()])
    found = {}
    for position in range(3, len(reply), 2):
        found.setdefault(list(quotas)[reply[position] - 1], []).extend(reply[position + 1])
    return found


def test_batch_follows_quotas_then_longer_queues(redis):
    for name, count in (("a", 10), ("b", 10), ("c", 1)):
        redis.lpush(f"queue:{name}", *(f"{name}{number}" for number in range(count)))
    assert fetched(redis, 6, a=3, b=2, c=1) == {"a": [b"a0", b"a1", b"a2"], "b": [b"b0", b"b1"], "c": [b"c0"]}
    # c is empty: its share goes to the first that gave its whole quota
    assert fetched(redis, 6, a=3, b=2, c=1) == {"a": [b"a3", b"a4", b"a5", b"a6"], "b": [b"b2", b"b3"]}
    assert fetched(redis, 6, b=2, a=3) == {"b": [b"b4", b"b5", b"b6"], "a": [b"a7", b"a8", b"a9"]}
    assert redis.llen(WORKING) == 18


def test_batch_of_weighted_queues_is_mixed(bench, redis):
    for name in ("a", "b"):
        redis.lpush(f"queue:{name}", *(f"{name}{number}" for number in range(20)))
    one = bench(queues=(("a", 3), ("b", 1)), slots=8).start()
    got = one.got(8)
    assert sum(data.startswith(b"a") for data in got) == 6
    assert redis.llen("queue:b") == 18
    assert threading.active_count() >= 8


class Noting(Move):
    """A move to a set that notes what it is told."""

    def __init__(self, target="retry", script=SCHEDULE, shared=(), third="60"):
        super().__init__(script, (WORKING, target), shared, (b"stored", third, ""))
        self.told = []

    def moved(self):
        self.told.append("moved")

    def noted(self, number):
        self.told.append(number)

    def refused(self, error):
        self.told.append(type(error).__name__)


def ended_with_moves(one, *moves):
    """End the oldest units: with these moves, ``None`` for an acknowledgement. Their stored payloads differ."""
    for number, move in enumerate(moves):
        unit = one.in_flight.start(clock())
        if move is not None:
            move.arguments = (b"stored %d" % number, *move.arguments[1:])
        unit.move = move
        one.in_flight.end(unit, settled=False)


@pytest.mark.proves("R22", "R50")
def test_ended_jobs_of_one_kind_are_moved_by_one_script(bench, redis):
    one = bench(slots=9)
    taken(one, 7)
    dying = [Noting("dead", KILL, (10, 1_000, 0), "") for _ in range(2)]
    retried = [Noting() for _ in range(3)]
    redis.config_resetstat()
    ended_with_moves(one, retried[0], dying[0], None, *retried[1:], dying[1], None)
    assert one.pipeline.fetch_and_wait()
    assert redis.info("commandstats")["cmdstat_zadd"]["calls"] == 2
    assert (one.working(), one.in_flight.payloads(), one.fenced_units) == ([], set(), [])
    assert redis.zrange("dead", 0, -1) == [b"stored 1", b"stored 5"]
    assert set(redis.zrange("retry", 0, -1)) == {b"stored 0", b"stored 3", b"stored 4"}
    # The first move of a call gets the number for all of them.
    assert [move.told for move in (*retried, *dying)] == [["moved"]] * 3 + [[0, "moved"], ["moved"]]


def test_moves_beyond_the_most_of_a_script_take_another_call(bench, redis, monkeypatch):
    monkeypatch.setattr(pipeline_module, "MAX_MOVES_PER_SCRIPT", 2)
    one = bench(slots=9)
    taken(one, 5)
    redis.config_resetstat()
    ended_with_moves(one, *(Noting() for _ in range(5)))
    assert one.pipeline.fetch_and_wait()
    assert redis.info("commandstats")["cmdstat_zadd"]["calls"] == 3
    assert (one.working(), redis.zcard("retry")) == ([], 5)


@pytest.mark.proves("I2")
def test_move_of_a_job_that_another_process_owns_is_fenced(bench, redis):
    one = bench(slots=9)
    units = taken(one, 3)
    moves = [Noting() for _ in range(3)]
    redis.lrem(WORKING, 1, b"1")
    ended_with_moves(one, *moves)
    assert one.pipeline.fetch_and_wait()
    assert one.fenced_units == [units[1]]
    assert [move.told for move in moves] == [["moved"], [], ["moved"]]
    assert one.in_flight.payloads() == set()


@pytest.mark.proves("R9")
def test_move_whose_reply_was_lost_is_not_fenced(bench, redis):
    one = bench(slots=9)
    taken(one, 1)
    move = Noting()
    ended_with_moves(one, move)
    one.pipeline._send(clock(), 32)
    until(lambda: redis.zcard("retry") == 1)
    assert one.pipeline._call._channel._socket.recv(1 << 16)  # the reply is on its way, and gets lost
    redis.client_kill_filter(_type="normal", skipme=True)
    one.pipeline.fetch_and_wait()
    assert (one.state.failures, move.told) == (1, [])
    one.pipeline.probe(lambda: None)
    assert (move.told, one.fenced_units, one.in_flight.payloads()) == (["moved"], [], set())


@pytest.mark.proves("I1")
def test_job_that_its_script_leaves_is_settled_alone(bench, redis):
    one = bench(slots=9)
    units = taken(one, 3)
    redis.hset("aw:lock:1", mapping={"jid": "j1", "duplicates": 1})
    moves = [Move(FINISH_UNLESS_DUPLICATED, (WORKING,), (), ("", f"aw:lock:{at}", f"j{at}")) for at in range(3)]
    alone = []
    for unit, move in zip(units, moves, strict=True):
        move.settle_alone = partial(alone.append, move)
        assert one.in_flight.start(clock()) is unit
        unit.move = move
        one.in_flight.end(unit, settled=False)
    assert one.pipeline.fetch_and_wait()
    assert (alone, one.fenced_units, one.working()) == ([moves[1]], [], [b"1"])
    assert list(one.in_flight.left.values()) == [units[1]]
    one.in_flight.end_unmoved(units[1])
    assert one.in_flight.payloads() == set()


def test_moves_after_script_flush_send_the_source(bench, redis):
    one = bench(slots=9)
    taken(one, 2)
    redis.script_flush()
    ended_with_moves(one, Noting(), Noting())
    assert one.pipeline.fetch_and_wait()
    assert (redis.zcard("retry"), redis.script_exists(SCHEDULE.digest)) == (2, [True])


@pytest.mark.proves("F40", "I1")
def test_refused_moves_stay_in_flight_and_others_go_on(bench, redis):
    redis.set("retry", "no set")
    one = bench(slots=9)
    units = taken(one, 4)
    moves = [Noting(), Noting(), Noting("dead", KILL, (10, 1_000, 0), "")]
    ended_with_moves(one, *moves, None)
    assert one.pipeline.fetch_and_wait()
    assert [move.told for move in moves] == [["ResponseError"], ["ResponseError"], [0, "moved"]]
    assert set(one.working()) == one.in_flight.payloads() == {b"0", b"1"}
    assert (units[0].move, one.state.failures) == (None, 0)
    one.in_flight.end_unmoved(units[0])
    assert one.in_flight.payloads() == {b"1"}
    assert list(one.in_flight.left.values()) == [units[1]]
