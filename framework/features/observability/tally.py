"""Count the events of the jobs of this process, for ``/metrics`` and StatsD.

Each thread adds its runs to rows of its own (``telemetry/shared_counts.py``), so counting them takes no lock; a scrape sums up the
rows. Rare events, and pushes, share rows under a lock.
"""

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.feature import Late
from framework.features.observability import layout
from framework.features.observability.catalogue import (
    METRICS,
    SIZE_BUCKETS,
    Mode,
)
from framework.telemetry.job_events import (
    ClassThrottled,
    CountedEnd,
    JobDied,
    JobFenced,
    JobHeld,
    JobInterrupted,
    JobObserver,
    JobRecovered,
    JobResumed,
    JobsEnqueued,
    JobSkipped,
    StreamEvent,
    WorkRemains,
)
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.shared_counts import GAUGE, Row, Rows, SharedCounts, add_rows, counter_key

UNKNOWN = "unknown"
"""The class of jobs whose class this process lacks, and of those above the most series."""

_SERIES_OF_RUN: Final[Mapping[Mode, int]] = {"histogram": 75, "counters": 17}
"""The series that one row of runs makes."""
_LOG_INTERVAL_S = 3_600.0
# A process that only pushes loads nothing of runs.
_OF_THREAD: "Late[Callable[[Tally], JobObserver]]" = Late("framework.features.observability.run_tally:ThreadTally")

_BY_SERIES: Final[Mapping[str, str]] = {
    "sidekiq_cron_ticks_total": "application_worker_cron_ticks_total",
    "sidekiq_job_iterations_total": "application_worker_iterations_total",
    "sidekiq_results_refused_total": "application_worker_results_refused_total",
    "sidekiq_jobs_process_lost_total": "application_worker_job_processes_lost_total",
}
"""The metrics of events of rooms, which this one does not know: the labels are those of the event."""


