"""List the rules of the alerts, their thresholds, and the series of their unit tests.

Figures of the fleet come from one reporter per shard (label ``shard``), so a rule never sums them over instances but takes the
highest: two exporters of one fleet say the same.
"""

from framework.features.observability.burn_rates import BURN_THRESHOLDS, burn_rules, recorded_series
from framework.features.observability.rules import Rule, Threshold

THRESHOLDS: dict[str, Threshold] = {
    **BURN_THRESHOLDS,
    "oldest_job_high": Threshold(30, "seconds that a job of a queue with classes of urgency high may wait"),
    "oldest_job_low": Threshold(180, "seconds that a job of a queue with classes of urgency low may wait"),
    "held_age": Threshold(900, "seconds that a limit or a pause may hold a job"),
    "held_jobs": Threshold(100_000, "held jobs of a shard"),
    "busy_ratio": Threshold(0.9, "share of the slots of a shard that may be busy for long"),
    "dead_jobs": Threshold(100, "jobs that may enter the dead set of a shard in an hour"),
    "recovered_jobs": Threshold(25, "jobs of dead processes that may be recovered in 5 minutes"),
    "scheduler_lag": Threshold(30, "seconds that a due job may stay in the schedule or retry set"),
    "cron_lag": Threshold(120, "seconds since a tick of a schedule that no process has pushed"),
    "kept_age": Threshold(120, "seconds that a push may be kept in the folder of a host"),
    "clock_skew": Threshold(2, "seconds between the clocks of a host and of Redis"),
    "restarts": Threshold(3, "unexpected ends of child processes of a supervisor in 10 minutes"),
    "heartbeat_age": Threshold(8, "seconds since the last heartbeat of a process"),
    "memory_high": Threshold(0.6, "share of Redis' memory limit"),
    "memory_full": Threshold(0.75, "share of Redis' memory limit"),
    "certificate_days": Threshold(14, "days until the certificate of a Redis ends"),
    "cut_off_jobs": Threshold(10, "running jobs that stops of processes may cut off in an hour"),
}
"""The values that ``--threshold`` changes."""

RECORDED = recorded_series()
"""The recorded series by name."""

_SHARD = "{{ $labels.shard }}"
_ON_SHARD = "on shard {{ $labels.shard }}"


def _renamed(query: str, label: str, name: str) -> str:
    """Return a query whose series have a further label with the value of ``label``."""
    return f'label_replace({query}, "{name}", "$1", "{label}", "(.*)")'


_QUEUE_AGE = _renamed("max by (shard, name) (sidekiq_queue_latency_seconds)", "name", "queue")
_CLASSES = "gitlab_sli_sidekiq_queueing_apdex_total"
_OLDEST_JOB = f"""(
  {_QUEUE_AGE} > <oldest_job_high>
  and on (queue) {_CLASSES}{{urgency="high"}}
)
or
(
  {_QUEUE_AGE} > <oldest_job_low>
  unless on (queue) ({_CLASSES}{{urgency="throttled"}} unless on (queue) {_CLASSES}{{urgency=~"high|low"}})
)"""
"""A queue of throttled classes only has no target; one without known classes has that of urgency low."""


def _new_events(series: str, by: str, window: str, most: str = "0") -> str:
    """Return the events of a counter in a window, also where its series begins with its first event: more than ``most``."""
    return (
        f"sum by ({by}) (increase({series}[{window}])) > {most}\n"
        f"or sum by ({by}) ({series} unless {series} offset {window}) > {most}"
    )


_QUEUE_SIZE = _renamed("max by (shard, name) (sidekiq_queue_size)", "name", "queue")
_RUNNING_OF_QUEUE = _renamed(
    "sum by (queue, destination_shard_redis) (sidekiq_running_jobs)", "destination_shard_redis", "shard"
)
_RUNS_OF_QUEUE = _renamed(
    f"sum by (queue, destination_shard_redis) (increase({_CLASSES}[10m]))", "destination_shard_redis", "shard"
)
_DROPPED_DUPLICATES = 'application_worker_shard_jobs_deduplicated_total{strategy!~"until_expired|debounce|accumulate"}'
"""Without the strategies that drop pushes by design while no job runs."""
_JOBS = '{worker="MailWorker",queue="mail",urgency="high",destination_shard_redis="main"}'

