import threading
from itertools import count

import pytest

from framework.fetch.in_flight import MAX_UNACKNOWLEDGED, InFlight
from framework.fetch.pipeline import ACK_BATCH
from framework.fetch.unit_of_work import UnitOfWork
from tests.harness import between_steps


def units(*names):
    return [UnitOfWork("q", name) for name in names]


def test_a_unit_occupies_a_slot_until_it_ends_and_is_known_until_its_end_is_confirmed():
    custody = InFlight(2)
    first, second, twin = units(b"1", b"2", b"1")
    custody.add([first, second, twin])
    assert (custody.free_capacity, custody.running(), custody.payloads()) == (2, [], {b"1", b"2"})
    assert [custody.start(1.0), custody.start(2.0), custody.start(3.0)] == [first, second, None]
    assert (custody.free_capacity, custody.running(), custody.buffered()) == (0, [first, second], [twin])
    assert {first.run_index, second.run_index} == {0, 1}
    assert custody.last_started_at == 2.0
    custody.end(first, settled=False)
    assert custody.start(4.0) is twin
    assert twin.run_index == first.run_index
    custody.end(second, settled=True)  # it has left the working list: forgotten at once
    custody.end(twin, settled=False)
    assert custody.payloads() == {b"1"}
    assert custody.take_done(10) == [first, twin]
    assert custody.payloads() == {b"1"}
    assert custody.confirm() == [first, twin]
    assert (custody.free_capacity, custody.running(), custody.payloads()) == (2, [], set())


def test_a_unit_that_was_not_to_start_is_the_oldest_again():
    custody = InFlight(1)
    first, second = units(b"1", b"2")
    custody.add([first, second])
    custody.put_back(custody.start(0.0))
    assert (list(custody.buffer), custody.running(), custody.free_capacity) == ([first, second], [], 1)
    assert custody.start(0.0) is first


def test_ends_that_may_not_have_arrived_are_sent_again_first_and_in_order():
    custody = InFlight(4)
    all_ = units(b"1", b"2", b"3", b"4")
    custody.add(all_)
    for unit in [custody.start(0.0) for _ in all_]:
        custody.end(unit, settled=False)
    assert custody.take_done(3) == all_[:3]
    custody.mark_unsent()
    assert custody.payloads() == {b"1", b"2", b"3", b"4"}
    assert custody.take_done(10) == all_


def test_no_job_starts_while_too_many_ends_are_unconfirmed():
    custody = InFlight(1)
    custody.add(units(*(b"%d" % number for number in range(MAX_UNACKNOWLEDGED + 1))))
    for _ in range(MAX_UNACKNOWLEDGED):
        custody.end(custody.start(0.0), settled=False)
    assert custody.acknowledgements_full
    assert not custody.startable
    assert custody.start(0.0) is None
    custody.take_done(MAX_UNACKNOWLEDGED // 2)  # sent is not confirmed
    assert custody.start(0.0) is None
    custody.confirm()
    assert custody.startable
    assert custody.start(0.0) is not None
    assert MAX_UNACKNOWLEDGED == 32  # the contract: a kill repeats no more than these beyond the running ones


def test_what_is_given_back_is_held_until_it_has_left():
    custody = InFlight(1)
    first, second = units(b"1", b"2")
    custody.add([first, second])
    assert custody.take_buffer() == [first, second]
    assert custody.start(0.0) is None
    assert custody.free_capacity == 1
    assert custody.payloads() == {b"1", b"2"}
    custody.remove([first, second])
    custody.remove([second])
    assert custody.payloads() == set()


@pytest.mark.proves("I16")
def test_custody_taken_while_threads_end_jobs_loses_none(tiny_switches):
    jobs, threads = 48_000, 3
    custody = InFlight(jobs)
    custody.add(units(*(b"%d" % number for number in range(jobs))))
    started = []
    for _ in range(jobs // MAX_UNACKNOWLEDGED):
        started += [custody.start(0.0) for _ in range(MAX_UNACKNOWLEDGED)]

    def work(part):
        for unit in part:
            custody.end(unit, settled=False)

    workers = [threading.Thread(target=work, args=(started[index::threads],), daemon=True) for index in range(threads)]
    for worker in workers:
        worker.start()
    confirmed, rounds = [], 0
    while len(confirmed) < len(started):
        rounds += 1
        custody.take_done(ACK_BATCH)
        if rounds % 5 == 0:  # the reply was lost
            custody.mark_unsent()
        else:
            confirmed += custody.confirm()
    for worker in workers:
        worker.join()
    assert sorted(int(unit.data) for unit in confirmed) == list(range(jobs))
    assert (custody.payloads(), custody.free_capacity) == (set(), jobs)


@pytest.mark.proves("I16")
def test_custody_steps_with_ends_between_them_lose_none():
    """Another thread ends a job between any two steps of the interpreter while acknowledgements are taken."""
    custody = InFlight(4_000)
    custody.add(units(*(b"%d" % number for number in range(4_000))))
    started = [custody.start(0.0) for _ in range(4_000)]
    left = list(started)
    confirmed = []

    def end_one():
        if left:
            custody.end(left.pop(), settled=False)

    while left or custody.done:
        end_one()
        between_steps(lambda: custody.take_done(ACK_BATCH), end_one)
        between_steps(custody.mark_unsent, end_one)
        between_steps(custody.unfinished, end_one)
        between_steps(custody.payloads, end_one)
        between_steps(lambda: custody.take_done(ACK_BATCH), end_one)
        confirmed += between_steps(custody.confirm, end_one)
    assert sorted(unit.data for unit in confirmed) == sorted(unit.data for unit in started)
    assert (custody.payloads(), custody.free_capacity) == (set(), 4_000)


@pytest.mark.proves("I16")
def test_full_stays_true_between_any_two_steps():
    """Who asks while acknowledgements are taken and given up hears of every one that is unconfirmed."""
    custody = InFlight(1)
    custody.add(units(*(b"%d" % number for number in range(MAX_UNACKNOWLEDGED + 1))))
    for _ in range(MAX_UNACKNOWLEDGED):
        custody.end(custody.start(0.0), settled=False)
    seen = []
    between_steps(lambda: custody.take_done(ACK_BATCH), lambda: seen.append(custody.acknowledgements_full))
    between_steps(custody.mark_unsent, lambda: seen.append(custody.acknowledgements_full))
    for index in range(40):  # more steps than a look has
        custody.take_done(ACK_BATCH)
        steps = count()
        between_steps(
            lambda: seen.append(custody.acknowledgements_full),
            lambda steps=steps, index=index: next(steps) == index and custody.mark_unsent(),
        )
        custody.mark_unsent()
    assert len(seen) > 50
    assert all(seen)


def test_returns_noted_while_a_look_ends_raise_nothing():
    """A look ends, and begins, between any two steps of noting what is given back."""
    custody = InFlight(1)

    def swap(noted):
        if not custody._returned_lock.locked():
            custody.swap_returned(noted)

    for number in range(20):
        custody.swap_returned(set())
        between_steps(lambda: custody.note_returned([b"1"]), lambda: swap(None))
        between_steps(lambda: custody.note_returned([b"1"]), lambda: swap(set()))
        custody.swap_returned(set())
        custody.note_returned([b"%d" % number])
        assert custody.swap_returned(None) == {b"%d" % number}
