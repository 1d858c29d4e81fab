"""Sidekiq's retry delay: count**4 + 15 seconds, spread by a jitter that grows with the count. Pure."""

from collections.abc import Callable

JITTER_S = 10


def retry_delay_s(count: int, draw: Callable[[], float]) -> float:
    """Return seconds until the next attempt after failure number ``count`` (0 = the first), in
    [count**4 + 15, count**4 + 15 + 10 * (count + 1)); ``draw`` gives a number in [0, 1). Sidekiq 8's formula.
    """
    return float(count**4 + 15 + int(draw() * JITTER_S * (count + 1)))


def jitter_s(count: int, draw: Callable[[], float]) -> float:
    """Return the jitter alone, for delays that a class chooses."""
    return float(int(draw() * JITTER_S * (count + 1)))
