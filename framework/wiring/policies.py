"""The policies in their order: one list for the way into ``perform``, and one of what has to be looked after beside it."""

from collections.abc import Callable
from typing import NamedTuple

import redis

from framework.declare import registry
from framework.execute.gates import Gate, Gates
from framework.fetch.slots import Slots
from framework.flags.redis_flags import RedisFlags
from framework.policies.concurrency.gates import CapacityLimit, ClassLimit, QueueLimit
from framework.policies.concurrency.keeper import Keeper as LimitKeeper
from framework.policies.concurrency.limits import Fleet, Limits
from framework.policies.concurrency.throttle import Throttle
from framework.policies.consistency.gate import ConsistencyGate
from framework.policies.dedup.gate import LockGate, PositionsGate
from framework.policies.defer.flags import DropGate, RunGate, Skips
from framework.policies.pause import strategies
from framework.policies.pause.gate import PauseGate
from framework.policies.pause.keeper import Keeper as PauseKeeper
from framework.policies.pause.pauses import Pauses
from framework.policies.pause.strategies import Strategies
from framework.settings.model import Settings
from framework.shard.shard import Shard
from framework.telemetry.sentry import Tracker
from framework.wiring.connect import databases_of
from framework.wiring.flags import open_flags
from framework.wiring.health import open_health


class Policies(NamedTuple):
    """Those of one process: the gates, what they have to know, and what is done so that nothing waits which need not."""

    gates: Gates
    learn: Callable[[], None]
    """Before the first job, and every few seconds."""
    upkeep: tuple[Callable[[], None], ...]
    """Every few seconds."""


def open_policies(settings: Settings, tracker: Tracker, shard: Shard, upkeep: "redis.Redis", identity: str) -> Policies:
    """Return the policies of one process, the gates in the order in which a job meets them.

    The shard's own client is for any thread, ``upkeep`` for what is done beside the jobs.

    What sends a job away for good comes first, as nothing more need be asked then; what can put it back comes before what gives
    something away; what is given away (a slot, a lock) comes last, and the lock after the slot: a job that is dropped, paused,
    deferred or waits for a slot still has its lock, its context, its positions and its age.
    """
    client = shard.client
    stored = RedisFlags(upkeep, shard.name)
    flags = open_flags(settings, stored)
    asked = Strategies(_named_strategies(), strategies.registered)

    def learn() -> None:
        asked.ask()
        if flags.read():
            gates.reopen()

    skips = Skips(flags)
    pauses = Pauses(flags, stored, asked, learn)
    slots = Slots(client, identity)
    limits = Limits(Fleet(upkeep), settings.limits, by_urgency=settings.concurrency_limit_by_urgency)
    consistency = ConsistencyGate(databases_of(settings))
    order: tuple[Gate, ...] = (
        # What an operator wants to be rid of is not parked first.
        DropGate(flags, skips),
        # Parked jobs cost nothing more, while a deferred one comes back again and again.
        PauseGate(client, identity, pauses),
        # These ask no Redis and take nothing; what they send away comes back to be asked all this again.
        RunGate(flags, skips, settings.flags.defer_delay),
        open_health(settings, tracker),
        # Before the class: a job that waits for its class holds no slot of its queue.
        QueueLimit(slots, limits),
        ClassLimit(slots, limits),
        CapacityLimit(slots, limits),
        # Consistency may send the job back once, for a replica that shows what it and its dropped duplicates saw: so what those
        # saw comes before it, and the lock, which it must not give away, after it.
        PositionsGate(client, consistency),
        consistency,
        LockGate(client, consistency),
    )
    gates = Gates(order)
    # The load on the limits before their keeper: what they let in is handed over then.
    looks = (
        PauseKeeper(upkeep, pauses).look,
        Throttle(upkeep, limits).look,
        LimitKeeper(upkeep, limits, gates.reopen).look,
        skips.look,
    )
    return Policies(gates, learn, looks)


def _named_strategies() -> list[str]:
    """Return the pause strategies that the classes of this process name."""
    named = (worker.declaration().pause_control for worker in registry.workers())
    return [name for name in named if name is not None]
