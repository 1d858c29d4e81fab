"""One clock for all code of the process, which a test may replace."""

import time

from framework.process_clock import ProcessClock, process_clock


def test_process_clock_is_the_hosts_without_an_override():
    assert ProcessClock().now is time.time


def test_process_clock_follows_the_innermost_open_block():
    clock = ProcessClock()
    outer, inner = clock.override(lambda: 1.0), clock.override(lambda: 2.0)
    outer.__enter__()
    inner.__enter__()
    assert clock.now() == 2.0
    # A block may end before one that it contains, as generators of fixtures do.
    outer.__exit__(None, None, None)
    assert clock.now() == 2.0
    inner.__exit__(None, None, None)
    assert clock.now is time.time


def test_process_clock_monotonic_of_block_leaves_now_to_outer():
    clock = ProcessClock()
    with clock.override(lambda: 1.0, lambda at: at + 7), clock.override(monotonic=lambda: 5.0):
        assert (clock.now(), clock.to_server(1.0), clock.monotonic()) == (1.0, 8.0, 5.0)
        with clock.override(lambda: 2.0):
            assert (clock.now(), clock.to_server(2.0), clock.monotonic()) == (2.0, 2.0, 5.0)
    assert clock.monotonic is time.monotonic


def test_set_clock_moves_when_the_test_advances_it(set_clock):
    before, began = process_clock.now(), process_clock.monotonic()
    assert process_clock.now() == before
    set_clock.advance(5)
    assert (process_clock.now(), process_clock.monotonic()) == (before + 5, began + 5)
