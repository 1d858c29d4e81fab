"""Count the runs of jobs, each thread in rows of its own."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from framework.declare.declaration import Declaration
from framework.declare.job_context import ExtraFields
from framework.errors import BusinessError
from framework.execute.execution import Execution
from framework.execute.job_log import TARGETS
from framework.features.observability import layout
from framework.features.observability.catalogue import (
    COMPLETION_BUCKETS,
    QUEUE_BUCKETS,
    REDIS_BUCKETS,
    RESOURCE_BUCKETS,
)
from framework.features.observability.tally import Tally, labels_of
from framework.finish.outcome import SUCCEEDED
from framework.telemetry.job_events import JobObserver
from framework.telemetry.shared_counts import Row
from framework.telemetry.usage import Usage
from framework.typeguards import has_type
from framework.types import Payload
from framework.wire.job import INTERRUPTED_COUNT, LOAD_BALANCING_STRATEGY, timestamp

_FIRST_COMPLETION, _FIRST_WAIT, _FIRST_CPU = COMPLETION_BUCKETS[0], QUEUE_BUCKETS[0], RESOURCE_BUCKETS[0]


class _RunRow(NamedTuple):
    """The row of a class and queue, and the targets of the class."""

    queue: str
    row: Row
    slow_s: float
    late_s: float
    is_isolated: bool
    """Whether its jobs run in processes of their own."""


class ThreadTally(JobObserver):
    """The counts of the runs of one thread."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rows: dict[tuple[str, str], _RunRow] = {}
        self._last: dict[str, _RunRow] = {}
        """The last row of each class: nearly all classes have one queue, and their name alone is found in half the time."""

    def ended(self, run: Any) -> None:
        """Count a run. A job that a policy has not admitted has not run: the event of the policy counts it."""
        ended: Execution = run
        declaration, payload, unit = ended.declaration, ended.payload, ended.unit
        if declaration is None or payload is None or not ended.admitted:
            return
        known = self._last.get(declaration.wire_name)
        if known is None or known[0] != unit.queue:
            known = self._row_of(declaration, unit.queue)
        row = known[1]
        if known[4]:
            self._set_memory(ended)
        # Numbers of the layout, not names: the look-up of a name costs as much as the addition.
        if ended.outcome is SUCCEEDED or not _has_failed(ended):
            failed = False
            row[0] += 1.0
            row[1] += ended.duration_s
            row[12] += ended.cpu_s
            if ended.duration_s >= _FIRST_COMPLETION or ended.cpu_s > _FIRST_CPU:
                _add_long(known, ended.duration_s, ended.cpu_s)
        else:
            failed = True
            _add_failure(row, ended.duration_s, ended.cpu_s)
        enqueued = payload.get("enqueued_at")
        if type(enqueued) is float and (waited_s := unit.started_at - enqueued) >= 0.0:
            row[9] += waited_s
            if waited_s >= _FIRST_WAIT:
                _add_long_wait(known, waited_s)
        else:
            _add_wait(known, unit.started_at, payload)
        if ended.usage is not None:
            _add_usage(row, ended.usage, failed=failed)
        if "retry_count" in payload or INTERRUPTED_COUNT in payload or LOAD_BALANCING_STRATEGY in payload:
            self._add_marks(row, ended, payload, failed=failed)

    def _row_of(self, declaration: Declaration, queue: str) -> _RunRow:
        known = self._rows.get((declaration.wire_name, queue))
        if known is None:
            wait_s, run_s = TARGETS[declaration.urgency]
            known = self._rows[declaration.wire_name, queue] = _RunRow(
                queue,
                self._tally.run_row(declaration, queue),
                float(run_s),
                math.inf if wait_s is None else float(wait_s),
                not (declaration.is_async or declaration.in_thread),
            )
        self._last[declaration.wire_name] = known
        return known

    def _set_memory(self, run: Execution) -> None:
        extra: ExtraFields | None = run.instance._aw_extra if run.instance is not None else None  # pyright: ignore[reportPrivateUsage]
        peak = None if extra is None else extra.of_features().get("process_peak_bytes")
        if isinstance(peak, int) and run.declaration is not None:
            base = labels_of(run.declaration.wire_name, run.unit.queue, self._tally.shard)
            status = "done" if run.outcome is SUCCEEDED or not _has_failed(run) else "fail"
            self._tally.set_gauge("sidekiq_mem_total_bytes", peak, *base, status, self._tally.pid)

    def _add_marks(self, row: Row, run: Execution, payload: Payload, *, failed: bool) -> None:
        """Count what the payload says of earlier runs, and of the servers of the reads of this one."""
        row[layout.RETRIED] += "retry_count" in payload
        row[layout.INTERRUPTED] += INTERRUPTED_COUNT in payload
        strategy = payload.get(LOAD_BALANCING_STRATEGY)
        if strategy is not None and run.declaration is not None:
            consistency = str(payload.get("worker_data_consistency") or run.declaration.facts["data_consistency"])
            base = labels_of(run.declaration.wire_name, run.unit.queue, self._tally.shard)
            status = "fail" if failed else "done"
            self._tally.add("sidekiq_load_balancing_count", 1, *base, status, str(strategy), consistency)


