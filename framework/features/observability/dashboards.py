"""List the dashboards: their panels and queries.

The queries of jobs work in both modes of the metrics: the sums exist in both, and runs are counted by the service levels. Figures of
the fleet are the highest of all reporters, since two of them say the same.
"""

from collections.abc import Iterable

from framework.features.observability.grafana import Dashboard, Panel, PanelRow, Variable

_RATE = "$__rate_interval"
_FLEET = 'shard=~"$shard"'
_JOBS = 'destination_shard_redis=~"$shard"'
_QUEUE = f'{_JOBS}, queue=~"$queue"'
_WORKER = f'{_JOBS}, worker=~"$worker"'

_SHARDS = Variable("shard", "application_worker_shard_state", "shard")
_ONE_SHARD = Variable("shard", "application_worker_shard_state", "shard", all_values=False)
_QUEUES = Variable("queue", "gitlab_sli_sidekiq_execution_total", "queue")
_WORKERS = Variable("worker", "gitlab_sli_sidekiq_execution_total", "worker", all_values=False)


def _rate(metric: str, matchers: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[{_RATE}]))"


def _increase(metric: str, matchers: str, by: str) -> str:
    return f"sum by ({by}) (increase({metric}{{{matchers}}}[{_RATE}]))"


def _share(part: str, whole: str, matchers: str, by: str) -> str:
    return f"{_rate(part, matchers, by)} / ({_rate(whole, matchers, by)} > 0)"


def _mean(sum_of: str, matchers: str, by: str) -> str:
    """Return the mean per run of a sum."""
    return _share(sum_of, "gitlab_sli_sidekiq_execution_total", matchers, by)


def _fleet(metric: str, by: str = "shard", matchers: str = _FLEET) -> str:
    return f"max by ({by}) ({metric}{{{matchers}}})"


def _fleet_rate(metric: str, by: str) -> str:
    """Return the rate of a counter that all processes of a shard add up: the highest of its reporters, then the sum over shards."""
    return f"sum by ({by}) (max by (shard, {by}) (rate({metric}{{{_FLEET}}}[{_RATE}])))"


def _total(metric: str, matchers: str = _FLEET, by: str = "shard") -> str:
    """Return the sum over shards, of which each may have several reporters."""
    return f"sum({_fleet(metric, by, matchers)})"


def _top(count: int, query: str) -> str:
    return f"topk({count}, {query})"


def _panels(unit: str, panels: dict[str, tuple[str, str]]) -> Iterable[Panel]:
    """Yield panels of one query: legend and query by title."""
    for title, (legend, query) in panels.items():
        yield Panel(title, {legend: query}, unit)


def _service_levels(matchers: str, by: str, legend: str) -> PanelRow:
    execution, queueing = "gitlab_sli_sidekiq_execution", "gitlab_sli_sidekiq_queueing"
    return PanelRow(
        "Service levels",
        tuple(
            _panels(
                "percentunit",
                {
                    "Runs within their target": (
                        legend,
                        _share(f"{execution}_apdex_success_total", f"{execution}_apdex_total", matchers, by),
                    ),
                    "Runs that fail": (legend, _share(f"{execution}_error_total", f"{execution}_total", matchers, by)),
                    "Jobs that start within their target": (
                        legend,
                        _share(f"{queueing}_apdex_success_total", f"{queueing}_apdex_total", matchers, by),
                    ),
                },
            )
        ),
    )


