"""Operators' valves: jobs of a class are dropped, or put off, while a flag says so (GitLab's SkipJobs)."""

import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest
from framework.finish.outcome import Deferred, Discarded
from framework.flags.flag import Flag, Flags, drop_flag, run_flag
from framework.telemetry import logs
from framework.telemetry.counters import counters
from framework.telemetry.rate_limit import LogRateLimit

REASON: Final = "feature_flag"
SKIPPED_JOBS: Final = "sidekiq_jobs_skipped_total"

STALE_AFTER_S = 3 * 3_600.0
"""After so long a flag that still skips jobs is taken for forgotten (GitLab's alert)."""

_LOG_INTERVAL_S = 900.0
_JITTER = 0.5
"""Of the delay: those that are deferred together do not come back together."""


@dataclass(slots=True)
class _SkipRecord:
    flag: Flag
    worker: str
    action: str
    since: float
    """Epoch seconds."""
    jobs: int = 0
    """Since the last look."""


class SkipTracker:
    """What flags keep from running: counted, and told when it goes on for so long that somebody may have forgotten it."""

    def __init__(self, flags: Flags) -> None:
        self._flags = flags
        self._records: dict[str, _SkipRecord] = {}
        self._lock = threading.Lock()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def add(self, flag: Flag, worker: str, action: str) -> None:
        """A job was skipped."""
        counters.add(SKIPPED_JOBS, worker, action=action, reason=REASON)
        with self._lock:
            known = self._records.get(flag.name)
            if known is None:
                since = flag.set_at if flag.set_at is not None else time.time()
                known = self._records[flag.name] = _SkipRecord(flag, worker, action, since)
            known.jobs += 1

    def warn_stale(self) -> None:
        """Tell of flags that have skipped jobs since the last look and are old; asks Redis nothing."""
        with self._lock:
            seen = [replace(one) for one in self._records.values()]
            for one in self._records.values():
                one.jobs = 0
            # Whoever sets a flag anew has not forgotten it.
            self._records = {n: one for n, one in self._records.items() if self._flags.find(n) == one.flag}
        for one in seen:
            self._warn_if_stale(one)

    def _warn_if_stale(self, record: _SkipRecord) -> None:
        lasted_s = time.time() - record.since
        if not record.jobs or lasted_s < STALE_AFTER_S or not self._log_limit.hit(record.flag.name):
            return
        logs.logger(**{"class": record.worker}).warning(
            f"jobs have been {record.action} for {lasted_s / 3_600:.1f} h by the flag {record.flag.name}: is it still wanted? "
            f"{command(f'jobs flags clear {record.worker}')} ends it",
            event_name="flags.stale",
            feature_flag=record.flag.name,
            feature_flag_reason=record.flag.reason,
            set_by=record.flag.set_by,
            action=record.action,
            skipping_for_s=round(lasted_s, 3),
        )


class DropFlag:
    """Drops jobs of a class, for as many in a hundred as its flag ``drop_jobs_`` says."""

    def __init__(self, flags: Flags, tracker: SkipTracker) -> None:
        self._flags = flags
        self._tracker = tracker

    def applies_to(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return self._flags.find(drop_flag(declaration.wire_name)) is not None

    def admit(self, request: AdmissionRequest) -> Discarded | None:
        """See ``Gate``; asks Redis nothing."""
        worker = request.declaration.wire_name
        flag = self._flags.find(drop_flag(worker))
        if flag is None or not flag.sampled():
            return None
        self._tracker.add(flag, worker, "dropped")
        why = f": {flag.reason}" if flag.reason else ""
        return Discarded(f"the flag {flag.name}{why}", "feature_flag")


class DeferFlag:
    """Puts jobs of a class off, but for as many in a hundred as its flag ``run_jobs_`` says; without the flag all run."""

    def __init__(self, flags: Flags, tracker: SkipTracker, delay_s: float) -> None:
        self._flags = flags
        self._tracker = tracker
        self._delay_s = delay_s

    def applies_to(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return self._flags.find(run_flag(declaration.wire_name)) is not None

    def admit(self, request: AdmissionRequest) -> Deferred | None:
        """See ``Gate``; asks Redis nothing. Drawn anew each time the job comes."""
        worker = request.declaration.wire_name
        flag = self._flags.find(run_flag(worker))
        if flag is None or flag.sampled():
            return None
        self._tracker.add(flag, worker, "deferred")
        delay_s = self._delay_s * random.uniform(1 - _JITTER, 1 + _JITTER)
        fields: dict[str, Any] = {"feature_flag": flag.name}
        if flag.reason:
            fields["feature_flag_reason"] = flag.reason
        return Deferred(delay_s, REASON, fields)
