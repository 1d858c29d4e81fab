"""The policies in their order: one list for the way into ``perform``."""

import redis

from framework.execute.gates import Gate, Gates
from framework.policies.consistency.gate import ConsistencyGate
from framework.policies.dedup.gate import LockGate, PositionsGate
from framework.settings.model import Settings
from framework.telemetry.sentry import Tracker
from framework.wiring.connect import databases_of
from framework.wiring.health import open_health


def open_gates(settings: Settings, tracker: Tracker, client: "redis.Redis") -> Gates:
    """Return the gates of one process, whose shard ``client`` reaches, in the order in which a job meets them.

    What sends a job away for good comes first, as nothing more need be asked then; what can put it back comes before what gives
    something away; what is given away (a slot, a lock) comes last, and the lock after the slot: a job that is dropped, paused,
    deferred or waits for a slot still has its lock, its context, its positions and its age.
    """
    consistency = ConsistencyGate(databases_of(settings))
    order: tuple[Gate, ...] = (
        # It asks no Redis and takes nothing; what it sends away comes back to be asked all this again.
        open_health(settings, tracker),
        # Consistency may send the job back once, for a replica that shows what it and its dropped duplicates saw: so what those
        # saw comes before it, and the lock, which it must not give away, after it.
        PositionsGate(client, consistency),
        consistency,
        LockGate(client, consistency),
    )
    return Gates(order)