_FLEET_DASHBOARD = Dashboard(
    "fleet",
    "Fleet",
    "All shards: what waits, what runs, what fails.",
    (_SHARDS,),
    (
        PanelRow(
            "Now",
            (
                Panel("Waiting", {"jobs": _total("sidekiq_jobs_enqueued_size")}, kind="stat", width=4),
                Panel(
                    "Oldest job", {"age": f"max(sidekiq_queue_latency_seconds{{{_FLEET}}})"}, "s", kind="stat", width=4
                ),
                Panel("Busy", {"slots": _total("sidekiq_workers_size")}, kind="stat", width=4),
                Panel("Processes", {"processes": _total("sidekiq_processes_size")}, kind="stat", width=4),
                Panel("Dead", {"jobs": _total("sidekiq_jobs_dead_size")}, kind="stat", width=4),
                Panel(
                    "Shards that take jobs",
                    {"shards": _total("application_worker_shard_state", f'{_FLEET}, state="closed"')},
                    kind="stat",
                    width=4,
                ),
            ),
        ),
        _service_levels(_JOBS, "urgency", "{{urgency}}"),
        PanelRow(
            "Jobs",
            (
                Panel(
                    "Pushed jobs per second",
                    {
                        "{{destination_shard_redis}}": _rate(
                            "sidekiq_enqueued_jobs_total", _JOBS, "destination_shard_redis"
                        )
                    },
                    "ops",
                    stacked=True,
                ),
                Panel(
                    "Runs per second",
                    {
                        "{{shard}}": f"max by (shard) (rate(sidekiq_jobs_processed_total{{{_FLEET}}}[{_RATE}]))",
                    },
                    "ops",
                    stacked=True,
                ),
                Panel(
                    "Time of runs by class",
                    {"{{worker}}": _top(10, _rate("sidekiq_jobs_completion_seconds_sum", _JOBS, "worker"))},
                    stacked=True,
                    description="Seconds of runs per second: the slots that the class uses.",
                ),
            ),
        ),
        PanelRow(
            "Waiting jobs",
            (
                Panel(
                    "Jobs in queues",
                    {"{{shard}} {{name}}": _top(10, _fleet("sidekiq_queue_size", "shard, name"))},
                    stacked=True,
                ),
                Panel(
                    "Age of the oldest job",
                    {"{{shard}} {{name}}": _top(10, _fleet("sidekiq_queue_latency_seconds", "shard, name"))},
                    "s",
                ),
                Panel(
                    "Jobs outside of queues",
                    {
                        "scheduled": _total("sidekiq_jobs_scheduled_size"),
                        "retry": _total("sidekiq_jobs_retry_size"),
                        "dead": _total("sidekiq_jobs_dead_size"),
                        "interrupted": _total("application_worker_interrupted_size"),
                        "held": _total("application_worker_held_size", _FLEET, "shard, place, worker"),
                    },
                ),
            ),
        ),
        PanelRow(
            "Processes",
            (
                Panel("Busy slots", {"{{shard}}": _fleet("application_worker_utilisation_ratio")}, "percentunit"),
                Panel(
                    "Slots",
                    {
                        "slots {{shard}}": _fleet("application_worker_slots"),
                        "needed {{shard}}": (
                            f"sum by (shard) ({_fleet('application_worker_slots_needed', 'shard, queue_group')})"
                        ),
                    },
                ),
                Panel("Resident memory", {"{{shard}}": _fleet("application_worker_fleet_resident_bytes")}, "bytes"),
                Panel(
                    "Events of children of clusters",
                    {"{{event}}": f"sum by (event) (increase(application_worker_child_events_total[{_RATE}]))"},
                ),
            ),
        ),
        PanelRow(
            "Alerts",
            (
                Panel(
                    "Firing",
                    {"alerts": 'ALERTS{service="application-worker", alertstate="firing"}'},
                    kind="table",
                    width=24,
                ),
            ),
        ),
    ),
)

