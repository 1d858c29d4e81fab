"""Hold the lease of the leader: one process of an application on each shard.

The lease only saves work: if two processes both believe that they lead, each tick is still pushed once (``cron_push.lua``).
"""

import time
from collections.abc import Callable

import redis

from framework.store.script import LEAD
from framework.timings import STANDARD, Timings


class Leadership:
    """Take and renew the lease. ``renew`` and ``release`` are for one thread, ``leads`` and ``ask`` for any."""

    def __init__(
        self,
        client: "redis.Redis",
        key: str,
        identity: str,
        *,
        timings: Timings = STANDARD,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._key = key
        self._identity = identity
        self._lease_s = timings.leader_lease_s
        self._monotonic = monotonic
        self._until = 0.0
        self.asked = False
        """Whether the application has asked which process leads: without cron entries no process needs the lease before that."""

    @property
    def leads(self) -> bool:
        """Whether this process holds the lease. False as soon as another process may hold it."""
        return self._monotonic() < self._until

    def ask(self) -> bool:
        """Return ``leads``, and try for the lease from now on."""
        self.asked = True
        return self.leads

    def renew(self) -> bool:
        """Take or renew the lease; return whether this process leads. Raises redis errors."""
        sent_at = self._monotonic()
        held = LEAD(self._client, [self._key], [self._identity, round(self._lease_s * 1_000)])
        # Counted from before the call: Redis counts from later.
        self._until = sent_at + self._lease_s if held else 0.0
        return bool(held)

    def release(self) -> None:
        """Give up the lease, so that another process leads at its next check. Raises redis errors."""
        if self._until:
            self._until = 0.0
            LEAD(self._client, [self._key], [self._identity, 0])
