"""Check whether Redis evicts keys when it is full, which would lose jobs and leases silently."""

import math
import time
from typing import Any

import redis
from redis.exceptions import ResponseError

from framework.process.events import ProcessEvents
from framework.timings import STANDARD, Timings

SAFE = "noeviction"


# Reported, not refused: a policy that is switched at night must not stop running processes, and a managed Redis may hide it.
class EvictionCheck:
    """Report each policy except ``noeviction`` once. Use it from one thread."""

    def __init__(self, client: "redis.Redis", events: ProcessEvents, timings: Timings = STANDARD) -> None:
        self._client = client
        self._events = events
        self._period_s = timings.eviction_check_period_s
        self._checked_at = -math.inf
        self._policy = SAFE

    def check(self) -> None:
        """Read the policy once per period. Raises redis errors, except when the user may not read it."""
        now = time.monotonic()
        if now - self._checked_at < self._period_s:
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