_SHARD_DASHBOARD = Dashboard(
    "shard",
    "Shard",
    "One shard: its Redis, its sets and its processes.",
    (_ONE_SHARD,),
    (
        PanelRow(
            "Redis",
            (
                Panel("State", {"{{state}}": _fleet("application_worker_shard_state", "state")}),
                Panel(
                    "Memory",
                    {
                        "used": _fleet("application_worker_redis_used_memory_bytes"),
                        "resident": _fleet("application_worker_redis_resident_memory_bytes"),
                        "limit": f"{_fleet('application_worker_redis_max_memory_bytes')} > 0",
                    },
                    "bytes",
                ),
                Panel(
                    "Processor of the main thread",
                    {
                        "{{shard}}": (
                            "max by (shard) (rate(application_worker_redis_main_thread_cpu_seconds_total"
                            f"{{{_FLEET}}}[{_RATE}]))"
                        )
                    },
                    "percentunit",
                    description="One thread runs all commands: at 100 % the shard can do no more.",
                ),
                Panel(
                    "Commands per second",
                    {
                        "{{shard}}": f"max by (shard) (rate(application_worker_redis_commands_total{{{_FLEET}}}[{_RATE}]))"
                    },
                    "ops",
                ),
                Panel(
                    "Clients",
                    {
                        "connected": _fleet("application_worker_redis_connected_clients"),
                        "blocked": _fleet("application_worker_redis_blocked_clients"),
                        "limit": _fleet("application_worker_redis_max_clients"),
                    },
                ),
                Panel(
                    "Round trip",
                    {
                        "reporter": _fleet("application_worker_redis_rtt_seconds"),
                        "slowest heartbeat": f"max(application_worker_redis_round_trip_seconds{{{_JOBS}}})",
                    },
                    "s",
                ),
                Panel(
                    "Evicted keys",
                    {
                        "{{shard}}": (
                            f"max by (shard) (increase(application_worker_redis_evicted_keys_total{{{_FLEET}}}[{_RATE}]))"
                        )
                    },
                ),
                Panel(
                    "Skew of the clocks",
                    {"{{instance}}": _fleet("application_worker_redis_clock_skew_seconds", "instance")},
                    "s",
                ),
                Panel("Scrape of the figures", {"{{shard}}": _fleet("application_worker_figures_read_seconds")}, "s"),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                Panel("Queues", {"{{name}}": _top(10, _fleet("sidekiq_queue_size", "name"))}, stacked=True),
                Panel(
                    "Sets",
                    {
                        "scheduled": _fleet("sidekiq_jobs_scheduled_size"),
                        "retry": _fleet("sidekiq_jobs_retry_size"),
                        "dead": _fleet("sidekiq_jobs_dead_size"),
                        "interrupted": _fleet("application_worker_interrupted_size"),
                    },
                ),
                Panel("Delay of due jobs", {"{{set}}": _fleet("application_worker_scheduler_lag_seconds", "set")}, "s"),
                Panel(
                    "Runs per second",
                    {"runs": f"max by (shard) (rate(sidekiq_jobs_processed_total{{{_FLEET}}}[{_RATE}]))"},
                    "ops",
                ),
                Panel("Jobs of dead processes", {"{{shard}}": _fleet("application_worker_orphaned_size")}),
                Panel(
                    "Recovered jobs",
                    {
                        "{{cause}}": "sum by (cause) (increase(application_worker_recovered_jobs_total[$__rate_interval]))"
                    },
                ),
            ),
        ),
        PanelRow(
            "Safety",
            (
                Panel(
                    "Settings that keep jobs",
                    {
                        "append-only file": _fleet("application_worker_redis_aof_enabled"),
                        "no eviction": _fleet("application_worker_redis_noeviction"),
                        "last write to the disk": _fleet("application_worker_redis_persistence_ok"),
                    },
                    "bool_yes_no",
                ),
                Panel(
                    "Time since Redis has lost data",
                    {"{{shard}}": (f"time() - ({_fleet('application_worker_data_loss_timestamp_seconds')} > 0)")},
                    "s",
                    description="Empty: the running processes have found no loss.",
                ),
                Panel(
                    "Time until the certificate ends",
                    {"{{shard}}": (f"{_fleet('application_worker_redis_certificate_end_timestamp_seconds')} - time()")},
                    "s",
                    description="Only with TLS whose certificates are checked.",
                ),
                Panel("Locks of deduplicated jobs", {"{{shard}}": _fleet("application_worker_locks")}),
                Panel(
                    "Quarantined jobs",
                    {"{{worker}}": f"sum by (worker) (increase(application_worker_quarantined_jobs_total[{_RATE}]))"},
                ),
                Panel(
                    "Processes whose pushes to the shard fail at once",
                    {"processes": f"sum(application_worker_circuit_open{{{_JOBS}}})"},
                ),
            ),
        ),
        PanelRow(
            "Processes",
            (
                Panel(
                    "Processes",
                    {
                        "running": _fleet("sidekiq_processes_size"),
                        "quiet": _fleet("application_worker_quiet_processes"),
                    },
                ),
                Panel(
                    "Slots",
                    {"slots": _fleet("application_worker_slots"), "busy": _fleet("sidekiq_workers_size")},
                ),
                Panel(
                    "Heartbeats",
                    {
                        "oldest": _fleet("application_worker_heartbeat_age_max_seconds"),
                        "oldest answer to a fetch": f"max(application_worker_fetch_age_seconds{{{_JOBS}}})",
                    },
                    "s",
                ),
            ),
        ),
    ),
)

