"""Call the application's handlers when this process begins to lead the application on its shard, and when it no longer leads."""

from framework.cron.leadership import Leadership
from framework.lifecycle import lifecycle_handlers
from framework.process.lifecycle import LifecycleEvents


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
