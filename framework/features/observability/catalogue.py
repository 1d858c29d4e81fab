"""The one list of all metrics: of each process, and of the fleet. The exporters, the reference and the dashboards read it.

GitLab's metrics have GitLab's names, types, labels and buckets. All others begin with ``application_worker_``.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Scope: TypeAlias = Literal["process", "fleet"]
Origin: TypeAlias = Literal["GitLab", "ours"]
Mode: TypeAlias = Literal["histogram", "counters"]

BASE = (
    *("queue", "worker", "urgency", "external_dependencies", "feature_category", "boundary"),
    "destination_shard_redis",
)
"""The labels of nearly all metrics of jobs (GitLab's)."""
SLI = ("worker", "feature_category", "urgency", "external_dependencies", "queue", "destination_shard_redis")
"""The labels of the service level indicators (GitLab's)."""
STATUS = "job_status"
"""``done`` or ``fail``."""

COMPLETION_BUCKETS = (10.0, 300.0)
QUEUE_BUCKETS = (10.0, 60.0)
RESOURCE_BUCKETS = (0.1, 0.5, 1.0, 2.5)
REDIS_BUCKETS = (0.1, 0.25, 0.5)
SIZE_BUCKETS = (1_000.0, 10_000.0, 100_000.0, 1_000_000.0, 5_000_000.0)


class Metric(NamedTuple):
    """One metric, as it is exposed and documented."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    scope: Scope = "process"
    origin: Origin = "ours"
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram, without infinity."""
    mode: Mode | None = None
    """The only mode that has it; ``None``: both."""

    @property
    def is_plain(self) -> bool:
        """Whether its name follows Prometheus' rules for its kind. GitLab has some that do not: they are exposed without a type."""
        if self.kind == "counter":
            return self.name.endswith("_total")
        return not self.name.endswith(("_total", "_count", "_sum", "_bucket"))


def _gitlab(name: str, kind: Kind, labels: tuple[str, ...], text: str, **more: object) -> Metric:
    return Metric(name, kind, labels, text, origin="GitLab")._replace(**more)  # type: ignore[arg-type]


_WITH_STATUS = (*BASE, STATUS)

PROCESS: tuple[Metric, ...] = (
    _gitlab(
        "sidekiq_enqueued_jobs_total",
        "counter",
        (*BASE, "scheduling"),
        "Pushed jobs. A delayed job counts when it is scheduled (delayed), and again when it moves to its queue (immediate).",
    ),
    _gitlab("sidekiq_jobs_retried_total", "counter", BASE, "Runs that were retries."),
    _gitlab(
        "sidekiq_jobs_interrupted_total", "counter", BASE, "Runs of jobs that a stop or death has interrupted before."
    ),
    _gitlab("sidekiq_jobs_failed_total", "counter", BASE, "Runs that failed.", mode="histogram"),
    _gitlab("sidekiq_jobs_dead_total", "counter", BASE, "Jobs whose death handlers were called."),
    _gitlab(
        "sidekiq_jobs_skipped_total",
        "counter",
        (*BASE, "action", "reason"),
        "Jobs that a flag or a health check deferred or dropped.",
    ),
    _gitlab(
        "sidekiq_jobs_completion_seconds",
        "histogram",
        _WITH_STATUS,
        "Duration of runs.",
        buckets=COMPLETION_BUCKETS,
        mode="histogram",
    ),
    _gitlab(
        "sidekiq_jobs_queue_duration_seconds",
        "histogram",
        BASE,
        "Time from the push, or from the due time, to the start of the run.",
        buckets=QUEUE_BUCKETS,
        mode="histogram",
    ),
    _gitlab(
        "sidekiq_jobs_cpu_seconds",
        "histogram",
        _WITH_STATUS,
        "Processor time of runs; 0 for async jobs.",
        buckets=RESOURCE_BUCKETS,
        mode="histogram",
    ),
    _gitlab(
        "sidekiq_jobs_db_seconds",
        "histogram",
        _WITH_STATUS,
        "Time in SQL statements of runs.",
        buckets=RESOURCE_BUCKETS,
        mode="histogram",
    ),
    _gitlab(
        "sidekiq_redis_requests_duration_seconds",
        "histogram",
        _WITH_STATUS,
        "Time in Redis calls of the job's own code.",
        buckets=REDIS_BUCKETS,
        mode="histogram",
    ),
    _gitlab("sidekiq_jobs_completion_count", "counter", BASE, "Runs, failed ones included.", mode="counters"),
    _gitlab(
        "sidekiq_jobs_completion_seconds_sum",
        "counter",
        BASE,
        "Duration of all runs, failed ones included.",
        mode="counters",
    ),
    _gitlab("sidekiq_jobs_cpu_seconds_sum", "counter", BASE, "Processor time of all runs.", mode="counters"),
    _gitlab("sidekiq_jobs_db_seconds_sum", "counter", BASE, "Time in SQL statements of all runs.", mode="counters"),
    _gitlab(
        "sidekiq_redis_requests_duration_seconds_sum",
        "counter",
        BASE,
        "Time in Redis calls of the code of all runs.",
        mode="counters",
    ),
    _gitlab("sidekiq_redis_requests_total", "counter", _WITH_STATUS, "Redis calls of the job's own code."),
    _gitlab("sidekiq_running_jobs", "gauge", (*BASE, "pid"), "Jobs that run now."),
    _gitlab("sidekiq_concurrency", "gauge", ("pid",), "Slots of the process."),
    _gitlab(
        "sidekiq_mem_total_bytes",
        "gauge",
        (*_WITH_STATUS, "pid"),
        "Memory that the last run of the class has allocated.",
    ),
    _gitlab(
        "sidekiq_load_balancing_count",
        "counter",
        (*_WITH_STATUS, "load_balancing_strategy", "data_consistency"),
        "Choices of a database server for the reads of a job.",
    ),
    _gitlab(
        "sidekiq_concurrency_limit_deferred_jobs_total",
        "counter",
        ("worker",),
        "Jobs that a concurrency limit has held.",
    ),
    _gitlab(
        "sidekiq_throttling_events_total",
        "counter",
        ("worker", "strategy", "feature_category"),
        "Times that the throttling of a class has lowered its limit.",
    ),
    _gitlab(
        "gitlab_sli_sidekiq_execution_apdex_total",
        "counter",
        SLI,
        "Successful runs: failures say nothing about duration.",
    ),
    _gitlab(
        "gitlab_sli_sidekiq_execution_apdex_success_total",
        "counter",
        SLI,
        "Successful runs within the target of their urgency: 10 s for high, else 300 s.",
    ),
    _gitlab("gitlab_sli_sidekiq_execution_total", "counter", SLI, "Runs."),
    _gitlab("gitlab_sli_sidekiq_execution_error_total", "counter", SLI, "Runs that failed; each retry counts."),
    _gitlab("gitlab_sli_sidekiq_queueing_apdex_total", "counter", SLI, "Runs of jobs whose push has a time."),
    _gitlab(
        "gitlab_sli_sidekiq_queueing_apdex_success_total",
        "counter",
        SLI,
        "Runs that began within the target of their urgency: 10 s for high, 60 s for low, any time for throttled.",
    ),
    Metric("application_worker_held_jobs_total", "counter", ("worker", "by"), "Jobs held by a limit or a pause."),
    Metric("application_worker_resumed_jobs_total", "counter", ("worker", "by"), "Held jobs that continued."),
    Metric(
        "application_worker_ended_jobs_total",
        "counter",
        ("worker", "how"),
        "Ends that are neither a success nor a failure: expired, cancelled, yielded, timed out, over a limit, ...",
    ),
    Metric(
        "application_worker_cut_off_jobs_total",
        "counter",
        ("worker",),
        "Running jobs that the stop of a process cut off.",
    ),
    Metric(
        "application_worker_recovered_jobs_total",
        "counter",
        ("worker", "cause"),
        "Jobs of dead processes, or of lost replies, that were recovered.",
    ),
    Metric(
        "application_worker_quarantined_jobs_total",
        "counter",
        ("worker", "cause"),
        "Jobs that were interrupted too often, and run no more.",
    ),
    Metric(
        "application_worker_fenced_jobs_total",
        "counter",
        ("worker",),
        "Jobs that another process had taken over before their end was written: they may run twice.",
    ),
    Metric(
        "application_worker_cron_ticks_total",
        "counter",
        ("worker", "entry", "outcome"),
        "Ticks of the schedule: pushed, missed, or why they pushed no job.",
    ),
    Metric("application_worker_iterations_total", "counter", ("worker",), "Items that iterable jobs have processed."),
    Metric("application_worker_results_refused_total", "counter", ("worker",), "Results that could not be stored."),
    Metric(
        "application_worker_job_processes_lost_total",
        "counter",
        ("worker",),
        "Isolated jobs whose process ended before them.",
    ),
    Metric(
        "application_worker_payload_bytes",
        "histogram",
        ("worker",),
        "Sizes of pushed payloads.",
        buckets=SIZE_BUCKETS,
    ),
    Metric(
        "application_worker_redis_round_trip_seconds",
        "gauge",
        ("destination_shard_redis", "pid"),
        "Round trip of the last heartbeat to Redis.",
    ),
    Metric(
        "application_worker_fetch_age_seconds",
        "gauge",
        ("destination_shard_redis", "pid"),
        "Time since Redis has last answered a fetch.",
    ),
    Metric(
        "application_worker_heartbeat_age_seconds",
        "gauge",
        ("destination_shard_redis", "pid"),
        "Time since the lease of the process was last renewed.",
    ),
    Metric("application_worker_resident_bytes", "gauge", ("pid",), "Resident memory of the process."),
    Metric("application_worker_processes", "gauge", (), "Processes that this scrape has summed up."),
    Metric("application_worker_series_refused_total", "counter", (), "Events of series above metrics.most_series."),
)
"""What each process counts."""

FLEET: tuple[Metric, ...] = ()
"""What one reporter per shard knows of all processes."""

METRICS: Mapping[str, Metric] = {one.name: one for one in (*PROCESS, *FLEET)}


def of_mode(metrics: Iterable[Metric], mode: Mode) -> list[Metric]:
    """Return the metrics that a process has in this mode."""
    return [one for one in metrics if one.mode in (None, mode)]
