"""Build the policies of a process: their admission checks in order, and their periodic work."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import redis

from framework.declare import registry
from framework.execute.admission import AdmissionChain, AdmissionPolicy
from framework.feature_flags.flag import FlagSource
from framework.feature_flags.redis_flags import RedisFlags, ShardFlags
from framework.payloads.protection import PayloadProtection
from framework.policies.concurrency.admission import CapacityLimit, ClassLimit, QueueLimit
from framework.policies.concurrency.limits import FleetSlots, Limits
from framework.policies.concurrency.slots import LimitSlots
from framework.policies.concurrency.sweeper import LimitSweeper
from framework.policies.concurrency.throttle import Throttle
from framework.policies.consistency.admission import ConsistencyPolicy
from framework.policies.dedup.admission import DedupLock, DedupPositions
from framework.policies.defer.admission import DeferFlag, DropFlag
from framework.policies.defer.skip_tracker import SkipTracker
from framework.policies.pause import strategies
from framework.policies.pause.admission import PausePolicy
from framework.policies.pause.resumer import PauseResumer
from framework.policies.pause.state import PauseState
from framework.policies.pause.strategies import PauseStrategies
from framework.settings.model import Settings
from framework.shard.shard import Shard
from framework.store.absent_keys import AbsentKeys
from framework.telemetry.sentry import Tracker
from framework.timings import Timings
from framework.wiring.client import databases_of
from framework.wiring.feature_flags import open_flags
from framework.wiring.health_policy import open_health_policy
from framework.wiring.payloads import open_protection


class Policies(NamedTuple):
    """The policies of one process."""

    admission: Sequence[AdmissionChain]
    """The admission of each capsule."""
    refresh: Callable[[], None]
    """Reads the policies' state, before the first job and every few seconds."""
    maintenance: tuple[Callable[[], None], ...]
    """The periodic work, every few seconds: release held jobs whose reason has ended."""
    flags: ShardFlags
    """The flags that ``refresh`` reads."""


class _SharedParts(NamedTuple):
    """The parts that the policies of all capsules share."""

    client: "redis.Redis"
    waits: Timings
    flags: FlagSource
    skips: SkipTracker
    pauses: PauseState
    limits: Limits
    consistency: ConsistencyPolicy
    health: AdmissionPolicy
    defer_delay: float
    protection: PayloadProtection


def open_policies(
    settings: Settings,
    tracker: Tracker,
    shard: Shard,
    maintenance_client: "redis.Redis",
    owners: Sequence[str],
    absent: AbsentKeys,
    waits: Timings,
) -> Policies:
    """Return the policies of one process, whose capsules have these ``owners`` of working lists.

    The order of admission: (1) policies that end the job (drop flag); (2) policies that hold or delay it without acquiring
    anything (pause, defer flag, health); (3) policies that acquire a resource (queue slot, class slot); (4) the replica check;
    (5) the dedup lock, last, so that a job sent away earlier still owns it. ``maintenance_client`` serves the periodic work, the
    shard's own client any thread.
    """
    client = shard.client
    flags = open_flags(settings, stored := RedisFlags(maintenance_client, shard.name, absent))
    pause_strategies = PauseStrategies(_named_strategies(), strategies.registered, waits)

    def refresh() -> None:
        pause_strategies.poll()
        if flags.read():
            invalidate()

    def invalidate() -> None:
        for chain in admission:
            chain.invalidate()

    skips = SkipTracker(flags)
    pauses = PauseState(flags, stored, pause_strategies, refresh)
    fleet = FleetSlots(maintenance_client, waits)
    limits = Limits(fleet, settings.limits, by_urgency=settings.concurrency_limit_by_urgency)
    consistency = ConsistencyPolicy(databases_of(settings))
    health = open_health_policy(settings, tracker)
    protection = open_protection(settings)
    delay_s = settings.flags.defer_delay
    shared = _SharedParts(client, waits, flags, skips, pauses, limits, consistency, health, delay_s, protection)
    admission = [_admission(shared, owner) for owner in owners]
    # Throttling before the sweep of the limits, which assigns the slots that throttling has freed.
    maintenance = (
        PauseResumer(maintenance_client, pauses, absent).resume_ended,
        Throttle(maintenance_client, limits).adjust,
        LimitSweeper(maintenance_client, limits, invalidate, absent).sweep,
        skips.warn_stale,
    )
    return Policies(admission, refresh, maintenance, ShardFlags(flags, stored))


def _admission(shared: _SharedParts, owner: str) -> AdmissionChain:
    """Return the policies of the capsule whose working list has this owner, in their order."""
    client, consistency, limits = shared.client, shared.consistency, shared.limits
    slots = LimitSlots(client, owner, shared.waits)
    local: tuple[AdmissionPolicy, ...] = (
        # First, so that a job which an operator drops is not held before.
        DropFlag(shared.flags, shared.skips),
        # Before the deferring policies: a held job costs nothing, and a deferred one comes back repeatedly.
        PausePolicy(client, owner, shared.pauses),
        # These send no command to Redis and acquire nothing; a deferred job passes the whole order again.
        DeferFlag(shared.flags, shared.skips, shared.defer_delay),
        shared.health,
    )
    remote: tuple[AdmissionPolicy, ...] = (
        # The queue's slot first: a job that waits for a slot of its class releases the slot of its queue.
        QueueLimit(slots, limits),
        ClassLimit(slots, limits),
        CapacityLimit(slots, limits),
        # Consistency may delay the job once, until a replica shows the WAL positions of the job and of its dropped duplicates.
        # So the duplicates' positions are read before it, and the lock, which it must not release, is acquired after it.
        DedupPositions(client, consistency),
        consistency,
        DedupLock(client, consistency, protection=shared.protection),
    )
    return AdmissionChain(remote, local)


def _named_strategies() -> list[str]:
    """Return the pause strategies that the classes of this process name."""
    named = (worker.declaration().pause_control for worker in registry.workers())
    return [name for name in named if name is not None]
