"""Give the jobs of a worker process slots of their limits, and give freed slots to jobs that wait."""

from collections.abc import Callable, Sequence

from framework.execute.admission import LimitSlots, StagedPolicy
from framework.feature import Late
from framework.features.concurrency.admission import CapacityLimit, ClassLimit, QueueLimit
from framework.features.concurrency.limits import FleetSlots, Limits
from framework.features.concurrency.settings import ConcurrencySettings
from framework.features.concurrency.sweeper import LimitSweeper
from framework.features.concurrency.throttle import Throttle
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.wire import keys


def open_limits(process: ProcessContext) -> Limits:
    """Return the limits as a worker process knows them. Sends nothing."""
    settings, fleet = process.settings, FleetSlots(process.upkeep, process.timings)
    return Limits(fleet, settings.limits, by_urgency=ConcurrencySettings.of(settings).concurrency_limit_by_urgency)


LIMITS: "Late[Callable[[ProcessContext], Limits]]" = Late("framework.features.concurrency.worker:open_limits")


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of limits in a worker process."""
    client, upkeep, waits = process.shard.client, process.upkeep, process.timings
    limits = process.service(LIMITS)

    def of_capsule(owner: str) -> Sequence[StagedPolicy]:
        slots = LimitSlots(client, owner, waits)
        return (
            StagedPolicy("queue_slot", QueueLimit(slots, limits)),
            StagedPolicy("class_slot", ClassLimit(slots, limits)),
            StagedPolicy("class_slot", CapacityLimit(slots, limits)),
        )

    process.absent.watch(keys.LIMITS, keys.LIMITS_WAITING)
    sweeper = LimitSweeper(upkeep, limits, process.invalidate, process.absent)
    # Throttling before the sweep, which assigns the slots that throttling has freed.
    return WorkerPart(of_capsule=of_capsule, periodic=(Throttle(upkeep, limits).adjust, sweeper.sweep))
