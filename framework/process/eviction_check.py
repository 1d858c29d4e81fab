"""Check whether Redis evicts keys when it is full, which would lose jobs and leases silently."""

import math
import time
from typing import Any

import redis
from redis.exceptions import ResponseError

from framework.process.events import ProcessEvents

CHECK_PERIOD_S = 30.0
"""The period of the check: a policy that changes at run time is reported within a minute (reference F15)."""

SAFE = "noeviction"


# Decision 70: eviction and data loss are reported, not refused.
class EvictionCheck:
    """Report each policy except ``noeviction`` once. Use it from one thread."""

    def __init__(self, client: "redis.Redis", events: ProcessEvents) -> None:
        self._client = client
        self._events = events
        self._checked_at = -math.inf
        self._policy = SAFE

    def check(self) -> None:
        """Read the policy once per period. Raises redis errors, except when the user may not read it."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_PERIOD_S:
            return
        try:
            found: Any = self._client.info("memory")
        # An ACL that forbids INFO leaves the policy to the owner of the server.
        except ResponseError:
            found = {}
        self._checked_at = now
        policy = str(found.get("maxmemory_policy", SAFE))
        if policy not in (SAFE, self._policy):
            self._events.eviction_unsafe(policy)
        self._policy = policy
