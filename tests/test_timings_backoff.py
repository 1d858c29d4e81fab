"""Test the exponential backoff."""

import pytest

from framework.timings import backoff_s


def test_backoff_s_doubles_up_to_the_longest_wait():
    assert [backoff_s(failures, 0.05, 2.0) for failures in range(1, 8)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0]


@pytest.mark.proves("R10")
def test_backoff_s_with_jitter_is_randomized():
    found = {backoff_s(3, 0.1, 2.0, jitter=0.5) for _ in range(200)}
    assert len(found) > 1
    assert all(0.2 <= wait_s <= 0.4 for wait_s in found)


def test_backoff_s_of_a_million_failures_is_finite():
    assert backoff_s(10**6, 0.5, 30.0) == 30.0


def test_backoff_s_of_tolerated_failures_is_shorter():
    assert backoff_s(-1, 0.5, 30.0) == 0.125
