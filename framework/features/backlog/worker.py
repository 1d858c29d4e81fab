"""Measure the memory of a shard from one of its processes, and write the report that pushes read."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

import redis
from redis.exceptions import ResponseError

from framework.command_line import command
from framework.declare import registry
from framework.errors import StoredBlocksError
from framework.execute.admission import StagedPolicy
from framework.feature import Late
from framework.features.backlog.aside import STEP_S, AsidePolicy, AsideReturn
from framework.features.backlog.pressure import SHORT_WORD, MemoryPressure, pressure_word
from framework.features.backlog.store import WATCH
from framework.process.worker_parts import OwnTask, ProcessContext, WorkerPart
from framework.process_clock import process_clock
from framework.settings.model import SizeLimitSettings
from framework.shard.memory_report import (
    NEAR,
    RELEASED,
    MemoryReport,
    ShardMemory,
    budget_of,
    classes_above_fair_share,
)
from framework.store.absent_keys import AbsentKeys
from framework.store.script import is_lasting
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.text import format_bytes
from framework.wire import keys

if TYPE_CHECKING:
    from framework.features.backlog.repair import CountRepair

# Only one process of a shard needs what these import.
_MEASURE: "Late[Callable[[redis.Redis, SizeLimitSettings], ShardMemory]]" = Late(
    "framework.features.backlog.memory:measure_memory"
)

_REPAIR: "Late[type[CountRepair]]" = Late("framework.features.backlog.repair:CountRepair")

LEASE_S, _RENEW_S = 180.0, 75.0
"""How long the process that measures has its lease, and how often it renews it: an idle process sends few commands."""
_ASK_S = 15.0
"""How often a process asks whether it measures."""
_CALM_S, _TENSE_S = 300.0, 10.0
"""How often it measures: 0.2 s of Redis each time, with many jobs. The used memory alone is read as often as the second."""
_QUICK_S = 1.0
"""How often the used memory is read while there is much of it, or it grows fast."""
_FIRST_S = 20.0
"""The age of a process at its first measurement: short-lived ones make none."""
_CHANGED = 0.01
"""The share of the budget by which the used memory has to change before it is measured again while it is calm."""
_TENSE = 0.8
"""The share of the budget from which it measures more often."""
_MEASURING_SHARE = 0.05
"""The share of the time of a thread that measurements take: one of millions of packed jobs takes a second."""
_REPAIR_S = 300.0
"""How often the counts of accepted jobs are compared with the jobs: only those of classes that are near their limits."""
_LOOK_S = 2.0
"""How often another process looks whether memory is short, once it is near its end within a second."""
_SHORT_LEASE_S, _SHORT_RENEW_S = 20.0, 5.0
"""The lease, and how often it is renewed, while the memory is near its end, or classes are held back."""
_WITHOUT_RIGHTS_S = 300.0
_LOG_INTERVAL_S = 300.0


class BudgetWatch:
    """Measure the memory of one shard while this process has the lease. ``step`` is called by one thread."""

    def __init__(
        self,
        client: "redis.Redis",
        shard: str,
        identity: str,
        budget: float,
        sizes: SizeLimitSettings,
        limits: Mapping[str, int] = MappingProxyType({}),
        *,
        pressure: MemoryPressure | None = None,
        aside: AsideReturn | None = None,
    ) -> None:
        """``limits`` has the most jobs of each class with ``max_waiting``, 0 where only their bytes are limited."""
        self._client = client
        self._shard = shard
        self._identity = identity
        self._sizes = sizes
        self._setting = budget
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self._held: frozenset[str] = frozenset()
        self._told = self._held
        """The classes of the last line about classes that are held back."""
        self._limits = limits
        self._pressure = pressure or MemoryPressure(client, AbsentKeys(), lambda: None)
        self._aside = aside or AsideReturn(client, AbsentKeys())
        self._repair: CountRepair | None = None
        self._repaired_at = process_clock.monotonic()
        self._measured_at = process_clock.monotonic() - _CALM_S + _FIRST_S
        self._measured_bytes = -math.inf
        self._measured: ShardMemory | None = None
        self._next_at = -math.inf
        """The earliest time of the next measurement, unless the memory passes its budget."""
        self._seen = process_clock.monotonic(), math.inf
        """When the used memory was read last, and what it was."""
        self._renew_at = 0.0
        self._measures = False
        """Whether this process had the lease when it asked last."""
        self._word = b""
        """The pressure: the value of its key."""

    def step(self) -> float:
        """Renew the lease; with it, measure and report. Return the seconds until the next step. Raises redis errors."""
        if process_clock.monotonic() >= self._renew_at:
            self._renew(b"")
        if not self._measures:
            self._word = b""
            # Sends nothing while the key is known to be absent.
            self._pressure.refresh()
            return _QUICK_S if self._pressure.near else _LOOK_S
        try:
            self._repair_counts()
            pause_s = self._watch()
            return min(pause_s, STEP_S) if self._aside.step(short=self._pressure.short) else pause_s
        except ResponseError as error:
            if not is_lasting(error):
                raise
            self._log_limit.warning(
                "rights",
                "the memory of the shard cannot be measured, so its budget holds no class back. Grant the rights of a worker: "
                f"{command('acl worker')}",
                "backlog.not_measured",
                shard=self._shard,
                error=error,
            )
            return _WITHOUT_RIGHTS_S

    def release(self) -> None:
        """Give the lease up, so that another process measures at once. Raises redis errors."""
        if self._client.get(keys.MEMORY_WATCHER) == self._identity.encode():
            self._client.delete(keys.MEMORY_WATCHER)

    def _repair_counts(self) -> None:
        """Correct the counts of accepted jobs from time to time."""
        now = process_clock.monotonic()
        if self._limits and now - self._repaired_at >= _REPAIR_S:
            self._repaired_at = now
            if self._repair is None:
                self._repair = _REPAIR.load()(self._client, self._shard, self._sizes, self._limits)
            # Jobs in a payload store that cannot be read cannot be counted.
            with suppress(StoredBlocksError):
                self._repair.check()

    def _watch(self) -> float:
        used, budget, most = self._memory()
        word = pressure_word(used, most, was_short=self._pressure.short)
        if word != self._word:
            self._word = word
            self._renew(b"")
            self._tell_pressure(used, most, was_short=self._pressure.short)
        self._pressure.note(word)
        # While classes are held back, so that they are released as soon as there is room.
        tense = bool(self._held) or bool(word) or (bool(budget) and used >= budget * _TENSE)
        pause_s = _QUICK_S if tense or self._grows_fast(used, budget) else _TENSE_S
        if self._must_measure(used, budget, tense=tense):
            began = process_clock.monotonic()
            self._measured = measured = _MEASURE.load()(self._client, self._sizes)
            self._measured_bytes, self._measured_at = used, process_clock.monotonic()
            self._next_at = self._measured_at + (self._measured_at - began) / _MEASURING_SHARE
            self._report(measured, measured.used, budget)
        elif self._measured is not None and self._is_full(used, budget) != bool(self._held):
            # By what was measured last: the memory passes the budget and falls below it again each second in a flood.
            self._report(self._measured, used, budget)
        return pause_s

    def _must_measure(self, used: int, budget: int, *, tense: bool) -> bool:
        now = process_clock.monotonic()
        since_s = now - self._measured_at
        has_changed = not budget or abs(used - self._measured_bytes) >= budget * _CHANGED
        # At once where it has passed the budget, unless it was measured near it a moment ago.
        is_known = since_s < _TENSE_S and self._measured_bytes >= budget * NEAR
        if self._is_full(used, budget) and not self._held and not is_known:
            return True
        return now >= self._next_at and (since_s >= _TENSE_S if tense else since_s >= _CALM_S and has_changed)

    def _is_full(self, used: int, budget: int) -> bool:
        """Return whether classes are held back; once they are, until there is some room."""
        return bool(budget) and used >= budget * (RELEASED if self._held else 1.0)

    def _report(self, measured: ShardMemory, used: int, budget: int) -> None:
        """Write the report: the classes and places that were measured last, and the memory that is used now."""
        full = self._is_full(used, budget)
        held = classes_above_fair_share(used, measured.by_class(), budget) if full else {}
        report = MemoryReport(used, budget, held, measured.parts)
        self._tell(report)
        self._renew(report.encode())

    def _grows_fast(self, used: int, budget: int) -> bool:
        """Return whether the memory would be much before the next calm look, if it grew on as since the last one."""
        (then, before), now = self._seen, process_clock.monotonic()
        self._seen = now, used
        return bool(budget) and used + max(0.0, used - before) / max(now - then, 0.1) * _TENSE_S >= budget * _TENSE

    def _memory(self) -> tuple[int, int, int]:
        """Return the used memory, the budget, and what Redis may use; 0 for what is not known."""
        info = self._client.info("memory")
        number = {name: int(info.get(name, 0)) for name in ("used_memory", "maxmemory", "total_system_memory")}
        used, maxmemory, total = number["used_memory"], number["maxmemory"], number["total_system_memory"]
        return used, budget_of(self._setting, maxmemory, total), maxmemory or total

    def _renew(self, report: bytes) -> None:
        # With little memory left another process follows sooner, as returning jobs and held-back pushes wait for it.
        lease_s, renew_s = (_SHORT_LEASE_S, _SHORT_RENEW_S) if self._word or self._held else (LEASE_S, _RENEW_S)
        lifetimes = [round(seconds * 1_000) for seconds in (lease_s, 2 * LEASE_S)]
        words = [self._identity, lifetimes[0], report, lifetimes[1], self._word, lifetimes[0]]
        began = process_clock.monotonic()
        names = [keys.MEMORY_WATCHER, keys.MEMORY, keys.MEMORY_PRESSURE]
        self._measures = bool(WATCH(self._client, names, words))
        wait_s = _SHORT_RENEW_S if self._pressure.near else _ASK_S
        self._renew_at = began + (renew_s if self._measures else wait_s)

    def _tell_pressure(self, used: int, most: int, *, was_short: bool) -> None:
        state = f"{format_bytes(used)} of {format_bytes(most)} are used"
        if self._word == SHORT_WORD:
            logs.logger(shard=self._shard, used_bytes=used).error(
                f"the memory of the shard is short: {state}. Jobs that cannot start (their limit is full, or their class is paused) "
                "are set aside beside their queues. End jobs that are not needed (jobs clear, jobs drop), or let more processes run "
                f"them. `{command('jobs memory')}` shows what fills it",
                event_name="backlog.memory_short",
            )
        elif was_short:
            logs.logger(shard=self._shard, used_bytes=used).info(
                f"the shard has memory again: {state}. Jobs that were set aside return to their queues",
                event_name="backlog.memory_enough",
            )

    def _tell(self, report: MemoryReport) -> None:
        held = frozenset(report.held)
        facts = {"shard": self._shard, "used_bytes": report.used, "budget_bytes": report.budget}
        of_budget = f"{format_bytes(report.used)} are used, and its budget is {format_bytes(report.budget)}"
        show = f"`{command('jobs memory')}` shows what fills it"
        due = bool(held) and self._log_limit.hit("full")
        if held and (due or held != self._told):
            self._told = held
            names = ", ".join(f"{name} ({format_bytes(one.bytes)})" for name, one in report.held.items())
            logs.logger(**facts, classes=sorted(held)).error(
                f"the memory of the shard is full: {of_budget}. Pushes of {names} are held back, as their on_full says. Let more "
                f"processes run them, or end jobs that are not needed (jobs clear, jobs drop). {show}",
                event_name="backlog.full",
            )
        elif not held and report.budget and report.used >= report.budget * NEAR and self._log_limit.hit("near"):
            largest = next((one.cls for one in report.parts if one.cls), "")
            logs.logger(**facts, classes=[largest] if largest else []).warning(
                f"the memory of the shard is {'above' if report.used > report.budget else 'near'} its budget: {of_budget}. Above it, "
                f"classes that fill it are held back. {show}",
                event_name="backlog.near_budget",
            )
        self._held = held


def worker_part(process: ProcessContext) -> WorkerPart:
    settings, shard = process.settings, process.shard.name
    budget = settings.shards[shard].memory_budget
    process.absent.watch(keys.MEMORY_PRESSURE, keys.ASIDE)
    pressure = MemoryPressure(process.upkeep, process.absent, process.invalidate)
    watch = BudgetWatch(
        process.upkeep,
        shard,
        process.identity,
        budget,
        settings.size_limit,
        _limits(),
        pressure=pressure,
        aside=AsideReturn(process.upkeep, process.absent),
    )

    def of_capsule(owner: str) -> Sequence[StagedPolicy]:
        # Behind the flag that drops jobs, and before what holds them.
        return (StagedPolicy("end", AsidePolicy(process.shard.client, owner, pressure, process.stops)),)

    return WorkerPart(
        of_capsule=of_capsule,
        refresh=pressure.refresh,
        tasks=(OwnTask("memory", watch.step, release=watch.release),),
    )


def _limits() -> dict[str, int]:
    known = {one.declaration().wire_name: one.declaration().facts["max_waiting"] for one in registry.workers()}
    return {name: most.jobs or 0 for name, most in known.items() if most is not None}
