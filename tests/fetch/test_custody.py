from framework.fetch.custody import UNACKNOWLEDGED, Custody
from framework.fetch.unit_of_work import UnitOfWork


def units(*names):
    return [UnitOfWork("q", name) for name in names]


def test_a_unit_occupies_a_slot_until_it_ends_and_is_known_until_its_end_is_confirmed():
    custody = Custody(2)
    first, second, twin = units(b"1", b"2", b"1")
    custody.add([first, second, twin])
    assert (custody.free, custody.running(), custody.known()) == (2, [], {b"1", b"2"})
    assert [custody.start(1.0), custody.start(2.0), custody.start(3.0)] == [first, second, None]
    assert (custody.free, custody.running(), custody.unfinished()) == (0, [first, second], [first, second, twin])
    assert {first.slot, second.slot} == {0, 1}
    assert custody.last_start == 2.0
    custody.end(first, settled=False)
    assert custody.start(4.0) is twin
    assert twin.slot == first.slot
    custody.end(second, settled=True)  # it has left the working list: forgotten at once
    custody.end(twin, settled=False)
    assert custody.known() == {b"1"}
    assert custody.take_done(10) == [first, twin]
    assert custody.known() == {b"1"}
    assert custody.confirm() == [first, twin]
    assert (custody.free, custody.running(), custody.known()) == (2, [], set())


def test_a_unit_that_was_not_to_start_is_the_oldest_again():
    custody = Custody(1)
    first, second = units(b"1", b"2")
    custody.add([first, second])
    custody.unstart(custody.start(0.0))
    assert (list(custody.buffer), custody.running(), custody.free) == ([first, second], [], 1)
    assert custody.start(0.0) is first


def test_ends_that_may_not_have_arrived_are_sent_again_first_and_in_order():
    custody = Custody(4)
    all_ = units(b"1", b"2", b"3", b"4")
    custody.add(all_)
    for unit in [custody.start(0.0) for _ in all_]:
        custody.end(unit, settled=False)
    assert custody.take_done(3) == all_[:3]
    custody.unsend()
    assert custody.known() == {b"1", b"2", b"3", b"4"}
    assert custody.take_done(10) == all_


def test_no_job_starts_while_too_many_ends_are_unconfirmed():
    custody = Custody(1)
    custody.add(units(*(b"%d" % number for number in range(UNACKNOWLEDGED + 1))))
    for _ in range(UNACKNOWLEDGED):
        custody.end(custody.start(0.0), settled=False)
    assert custody.full
    assert not custody.startable
    assert custody.start(0.0) is None
    custody.take_done(UNACKNOWLEDGED // 2)  # sent is not confirmed
    assert custody.start(0.0) is None
    custody.confirm()
    assert custody.startable
    assert custody.start(0.0) is not None
    assert UNACKNOWLEDGED == 32  # the contract: a kill repeats no more than these beyond the running ones


def test_what_is_given_back_is_held_until_it_has_left():
    custody = Custody(1)
    first, second = units(b"1", b"2")
    custody.add([first, second])
    assert custody.take_buffer() == [first, second]
    assert custody.start(0.0) is None
    assert custody.free == 1
    assert custody.known() == {b"1", b"2"}
    custody.drop([first, second])
    custody.drop([second])
    assert custody.known() == set()
