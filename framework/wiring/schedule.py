"""From settings to the poller of one process."""

import os

import redis

from framework import middleware
from framework.finish.settle import DeadSetLimits
from framework.finish.status_writer import StatusWriter
from framework.process.events import ProcessEvents
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.destination import DestinationResolver
from framework.schedule.due_job_planner import DueJobPlanner
from framework.schedule.poll_timing import PollTiming
from framework.schedule.poller import Poller
from framework.settings.model import Settings
from framework.wire.memory_budget import MemoryBudget
from framework.wiring.client import open_deduplicator, open_limiter, open_router, open_shards


def open_poller(
    settings: Settings,
    shard: str,
    client: "redis.Redis",
    rhythm: PollTiming,
    events: ProcessEvents,
    states: StatusWriter,
    dead_set: DeadSetLimits,
    budget: MemoryBudget,
) -> Poller:
    """Return the poller of ``shard``, which ``client`` reaches; it writes due jobs to any shard their route names."""
    shards = open_shards(settings, role=f"poller:{os.getpid()}")
    crossings = CrossShardTransfer(client, shard, shards, events)
    preparation = DueJobPlanner(
        events,
        DestinationResolver(open_router(settings), shard),
        crossings,
        states,
        middleware=middleware.client.compile(),
        limiter=open_limiter(settings),
        deduplicator=open_deduplicator(settings, shards),
        budget=budget,
    )
    return Poller(client, events, preparation, crossings, rhythm, dead_set)
