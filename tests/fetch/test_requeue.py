"""Compare the own working list with memory: which jobs return, and which replies are only unread."""

import json

import pytest

from framework.fetch.requeue import Reconciler
from framework.fetch.state import FetchState
from framework.fetch.unit_of_work import UnitOfWork
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.harness import IDENTITY, encoded, hold, unwrapped

LIMITS = SetLimits(10_000, 86_400.0)


def queued(redis):
    """Return the jobs of the queue, the next to run first."""
    return [json.loads(data) for data in reversed(redis.lrange("queue:default", 0, -1))]


@pytest.fixture
def recovered():
    return []


@pytest.fixture
def state():
    """Return the state of a process whose leader has polled the blocking calls."""
    state = FetchState(4)
    state.polls_ended = 1
    yield state
    state.wake_up.close()


@pytest.fixture
def in_flight(state):
    return state.in_flight


@pytest.fixture
def reconciler(redis, granted, state, recovered):
    return Reconciler(granted, IDENTITY, state, recovered.append, LIMITS)


@pytest.mark.proves("R9", "I7")
def test_job_unknown_twice_is_returned(redis, in_flight, reconciler, recovered):
    known = hold(redis, encoded(jid="known"))
    in_flight.add([known])
    lost = hold(redis, encoded(jid="lost"))
    assert reconciler.reconcile() == 0  # its reply may be on the way
    assert reconciler.reconcile() == 1
    assert redis.lrange(keys.working(IDENTITY), 0, -1) == [known.data]
    assert redis.lrange("queue:default", 0, -1) == [lost.data]
    assert [reconciler.reconcile() for _ in range(3)] == [0, 0, 0]
    assert [(one.job.jid, one.destination, one.cause) for one in recovered] == [("lost", "queue:default", "lost reply")]


def test_job_of_a_lost_reply_gives_back_its_slot(redis, reconciler):
    """A job that has waited at a limit comes with a slot, of which this process does not know."""
    hold(redis, encoded("Job", jid="lost", concurrency_limit_buffered_at=1.5))
    redis.zadd(keys.limit("Job") + ":running", {f"{IDENTITY} lost": 9e9, f"{IDENTITY} other": 9e9})
    assert reconciler.reconcile_idle() == 1
    assert redis.zrange(keys.limit("Job") + ":running", 0, -1) == [f"{IDENTITY} other".encode()]


@pytest.mark.proves("I7")
def test_reply_between_two_comparisons_is_no_loss(redis, in_flight, reconciler):
    late = hold(redis, encoded())
    reconciler.reconcile()
    in_flight.add([late])
    assert reconciler.reconcile() == 0
    in_flight.end(in_flight.start(0.0), settled=False)  # its acknowledgement is under way
    assert [reconciler.reconcile() for _ in range(2)] == [0, 0]
    assert redis.llen(keys.working(IDENTITY)) == 1


@pytest.mark.proves("I12")
def test_unread_reply_is_no_loss(redis, state, reconciler):
    """Two comparisons come close together, or right after a freeze, before the reply is read."""
    unread = hold(redis, encoded())
    state.fetches_sent += 1
    state.polls_started += 1
    assert [reconciler.reconcile() for _ in range(3)] == [0, 0, 0]
    assert redis.lrange(keys.working(IDENTITY), 0, -1) == [unread.data]
    state.fetches_read += 1
    assert [reconciler.reconcile(), reconciler.reconcile()] == [0, 0]  # the blocking calls have not been polled
    state.polls_ended += 1
    assert reconciler.reconcile() == 1  # and it is still unknown


def test_job_fetched_again_is_a_new_candidate(redis, in_flight, reconciler):
    late = hold(redis, encoded())
    reconciler.reconcile()
    in_flight.add([late])
    redis.delete(keys.working(IDENTITY))
    in_flight.remove(in_flight.take_buffer())  # it could not be started and has gone back
    hold(redis, late.data)  # a blocking call moves it at once; its reply is under way
    assert [reconciler.reconcile(), reconciler.reconcile()] == [0, 1]
    hold(redis, late.data)  # and again
    assert [reconciler.reconcile(), reconciler.reconcile()] == [0, 1]
    hold(redis, late.data)
    reconciler.reconcile()
    reconciler.reconcile_idle()
    hold(redis, late.data)
    assert [reconciler.reconcile(), reconciler.reconcile()] == [0, 1]


def test_lost_batch_keeps_its_order(redis, reconciler):
    redis.lpush("queue:default", encoded(jid="waiting"))
    for number in range(5):
        hold(redis, encoded(jid=str(number)))
    reconciler.reconcile()
    assert reconciler.reconcile() == 5
    assert [job["jid"] for job in queued(redis)] == ["0", "1", "2", "3", "4", "waiting"]


def test_reconcile_idle_needs_one_comparison(redis, in_flight, reconciler, recovered):
    redis.lpush("queue:default", encoded(jid="waiting"))
    in_flight.add([hold(redis, encoded(jid="known"))])
    for number in range(3):
        hold(redis, encoded(jid=str(number)))
    assert reconciler.reconcile_idle() == 3
    assert [job["jid"] for job in queued(redis)] == ["0", "1", "2", "waiting"]
    assert redis.llen(keys.working(IDENTITY)) == 1
    assert {one.cause for one in recovered} == {"lost reply"}


@pytest.mark.proves("F38")
@pytest.mark.parametrize("data", [b"\x00\xff not json", b'{"class":"A","args":[],"jid":"no queue"}'])
def test_lost_job_without_queue_goes_to_the_dead_set(redis, reconciler, recovered, data):
    hold(redis, data)
    redis.zadd(keys.DEAD, {"too old": 1})
    assert [reconciler.reconcile() for _ in range(3)] == [0, 1, 0]
    assert redis.llen(keys.working(IDENTITY)) == 0
    (stored,) = redis.zrange(keys.DEAD, 0, -1)
    assert unwrapped(stored) == data
    assert [one.trimmed for one in recovered] == [1]


def test_units_with_equal_bytes_are_distinct():
    assert UnitOfWork("q", b"x") != UnitOfWork("q", b"x")
