"""Count the jobs that operators' flags skip, and warn of flags that may be forgotten: the flag policies' maintenance."""

import threading
import time
from dataclasses import dataclass, replace
from typing import Final

from framework.command_line import remedy_command
from framework.features.flags.flag import Flag, Flags
from framework.telemetry import logs
from framework.telemetry.counters import SKIPPED_JOBS, counters
from framework.telemetry.logs import LogRateLimit

REASON: Final = "feature_flag"

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
        """Record a skipped job."""
        counters.add(SKIPPED_JOBS, worker, action=action, reason=REASON)
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
