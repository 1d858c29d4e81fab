"""Hold the lease of the leader, one process of an application on each shard, and tell the application of it.

The lease only saves work: if two processes both believe that they lead, each tick is still pushed once (``scripts/push.lua``).
"""

import redis

from framework.lifecycle import lifecycle_handlers
from framework.process.lifecycle import LifecycleEvents
from framework.process_clock import process_clock
from framework.store.script import Script
from framework.timings import STANDARD, Timings

LEAD = Script("cron/lead")


class _ServedLeadership:
    """The leadership of this worker process; None in any other process, which never leads."""

    leadership: "Leadership | None" = None


class Leadership:
    """Take and renew the lease. ``renew`` and ``release`` are for one thread, ``leads`` and ``ask`` for any."""

    def __init__(
        self,
        client: "redis.Redis",
        key: str,
        identity: str,
        timings: Timings = STANDARD,
    ) -> None:
        self._client = client
        self._key = key
        self._identity = identity
        self._lease_s = timings.leader_lease_s
        self._until = 0.0
        self.asked = False
        """Whether the application has asked which process leads: without cron entries no process needs the lease before that."""

    @property
    def leads(self) -> bool:
        """Whether this process holds the lease. False as soon as another process may hold it."""
        return process_clock.monotonic() < self._until

    def ask(self) -> bool:
        """Return ``leads``, and try for the lease from now on."""
        self.asked = True
        return self.leads

    def renew(self) -> bool:
        """Take or renew the lease; return whether this process leads. Raises redis errors."""
        sent_at = process_clock.monotonic()
        held = LEAD(self._client, [self._key], [self._identity, round(self._lease_s * 1_000)])
        # Counted from before the call: Redis counts from later.
        self._until = sent_at + self._lease_s if held else 0.0
        return bool(held)

    def release(self) -> None:
        """Give up the lease, so that another process leads at its next check. Raises redis errors."""
        if self._until:
            self._until = 0.0
            LEAD(self._client, [self._key], [self._identity, 0])


class LeadershipEvents:
    """Fire ``leader`` and ``follower`` in turns. ``end`` is for the main thread, the others for that of the lease."""

    def __init__(self, leadership: Leadership, lifecycle: LifecycleEvents) -> None:
        self._leadership = leadership
        self._lifecycle = lifecycle
        self._told_leads = False
        self._ended = False

    def step(self) -> None:
        """Let the process try for the lease if there are handlers, as ``leader.is_leader`` does."""
        if lifecycle_handlers["leader"] or lifecycle_handlers["follower"]:
            self._leadership.asked = True

    def note(self) -> None:
        """Fire the event of a change. One whose handlers still run is fired at a later call, if the change still holds then."""
        leads = self._leadership.leads
        if leads != self._told_leads and not self._ended and self._lifecycle.fire("leader" if leads else "follower"):
            self._told_leads = leads

    def end(self) -> None:
        """Fire ``follower`` if the process leads: it stops. The lease is given up later, when the last jobs have ended."""
        self._ended = True
        if self._told_leads and self._lifecycle.fire("follower"):
            self._told_leads = False


def serve_leadership(leadership: Leadership) -> None:
    _ServedLeadership.leadership = leadership


def is_leader() -> bool:
    """Return whether this worker process leads the processes of its application on its shard. Sends nothing to Redis.

    In an application without cron entries the first call makes the process try to lead; it returns False.
    """
    found = _ServedLeadership.leadership
    return found is not None and found.ask()
