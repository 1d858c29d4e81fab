"""Limit the rate or the number of calls, over all processes: rate limiters, as Sidekiq Enterprise has them.

    from framework import limiter

    PARTNER = limiter.window("partner_api", 100, "minute")

    class SyncOrderWorker(ApplicationWorker):
        def perform(self, order_id: int) -> None:
            with PARTNER.within():
                ...

A block that is not admitted waits for ``wait_timeout``, then raises ``OverLimit``. A job that this error ends is scheduled again,
which is no failure. ``async with PARTNER.awithin()`` is the same for async code, ``@PARTNER.within()`` for a function, the attribute
``limiter = PARTNER`` for every job of a class.

Make a limiter once, at the top of a module: this sends nothing. All functions but ``unlimited`` take these options:

- ``wait_timeout``: how long a block waits to be admitted, a timedelta or seconds; 5 s by default, 0 for no wait
- ``policy``: what a job does that ``OverLimit`` ends: ``reschedule`` (it runs again later), ``raise`` (it fails) or ``skip`` (it is
  dropped)
- ``reschedules``: how often such a job is scheduled again before it fails
- ``backoff``: a function of the number of reschedules so far that returns the delay, a timedelta or seconds
- ``shard``: the shard that holds the state, for all processes; by default that with the role ``meta``, else ``main``
- ``without_shard``: what a block does while that shard does not answer: ``raise`` ShardUnavailableError (the default), or ``proceed``
  without being counted
"""

from framework.errors import OverLimit
from framework.features.limiters.kinds import bucket, concurrent, leaky, points, unlimited, window
from framework.features.limiters.limiter import CallLimiter, Limiter, Permit, PointsLimiter, PointsPermit

__all__ = [
    "CallLimiter",
    "Limiter",
    "OverLimit",
    "Permit",
    "PointsLimiter",
    "PointsPermit",
    "bucket",
    "concurrent",
    "leaky",
    "points",
    "unlimited",
    "window",
]
