"""Show the running jobs and count the runs by thread and class, for the process record, the metrics and the stack dump."""

import threading
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from framework.declare.job_context import JobLogger
from framework.errors import BusinessError
from framework.execute.cancellation import Cancellation, Cancellations
from framework.execute.job_log import TARGETS
from framework.fetch.state import InFlight
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import Ending
from framework.finish.outcome import SUCCEEDED, Failed, JobStop
from framework.telemetry import logs
from framework.telemetry.job_events import JobObserver, job_events, tell_ended
from framework.typeguards import has_type
from framework.types import Jid, Payload, Urgency
from framework.wire.job import timestamp
from framework.wire.urgency_counts import WAIT_BOUNDS_S

BUCKETS_MS = (
    *(20, 30, 45, 65, 100, 150, 225, 335, 500, 750, 1_100, 1_700, 2_500, 3_800, 5_750, 8_500, 13_000, 20_000, 30_000),
    *(45_000, 65_000, 100_000, 150_000, 225_000, 335_000),
)
"""The upper bounds of the buckets (Sidekiq's); longer runs have one bucket more."""

_BOUNDS_S = tuple(bound / 1000 for bound in BUCKETS_MS)


_FIRST_WAIT_S = WAIT_BOUNDS_S[0]


class ClassMetrics:
    """The counts of one class in one thread since the process started; only that thread writes."""

    __slots__ = (
        *("buckets", "failed", "processed", "seconds", "slow", "slow_s", "untimed", "urgency", "waited_s"),
        "waits",
    )

    def __init__(self, urgency: Urgency = "low") -> None:
        self.urgency: Urgency = urgency
        self.slow_s = float(TARGETS[urgency][1])
        """The target of the duration. Loaded for each job, as a look-up of the urgency costs more."""
        self.processed = 0
        self.failed = 0
        self.seconds = 0.0
        """Total duration of the runs that did not fail; a failed run says nothing about the duration of the class."""
        self.buckets = [0] * (len(BUCKETS_MS) + 1)
        self.slow = 0
        """Runs that did not fail and lasted as long as the target, or longer."""
        self.untimed = 0
        """Runs of jobs whose payload has no time of the push."""
        self.waited_s = 0.0
        """Total time from the push, or the due time, to the start, of all other runs."""
        self.waits = [0] * len(WAIT_BOUNDS_S)
        """Of these, the runs that waited at least as long as each bound, and less than the next one. Almost no job counts here."""

    def record_run(self, seconds: float) -> None:
        """Count a run that did not fail."""
        self.processed += 1
        self.seconds += seconds
        self.buckets[bisect_right(_BOUNDS_S, seconds)] += 1
        if seconds >= self.slow_s:
            self.slow += 1

    def record_failure(self) -> None:
        self.processed += 1
        self.failed += 1

    def record_wait(self, started_at: float, payload: Payload) -> None:
        """Count a wait that does not begin as usual (GitLab: at the creation); clocks may differ, so at least 0."""
        enqueued = timestamp(payload.get("enqueued_at"))
        if enqueued is None:
            enqueued = timestamp(payload.get("created_at"))
        if enqueued is None:
            self.untimed += 1
            return
        waited_s = max(0.0, started_at - enqueued)
        self.waited_s += waited_s
        if waited_s >= _FIRST_WAIT_S:
            self.waits[bisect_right(WAIT_BOUNDS_S, waited_s) - 1] += 1

    def merge(self, other: "ClassMetrics") -> None:
        """Add the counts of ``other``; a write of its thread meanwhile may be included or not."""
        # Waits first: a run is counted before its wait, and so no wait is without its run.
        self.waits = [mine + added for mine, added in zip(self.waits, other.waits, strict=True)]
        self.waited_s += other.waited_s
        self.untimed += other.untimed
        self.slow += other.slow
        self.buckets = [mine + added for mine, added in zip(self.buckets, other.buckets, strict=True)]
        self.seconds += other.seconds
        self.failed += other.failed
        self.processed += other.processed

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Return the counts that ``keys.class_waits`` has: the waits by bucket, then ``SUCCEEDED_AT`` and ``SLOW_AT``."""
        quick = self.processed - self.untimed - sum(self.waits)
        return quick, *self.waits, self.processed - self.failed, self.slow


def sum_by_class(tables: Iterable[dict[str, ClassMetrics]]) -> dict[str, ClassMetrics]:
    sums: dict[str, ClassMetrics] = {}
    for table in tables:
        # `dict.copy` is one step for the interpreter, so a thread that adds a class meanwhile cannot break the loop.
        for name, metrics in table.copy().items():
            sums.setdefault(name, ClassMetrics(metrics.urgency)).merge(metrics)
    return sums


@dataclass(slots=True)
class ThreadCounts(JobObserver):
    """The first observer of the runs of one thread: it counts for Sidekiq's statistics, and tells the further observers.

    Only that thread writes, so a job takes no lock. The processor calls it without the loop and the guard of ``tell_ended``: every
    process counts these, and almost none has a further observer.
    """

    processed: int = 0
    uncounted: int = 0
    """Of these, the jobs moved by a script that does not count them (retry, dead set): the next heartbeat adds them."""
    failed: int = 0
    classes: dict[str, ClassMetrics] = field(default_factory=dict[str, ClassMetrics])
    """The runs of each known class, by wire name."""
    queues: dict[str, int] = field(default_factory=dict[str, int])
    """The ended runs of jobs from each queue."""
    observers: tuple[JobObserver, ...] = field(default=(), compare=False)
    """The further observers of the runs of this thread."""

    def ended(self, run: Any) -> None:
        """Count a run. All in one call, which each job pays for."""
        declaration = run.declaration
        if run.outcome is SUCCEEDED and declaration is not None:
            unit, name, seconds = run.unit, declaration.wire_name, run.duration_s
            queue = unit.queue
            self.processed += 1
            self.queues[queue] = self.queues.get(queue, 0) + 1
            metrics = self.classes.get(name) or self.for_class(name, declaration.urgency)
            metrics.record_run(seconds)
            enqueued = run.payload.get("enqueued_at")
            if type(enqueued) is float and (waited_s := unit.started_at - enqueued) >= 0.0:
                metrics.waited_s += waited_s
                # In a burst every job waits for so long: no call of a function.
                if waited_s >= _FIRST_WAIT_S:
                    metrics.waits[bisect_right(WAIT_BOUNDS_S, waited_s) - 1] += 1
            else:
                metrics.record_wait(unit.started_at, run.payload)
        else:
            self._count_other(run, run.ending)
        if self.observers:
            tell_ended(self.observers, run)

    def _count_other(self, run: Any, ending: Ending) -> None:
        if ending.processed == "no":
            # The job has not run, or its payload cannot be read: Sidekiq does not count it either.
            return
        self.processed += 1
        self.queues[run.unit.queue] = self.queues.get(run.unit.queue, 0) + 1
        if ending.processed == "record":
            self.uncounted += 1
        # The system worked as designed.
        has_failed = isinstance(run.outcome, Failed) and not has_type(run.outcome.error, BusinessError)
        if run.declaration is not None and run.admitted:
            metrics = self.for_class(run.declaration.wire_name, run.declaration.urgency)
            if has_failed:
                metrics.record_failure()
            else:
                metrics.record_run(run.duration_s)
            metrics.record_wait(run.unit.started_at, run.payload or {})
        self.failed += has_failed

    def for_class(self, name: str, urgency: Urgency = "low") -> ClassMetrics:
        metrics = self.classes.get(name)
        if metrics is None:
            metrics = self.classes[name] = ClassMetrics(urgency)
        return metrics


class RunningJobs:
    """The state that running jobs read, and what is shown of them."""

    interrupted = False
    """The value of ``self.interrupted`` of a running job: the process is stopping."""

    quiet = False
    """Whether the process fetches no more jobs: an iterating job goes back to its queue, for another process."""

    stopping = False
    """Whether running jobs have a deadline: jobs that have not started, or are cancelled, return to their queues."""

    deadline_passed = False
    """Whether the deadline has passed: a job that ends by the stop from now on was cut off."""

    def __init__(
        self,
        cancellations: Cancellations | None = None,
    ) -> None:
        self._in_flight: tuple[InFlight, ...] = ()
        self._cancellations = cancellations
        self.cancelled: set[Jid] = set() if cancellations is None else cancellations.marked
        """The ids of the cancelled jobs of this shard; empty almost always."""
        self.stops: dict[Jid, tuple[UnitOfWork, JobStop]] = {}
        """The running jobs of this process that an operator has stopped, by id; empty almost always."""
        self._thread_counts: list[ThreadCounts] = []
        self._lock = threading.Lock()

    def show(self, jobs: InFlight) -> None:
        self._in_flight += (jobs,)

    def new_thread_counts(self) -> ThreadCounts:
        """Return new counts for the calling thread."""
        counts = ThreadCounts(observers=job_events.of_thread())
        with self._lock:
            self._thread_counts.append(counts)
        return counts

    def running(self) -> dict[int, tuple[UnitOfWork, int]]:
        """Return run id -> (unit, start in epoch seconds)."""
        return {unit.run_id: (unit, int(unit.started_at)) for one in self._in_flight for unit in one.running()}

    def totals(self) -> ThreadCounts:
        """Return the sums since the process started; a failure counts as processed too (Sidekiq's rule)."""
        with self._lock:
            threads = self._thread_counts
            return ThreadCounts(
                sum(one.processed for one in threads),
                sum(one.uncounted for one in threads),
                sum(one.failed for one in threads),
            )

    def class_metrics(self) -> dict[str, ClassMetrics]:
        """Return the runs of each class since the process started."""
        with self._lock:
            tables = [counts.classes for counts in self._thread_counts]
        return sum_by_class(tables)

    def runs_by_queue(self) -> dict[str, int]:
        """Return the number of ended runs since the process started, by the queue that the jobs came from."""
        with self._lock:
            tables = [counts.queues for counts in self._thread_counts]
        sums: dict[str, int] = {}
        for table in tables:
            # As in ``sum_by_class``: a copy is one step for the interpreter.
            for name, count in table.copy().items():
                sums[name] = sums.get(name, 0) + count
        return sums

    def cancellation(self, jid: Jid, bid: str = "") -> Cancellation:
        """Return the cancellation behind ``self.cancelled`` of a running job."""
        if self._cancellations is not None:
            cancellation = self._cancellations.watch(jid, bid)
        else:
            cancellation = Cancellation(jid, bid)
            cancellation.is_set = jid in self.cancelled or bid in self.cancelled
        cancellation.is_set = cancellation.is_set or jid in self.stops
        return cancellation

    def stop(self, unit: UnitOfWork, jid: Jid, stop: JobStop) -> None:
        """Note that an operator has stopped the running job: it sees that it is cancelled, and its run ends as ``stop`` says."""
        self.stops[jid] = (unit, stop)
        if self._cancellations is not None:
            self._cancellations.set_cancelled(jid)

    def stop_of(self, jid: Jid, unit: UnitOfWork) -> JobStop | None:
        """Return the stop of this run, ``None`` for almost every run. Another run of the same job is not concerned."""
        stopped, stop = self.stops.get(jid, (None, None))
        return stop if stopped is unit else None

    def forget_stops(self, running: Iterable[UnitOfWork]) -> None:
        """Forget the stops of the runs that have ended."""
        units = set(map(id, running))
        for jid, (unit, _) in list(self.stops.items()):
            if id(unit) not in units:
                self.stops.pop(jid, None)

    def watch(self, jid: Jid, bid: str = "") -> Cancellation:
        """Return the cancellation of an iterating job, which learns of Ruby's cancellation when it saves its cursor."""
        known = self._cancellations
        cancellation = Cancellation(jid, bid) if known is None else known.watch(jid, bid, asks=False)
        cancellation.is_set = cancellation.is_set or jid in self.cancelled or bid in self.cancelled
        return cancellation

    def logger(self, job: dict[str, Any]) -> JobLogger:
        """Return the logger behind ``self.logger`` of a running job."""
        bound: Any = logs.job_logger(job)
        return cast("JobLogger", bound)
