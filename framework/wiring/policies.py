"""The policies in their order: one list for the way into ``perform``."""

from framework.execute.gates import Gate, Gates
from framework.policies.consistency.gate import ConsistencyGate
from framework.settings.model import Settings
from framework.telemetry.sentry import Tracker
from framework.wiring.connect import databases_of
from framework.wiring.health import open_health


def open_gates(settings: Settings, tracker: Tracker) -> Gates:
    """Return the gates of one process, in the order in which a job meets them.

    What sends a job away for good comes first, as nothing more need be asked then; what can put it back comes before what gives
    something away; what is given away (a slot, a lock) comes last, and the lock after the slot: a job that is dropped, paused,
    deferred or waits for a slot still has its lock, its context, its positions and its age.
    """
    order: tuple[Gate, ...] = (
        # It asks no Redis and takes nothing; what it sends away comes back to be asked all this again.
        open_health(settings, tracker),
        # It may send the job back once, for a replica; the lock, which it must not give away, comes after it.
        ConsistencyGate(databases_of(settings)),
    )
    return Gates(order)
