"""Ask whether this process leads: one worker process of an application on each shard does.

    from framework import leader

    class WatchQuotaWorker(ApplicationWorker):
        def perform(self) -> None:
            if leader.is_leader():
                ...

    @leader.on_leader
    def watch(): ...                # from now on this process leads

    @leader.on_follower
    def stop_watching(): ...        # it no longer leads

The leader pushes the jobs of the schedule. When it ends, another process leads within ten seconds; after a normal stop, within four.
A process that was suspended may still believe to lead for a moment, and for some seconds no process may lead: take a lock for work
that must not run twice. ``cron.enabled: false`` keeps a process from leading. A process that is not a worker process never leads.
"""

from framework.features.cron.leadership import is_leader
from framework.lifecycle import on_follower, on_leader

__all__ = ["is_leader", "on_follower", "on_leader"]
