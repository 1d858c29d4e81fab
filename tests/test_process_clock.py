"""One clock for all code of the process, which a test may replace."""

import time

from framework.process_clock import ProcessClock


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
