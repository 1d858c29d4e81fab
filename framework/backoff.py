"""Compute exponential back-off. Callers keep their own first and longest wait."""

import random

_MAX_DOUBLINGS = 16
"""A factor of 65,536. Without an end to the exponent the power becomes an OverflowError after a thousand failures."""


def backoff_s(failures: int, first_s: float, longest_s: float, *, jitter: float = 0.0) -> float:
    """Return the wait after this number of failures in a row: ``first_s``, and twice as long after each further failure.

    ``jitter`` is the largest share of the wait that is taken off at random, so that processes do not try again in step; the
    wait never exceeds ``longest_s``.
    """
    wait_s: float = min(longest_s, first_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    return wait_s * (1.0 - jitter * random.random()) if jitter else wait_s