def _add_long(known: _RunRow, duration_s: float, cpu_s: float) -> None:
    """Count a done run in the buckets above the first ones, and as slow."""
    row = known.row
    if duration_s > _FIRST_COMPLETION:
        row[layout.OVER + (duration_s > COMPLETION_BUCKETS[1])] += 1.0
    if duration_s >= known.slow_s:
        row[layout.SLOW] += 1.0
    if cpu_s > _FIRST_CPU:
        row[layout.CPU + bisect_left(RESOURCE_BUCKETS, cpu_s)] += 1.0


def _add_failure(row: Row, duration_s: float, cpu_s: float) -> None:
    failed = layout.FAILED
    row[failed + layout.COUNT] += 1.0
    row[failed + layout.SECONDS] += duration_s
    if duration_s > _FIRST_COMPLETION:
        row[failed + layout.OVER + (duration_s > COMPLETION_BUCKETS[1])] += 1.0
    _add_value(row, layout.CPU + layout.CPU_NUMBERS, RESOURCE_BUCKETS, cpu_s)


def _add_long_wait(known: _RunRow, waited_s: float) -> None:
    """Count a wait in the buckets above the first one, and as late."""
    row = known.row
    if waited_s > _FIRST_WAIT:
        row[layout.WAITED_OVER + (waited_s > QUEUE_BUCKETS[1])] += 1.0
    if waited_s >= known.late_s:
        row[layout.LATE] += 1.0


def _add_wait(known: _RunRow, started_at: float, payload: Payload) -> None:
    """Count a wait whose begin is not the usual one (GitLab: the creation); clocks may differ, so at least 0."""
    row, enqueued = known.row, timestamp(payload.get("enqueued_at"))
    if enqueued is None:
        enqueued = timestamp(payload.get("created_at"))
    if enqueued is None:
        row[layout.UNTIMED] += 1.0
        return
    waited_s = max(0.0, started_at - enqueued)
    row[layout.WAITED] += waited_s
    if waited_s >= _FIRST_WAIT:
        _add_long_wait(known, waited_s)


def _has_failed(run: Execution) -> bool:
    """Return whether a run counts as a failure; a business error does not: the system worked as designed."""
    error = run.error
    return bool(run.ending.failed) and not (error is not None and has_type(error, BusinessError))


def _add_usage(row: Row, usage: Usage, *, failed: bool) -> None:
    _add_value(row, layout.DB + failed * layout.DB_NUMBERS, RESOURCE_BUCKETS, usage.db_duration_s)
    _add_value(row, layout.REDIS + failed * layout.REDIS_NUMBERS, REDIS_BUCKETS, usage.redis_duration_s)
    row[layout.CALLS + failed] += usage.redis_calls


def _add_value(row: Row, at: int, buckets: Sequence[float], value: float) -> None:
    row[at] += value
    if value > buckets[0]:
        row[at + bisect_left(buckets, value)] += 1.0
