"""Drop or defer jobs of a class by feature flags of operators (GitLab's SkipJobs)."""

import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from framework.command_line import remedy_command
from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest, StagedPolicy
from framework.execute.outcomes import forget_cursor
from framework.features.deferral.parked import REASON, ParkedJobs, parked_s
from framework.features.flags.flag import Flag, Flags, drop_flag, run_flag
from framework.features.flags.process_flags import WORKER_FLAGS
from framework.features.flags.settings import FlagSettings
from framework.finish.outcome import Deferred, Discarded
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.telemetry import logs
from framework.telemetry.job_events import JobSkipped, job_events
from framework.telemetry.logs import LogRateLimit
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import DEFERRED_BY

_JITTER = 0.5
"""The random part of the delay: jobs that are deferred together return at different times."""


STALE_AFTER_S = 3 * 3_600.0
"""A flag that still skips jobs after this time is considered forgotten (GitLab's alert)."""

_LOG_INTERVAL_S = 900.0


@dataclass(slots=True)
class _SkipRecord:
    flag: Flag
    worker: str
    action: str
    since: float
    """Epoch seconds."""
    jobs: int = 0
    """Jobs skipped since the last check."""


class SkipTracker:
    """Count the jobs that flags skip, and warn if a flag skips jobs for so long that it may be forgotten."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._records: dict[str, _SkipRecord] = {}
        self._lock = threading.Lock()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def add(self, flag: Flag, worker: str, action: str) -> None:
        job_events.emit(JobSkipped(worker, action=action, reason=REASON))
        with self._lock:
            known = self._records.get(flag.name)
            if known is None:
                since = flag.set_at if flag.set_at is not None else time.time()
                known = self._records[flag.name] = _SkipRecord(flag, worker, action, since)
            known.jobs += 1

    def warn_stale(self) -> None:
        """Warn of old flags that have skipped jobs since the last check. Sends nothing to Redis."""
        with self._lock:
            seen = [replace(one) for one in self._records.values()]
            for one in self._records.values():
                one.jobs = 0
            # A flag that was set again is not forgotten.
            self._records = {n: one for n, one in self._records.items() if self._flags.find(n) == one.flag}
        for one in seen:
            self._warn_if_stale(one)

    def _warn_if_stale(self, record: _SkipRecord) -> None:
        lasted_s = time.time() - record.since
        if not record.jobs or lasted_s < STALE_AFTER_S or not self._log_limit.hit(record.flag.name):
            return
        logs.logger(**{"class": record.worker}).warning(
            f"the flag {record.flag.name} has {record.action} jobs for {lasted_s / 3_600:.1f} h. If it is no longer needed, run "
            f"{remedy_command('jobs', 'flags', 'clear', record.worker, loads_classes=True)}",
            event_name="flags.stale",
            feature_flag=record.flag.name,
            feature_flag_reason=record.flag.reason,
            set_by=record.flag.set_by,
            action=record.action,
            skipping_for_s=round(lasted_s, 3),
        )


class DropFlag:
    """Drop the share of a class's jobs that its flag ``drop_jobs_`` says."""

    def __init__(self, flags: Flags, tracker: SkipTracker) -> None:
        self._flags = flags
        self._tracker = tracker

    def applies_to(self, declaration: Declaration) -> bool:
        return self._flags.find(drop_flag(declaration.wire_name)) is not None

    def admit(self, request: AdmissionRequest) -> Discarded | None:
        """See ``AdmissionPolicy``. Sends nothing to Redis."""
        worker = request.declaration.wire_name
        flag = self._flags.find(drop_flag(worker))
        if flag is None or not flag.sampled():
            return None
        self._tracker.add(flag, worker, "dropped")
        forget_cursor(request.unit, request.payload, request.declaration)
        why = f": {flag.reason}" if flag.reason else ""
        return Discarded(f"the flag {flag.name}{why}", REASON)


class DeferFlag:
    """Defer jobs of a class, except for the share that its flag ``run_jobs_`` says; without the flag all run."""

    def __init__(self, flags: Flags, tracker: SkipTracker, delay_s: float, parked: ParkedJobs | None = None) -> None:
        self._flags = flags
        self._parked = parked
        self._tracker = tracker
        self._delay_s = delay_s

    def applies_to(self, declaration: Declaration) -> bool:
        return self._flags.find(run_flag(declaration.wire_name)) is not None

    def admit(self, request: AdmissionRequest) -> Deferred | None:
        """See ``AdmissionPolicy``. Sends nothing to Redis. The flag is evaluated again each time the job comes."""
        worker = request.declaration.wire_name
        flag = self._flags.find(run_flag(worker))
        if flag is None or flag.sampled():
            return None
        self._tracker.add(flag, worker, "deferred")
        if self._parked is not None and flag.percentage <= 0:
            self._parked.note(worker)
        delay_s = self._delay_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        fields: dict[str, Any] = {"feature_flag": flag.name}
        if flag.reason:
            fields["feature_flag_reason"] = flag.reason
        return Deferred(delay_s, REASON, fields)


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of these flags in a worker process. Its policies send nothing to Redis."""
    flags = process.service(WORKER_FLAGS).all
    skips = SkipTracker(flags)
    settings = FlagSettings.of(process.settings).flags
    parked = ParkedJobs(process.upkeep, process.identity, flags, process.absent, settings.release_rate)
    defers = DeferFlag(flags, skips, settings.defer_delay, parked)

    def postpones(declaration: Declaration, payload: Payload) -> float:
        if payload.get(DEFERRED_BY) != REASON or not parked.stops(declaration):
            return 0.0
        parked.note(declaration.wire_name)
        return parked_s()

    process.absent.watch(keys.DEFERRED_CLASSES)
    policies = StagedPolicy("end", DropFlag(flags, skips)), StagedPolicy("hold", defers)
    periodic = skips.warn_stale, parked.release
    return WorkerPart(policies, periodic=periodic, stops=parked.stops, postpones=postpones)
