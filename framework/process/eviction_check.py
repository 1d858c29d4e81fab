"""Whether our Redis throws keys away when it is full: jobs, or leases, in silence. Asked at the start and from time to time."""

import math
import time
from typing import Any, Protocol

import redis
from redis.exceptions import ResponseError

CHECK_PERIOD_S = 30.0
"""A policy that is switched while we run is told within a minute (reference F15)."""

SAFE = "noeviction"


class EvictionEvents(Protocol):
    """Who is told."""

    def eviction_unsafe(self, policy: str) -> None:
        """This Redis evicts keys by ``policy``."""


# Decision 70: eviction and data loss are reported, not refused.
class EvictionCheck:
    """Tells of each policy but ``noeviction`` once. For one thread."""

    def __init__(self, client: "redis.Redis", events: EvictionEvents) -> None:
        self._client = client
        self._events = events
        self._checked_at = -math.inf
        self._policy = SAFE

    def check(self) -> None:
        """Ask, if that was long ago. Raises redis errors; a Redis that does not say is not asked again for as long."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_PERIOD_S:
            return
        try:
            found: Any = self._client.info("memory")
        except ResponseError:  # INFO is not allowed: its owner answers for it
            found = {}
        self._checked_at = now
        policy = str(found.get("maxmemory_policy", SAFE))
        if policy not in (SAFE, self._policy):
            self._events.eviction_unsafe(policy)
        self._policy = policy
