"""Compute Sidekiq's retry delay: count**4 + 15 seconds, with a jitter that grows with the count. Pure."""

from collections.abc import Callable

JITTER_S = 10
_MAX_COUNT = 900
"""A delay of twenty thousand years. A payload may hold any number, and its fourth power must stay a float."""


def retry_delay_s(count: int, draw: Callable[[], float]) -> float:
    """Return the seconds until the next attempt after failure number ``count`` (0 = the first). Sidekiq 8's formula.

    The result is in [count**4 + 15, count**4 + 15 + 10 * (count + 1)); ``draw`` returns a number in [0, 1).
    """
    return float(_bounded(count) ** 4 + 15) + jitter_s(count, draw)


def jitter_s(count: int, draw: Callable[[], float]) -> float:
    """Return the jitter alone, for a delay that a class chooses."""
    return float(int(draw() * JITTER_S * (_bounded(count) + 1)))


def _bounded(count: int) -> int:
    return min(max(count, 0), _MAX_COUNT)
