"""From settings to the poller of one process."""

import os

import redis

from framework.finish.settle import DeadSetLimits
from framework.finish.states import States
from framework.process.events import ProcessEvents
from framework.schedule.crossings import Crossings
from framework.schedule.destination import Destinations
from framework.schedule.poller import Poller
from framework.schedule.preparation import Preparation
from framework.schedule.rhythm import Rhythm
from framework.settings.model import Settings
from framework.wire.budget import MemoryBudget
from framework.wiring import chains
from framework.wiring.connect import open_deduplicator, open_limiter, open_router, open_shards


def open_poller(
    settings: Settings,
    shard: str,
    client: "redis.Redis",
    rhythm: Rhythm,
    events: ProcessEvents,
    states: States,
    dead_set: DeadSetLimits,
    budget: MemoryBudget,
) -> Poller:
    """Return the poller of ``shard``, which ``client`` reaches; it writes due jobs to any shard their route names."""
    shards = open_shards(settings, role=f"poller:{os.getpid()}")
    crossings = Crossings(client, shard, shards, events)
    preparation = Preparation(
        events,
        Destinations(open_router(settings), shard),
        crossings,
        states,
        middleware=chains.client.compiled(),
        limiter=open_limiter(settings),
        deduplicator=open_deduplicator(settings, shards),
        budget=budget,
    )
    return Poller(client, events, preparation, crossings, rhythm, dead_set)