_QUEUE_DASHBOARD = Dashboard(
    "queue",
    "Queue",
    "One queue or several: what enters, waits and leaves.",
    (_SHARDS, _QUEUES),
    (
        PanelRow(
            "Waiting jobs",
            (
                Panel(
                    "Jobs",
                    {"{{shard}} {{name}}": _fleet("sidekiq_queue_size", "shard, name", f'{_FLEET}, name=~"$queue"')},
                ),
                Panel(
                    "Age of the oldest job",
                    {
                        "{{shard}} {{name}}": _fleet(
                            "sidekiq_queue_latency_seconds", "shard, name", f'{_FLEET}, name=~"$queue"'
                        )
                    },
                    "s",
                ),
                Panel(
                    "Paused",
                    {"{{shard}} {{name}}": _fleet("sidekiq_queue_paused", "shard, name", f'{_FLEET}, name=~"$queue"')},
                    "bool_yes_no",
                ),
            ),
        ),
        PanelRow(
            "Jobs",
            (
                Panel(
                    "Pushed jobs per second",
                    {"{{worker}}": _top(10, _rate("sidekiq_enqueued_jobs_total", _QUEUE, "worker"))},
                    "ops",
                    stacked=True,
                ),
                Panel(
                    "Runs per second",
                    {"{{worker}}": _top(10, _rate("gitlab_sli_sidekiq_execution_total", _QUEUE, "worker"))},
                    "ops",
                    stacked=True,
                ),
                Panel(
                    "Time of runs by class",
                    {"{{worker}}": _top(10, _rate("sidekiq_jobs_completion_seconds_sum", _QUEUE, "worker"))},
                    stacked=True,
                    description="Seconds of runs per second: the slots that the class uses.",
                ),
                Panel(
                    "Mean wait",
                    {
                        "{{queue}}": _share(
                            "sidekiq_jobs_queue_duration_seconds_sum",
                            "sidekiq_jobs_queue_duration_seconds_count",
                            _QUEUE,
                            "queue",
                        )
                    },
                    "s",
                    description="In the mode histogram only.",
                ),
                Panel("Mean run", {"{{queue}}": _mean("sidekiq_jobs_completion_seconds_sum", _QUEUE, "queue")}, "s"),
                Panel(
                    "Running jobs", {"{{worker}}": f"sum by (worker) (sidekiq_running_jobs{{{_QUEUE}}})"}, stacked=True
                ),
            ),
        ),
        _service_levels(_QUEUE, "queue", "{{queue}}"),
    ),
)

