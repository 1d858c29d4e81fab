"""Ask whether this process leads: one worker process of an application on each shard does.

    from framework import leader

    class WatchQuotaWorker(ApplicationWorker):
        def perform(self) -> None:
            if leader.is_leader():
                ...

The leader pushes the jobs of the schedule. When it ends, another process leads within ten seconds; after a normal stop, within four.
A process that was suspended may still believe to lead for a moment, and for some seconds no process may lead: take a lock for work
that must not run twice. ``cron.enabled: false`` keeps a process from leading. A process that is not a worker process never leads.
"""

from framework.wiring.cron import process_leads

__all__ = ["is_leader"]


def is_leader() -> bool:
    """Return whether this worker process leads the processes of its application on its shard. Sends nothing to Redis.

    In an application without cron entries the first call makes the process try to lead; it returns False.
    """
    return process_leads()
