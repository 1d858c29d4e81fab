"""Test the rates of the live view: of a shard, of queues, and where they are not known."""

import pytest

from framework.admin.rates import QueueRates, RateWindow, ShardRates
from tests.cli.top.facts_of_a_shop import NOW, facts, process, queue


def test_first_reading_has_no_rates():
    assert RateWindow().add(facts(queue("mail", 5))) == ShardRates()


def test_ending_is_counted_by_processes_and_arriving_by_growth():
    window = RateWindow()
    for second, size in ((0, 10), (5, 30), (10, 60)):
        runs = {"mail": second * 20, "other": 1}
        writer = process(runs=runs, beat=NOW + second)
        rates = window.add(facts(queue("mail", size), processes=[writer], read_at=second, processed=second * 20))
    assert rates.queues == {"mail": QueueRates(25.0, 20.0)}
    assert (rates.processed, rates.failed) == (20.0, 2.0)


def test_record_that_is_written_rarely_gives_the_same_rate():
    window = RateWindow()
    for second, beat, runs in ((0, 0, 0), (2, 0, 0), (4, 0, 0), (6, 5, 100), (8, 5, 100)):
        writer = process(runs={"mail": runs}, beat=NOW + beat)
        rates = window.add(facts(queue("mail"), processes=[writer], read_at=second))
    assert rates.queues["mail"] == QueueRates(20.0, 20.0)


def test_old_readings_leave_the_window():
    window = RateWindow()
    for second in range(0, 60, 5):
        # A hundred a second for half a minute, then none.
        processed = 100 * min(second, 30)
        rates = window.add(facts(queue("mail"), processes=[process(runs={})], read_at=second, processed=processed))
    assert rates.processed == 0.0


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([process(runs=None)], QueueRates(None, None)),
        ([process(runs=None, queues=("other",))], QueueRates(0.0, 0.0)),
        ([], QueueRates(0.0, 0.0)),
    ],
)
def test_queue_of_a_process_that_does_not_count_has_no_rates(processes, expected):
    window = RateWindow()
    window.add(facts(queue("mail", 9), processes=processes))
    assert window.add(facts(queue("mail", 9), processes=processes, read_at=2)).queues["mail"] == expected


def test_new_queue_and_reset_counter_are_no_negative_rate():
    window = RateWindow()
    window.add(facts(processed=100))
    rates = window.add(facts(queue("mail", 4), processed=7, read_at=2))
    assert (rates.processed, rates.queues["mail"]) == (0.0, QueueRates(None, 0.0))