_WORKER_DASHBOARD = Dashboard(
    "worker_detail",
    "Worker Detail",
    "One worker class: pushes, runs, waits, errors, and what its runs use.",
    (_SHARDS, _WORKERS),
    (
        _service_levels(_WORKER, "worker", "{{worker}}"),
        PanelRow(
            "Jobs",
            (
                Panel(
                    "Pushed jobs per second",
                    {"{{scheduling}}": _rate("sidekiq_enqueued_jobs_total", _WORKER, "scheduling")},
                    "ops",
                ),
                Panel(
                    "Runs per second",
                    {
                        "runs": _rate("gitlab_sli_sidekiq_execution_total", _WORKER, "worker"),
                        "failed": _rate("gitlab_sli_sidekiq_execution_error_total", _WORKER, "worker"),
                        "retries": _rate("sidekiq_jobs_retried_total", _WORKER, "worker"),
                        "interrupted before": _rate("sidekiq_jobs_interrupted_total", _WORKER, "worker"),
                    },
                    "ops",
                ),
                Panel(
                    "Running jobs", {"{{queue}}": f"sum by (queue) (sidekiq_running_jobs{{{_WORKER}}})"}, stacked=True
                ),
                Panel(
                    "Dead and skipped jobs",
                    {
                        "dead": _increase("sidekiq_jobs_dead_total", _WORKER, "worker"),
                        "{{action}}: {{reason}}": _increase("sidekiq_jobs_skipped_total", _WORKER, "action, reason"),
                    },
                ),
                Panel(
                    "Held and resumed jobs",
                    {
                        "held: {{by}}": _increase("application_worker_held_jobs_total", 'worker=~"$worker"', "by"),
                        "resumed: {{by}}": _increase(
                            "application_worker_resumed_jobs_total", 'worker=~"$worker"', "by"
                        ),
                    },
                ),
                Panel(
                    "Other ends",
                    {"{{how}}": _increase("application_worker_ended_jobs_total", 'worker=~"$worker"', "how")},
                ),
            ),
        ),
        PanelRow(
            "Mean per run",
            (
                *_panels(
                    "s",
                    {
                        "Duration": ("{{worker}}", _mean("sidekiq_jobs_completion_seconds_sum", _WORKER, "worker")),
                        "Processor": ("{{worker}}", _mean("sidekiq_jobs_cpu_seconds_sum", _WORKER, "worker")),
                        "SQL": ("{{worker}}", _mean("sidekiq_jobs_db_seconds_sum", _WORKER, "worker")),
                        "Redis": (
                            "{{worker}}",
                            _mean("sidekiq_redis_requests_duration_seconds_sum", _WORKER, "worker"),
                        ),
                    },
                ),
                Panel("Redis calls", {"{{worker}}": _mean("sidekiq_redis_requests_total", _WORKER, "worker")}),
                Panel(
                    "Memory of the last run",
                    {"{{worker}}": f"max by (worker) (sidekiq_mem_total_bytes{{{_WORKER}}})"},
                    "bytes",
                ),
            ),
        ),
        PanelRow(
            "Payloads",
            (
                Panel(
                    "Mean size",
                    {
                        "{{worker}}": _share(
                            "application_worker_payload_bytes_sum",
                            "application_worker_payload_bytes_count",
                            'worker=~"$worker"',
                            "worker",
                        )
                    },
                    "bytes",
                ),
            ),
        ),
    ),
)

_LIMIT = f'{_FLEET}, worker=~"$worker"'

