"""Build the poller of a process from its settings."""

from framework import middleware
from framework.all_settings import Settings
from framework.process.worker_parts import ProcessContext
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.schedule.poller import Poller
from framework.shard.shards import Shards
from framework.wiring.client import default_client, open_limiter


def open_poller(settings: Settings, process: ProcessContext, shards: Shards) -> Poller:
    """Return the poller of the shard of the process; it writes due jobs to their shards, among ``shards``."""
    client, shard, events = process.upkeep, process.shard.name, process.events
    transfer = CrossShardTransfer(client, shard, shards, events)
    planner = DueJobPlanner(
        events,
        DestinationResolver(process.router, shard),
        transfer,
        process.states,
        middleware=middleware.client.compile(),
        limiter=open_limiter(settings, process.protection),
        locks=default_client().locks,
        budget=process.budget,
        protection=process.protection,
    )
    return Poller(client, events, planner, transfer, process.poll_timing, process.dead_set)