RULES: tuple[Rule, ...] = (
    *burn_rules(),
    Rule(
        "NoProgress",
        "sum by (shard) (max by (shard, name) (sidekiq_queue_size)"
        " unless on (shard, name) max by (shard, name) (sidekiq_queue_paused) == 1) > 0\n"
        "and on (shard) max by (shard) (increase(sidekiq_jobs_processed_total[2m])) == 0\n"
        "unless on (shard) max by (shard) (application_worker_utilisation_ratio) >= 1",
        "1m",
        f"Jobs wait {_ON_SHARD}, and none ends",
        "{{ $value }} jobs wait in the queues of the shard, not every slot is busy, and no process has ended a job.",
        {
            'sidekiq_queue_size{shard="main",name="mail"}': "5+0x400",
            'sidekiq_jobs_processed_total{shard="main"}': "7+0x400",
        },
        {
            'sidekiq_queue_size{shard="main",name="mail"}': "5+0x400",
            'sidekiq_jobs_processed_total{shard="main"}': "7+1x400",
            'sidekiq_queue_size{shard="paused",name="mail"}': "5+0x400",
            'sidekiq_queue_paused{shard="paused",name="mail"}': "1+0x400",
            'sidekiq_jobs_processed_total{shard="paused"}': "7+0x400",
            'sidekiq_queue_size{shard="full",name="mail"}': "5+0x400",
            'application_worker_utilisation_ratio{shard="full"}': "1+0x400",
            'sidekiq_jobs_processed_total{shard="full"}': "7+0x400",
        },
    ),
    Rule(
        "QueueNotProcessed",
        f"{_QUEUE_SIZE} > 0\n"
        "unless on (shard, name) max by (shard, name) (sidekiq_queue_paused) == 1\n"
        f"unless on (shard, queue) {_RUNS_OF_QUEUE} > 0\n"
        f"unless on (shard, queue) {_RUNNING_OF_QUEUE} > 0",
        "10m",
        f"No job of the queue {{{{ $labels.queue }}}} {_ON_SHARD} runs",
        "{{ $value }} jobs wait in the queue, which is not paused, and no process has run one.",
        {'sidekiq_queue_size{shard="main",name="mail"}': "5+0x400"},
        {
            'sidekiq_queue_size{shard="main",name="mail"}': "5+0x400",
            f"gitlab_sli_sidekiq_queueing_apdex_total{_JOBS}": "0+1x400",
            'sidekiq_queue_size{shard="main",name="paused"}': "5+0x400",
            'sidekiq_queue_paused{shard="main",name="paused"}': "1+0x400",
            'sidekiq_queue_size{shard="main",name="long"}': "5+0x400",
            'sidekiq_running_jobs{queue="long",destination_shard_redis="main",worker="LongWorker"}': "1+0x400",
        },
    ),
    Rule(
        "QueuePausedTooLong",
        "max by (shard, name) (sidekiq_queue_paused) == 1\n"
        "and on (shard, name) max by (shard, name) (sidekiq_queue_size) > 0",
        "1h",
        f"The queue {{{{ $labels.name }}}} {_ON_SHARD} is paused, and jobs wait",
        "The queue was paused long ago; its pause may be forgotten.",
        {
            'sidekiq_queue_paused{shard="main",name="mail"}': "1+0x400",
            'sidekiq_queue_size{shard="main",name="mail"}': "5+0x400",
        },
        {
            'sidekiq_queue_paused{shard="main",name="mail"}': "1+0x400",
            'sidekiq_queue_size{shard="main",name="mail"}': "0+0x400",
        },
    ),
    Rule(
        "ClassNotDequeued",
        'sum by (worker) (increase(sidekiq_enqueued_jobs_total{scheduling="immediate", worker!="unknown"}[20m])) > 0\n'
        "unless on (worker) sum by (worker) (increase(gitlab_sli_sidekiq_queueing_apdex_total[20m])) > 0\n"
        "unless on (worker) sum by (worker) (sidekiq_running_jobs) > 0\n"
        "unless on (worker) sum by (worker) (increase(application_worker_held_jobs_total[20m])) > 0\n"
        "unless on (worker) sum by (worker) (increase(sidekiq_jobs_skipped_total[20m])) > 0",
        "20m",
        "Jobs of {{ $labels.worker }} are enqueued, and none starts",
        "About {{ $value | humanize }} jobs of the class were enqueued in 20 minutes, and no run has started.",
        {'sidekiq_enqueued_jobs_total{worker="MailWorker",scheduling="immediate"}': "0+5x400"},
        {
            'sidekiq_enqueued_jobs_total{worker="MailWorker",scheduling="immediate"}': "0+5x400",
            f"gitlab_sli_sidekiq_queueing_apdex_total{_JOBS}": "0+5x400",
            'sidekiq_enqueued_jobs_total{worker="SkippedWorker",scheduling="immediate"}': "0+5x400",
            'sidekiq_jobs_skipped_total{worker="SkippedWorker",action="deferred",reason="feature_flag"}': "0+5x400",
        },
    ),
    Rule(
        "OldestJobTooOld",
        _OLDEST_JOB,
        "1m",
        f"The oldest job of the queue {{{{ $labels.queue }}}} {_ON_SHARD} waits for {{{{ $value | humanizeDuration }}}}",
        "Three times the queueing target of a class in the queue is exceeded.",
        {
            'sidekiq_queue_latency_seconds{shard="main",name="mail"}': "<oldest_job_high>*2+0x400",
            f"gitlab_sli_sidekiq_queueing_apdex_total{_JOBS}": "0+0x400",
        },
        {
            'sidekiq_queue_latency_seconds{shard="main",name="mail"}': "<oldest_job_high>*0.5+0x400",
            'sidekiq_queue_latency_seconds{shard="main",name="slow"}': "<oldest_job_low>*2+0x400",
            f"gitlab_sli_sidekiq_queueing_apdex_total{_JOBS}": "0+0x400",
            'gitlab_sli_sidekiq_queueing_apdex_total{queue="slow",urgency="throttled"}': "0+0x400",
        },
    ),
    Rule(
        "OldestHeldTooOld",
        "max by (shard, place, worker) (application_worker_held_oldest_age_seconds) > <held_age>",
        "2m",
        f"Jobs of {{{{ $labels.worker }}}} {_ON_SHARD} are held for {{{{ $value | humanizeDuration }}}}",
        "A concurrency limit or a pause holds them; the oldest has waited for {{ $value | humanizeDuration }}.",
        {'application_worker_held_oldest_age_seconds{shard="main",worker="MailWorker"}': "<held_age>*2+0x400"},
        {'application_worker_held_oldest_age_seconds{shard="main",worker="MailWorker"}': "<held_age>*0.5+0x400"},
    ),
    Rule(
        "HeldJobsGrowing",
        "sum by (shard) (max by (shard, place, worker) (application_worker_held_size)) > <held_jobs>\n"
        "and on (shard) sum by (shard) (max by (shard, place, worker) (deriv(application_worker_held_size[15m]))) > 0",
        "5m",
        f"{{{{ $value | humanize }}}} jobs {_ON_SHARD} are held, and their number grows",
        "They use Redis' memory until their limits or pauses let them go.",
        {'application_worker_held_size{shard="main",worker="MailWorker"}': "<held_jobs>*2+10x400"},
        {'application_worker_held_size{shard="main",worker="MailWorker"}': "<held_jobs>*2+0x400"},
    ),
    Rule(
        "LeakedSlots",
        "max by (shard, worker) (application_worker_leaked_slots) > 0\n"
        "and on (shard, worker) max by (shard, worker) (sidekiq_concurrency_limit_queue_jobs) > 0",
        "2m",
        f"{{{{ $value }}}} slots of the limit {{{{ $labels.worker }}}} {_ON_SHARD} belong to processes that are gone",
        "Jobs wait for them. A running process of the shard frees such slots within seconds: perhaps none runs.",
        {
            'application_worker_leaked_slots{shard="main",worker="MailWorker"}': "2+0x400",
            'sidekiq_concurrency_limit_queue_jobs{shard="main",worker="MailWorker",feature_category="mail"}': "5+0x400",
        },
        {
            'application_worker_leaked_slots{shard="main",worker="MailWorker"}': "2+0x400",
            'sidekiq_concurrency_limit_queue_jobs{shard="main",worker="MailWorker",feature_category="mail"}': "0+0x400",
            'application_worker_leaked_slots{shard="main",worker="BusyWorker"}': "0+0x400",
            'sidekiq_concurrency_limit_queue_jobs{shard="main",worker="BusyWorker",feature_category="mail"}': "5+0x400",
        },
    ),
    Rule(
        "OrphanLocks",
        f"sum by (worker) (max by (shard, worker, strategy) (increase({_DROPPED_DUPLICATES}[20m]))) > 0\n"
        "unless on (worker) sum by (worker) (increase(gitlab_sli_sidekiq_queueing_apdex_total[20m])) > 0\n"
        "unless on (worker) sum by (worker) (sidekiq_running_jobs) > 0\n"
        "unless on (worker) max by (worker) (application_worker_held_size) > 0\n"
        "unless on (worker) sum by (worker) (increase(sidekiq_jobs_skipped_total[20m])) > 0",
        "20m",
        "Pushes of {{ $labels.worker }} are dropped as duplicates, and no job of it runs",
        "About {{ $value | humanize }} in 20 minutes. A lock may be left, whose job is gone; or its job waits for a late retry.",
        {
            'application_worker_shard_jobs_deduplicated_total{shard="main",worker="MailWorker",strategy="until_executed"}': "0+5x400"
        },
        {
            'application_worker_shard_jobs_deduplicated_total{shard="main",worker="MailWorker",strategy="until_executed"}': "0+5x400",
            f"gitlab_sli_sidekiq_queueing_apdex_total{_JOBS}": "0+1x400",
            'application_worker_shard_jobs_deduplicated_total{shard="main",worker="HeldWorker",strategy="until_executed"}': "0+5x400",
            'application_worker_held_size{shard="main",place="waiting",worker="HeldWorker"}': "1+0x400",
            'application_worker_shard_jobs_deduplicated_total{shard="main",worker="DailyWorker",strategy="until_expired"}': "0+5x400",
        },
    ),
    Rule(
        "JobsSkippedTooLong",
        "sum by (worker, action, reason) (increase(sidekiq_jobs_skipped_total[30m])) > 0",
        "3h",
        "Jobs of {{ $labels.worker }} are {{ $labels.action }} for hours: {{ $labels.reason }}",
        "About {{ $value | humanize }} jobs in 30 minutes. If a flag does it, its end may be forgotten.",
        {'sidekiq_jobs_skipped_total{worker="MailWorker",action="deferred",reason="feature_flag"}': "0+5x800"},
        {'sidekiq_jobs_skipped_total{worker="MailWorker",action="deferred",reason="feature_flag"}': "0+5x30 150+0x800"},
    ),
    Rule(
        "SlotsSaturated",
        "max by (shard) (application_worker_utilisation_ratio) > <busy_ratio>",
        "15m",
        f"{{{{ $value | humanizePercentage }}}} of the slots {_ON_SHARD} are busy",
        "New jobs wait until running ones end.",
        {'application_worker_utilisation_ratio{shard="main"}': "1+0x400"},
        {'application_worker_utilisation_ratio{shard="main"}': "0.5+0x400"},
    ),
    Rule(
        "DeadSetGrowing",
        "max by (shard) (delta(sidekiq_jobs_dead_size[1h])) > <dead_jobs>",
        "",
        f"The dead set {_ON_SHARD} has grown by {{{{ $value | humanize }}}} jobs in an hour",
        "Jobs have used up their retries. The oldest dead jobs are deleted when the set is full.",
        {'sidekiq_jobs_dead_size{shard="main"}': "0+<dead_jobs>x400"},
        {'sidekiq_jobs_dead_size{shard="main"}': "1000+0x400"},
    ),
    Rule(
        "JobsQuarantined",
        "max by (shard) (delta(application_worker_interrupted_size[15m])) > 0",
        "",
        f"{{{{ $value | humanize }}}} jobs {_ON_SHARD} were interrupted too often and set aside",
        "They were running when their processes died. One of them may kill each process that runs it.",
        {'application_worker_interrupted_size{shard="main"}': "0+1x400"},
        {'application_worker_interrupted_size{shard="main"}': "3+0x400"},
    ),
    Rule(
        "RecoveredSpike",
        _new_events("application_worker_recovered_jobs_total", "cause", "5m", "<recovered_jobs>"),
        "",
        "{{ $value | humanize }} jobs were recovered in 5 minutes: {{ $labels.cause }}",
        "Their processes died while they ran or waited in them, so they may run twice.",
        {'application_worker_recovered_jobs_total{worker="MailWorker",cause="dead_process"}': "0+<recovered_jobs>x400"},
        {'application_worker_recovered_jobs_total{worker="MailWorker",cause="dead_process"}': "0+0x400"},
    ),
    Rule(
        "UnknownClass",
        _new_events('application_worker_ended_jobs_total{how="unknown_class"}', "instance", "15m"),
        "10m",
        "Jobs wait for a process that has their class",
        "{{ $labels.instance }} has met {{ $value | humanize }} of them in 15 minutes. The log lines class.unknown name the class.",
        {'application_worker_ended_jobs_total{worker="unknown",how="unknown_class",instance="a"}': "0+2x400"},
        {'application_worker_ended_jobs_total{worker="unknown",how="unknown_class",instance="a"}': "5+0x400"},
        tested_after="30m",
    ),
    Rule(
        "SchedulerStalled",
        "max by (shard, set) (application_worker_scheduler_lag_seconds) > <scheduler_lag>",
        "1m",
        f"Due jobs of the set {{{{ $labels.set }}}} {_ON_SHARD} are not moved to their queues",
        "The first has been due for {{ $value | humanizeDuration }}.",
        {'application_worker_scheduler_lag_seconds{shard="main",set="retry"}': "<scheduler_lag>*2+0x400"},
        {'application_worker_scheduler_lag_seconds{shard="main",set="retry"}': "<scheduler_lag>*0.1+0x400"},
    ),
    Rule(
        "CronMissed",
        _new_events('application_worker_cron_ticks_total{outcome="missed"}', "entry", "15m")
        + "\nor max by (entry) (application_worker_cron_lag_seconds) > <cron_lag>",
        "",
        "Ticks of the schedule {{ $labels.entry }} are missed or late",
        "{{ $value | humanize }} missed ticks, or seconds since a tick that no process has pushed.",
        {'application_worker_cron_lag_seconds{shard="main",entry="mail",worker="MailWorker"}': "<cron_lag>*2+0x400"},
        {
            'application_worker_cron_lag_seconds{shard="main",entry="mail",worker="MailWorker"}': "1+0x400",
            'application_worker_cron_ticks_total{worker="MailWorker",entry="mail",outcome="pushed"}': "0+1x400",
        },
    ),
    Rule(
        "ClockSkew",
        "max by (shard, instance) (abs(application_worker_redis_clock_skew_seconds)) > <clock_skew>\n"
        "or max by (shard) (application_worker_clock_skew_max_seconds) > <clock_skew>",
        "2m",
        f"A clock and that of the Redis of {_SHARD} differ by {{{{ $value | humanizeDuration }}}}",
        "That of the exporter {{ $labels.instance }}, or of a worker process. Ages and due times are wrong by so much.",
        {'application_worker_redis_clock_skew_seconds{shard="main",instance="a"}': "-5+0x400"},
        {'application_worker_redis_clock_skew_seconds{shard="main",instance="a"}': "0.1+0x400"},
    ),
    Rule(
        "ProcessesFlapping",
        'sum by (instance) (increase(application_worker_child_events_total{event=~"died|stuck|failed"}[10m])) > <restarts>',
        "",
        "Child processes of {{ $labels.instance }} have ended {{ $value | humanize }} times in 10 minutes",
        "Their supervisor starts them again. Running jobs of each death are recovered, and count as interrupted.",
        {'application_worker_child_events_total{instance="a",event="died"}': "0+<restarts>x400"},
        {
            'application_worker_child_events_total{instance="a",event="died"}': "1+0x400",
            'application_worker_child_events_total{instance="a",event="started"}': "0+<restarts>x400",
        },
    ),
    Rule(
        "HeartbeatLate",
        "max by (shard) (application_worker_heartbeat_age_max_seconds) > <heartbeat_age>",
        "",
        f"A process {_ON_SHARD} has sent no heartbeat for {{{{ $value | humanizeDuration }}}}",
        "Other processes take its jobs back when its lease ends.",
        {'application_worker_heartbeat_age_max_seconds{shard="main"}': "<heartbeat_age>*2+0x400"},
        {'application_worker_heartbeat_age_max_seconds{shard="main"}': "<heartbeat_age>*0.5+0x400"},
    ),
    Rule(
        "MemoryLimitExceeded",
        'sum by (instance) (increase(application_worker_child_events_total{event="memory"}[1h])) > 0',
        "",
        "Child processes of {{ $labels.instance }} exceed their memory limit",
        "{{ $value | humanize }} were replaced in an hour.",
        {'application_worker_child_events_total{instance="a",event="memory"}': "0+1x400"},
        {'application_worker_child_events_total{instance="a",event="memory"}': "1+0x400"},
    ),
    Rule(
        "ForcedShutdowns",
        _new_events("application_worker_cut_off_jobs_total", "job", "1h", "<cut_off_jobs>"),
        "",
        "Stops of processes have cut off {{ $value | humanize }} running jobs in an hour",
        "They run again from the start. Their runs are longer than the stop timeout.",
        {'application_worker_cut_off_jobs_total{worker="MailWorker"}': "0+<cut_off_jobs>x400"},
        {'application_worker_cut_off_jobs_total{worker="MailWorker"}': "1+0x400"},
    ),
    Rule(
        "ShardAway",
        "max by (shard) (application_worker_up) == 0\n"
        'or max by (shard, state) (application_worker_shard_state{state!~"closed|open"}) == 1',
        "1m",
        f"The shard {_SHARD} does not answer or takes no writes {{{{ $labels.state }}}}",
        "Pushes to it fail or are kept, and its processes wait.",
        {'application_worker_up{shard="main"}': "0+0x400"},
        {
            'application_worker_up{shard="main"}': "1+0x400",
            'application_worker_shard_state{shard="main",state="open"}': "0+0x400",
            'application_worker_shard_state{shard="main",state="closed"}': "1+0x400",
        },
    ),
    Rule(
        "RedisMemoryHigh",
        "max by (shard) (application_worker_redis_used_memory_bytes / (application_worker_redis_max_memory_bytes > 0))"
        " > <memory_high>\n"
        "or max by (shard) (predict_linear(application_worker_redis_used_memory_bytes[1h], <4h>)"
        " / (application_worker_redis_max_memory_bytes > 0)) > 1",
        "5m",
        f"The Redis of shard {_SHARD} uses {{{{ $value | humanizePercentage }}}} of its memory limit",
        "Now, or within hours if it grows as in the last one.",
        {
            'application_worker_redis_used_memory_bytes{shard="main"}': "70+0x400",
            'application_worker_redis_max_memory_bytes{shard="main"}': "100+0x400",
        },
        {
            'application_worker_redis_used_memory_bytes{shard="main"}': "20+0x400",
            'application_worker_redis_max_memory_bytes{shard="main"}': "100+0x400",
            'application_worker_redis_used_memory_bytes{shard="unlimited"}': "20+0x400",
            'application_worker_redis_max_memory_bytes{shard="unlimited"}': "0+0x400",
        },
    ),
    Rule(
        "RedisMemoryFull",
        "max by (shard) (application_worker_redis_used_memory_bytes / (application_worker_redis_max_memory_bytes > 0))"
        " > <memory_full>",
        "1m",
        f"The Redis of shard {_SHARD} uses {{{{ $value | humanizePercentage }}}} of its memory limit",
        "At the limit it refuses pushes.",
        {
            'application_worker_redis_used_memory_bytes{shard="main"}': "90+0x400",
            'application_worker_redis_max_memory_bytes{shard="main"}': "100+0x400",
        },
        {
            'application_worker_redis_used_memory_bytes{shard="main"}': "20+0x400",
            'application_worker_redis_max_memory_bytes{shard="main"}': "100+0x400",
        },
    ),
    Rule(
        "UnsafeRedisConfig",
        "min by (shard) (application_worker_redis_noeviction) == 0\n"
        "or min by (shard) (application_worker_redis_aof_enabled) == 0\n"
        "or min by (shard) (application_worker_redis_persistence_ok) == 0",
        "5m",
        f"The Redis of shard {_SHARD} may lose jobs",
        "It may evict keys (maxmemory-policy), has no append-only file, or cannot write its files.",
        {'application_worker_redis_noeviction{shard="main"}': "0+0x400"},
        {
            'application_worker_redis_noeviction{shard="main"}': "1+0x400",
            'application_worker_redis_aof_enabled{shard="main"}': "1+0x400",
            'application_worker_redis_persistence_ok{shard="main"}': "1+0x400",
        },
    ),
    Rule(
        "RedisEvictsKeys",
        "max by (shard) (increase(application_worker_redis_evicted_keys_total[10m])) > 0",
        "",
        f"The Redis of shard {_SHARD} has evicted {{{{ $value | humanize }}}} keys",
        "Jobs, leases and locks are among them.",
        {'application_worker_redis_evicted_keys_total{shard="main"}': "0+1x400"},
        {'application_worker_redis_evicted_keys_total{shard="main"}': "7+0x400"},
    ),
    Rule(
        "DataLossSuspected",
        "time() - max by (shard) (application_worker_data_loss_timestamp_seconds) < <3h>",
        "",
        f"The Redis of shard {_SHARD} has lost data",
        "A process noticed it {{ $value | humanizeDuration }} ago: its registration was gone, or older than it must be.",
        {'application_worker_data_loss_timestamp_seconds{shard="main"}': "0+60x400"},
        {'application_worker_data_loss_timestamp_seconds{shard="main"}': "0+0x400"},
        tested_after="4h",
    ),
    Rule(
        "CertificateExpiry",
        "min by (shard) (application_worker_redis_certificate_end_timestamp_seconds) - time() < <certificate_days>*86400",
        "",
        f"The certificate of the Redis of shard {_SHARD} ends in {{{{ $value | humanizeDuration }}}}",
        "Then processes, also running ones, cannot connect any more.",
        {'application_worker_redis_certificate_end_timestamp_seconds{shard="main"}': "<certificate_days>*43200+0x400"},
        {'application_worker_redis_certificate_end_timestamp_seconds{shard="main"}': "<certificate_days>*172800+0x400"},
    ),
    Rule(
        "PushesKept",
        "max by (instance) (application_worker_kept_pushes_oldest_age_seconds) > <kept_age>",
        "",
        "Pushes of {{ $labels.instance }} have been kept for {{ $value | humanizeDuration }}",
        "Redis has not taken them, so their jobs are in a folder of the host.",
        {'application_worker_kept_pushes_oldest_age_seconds{instance="a"}': "<kept_age>*2+0x400"},
        {'application_worker_kept_pushes_oldest_age_seconds{instance="a"}': "0+0x400"},
    ),
    Rule(
        "FleetMetricsMissing",
        "absent(application_worker_up)",
        "2m",
        "Nothing reports the figures of the fleet",
        "Neither an exporter nor a worker process that reports for its shard is scraped.",
        {},
        {'application_worker_up{shard="main"}': "1+0x400"},
    ),
)