_CONCURRENCY_DASHBOARD = Dashboard(
    "worker_concurrency_detail",
    "Worker Concurrency Detail",
    "The concurrency limit of a class: its slots, the jobs that wait for one, and its throttling.",
    (_SHARDS, Variable("worker", "sidekiq_concurrency_limit_current_concurrent_jobs", "worker", all_values=False)),
    (
        PanelRow(
            "Limit",
            (
                Panel(
                    "Running jobs and limit",
                    {
                        "running {{shard}}": _fleet(
                            "sidekiq_concurrency_limit_current_concurrent_jobs", "shard", _LIMIT
                        ),
                        "limit in force {{shard}}": _fleet("sidekiq_concurrency_limit_current_limit", "shard", _LIMIT),
                        "declared limit {{shard}}": _fleet(
                            "sidekiq_concurrency_limit_max_concurrent_jobs", "shard", _LIMIT
                        ),
                    },
                    width=12,
                ),
                Panel(
                    "Jobs that wait for a slot",
                    {"{{shard}}": _fleet("sidekiq_concurrency_limit_queue_jobs", "shard", _LIMIT)},
                    width=12,
                ),
                Panel(
                    "Age of the oldest held job",
                    {
                        "{{shard}} {{place}}": _fleet(
                            "application_worker_held_oldest_age_seconds", "shard, place", _LIMIT
                        )
                    },
                    "s",
                ),
                Panel(
                    "Jobs that the limit holds",
                    {
                        "per second": _rate(
                            "sidekiq_concurrency_limit_deferred_jobs_total", 'worker=~"$worker"', "worker"
                        )
                    },
                    "ops",
                ),
                Panel(
                    "Slots without a process",
                    {"{{shard}}": _fleet("application_worker_leaked_slots", "shard", _LIMIT)},
                    description="A hundred at most are counted.",
                ),
                Panel(
                    "Throttling",
                    {"{{strategy}}": _increase("sidekiq_throttling_events_total", 'worker=~"$worker"', "strategy")},
                ),
            ),
        ),
        PanelRow(
            "Load",
            (
                Panel(
                    "Pushed jobs per second",
                    {"{{worker}}": _rate("sidekiq_enqueued_jobs_total", _WORKER, "worker")},
                    "ops",
                ),
                Panel(
                    "Runs per second",
                    {"{{worker}}": _rate("gitlab_sli_sidekiq_execution_total", _WORKER, "worker")},
                    "ops",
                ),
                Panel(
                    "Seconds in SQL per second",
                    {"{{worker}}": _rate("sidekiq_jobs_db_seconds_sum", _WORKER, "worker")},
                    description="What the throttling by database time looks at.",
                ),
            ),
        ),
    ),
)

_CRON_DASHBOARD = Dashboard(
    "cron",
    "Cron",
    "The schedules: their ticks, and what became of them.",
    (),
    (
        PanelRow(
            "Ticks",
            (
                Panel(
                    "Ticks by outcome",
                    {"{{outcome}}": f"sum by (outcome) (increase(application_worker_cron_ticks_total[{_RATE}]))"},
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Missed ticks",
                    {
                        "{{entry}}": (
                            f'sum by (entry) (increase(application_worker_cron_ticks_total{{outcome="missed"}}[{_RATE}]))'
                        )
                    },
                    width=12,
                ),
                Panel(
                    "Pushed ticks by schedule",
                    {
                        "{{entry}}": (
                            f'sum by (entry) (increase(application_worker_cron_ticks_total{{outcome="pushed"}}[{_RATE}]))'
                        )
                    },
                    width=12,
                ),
                Panel("Lag", {"{{entry}}": "max by (entry) (application_worker_cron_lag_seconds)"}, "s", width=12),
            ),
        ),
    ),
)

_TASKS_DASHBOARD = Dashboard(
    "tasks",
    "Tasks and batches",
    "Groups of jobs: open batches, and tasks in SQL.",
    (_SHARDS,),
    (
        PanelRow(
            "Batches",
            (
                Panel("Open batches", {"{{shard}}": _fleet("application_worker_batches_open")}),
                Panel(
                    "Age of the oldest open batch",
                    {"{{shard}}": _fleet("application_worker_batches_oldest_age_seconds")},
                    "s",
                ),
                Panel(
                    "Events of batches",
                    {"{{event}}": _fleet_rate("application_worker_shard_batch_events_total", "event")},
                    "ops",
                ),
                Panel(
                    "Ended workflows",
                    {"{{state}}": _fleet_rate("application_worker_shard_workflows_total", "state")},
                    "ops",
                ),
            ),
        ),
        PanelRow(
            "Tasks in SQL",
            (
                Panel(
                    "Changes that wait for the database",
                    {"{{shard}}": _fleet("application_worker_task_events_waiting")},
                ),
                Panel(
                    "Age of the oldest such change",
                    {"{{shard}}": _fleet("application_worker_task_events_oldest_age_seconds")},
                    "s",
                ),
            ),
        ),
    ),
)

DASHBOARDS: tuple[Dashboard, ...] = (
    _FLEET_DASHBOARD,
    _SHARD_DASHBOARD,
    _QUEUE_DASHBOARD,
    _WORKER_DASHBOARD,
    _CONCURRENCY_DASHBOARD,
    _CRON_DASHBOARD,
    _TASKS_DASHBOARD,
)
