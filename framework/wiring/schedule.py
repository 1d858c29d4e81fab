"""Build the poller of a process from its settings."""

import redis

from framework import middleware
from framework.all_settings import Settings
from framework.features.deduplication.push import Deduplicator
from framework.features.flags.process_flags import ProcessFlags
from framework.finish.status_writer import StatusWriter
from framework.process.events import ProcessEvents
from framework.route.router import Router
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.destination import DestinationResolver
from framework.schedule.due_job_planner import DueJobPlanner
from framework.schedule.poll_timing import PollTiming
from framework.schedule.poller import Poller
from framework.shard.shards import Shards
from framework.wire.memory_budget import MemoryBudget
from framework.wire.set_limits import SetLimits
from framework.wiring.client import open_limiter
from framework.wiring.payloads import open_protection


def open_poller(
    settings: Settings,
    router: Router,
    shard: str,
    shards: Shards,
    client: "redis.Redis",
    timing: PollTiming,
    events: ProcessEvents,
    states: StatusWriter,
    dead_set: SetLimits,
    budget: MemoryBudget,
) -> Poller:
    """Return the poller of ``shard``, which ``client`` connects to; it writes due jobs to their shards, among ``shards``."""
    transfer = CrossShardTransfer(client, shard, shards, events)
    planner = DueJobPlanner(
        events,
        DestinationResolver(router, shard),
        transfer,
        states,
        middleware=middleware.client.compile(),
        limiter=open_limiter(settings),
        locks=Deduplicator(ProcessFlags(settings, shards).enabled_on),
        budget=budget,
        protection=open_protection(settings),
    )
    return Poller(client, events, planner, transfer, timing, dead_set)
