import select
import threading
from collections import deque
from itertools import count

import pytest

from framework.fetch.pipeline import ACK_BATCH
from framework.fetch.state import FetchState, InFlight
from framework.fetch.unit_of_work import UnitOfWork
from framework.recover.suspects import MAX_UNACKNOWLEDGED
from tests.harness import between_steps


def units(*names):
    return [UnitOfWork("q", name) for name in names]


def test_unit_is_in_flight_until_its_end_is_confirmed():
    in_flight = InFlight(2)
    first, second, equal_unit = units(b"1", b"2", b"1")
    in_flight.add([first, second, equal_unit])
    assert (in_flight.free_capacity, in_flight.running(), in_flight.payloads()) == (2, [], {b"1", b"2"})
    assert [in_flight.start(1.0), in_flight.start(2.0), in_flight.start(3.0)] == [first, second, None]
    assert (in_flight.free_capacity, in_flight.running(), in_flight.buffered()) == (0, [first, second], [equal_unit])
    assert {first.run_index, second.run_index} == {0, 1}
    assert in_flight.last_started_at == 2.0
    in_flight.end(first, settled=False)
    assert in_flight.start(4.0) is equal_unit
    assert equal_unit.run_index == first.run_index
    in_flight.end(second, settled=True)  # it has left the working list: forgotten at once
    in_flight.end(equal_unit, settled=False)
    assert in_flight.payloads() == {b"1"}
    assert in_flight.take_done(10) == [first, equal_unit]
    assert in_flight.payloads() == {b"1"}
    assert in_flight.confirm() == [first, equal_unit]
    assert (in_flight.free_capacity, in_flight.running(), in_flight.payloads()) == (2, [], set())


def test_unit_put_back_is_the_oldest_again():
    in_flight = InFlight(1)
    first, second = units(b"1", b"2")
    in_flight.add([first, second])
    in_flight.put_back(in_flight.start(0.0))
    assert (list(in_flight.buffer), in_flight.running(), in_flight.free_capacity) == ([first, second], [], 1)
    assert in_flight.start(0.0) is first


def test_unsent_acknowledgements_are_sent_again_in_order():
    in_flight = InFlight(4)
    all_units = units(b"1", b"2", b"3", b"4")
    in_flight.add(all_units)
    for unit in [in_flight.start(0.0) for _ in all_units]:
        in_flight.end(unit, settled=False)
    assert in_flight.take_done(3) == all_units[:3]
    in_flight.mark_unsent()
    assert in_flight.payloads() == {b"1", b"2", b"3", b"4"}
    assert in_flight.take_done(10) == all_units


