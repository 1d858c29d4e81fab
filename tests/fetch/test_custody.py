from framework.fetch.custody import Custody
from framework.fetch.unit_of_work import UnitOfWork


def test_a_unit_occupies_a_slot_until_it_ends_and_is_known_until_acknowledged():
    custody = Custody()
    first, second, twin = UnitOfWork("q", b"1"), UnitOfWork("q", b"2"), UnitOfWork("q", b"1")
    for unit in (first, second, twin):
        custody.take(unit)
    assert (custody.held, custody.running()) == (3, [first, second, twin])
    custody.finish(first, settled=False)
    assert (custody.held, custody.running(), custody.known()) == (2, [second, twin], {b"1", b"2"})
    custody.finish(second, settled=True)
    assert (custody.held, custody.known()) == (1, {b"1"})
    custody.finish(twin, settled=False)
    custody.release([first])
    assert custody.known() == {b"1"}
    custody.release([twin, first])
    assert (custody.held, custody.running(), custody.known()) == (0, [], set())