class Tally(JobObserver):
    """The counts of this process. Safe from any thread."""

    needs_usage = True

    def __init__(self, mode: Mode, most_series: int, counts: Callable[[], SharedCounts]) -> None:
        """``counts`` opens the memory, at the first use in this process."""
        self.mode: Mode = mode
        self.shard = "main"
        """The shard that the process serves."""
        self.pid = os.environ.get("FRAMEWORK_WORKER_ID") or str(os.getpid())
        """The name of the process in labels."""
        self.sample: list[Callable[[], None]] = []
        """Set the gauges, before they are read."""
        self._most_series = most_series
        self._open = counts
        self._counts: SharedCounts | None = None
        self._lock = threading.Lock()
        self._series = 0
        self._rows: dict[tuple[str, ...], Row] = {}
        self._queues: dict[str, str] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self._counters: Mapping[type[StreamEvent], Callable[..., None]] = {
            JobsEnqueued: self._enqueued,
            JobSkipped: self._skipped,
            JobDied: self._died,
            JobHeld: self._held,
            ClassThrottled: self._throttled,
            JobRecovered: self._recovered,
        }

    def of_thread(self) -> JobObserver:
        return _OF_THREAD.load()(self)

    def happened(self, event: StreamEvent) -> None:
        counter = self._counters.get(type(event))
        if counter is not None:
            counter(event)
        elif isinstance(event, JobResumed):
            self.add("application_worker_resumed_jobs_total", event.count, _worker(event), event.by)
        elif isinstance(event, CountedEnd):
            how = event.series.removeprefix("sidekiq_jobs_").removesuffix("_total")
            self.add("application_worker_ended_jobs_total", event.count, _worker(event), how)
        elif isinstance(event, JobInterrupted):
            self.add("application_worker_cut_off_jobs_total", event.count, _worker(event))
            if event.given_up:
                self.add("application_worker_quarantined_jobs_total", event.count, _worker(event), "stop")
        elif isinstance(event, JobFenced):
            self.add("application_worker_fenced_jobs_total", event.count, _worker(event))
        elif isinstance(event, WorkRemains):
            self.set_gauge("limited_capacity_worker_remaining_work_count", event.count, _worker(event), self.pid)
        elif (metric := _BY_SERIES.get(event.series)) is not None:
            labels = event.labels
            self.add(metric, event.count, *(_worker(event), *(labels[one] for one in METRICS[metric].labels[1:])))

    def add(self, metric: str, amount: float, *labels: str) -> None:
        """Add to the counter with these labels, in the order of the catalogue."""
        with self._lock:
            self._row_of(metric, labels)[0] += amount

    def set_gauge(self, metric: str, value: float, *labels: str) -> None:
        """Set the gauge with these labels."""
        with self._lock:
            self._row_of(metric, labels, gauge=True)[0] = value

    def declare(self, declaration: Declaration, queue: str, shard: str) -> None:
        """Make the series of a class that this process may push, with zero; those of its runs, if the process may run it."""
        base = labels_of(declaration.wire_name, queue, shard)
        self._queues.setdefault(declaration.wire_name, queue)
        for scheduling in ("immediate", "delayed"):
            self.add("sidekiq_enqueued_jobs_total", 0, *base, scheduling)

    def has(self, declaration: Declaration) -> bool:
        """Return whether the series of a class have been made."""
        return declaration.wire_name in self._queues

    def declare_runs(self, declaration: Declaration, queue: str) -> None:
        """Make the series of the runs of a class from a queue, with zero."""
        self._queues.setdefault(declaration.wire_name, queue)
        base = labels_of(declaration.wire_name, queue, self.shard)
        self.run_row(declaration, queue)
        self.add("sidekiq_jobs_dead_total", 0, *base)
        for action in ("deferred", "dropped"):
            self.add("sidekiq_jobs_skipped_total", 0, *base, action, "feature_flag")
        self.add("sidekiq_jobs_skipped_total", 0, *base, "deferred", "database_health")
        self.add("sidekiq_concurrency_limit_deferred_jobs_total", 0, declaration.wire_name)

    def run_row(self, declaration: Declaration, queue: str) -> Row:
        """Return a new row of runs, for one thread."""
        with self._lock:
            labels = labels_of(declaration.wire_name, queue, self.shard)
            if (layout.RUN, *labels) not in self._rows:
                labels = self._labels_within(labels, _SERIES_OF_RUN[self.mode], shared=len(labels))
                self._rows[(layout.RUN, *labels)] = self._memory.row(key_of(layout.RUN, labels), layout.RUN_NUMBERS)
            return self._memory.row(key_of(layout.RUN, labels), layout.RUN_NUMBERS)

    def sums(self) -> Rows:
        """Return the sums by key, of this process."""
        for sample in self.sample:
            sample()
        sums = Rows()
        with self._lock:
            memory = self._memory
        add_rows(sums, memory.rows())
        return sums

    def reset_in_child(self) -> None:
        """Begin again after a fork: the counts belong to the parent, and a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        self._counts, self._rows, self._queues, self._series, self.sample = None, {}, {}, 0, []

    @property
    def _memory(self) -> SharedCounts:
        if self._counts is None:
            self._counts = self._open()
        return self._counts

    def _row_of(self, metric: str, labels: tuple[str, ...], *, gauge: bool = False) -> Row:
        row = self._rows.get((metric, *labels))
        if row is None:
            buckets = METRICS[metric].buckets
            numbers = len(buckets) + 2 if buckets else 1
            if not gauge:
                at = METRICS[metric].labels
                labels = self._labels_within(labels, numbers + bool(buckets), shared=len(at))
                row = self._rows.get((metric, *labels))
            if row is None:
                row = self._memory.row(key_of(metric, labels, gauge=gauge), numbers)
                self._rows[(metric, *labels)] = row
        return row

    def _labels_within(self, labels: tuple[str, ...], series: int, *, shared: int) -> tuple[str, ...]:
        """Return the labels, or those of the unknown class if the process has its most series."""
        if self._series + series <= self._most_series:
            self._series += series
            return labels
        self._log_limit.warning(
            "series",
            f"this process has {self._series:,} series: further classes count as the class {UNKNOWN}. Raise metrics.most_series, or "
            "set metrics.mode to counters",
            "metrics.most_series",
            most_series=self._most_series,
        )
        refused = self._rows.get((_REFUSED,))
        if refused is None:
            refused = self._rows[(_REFUSED,)] = self._memory.row(key_of(_REFUSED, ()), 1)
        refused[0] += 1
        return (UNKNOWN,) * shared

    def _base_of(self, event: StreamEvent, shard: str = "") -> tuple[str, ...]:
        return labels_of(event.worker, event.queue or self._queues.get(event.worker, ""), shard or self.shard)

    def _enqueued(self, event: JobsEnqueued) -> None:
        base = self._base_of(event, event.shard)
        self.add("sidekiq_enqueued_jobs_total", event.count, *base, "delayed" if event.scheduled else "immediate")
        with self._lock:
            row = self._row_of("application_worker_payload_bytes", (base[1],))
            for size in event.sizes:
                row[bisect_left(SIZE_BUCKETS, size)] += 1
            row[-1] += sum(event.sizes)

    def _skipped(self, event: JobSkipped) -> None:
        self.add("sidekiq_jobs_skipped_total", event.count, *self._base_of(event), event.action, event.reason)

    def _died(self, event: JobDied) -> None:
        self.add("sidekiq_jobs_dead_total", event.count, *self._base_of(event))

    def _held(self, event: JobHeld) -> None:
        self.add("application_worker_held_jobs_total", event.count, _worker(event), event.by)
        if event.series:
            self.add(event.series, event.count, _worker(event))

    def _throttled(self, event: ClassThrottled) -> None:
        category = labels_of(event.worker, "", "")[4]
        self.add("sidekiq_throttling_events_total", event.count, _worker(event), event.strategy, category)

    def _recovered(self, event: JobRecovered) -> None:
        self.add("application_worker_recovered_jobs_total", event.count, _worker(event), event.cause)
        if event.quarantined:
            self.add("application_worker_quarantined_jobs_total", event.count, _worker(event), event.cause)


_REFUSED = "application_worker_series_refused_total"


def _worker(event: StreamEvent) -> str:
    return UNKNOWN if registry.find(event.worker) is None else event.worker


def labels_of(worker: str, queue: str, shard: str) -> tuple[str, ...]:
    """Return the values of GitLab's base labels (``catalogue.BASE``)."""
    found = registry.find(worker)
    if found is None:
        return (queue, UNKNOWN, "", "no", "", "", shard)
    declaration: Declaration = found.declaration()
    boundary = declaration.resource_boundary
    return (
        queue,
        declaration.wire_name,
        declaration.urgency,
        "yes" if declaration.has_external_dependencies else "no",
        declaration.feature_category,
        "" if boundary == "unknown" else boundary,
        shard,
    )


def key_of(kind: str, labels: Sequence[str], *, gauge: bool = False) -> bytes:
    """Return the key of a row: its kind and the values of its labels."""
    key = counter_key(kind, labels)
    return GAUGE + key[1:] if gauge else key
