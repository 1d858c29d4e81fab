"""The policies in their order: one list for the way into ``perform``, and one of what has to be looked after beside it."""

from collections.abc import Callable
from typing import NamedTuple

import redis

from framework.execute.gates import Gate, Gates
from framework.fetch.slots import Slots
from framework.policies.concurrency.gates import ClassLimit, QueueLimit
from framework.policies.concurrency.keeper import Keeper
from framework.policies.concurrency.limits import Fleet, Limits
from framework.policies.concurrency.throttle import Throttle
from framework.policies.consistency.gate import ConsistencyGate
from framework.policies.dedup.gate import LockGate, PositionsGate
from framework.settings.model import Settings
from framework.telemetry.sentry import Tracker
from framework.wiring.connect import databases_of
from framework.wiring.health import open_health


class Policies(NamedTuple):
    """Those of one process: the gates, and what is done every few seconds so that nothing waits which need not."""

    gates: Gates
    upkeep: tuple[Callable[[], None], ...]


def open_policies(
    settings: Settings, tracker: Tracker, client: "redis.Redis", upkeep: "redis.Redis", identity: str
) -> Policies:
    """Return the policies of one process, the gates in the order in which a job meets them.

    ``client`` is for any thread, ``upkeep`` for what is done beside the jobs.

    What sends a job away for good comes first, as nothing more need be asked then; what can put it back comes before what gives
    something away; what is given away (a slot, a lock) comes last, and the lock after the slot: a job that is dropped, paused,
    deferred or waits for a slot still has its lock, its context, its positions and its age.
    """
    consistency = ConsistencyGate(databases_of(settings))
    slots = Slots(client, identity)
    limits = Limits(Fleet(upkeep), by_urgency=settings.concurrency_limit_by_urgency)
    order: tuple[Gate, ...] = (
        # It asks no Redis and takes nothing; what it sends away comes back to be asked all this again.
        open_health(settings, tracker),
        # Before the class: a job that waits for its class holds no slot of its queue.
        QueueLimit(slots, settings.limits),
        ClassLimit(slots, limits),
        # Consistency may send the job back once, for a replica that shows what it and its dropped duplicates saw: so what those
        # saw comes before it, and the lock, which it must not give away, after it.
        PositionsGate(client, consistency),
        consistency,
        LockGate(client, consistency),
    )
    # The limits first: what they let in is handed over then.
    return Policies(Gates(order), (Throttle(upkeep, limits).look, Keeper(upkeep, limits, settings.limits).look))
