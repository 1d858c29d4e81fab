"""Build the policies of a process that serves a faked shard: the product's own, on memory instead of Redis.

Not here: what other processes decide (a throttle, a sweep of limits, an operator's limit), and slots that expire.
"""

import itertools
from collections.abc import Callable

import redis

from framework.all_settings import Settings
from framework.declare import registry
from framework.execute.admission import AdmissionChain, AdmissionPolicy, AdmissionRequest
from framework.execute.slots import LimitSlots, SlotResult
from framework.features.concurrency.admission import CapacityLimit, ClassLimit, QueueLimit
from framework.features.concurrency.limits import FleetSlots, Limits
from framework.features.consistency.admission import ConsistencyPolicy
from framework.features.deduplication.admission import DedupLock, keeps_lock, keeps_period
from framework.features.deferral.admission import DeferFlag, DropFlag
from framework.features.deferral.skip_tracker import SkipTracker
from framework.features.flags.redis_flags import RedisFlags
from framework.features.health.admission import HealthEvents, HealthPolicy
from framework.features.health.indicator import registered as indicators
from framework.features.health.settings import POSTGRES_INDICATORS
from framework.features.pause import strategies
from framework.features.pause.admission import PausePolicy
from framework.features.pause.state import Pause, PauseState
from framework.features.pause.strategies import PauseStrategies
from framework.fetch.unit_of_work import UnitOfWork
from framework.push.protection import PayloadProtection
from framework.telemetry.sentry import NoTracker
from framework.testing.memory import Begun, JobMemory
from framework.testing.memory_leases import MemoryLeases
from framework.testing.stub_limiters import StubLimiters
from framework.testing.stubs import StubFlags, StubHealth, StubLimits, StubReplicas
from framework.types import Payload
from framework.wire.resources import Lock, slot_id, slot_member

IDENTITY = "fake"
"""The identity of the process that runs the jobs of a fake."""


class Stubs:
    """The decisions of a test for the policies."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self.flags = StubFlags(clock)
        self.limits = StubLimits()
        self.limiters = StubLimiters()
        self.leases = MemoryLeases()
        self.health = StubHealth()
        self.replicas = StubReplicas(settings.databases)
        self.interrupt_every: int | None = None
        """After so many items an iterating job is interrupted; ``None``: never."""


def build_policies(
    settings: Settings,
    memory: JobMemory,
    client: "redis.Redis",
    stubs: Stubs,
    protection: PayloadProtection,
) -> AdmissionChain:
    """Return the policies in the order of ``framework/features/order.py``."""
    skips = SkipTracker(stubs.flags)
    slots = MemorySlots(client, memory, stubs.limits)
    limits = Limits(
        _OneProcess(client, settings.concurrency),
        settings.limits,
        by_urgency=settings.concurrency_limit_by_urgency,
        # A clock on which every result of a callable is old: a test that changes the limit sees the change at once.
        clock=itertools.count(0.0, 60.0).__next__,
    )
    consistency = ConsistencyPolicy(stubs.replicas, sleep=_do_not_wait)
    health_events = HealthEvents(NoTracker())
    available = (*POSTGRES_INDICATORS, *settings.health.indicators, *indicators)
    local: tuple[AdmissionPolicy, ...] = (
        DropFlag(stubs.flags, skips),
        _MemoryPause(memory, client, _MemoryPauses(stubs.flags, client)),
        DeferFlag(stubs.flags, skips, settings.flags.defer_delay),
        HealthPolicy(stubs.health, available, settings.databases, health_events),
    )
    remote: tuple[AdmissionPolicy, ...] = (
        QueueLimit(slots, limits),
        ClassLimit(slots, limits),
        CapacityLimit(slots, limits),
        consistency,
        _MemoryLock(memory, client, protection),
    )
    return AdmissionChain(remote, local)


class _OneProcess(FleetSlots):
    """Count the slots of the only process."""

    def __init__(self, client: "redis.Redis", slots: int) -> None:
        super().__init__(client)
        self._slots = slots

    def total(self) -> int:
        return self._slots


class MemorySlots(LimitSlots):
    """Take slots in memory. One job runs at a time, so a limit is full only if the test says so or it is negative."""

    def __init__(self, client: "redis.Redis", memory: JobMemory, stub: StubLimits) -> None:
        super().__init__(client, IDENTITY)
        self._memory = memory
        self._stub = stub

    def take(
        self,
        unit: UnitOfWork,
        payload: Payload,
        name: str,
        limit: int,
        *,
        scope: str = "",
        share: int = 0,
        may_wait: bool = True,
    ) -> SlotResult:
        """See ``LimitSlots`` and ``take_slot.lua``. The share of a scope never fills."""
        del scope, share
        slot = self.slot_of(unit, payload, name)
        held = self._memory.slots(slot.base)
        held.discard(slot_member("", slot_id(payload, unit.data)))
        taken = len(held) + self._stub.taken(name)
        if limit == 0 or taken < limit:
            self.record(unit, slot)
            held.add(slot.member)
            return SlotResult("taken", taken + 1, limit, 0)
        if not may_wait:
            return SlotResult("refused", taken, limit, 0)
        if unit.resources is not None:
            self._memory.release(unit.resources.on_hold())
        self._memory.hold(unit.data, unit.queue, at_limit=True)
        return SlotResult("waits", taken, limit, len(self._memory.jobs("held")))


class _MemoryPauses(PauseState):
    """Know the paused classes: by the flags of the test, and by the application's own strategies."""

    def __init__(self, flags: StubFlags, client: "redis.Redis") -> None:
        named = [worker.declaration().facts["pause_control"] for worker in registry.workers()]
        polled = PauseStrategies([name for name in named if name is not None], strategies.registered)
        polled.poll()
        # The stored flags of a shard that were never read: none.
        super().__init__(flags, RedisFlags(client, IDENTITY), polled, lambda: None)


class _MemoryPause(PausePolicy):
    """Hold the jobs of paused classes in memory."""

    def __init__(self, memory: JobMemory, client: "redis.Redis", state: PauseState) -> None:
        super().__init__(client, IDENTITY, state)
        self._memory = memory

    def _hold(self, request: AdmissionRequest, pause: Pause) -> int:
        del pause
        unit = request.unit
        if unit.resources is not None:
            self._memory.release(unit.resources.on_hold())
        self._memory.hold(unit.data, unit.queue, at_limit=False)
        return 1


class _MemoryLock(DedupLock):
    """Release or renew locks in memory."""

    def __init__(self, memory: JobMemory, client: "redis.Redis", protection: PayloadProtection) -> None:
        super().__init__(client, protection=protection)
        self._memory = memory

    def _start_locked(self, lock: Lock, request: AdmissionRequest, *, unseen: str) -> list[bytes]:
        del unseen
        policy = request.declaration.deduplicate
        begun: Begun = "period" if keeps_period(policy) else "run"
        self._memory.start_lock(lock.key, lock.owner, lock.ttl_ms if keeps_lock(policy) else 0, begun)
        return []


def _do_not_wait(seconds: float) -> None:
    """Wait for no replica: its state is that of the test."""
    del seconds