def test_no_job_starts_while_acknowledgements_are_full():
    in_flight = InFlight(1)
    in_flight.add(units(*(b"%d" % number for number in range(MAX_UNACKNOWLEDGED + 1))))
    for _ in range(MAX_UNACKNOWLEDGED):
        in_flight.end(in_flight.start(0.0), settled=False)
    assert in_flight.acknowledgements_full
    assert not in_flight.startable
    assert in_flight.start(0.0) is None
    in_flight.take_done(MAX_UNACKNOWLEDGED // 2)  # sent is not confirmed
    assert in_flight.start(0.0) is None
    in_flight.confirm()
    assert in_flight.startable
    assert in_flight.start(0.0) is not None
    # Ended jobs that wait for their events count too. Those that are most of the 32 say so.
    in_flight = InFlight(1)
    in_flight.add(units(*(b"%d" % number for number in range(2 * MAX_UNACKNOWLEDGED))))
    left = []
    for number in range(MAX_UNACKNOWLEDGED):
        left.append(in_flight.start(5.0))
        assert in_flight.leave(left[-1]) == (number == MAX_UNACKNOWLEDGED - 1)
    assert (in_flight.startable, in_flight.start(6.0), in_flight.last_started_at) == (False, None, 0.0)
    for unit in left[: MAX_UNACKNOWLEDGED // 2 + 2]:
        in_flight.end_left(unit)
    assert not in_flight.startable
    in_flight.take_done(1)
    in_flight.confirm()
    assert not in_flight.leave(in_flight.start(7.0))
    assert MAX_UNACKNOWLEDGED == 32  # the contract: a kill repeats no more than these beyond the running ones


def test_taken_buffer_stays_in_flight_until_removed():
    in_flight = InFlight(1)
    first, second = units(b"1", b"2")
    in_flight.add([first, second])
    assert in_flight.take_buffer() == [first, second]
    assert in_flight.start(0.0) is None
    assert in_flight.free_capacity == 1
    assert in_flight.payloads() == {b"1", b"2"}
    in_flight.remove([first, second])
    in_flight.remove([second])
    assert in_flight.payloads() == set()


class FailingDeque(deque):
    """A deque whose second ``popleft`` raises."""

    def popleft(self):
        if len(self) == 2:
            raise RuntimeError("a bug")
        return super().popleft()


@pytest.mark.proves("R4")
def test_taken_buffer_is_put_back_after_an_error():
    in_flight = InFlight(1)
    three = units(b"1", b"2", b"3")
    in_flight.buffer = FailingDeque(three)
    with pytest.raises(RuntimeError, match="a bug"):
        in_flight.take_buffer()
    assert list(in_flight.buffer) == three


@pytest.mark.proves("I16")
def test_take_done_loses_no_unit_while_threads_end_jobs(tiny_switches):
    jobs, threads = 48_000, 3
    in_flight = InFlight(jobs)
    in_flight.add(units(*(b"%d" % number for number in range(jobs))))
    started = []
    for _ in range(jobs // MAX_UNACKNOWLEDGED):
        started += [in_flight.start(0.0) for _ in range(MAX_UNACKNOWLEDGED)]

    def work(part):
        for unit in part:
            in_flight.end(unit, settled=False)

    workers = [threading.Thread(target=work, args=(started[index::threads],), daemon=True) for index in range(threads)]
    for worker in workers:
        worker.start()
    confirmed, rounds = [], 0
    while len(confirmed) < len(started):
        rounds += 1
        in_flight.take_done(ACK_BATCH)
        if rounds % 5 == 0:  # the reply was lost
            in_flight.mark_unsent()
        else:
            confirmed += in_flight.confirm()
    for worker in workers:
        worker.join()
    assert sorted(int(unit.data) for unit in confirmed) == list(range(jobs))
    assert (in_flight.payloads(), in_flight.free_capacity) == (set(), jobs)


@pytest.mark.proves("I16")
def test_in_flight_steps_lose_no_unit_that_ends_between():
    """A thread ends a job between any two interpreter steps of ``take_done``."""
    in_flight = InFlight(1_000)
    in_flight.add(units(*(b"%d" % number for number in range(1_000))))
    started = [in_flight.start(0.0) for _ in range(1_000)]
    left = list(started)
    confirmed = []

    def end_one():
        if left:
            in_flight.end(left.pop(), settled=False)

    while left or in_flight.done:
        end_one()
        between_steps(lambda: in_flight.take_done(ACK_BATCH), end_one)
        between_steps(in_flight.mark_unsent, end_one)
        between_steps(in_flight.unfinished, end_one)
        between_steps(in_flight.payloads, end_one)
        between_steps(lambda: in_flight.take_done(ACK_BATCH), end_one)
        confirmed += between_steps(in_flight.confirm, end_one)
    assert sorted(unit.data for unit in confirmed) == sorted(unit.data for unit in started)
    assert (in_flight.payloads(), in_flight.free_capacity) == (set(), 1_000)


@pytest.mark.proves("I16")
def test_acknowledgements_stay_full_between_two_steps():
    """A reader sees every unconfirmed end while acknowledgements are taken and marked unsent."""
    in_flight = InFlight(1)
    in_flight.add(units(*(b"%d" % number for number in range(MAX_UNACKNOWLEDGED + 1))))
    for _ in range(MAX_UNACKNOWLEDGED):
        in_flight.end(in_flight.start(0.0), settled=False)
    seen = []
    between_steps(lambda: in_flight.take_done(ACK_BATCH), lambda: seen.append(in_flight.acknowledgements_full))
    between_steps(in_flight.mark_unsent, lambda: seen.append(in_flight.acknowledgements_full))
    for index in range(40):  # more steps than a look has
        in_flight.take_done(ACK_BATCH)
        steps = count()
        between_steps(
            lambda: seen.append(in_flight.acknowledgements_full),
            lambda steps=steps, index=index: next(steps) == index and in_flight.mark_unsent(),
        )
        in_flight.mark_unsent()
    assert len(seen) > 50
    assert all(seen)


# --- units that are admitted together ---------------------------------------------------------------------------------


@pytest.fixture
def in_flight():
    made = InFlight(3)
    made.add(units(*(b"%d" % number for number in range(60))))
    return made


def test_units_that_are_taken_count_as_started_at_a_death(in_flight):
    """Decision 30: of a dead process the oldest jobs may have run, its concurrency and ``MAX_UNACKNOWLEDGED`` more."""
    for _ in range(20):
        in_flight.end(in_flight.start(0.0), settled=False)
    in_flight.start(0.0)
    taken = in_flight.take_next(100)
    assert [unit.data for unit in taken] == [b"%d" % number for number in range(21, 3 + MAX_UNACKNOWLEDGED)]
    in_flight.put_back_taken(taken)
    assert len(in_flight.take_next(5)) == 5


def test_no_unit_starts_before_those_being_admitted(in_flight):
    first = in_flight.start(0.0)
    taken = in_flight.take_next(0)
    assert [unit.data for unit in taken] == [b"1", b"2"]
    assert (in_flight.start(0.0), in_flight.startable, in_flight.free_capacity) == (None, False, 2)
    in_flight.end(first, settled=True)
    assert in_flight.take_next(0) == []  # another thread admits
    in_flight.put_back_taken([])
    assert in_flight.start(0.0) is None
    in_flight.put_back_taken(taken)
    assert in_flight.start(0.0) is taken[0]


def test_units_started_and_taken_at_once_are_the_oldest():
    """A thread takes units between any two steps of ``start``."""
    for index in count():
        in_flight, taken, steps = InFlight(2), [], count()
        all_units = units(*(b"%d" % number for number in range(9)))
        in_flight.add(all_units)

        def take(in_flight=in_flight, taken=taken, steps=steps, index=index):
            if next(steps) == index:
                taken += in_flight.take_next(0)

        between_steps(lambda in_flight=in_flight: in_flight.start(0.0), take)
        if next(steps) <= index:
            break
        started = in_flight.running()
        assert set(started + taken) <= set(all_units[:2])
        in_flight.put_back_taken(taken)
        assert len(in_flight.buffered()) == 9 - len(started)
        assert in_flight.free_capacity == 2 - len(started)
    assert index > 20


def test_returns_noted_while_a_comparison_ends_are_safe():
    """A comparison ends and another begins between any two steps of ``note_returned``."""
    in_flight = InFlight(1)

    def swap(noted):
        if not in_flight._returned_lock.locked():
            in_flight.swap_returned(noted)

    for number in range(20):
        in_flight.swap_returned(set())
        between_steps(lambda: in_flight.note_returned([b"1"]), lambda: swap(None))
        between_steps(lambda: in_flight.note_returned([b"1"]), lambda: swap(set()))
        in_flight.swap_returned(set())
        in_flight.note_returned([b"%d" % number])
        assert in_flight.swap_returned(None) == {b"%d" % number}


# --- the other state of fetching --------------------------------------------------------------------------------------


@pytest.fixture
def state():
    state = FetchState(1)
    yield state
    state.wake_up.close()


def woken(state):
    """Return whether the leader was woken since the last look."""
    ready, _, _ = select.select([state.wake_up], [], [], 0)
    state.wake_up.drain()
    return bool(ready)


@pytest.mark.parametrize("transition", ["close", "stop", "note_failure", "suspend", "snapshot_replies"])
def test_transition_that_concerns_the_leader_wakes_it(state, transition):
    getattr(state, transition)()
    assert woken(state)
    assert not woken(state)


def test_job_is_ready_unless_the_lease_may_be_lost(state):
    assert not state.ready
    state.in_flight.add(units(b"1"))
    assert state.ready
    assert [state.suspend(), state.suspend()] == [True, False]
    assert not state.ready
    state.note_lease(held=False)
    assert not state.ready
    state.note_lease(held=True)
    assert state.ready


def test_calls_under_way_are_read_after_both_kinds_have_ended(state):
    state.fetch_begins()
    state.poll_begins()
    taken = state.snapshot_replies()
    state.fetch_ended()
    state.poll_ended()
    assert not state.all_read_since(taken)  # the poll had begun before
    assert state.poll_requested
    state.poll_begins()
    assert not state.poll_requested
    state.fetch_begins()
    assert not state.all_read_since(taken)
    state.poll_ended()
    assert state.all_read_since(taken)  # the second fetch is younger


def test_recovery_allows_calls_and_expects_jobs(state):
    state.note_queues(empty=True, unready=["bad"])
    state.note_failure()
    state.note_failure()
    assert (state.failures, state.queues_empty, state.unready_queues) == (2, True, {"bad"})
    state.recover()
    assert (state.failures, state.queues_empty) == (0, False)


def test_forked_child_stops_without_waking_the_parent(state):
    state.stop_in_forked_child()
    assert state.stopped
    assert not woken(state)


def test_freed_slot_is_noted_until_the_next_fetch_begins(state):
    state.note_queues(empty=True, unready=[])
    state.note_slot_freed()
    assert (state.slot_freed, state.queues_empty) == (True, False)
    state.fetch_begins()
    assert not state.slot_freed
