"""Sidekiq's retry delay: count**4 + 15 seconds, spread by a jitter that grows with the count. Pure."""

from collections.abc import Callable

JITTER_S = 10
_MAX_COUNT = 900
"""Twenty thousand years; a payload may hold any number, and its fourth power must stay one."""


def retry_delay_s(count: int, draw: Callable[[], float]) -> float:
    """Return seconds until the next attempt after failure number ``count`` (0 = the first), in
    [count**4 + 15, count**4 + 15 + 10 * (count + 1)); ``draw`` gives a number in [0, 1). Sidekiq 8's formula.
    """
    return float(_bounded(count) ** 4 + 15) + jitter_s(count, draw)


def jitter_s(count: int, draw: Callable[[], float]) -> float:
    """Return the jitter alone, for delays that a class chooses."""
    return float(int(draw() * JITTER_S * (_bounded(count) + 1)))


def _bounded(count: int) -> int:
    return min(max(count, 0), _MAX_COUNT)
