"""The policies in their order: one list for the way into ``perform``, and one of what has to be looked after beside it."""

from collections.abc import Callable
from typing import NamedTuple

import redis

from framework.declare import registry
from framework.execute.admission import AdmissionChain, AdmissionPolicy
from framework.flags.redis_flags import RedisFlags
from framework.policies.concurrency.admission import CapacityLimit, ClassLimit, QueueLimit
from framework.policies.concurrency.limits import FleetSlots, Limits
from framework.policies.concurrency.slots import LimitSlots
from framework.policies.concurrency.sweeper import LimitSweeper as LimitKeeper
from framework.policies.concurrency.throttle import Throttle
from framework.policies.consistency.admission import ConsistencyPolicy
from framework.policies.dedup.admission import DedupLock, DedupPositions
from framework.policies.defer.flags import DeferFlag, DropFlag, SkipTracker
from framework.policies.pause import strategies
from framework.policies.pause.admission import PausePolicy
from framework.policies.pause.resumer import PauseResumer as PauseKeeper
from framework.policies.pause.state import PauseState
from framework.policies.pause.strategies import PauseStrategies
from framework.settings.model import Settings
from framework.shard.shard import Shard
from framework.telemetry.sentry import Tracker
from framework.wiring.client import databases_of
from framework.wiring.flags import open_flags
from framework.wiring.health_policy import open_health_policy


class Policies(NamedTuple):
    """Those of one process: the gates, what they have to know, and what is done so that nothing waits which need not."""

    admission: AdmissionChain
    refresh: Callable[[], None]
    """Before the first job, and every few seconds."""
    maintenance: tuple[Callable[[], None], ...]
    """Every few seconds."""


def open_policies(
    settings: Settings, tracker: Tracker, shard: Shard, maintenance_client: "redis.Redis", identity: str
) -> Policies:
    """Return the policies of one process, the gates in the order in which a job meets them.

    The shard's own client is for any thread, ``upkeep`` for what is done beside the jobs.

    What sends a job away for good comes first, as nothing more need be asked then; what can put it back comes before what gives
    something away; what is given away (a slot, a lock) comes last, and the lock after the slot: a job that is dropped, paused,
    deferred or waits for a slot still has its lock, its context, its positions and its age.
    """
    client = shard.client
    stored = RedisFlags(maintenance_client, shard.name)
    flags = open_flags(settings, stored)
    asked = PauseStrategies(_named_strategies(), strategies.registered)

    def learn() -> None:
        asked.poll()
        if flags.read():
            gates.invalidate()

    skips = SkipTracker(flags)
    pauses = PauseState(flags, stored, asked, learn)
    slots = LimitSlots(client, identity)
    limits = Limits(FleetSlots(maintenance_client), settings.limits, by_urgency=settings.concurrency_limit_by_urgency)
    consistency = ConsistencyPolicy(databases_of(settings))
    order: tuple[AdmissionPolicy, ...] = (
        # What an operator wants to be rid of is not parked first.
        DropFlag(flags, skips),
        # Parked jobs cost nothing more, while a deferred one comes back again and again.
        PausePolicy(client, identity, pauses),
        # These ask no Redis and take nothing; what they send away comes back to be asked all this again.
        DeferFlag(flags, skips, settings.flags.defer_delay),
        open_health_policy(settings, tracker),
        # Before the class: a job that waits for its class holds no slot of its queue.
        QueueLimit(slots, limits),
        ClassLimit(slots, limits),
        CapacityLimit(slots, limits),
        # Consistency may send the job back once, for a replica that shows what it and its dropped duplicates saw: so what those
        # saw comes before it, and the lock, which it must not give away, after it.
        DedupPositions(client, consistency),
        consistency,
        DedupLock(client, consistency),
    )
    gates = AdmissionChain(order)
    # The load on the limits before their keeper: what they let in is handed over then.
    looks = (
        PauseKeeper(maintenance_client, pauses).resume_ended,
        Throttle(maintenance_client, limits).adjust,
        LimitKeeper(maintenance_client, limits, gates.invalidate).sweep,
        skips.warn_stale,
    )
    return Policies(gates, learn, looks)


def _named_strategies() -> list[str]:
    """Return the pause strategies that the classes of this process name."""
    named = (worker.declaration().pause_control for worker in registry.workers())
    return [name for name in named if name is not None]
