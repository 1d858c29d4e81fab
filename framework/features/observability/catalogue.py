"""The one list of all metrics: of each process, and of the fleet. The exporters, the reference and the dashboards read it.

GitLab's metrics have GitLab's names, types, labels and buckets. All others begin with ``application_worker_``.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Scope: TypeAlias = Literal["process", "fleet"]
Origin: TypeAlias = Literal["GitLab", "gitlab-exporter", "ours"]
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
        "Time in calls to Redis within runs.",
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
        "Time in calls to Redis within all runs.",
        mode="counters",
    ),
    _gitlab("sidekiq_redis_requests_total", "counter", _WITH_STATUS, "Calls to Redis within runs."),
    _gitlab("sidekiq_running_jobs", "gauge", (*BASE, "pid"), "Jobs that run now."),
    _gitlab("sidekiq_concurrency", "gauge", ("pid",), "Slots of the process."),
    _gitlab(
        "sidekiq_mem_total_bytes",
        "gauge",
        (*_WITH_STATUS, "pid"),
        "Peak memory of the process of the last run of the class; only isolated jobs have one.",
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
    _gitlab(
        "limited_capacity_worker_remaining_work_count",
        "gauge",
        ("worker", "pid"),
        "Work that the last job of a limited-capacity worker in this process has left.",
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
        "application_worker_child_events_total",
        "counter",
        ("event",),
        "Events of the children of a cluster: started, died, failed, stuck, killed, memory (replaced above its limit), ...",
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
    Metric(
        "application_worker_circuit_open",
        "gauge",
        ("destination_shard_redis", "pid"),
        "1 while pushes to a shard fail at once, because it does not answer this process.",
    ),
    Metric("application_worker_resident_bytes", "gauge", ("pid",), "Resident memory of the process."),
    Metric("application_worker_processes", "gauge", (), "Processes that this scrape has summed up."),
    Metric("application_worker_series_refused_total", "counter", (), "Events of series above metrics.most_series."),
)
"""What each process counts."""


def _fleet(name: str, kind: Kind, labels: tuple[str, ...], text: str, origin: Origin = "ours") -> Metric:
    return Metric(name, kind, ("shard", *labels), text, "fleet", origin)


_SHARD_COUNTERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "jobs_failed": ((), "Failed runs (stat:failed)."),
    "jobs_skipped": (
        ("worker", "action", "reason"),
        "Jobs that a flag, a health check or an operator kept from running.",
    ),
    "jobs_deduplicated": (("worker", "strategy"), "Pushes that were dropped as duplicates."),
    "jobs_backlog_dropped": (
        ("worker",),
        "Pushes that were dropped because the backlog of their class was full.",
    ),
    "jobs_expired": (("worker",), "Jobs that expired before their run."),
    "jobs_cancelled": (("worker",), "Jobs that were cancelled."),
    "jobs_yielded": (("worker",), "Jobs that went back to their queue for others."),
    "jobs_over_limit": (("worker",), "Jobs that a rate limiter has delayed."),
    "jobs_timed_out": (("worker",), "Runs that took longer than their timeout."),
    "jobs_business_failed": (("worker",), "Runs that ended in a BusinessError."),
    "jobs_unknown_class": (("worker",), "Times that a process has met a job of a class that it lacks."),
    "jobs_quarantined": (("worker",), "Jobs that were interrupted too often, and malformed ones."),
    "jobs_process_lost": (("worker",), "Isolated jobs whose process ended before them."),
    "jobs_without_key": (("worker",), "Jobs that waited because a key of encryption was missing."),
    "jobs_without_payload_store": (("worker",), "Jobs that waited because the payload store did not answer."),
    "job_iterations": (("worker",), "Items that iterable jobs have processed."),
    "results_refused": (("worker",), "Results that could not be stored."),
    "concurrency_limit_deferred_jobs": (("worker",), "Jobs that a concurrency limit has held."),
    "throttling_events": (("worker", "strategy"), "Times that throttling has lowered the limit of a class."),
    "load_balancing": (
        ("worker", "load_balancing_strategy", "data_consistency"),
        "Choices of a database server for the reads of a job.",
    ),
    "cron_ticks": (("worker", "entry", "outcome"), "Ticks of the schedule: pushed, missed, or why they pushed no job."),
    "breakers_opened": (("worker", "cause"), "Times that the breaker of a class has opened."),
    "breakers_closed": (("worker",), "Times that a probe has closed the breaker of a class."),
    "batch_events": (("event",), "Events of batches."),
    "batch_callbacks": (("event",), "Callbacks that events of batches have enqueued."),
    "workflows": (("state",), "Workflows that have ended, by state."),
    "workflow_steps": (("state",), "Steps of workflows that have ended, by state."),
}

SHARD_PREFIX = "application_worker_shard_"
"""Begins the names of the counters that all processes of a shard add up in Redis (``aw:counters``). A process exports its own part of
the same events under the name without this prefix: with one name for both, sums would count each event twice."""

_EXPORTER: Origin = "gitlab-exporter"

FLEET: tuple[Metric, ...] = (
    _fleet("sidekiq_queue_size", "gauge", ("name",), "Jobs in a queue and its sub-queues.", _EXPORTER),
    _fleet(
        "sidekiq_queue_latency_seconds", "gauge", ("name",), "Age of the oldest job that is next in a queue.", _EXPORTER
    ),
    _fleet("sidekiq_queue_paused", "gauge", ("name",), "1 for a paused queue.", _EXPORTER),
    _fleet("sidekiq_jobs_processed_total", "counter", (), "Runs, failed ones included (stat:processed).", _EXPORTER),
    _fleet("sidekiq_jobs_enqueued_size", "gauge", (), "Jobs in all queues.", _EXPORTER),
    _fleet("sidekiq_jobs_scheduled_size", "gauge", (), "Jobs that are due later.", _EXPORTER),
    _fleet("sidekiq_jobs_retry_size", "gauge", (), "Failed jobs that wait for their next run.", _EXPORTER),
    _fleet("sidekiq_jobs_dead_size", "gauge", (), "Jobs in the dead set.", _EXPORTER),
    _fleet("sidekiq_processes_size", "gauge", (), "Running processes, Sidekiq's too.", _EXPORTER),
    _fleet("sidekiq_workers_size", "gauge", (), "Running jobs, by the records of the processes.", _EXPORTER),
    _fleet("application_worker_up", "gauge", (), "1 if the shard has answered this scrape within a second."),
    _fleet(
        "application_worker_shard_state",
        "gauge",
        ("state",),
        "1 for the state of the shard: closed (it takes jobs), open (no answer), oom, readonly, misconf, loading.",
    ),
    _fleet("application_worker_interrupted_size", "gauge", (), "Jobs that were interrupted too often."),
    _fleet(
        "application_worker_held_size",
        "gauge",
        ("place", "worker"),
        "Held jobs; place: waiting (for a slot) or paused.",
    ),
    _fleet("application_worker_held_oldest_age_seconds", "gauge", ("place", "worker"), "Age of the oldest held job."),
    _fleet(
        "application_worker_deferred_size",
        "gauge",
        (),
        "Deferred jobs in the schedule set; estimated beyond a hundred jobs.",
    ),
    _fleet(
        "application_worker_redis_memory_bytes",
        "gauge",
        ("class", "place"),
        "Memory of Redis by class and place, the largest 200 parts; other: what is in none of them. Estimated.",
    ),
    _fleet(
        "application_worker_redis_memory_budget_bytes",
        "gauge",
        (),
        "The memory budget of the shard; above it, the classes that fill the memory are held back. 0: none is known.",
    ),
    _fleet(
        "application_worker_waiting_size",
        "gauge",
        ("queue", "priority"),
        "Jobs of each level in queues with priorities.",
    ),
    _fleet("application_worker_slots", "gauge", (), "Slots of all processes."),
    _fleet("application_worker_utilisation_ratio", "gauge", (), "Running jobs per slot."),
    _fleet("application_worker_quiet_processes", "gauge", (), "Processes that fetch no more jobs."),
    _fleet(
        "application_worker_heartbeat_age_max_seconds", "gauge", (), "Age of the oldest heartbeat of a running process."
    ),
    _fleet(
        "application_worker_clock_skew_max_seconds",
        "gauge",
        (),
        "Largest difference between the clock of a process and that of Redis.",
    ),
    _fleet(
        "application_worker_data_loss_timestamp_seconds",
        "gauge",
        (),
        "When a running process has last found that Redis had lost data; 0 for never.",
    ),
    _fleet("application_worker_fleet_resident_bytes", "gauge", (), "Resident memory of all processes."),
    _fleet(
        "application_worker_orphaned_size",
        "gauge",
        (),
        "Jobs in flight of processes without a lease: they are recovered soon.",
    ),
    _fleet(
        "application_worker_scheduler_lag_seconds", "gauge", ("set",), "How long the first job of a set is overdue."
    ),
    _fleet("application_worker_leader", "gauge", (), "1 if a process leads the application on this shard."),
    _fleet("application_worker_cron_lag_seconds", "gauge", ("entry", "worker"), "How long the next tick is overdue."),
    _fleet(
        "application_worker_cron_last_tick_timestamp_seconds",
        "gauge",
        ("entry", "worker"),
        "Time of the last settled tick.",
    ),
    _fleet(
        "application_worker_batches_open",
        "gauge",
        (),
        "Batches with jobs that have not ended; estimated beyond a thousand.",
    ),
    _fleet("application_worker_batches_oldest_age_seconds", "gauge", (), "Age of the oldest such batch."),
    _fleet(
        "application_worker_task_events_waiting", "gauge", (), "Changes of events that wait for the database of tasks."
    ),
    _fleet("application_worker_task_events_oldest_age_seconds", "gauge", (), "Age of the oldest such change."),
    _fleet("application_worker_exclusive_leases", "gauge", (), "Exclusive leases that are held."),
    _fleet("application_worker_rate_limiters", "gauge", (), "Rate limiters in use."),
    _fleet("application_worker_locks", "gauge", (), "Locks of deduplicated jobs; estimated beyond a thousand keys."),
    Metric(
        "application_worker_kept_pushes",
        "gauge",
        (),
        "Pushes in the folder of this host that Redis has not taken.",
        "fleet",
    ),
    Metric("application_worker_kept_pushes_oldest_age_seconds", "gauge", (), "Age of the oldest such push.", "fleet"),
    Metric("application_worker_payload_store_up", "gauge", (), "1 if the payload store answers this host.", "fleet"),
    Metric(
        "application_worker_payload_store_sweep_age_seconds",
        "gauge",
        (),
        "Time since the begin of its last sweep.",
        "fleet",
    ),
    *(
        _fleet(f"sidekiq_concurrency_limit_{name}", "gauge", ("worker", "feature_category"), text, "GitLab")
        for name, text in (
            ("current_concurrent_jobs", "Slots of a limit in use."),
            ("queue_jobs", "Jobs that wait for a slot."),
            ("max_concurrent_jobs", "The limit of the application."),
            ("current_limit", "The limit in force: lowered by throttling, or overridden by operators."),
        )
    ),
    _fleet(
        "application_worker_leaked_slots",
        "gauge",
        ("worker",),
        "Slots of a limit whose processes are gone; a hundred at most are counted.",
    ),
    _fleet(
        "limited_capacity_worker_running_jobs",
        "gauge",
        ("worker",),
        "Jobs of a limited-capacity worker, waiting ones included.",
        "GitLab",
    ),
    _fleet("limited_capacity_worker_max_running_jobs", "gauge", ("worker",), "Its max_running_jobs.", "GitLab"),
    _fleet(
        "application_worker_slots_needed",
        "gauge",
        ("queue_group",),
        "Slots that keep the queueing target of a group of queues.",
    ),
    _fleet("application_worker_redis_used_memory_bytes", "gauge", (), "Memory that Redis uses."),
    _fleet("application_worker_redis_max_memory_bytes", "gauge", (), "Its limit; 0 for none."),
    _fleet("application_worker_redis_resident_memory_bytes", "gauge", (), "Resident memory of Redis."),
    _fleet("application_worker_redis_evicted_keys_total", "counter", (), "Keys that Redis has evicted: lost jobs."),
    _fleet("application_worker_redis_rejected_connections_total", "counter", (), "Connections beyond maxclients."),
    _fleet("application_worker_redis_commands_total", "counter", (), "Commands that Redis has run."),
    _fleet(
        "application_worker_redis_main_thread_cpu_seconds_total", "counter", (), "Processor time of Redis' main thread."
    ),
    _fleet("application_worker_redis_connected_clients", "gauge", (), "Connections."),
    _fleet("application_worker_redis_max_clients", "gauge", (), "Most connections."),
    _fleet("application_worker_redis_blocked_clients", "gauge", (), "Connections that wait in a blocking command."),
    _fleet("application_worker_redis_replicas", "gauge", (), "Connected replicas."),
    _fleet("application_worker_redis_uptime_seconds", "gauge", (), "Time since the start of Redis."),
    _fleet("application_worker_redis_role", "gauge", ("role",), "1 for the role of the server: master or slave."),
    _fleet(
        "application_worker_redis_noeviction",
        "gauge",
        (),
        "1 if Redis never evicts keys (maxmemory-policy noeviction).",
    ),
    _fleet("application_worker_redis_aof_enabled", "gauge", (), "1 if Redis writes an append-only file."),
    _fleet("application_worker_redis_persistence_ok", "gauge", (), "0 if the last write to the disk has failed."),
    _fleet(
        "application_worker_redis_certificate_end_timestamp_seconds",
        "gauge",
        (),
        "When the certificate of the server ends; only with TLS whose certificates are checked.",
    ),
    _fleet("application_worker_redis_rtt_seconds", "gauge", (), "Round trip to Redis, measured once per scrape."),
    _fleet("application_worker_redis_clock_skew_seconds", "gauge", (), "Time of Redis, less the time of this host."),
    _fleet(
        "application_worker_figures_incomplete",
        "gauge",
        (),
        "1 if there are more than 6,000 queues or 1,000 processes.",
    ),
    _fleet("application_worker_figures_read_seconds", "gauge", (), "Time that the reading of the shard has taken."),
    *(
        _fleet(f"{SHARD_PREFIX}{name}_total", "counter", labels, text)
        for name, (labels, text) in _SHARD_COUNTERS.items()
    ),
)
"""What one reporter per shard knows of all processes."""

METRICS: Mapping[str, Metric] = {one.name: one for one in (*PROCESS, *FLEET)}


def of_mode(metrics: Iterable[Metric], mode: Mode) -> list[Metric]:
    """Return the metrics that a process has in this mode."""
    return [one for one in metrics if one.mode in (None, mode)]
