"""What a process counts of its jobs, by GitLab's names, labels and buckets, in both modes."""

import math

import pytest

from framework.errors import BusinessError
from framework.execute.job_log import TARGETS
from framework.features.observability.tally import Tally
from framework.finish.endings import KILLED, RETRIED
from framework.finish.outcome import Failed
from framework.telemetry.job_events import (
    ClassThrottled,
    CountedEnd,
    JobDied,
    JobHeld,
    JobRecovered,
    JobsEnqueued,
    JobSkipped,
    WorkRemains,
)
from framework.telemetry.shared_counts import SharedCounts
from framework.telemetry.usage import Usage
from tests.features.observability.conftest import Bench, ended_run, series_of

BASE = {
    "queue": "q", "worker": "Job", "urgency": "high", "external_dependencies": "no", "feature_category": "not_owned",
    "boundary": "", "destination_shard_redis": "main",
}  # fmt: skip
COMPLETION, QUEUE = "sidekiq_jobs_completion_seconds", "sidekiq_jobs_queue_duration_seconds"


def buckets(bench, name, **labels):
    return [
        value
        for (series, given), value in series_of(bench.scrape()).items()
        if series == f"{name}_bucket" and labels.items() <= dict(given).items()
    ]


def test_runs_are_counted_by_status_and_bucket(bench):
    for seconds in (0.5, 10.0, 10.5, 301.0):
        bench.end(duration_s=seconds, cpu_s=0.3)
    bench.end(Failed(ValueError()), RETRIED, duration_s=20.0)
    assert buckets(bench, COMPLETION, job_status="done") == [2, 3, 4]
    assert buckets(bench, COMPLETION, job_status="fail") == [0, 1, 1]
    assert bench.value(f"{COMPLETION}_sum", **BASE, job_status="done") == 322.0
    assert bench.value(f"{COMPLETION}_count", job_status="fail") == 1
    assert bench.value("sidekiq_jobs_failed_total", **BASE) == 1
    assert buckets(bench, "sidekiq_jobs_cpu_seconds", job_status="done") == [0, 4, 4, 4, 4]


def test_waits_are_counted_from_the_push_or_the_creation(bench):
    bench.end(waited_s=2.0)
    bench.end(waited_s=15.0)
    bench.end(waited_s=61.0)
    bench.end(waited_s=-5.0)
    bench.end(enqueued_at=None)
    assert buckets(bench, QUEUE) == [2, 3, 4]
    assert bench.value(f"{QUEUE}_sum") == pytest.approx(78.0, abs=0.01)


def test_indicators_judge_done_runs_by_the_targets_of_the_class(bench):
    bench.end(duration_s=9.9, waited_s=9.0)
    bench.end(duration_s=10.0, waited_s=10.1)
    bench.end(Failed(ValueError()), KILLED, duration_s=50.0, waited_s=70.0)
    bench.end(Failed(BusinessError("no")), KILLED)
    values = {
        name: bench.value(f"gitlab_sli_sidekiq_{name}")
        for name in (
            *("execution_apdex_total", "execution_apdex_success_total", "execution_total", "execution_error_total"),
            *("queueing_apdex_total", "queueing_apdex_success_total"),
        )
    }
    assert values == {
        "execution_apdex_total": 3,
        "execution_apdex_success_total": 2,
        "execution_total": 4,
        "execution_error_total": 1,
        "queueing_apdex_total": 4,
        "queueing_apdex_success_total": 2,
    }
    assert {urgency: run_s for urgency, (_, run_s) in TARGETS.items()} == {"high": 10, "low": 300, "throttled": 300}
    waits = {urgency: math.inf if wait_s is None else wait_s for urgency, (wait_s, _) in TARGETS.items()}
    assert waits == {"high": 10, "low": 60, "throttled": math.inf}


def test_mode_counters_counts_every_run_without_a_status(job):
    tally = Tally("counters", 10_000, SharedCounts)
    bench = Bench(tally, tally.of_thread(), job)
    used = Usage()
    used.count_redis(3, 0.3, 10, 10)
    used.count_sql(0.7)
    bench.end(duration_s=1.0, cpu_s=0.25, usage=used)
    bench.end(Failed(ValueError()), RETRIED, duration_s=2.0, cpu_s=0.5)
    assert bench.value("sidekiq_jobs_completion_count", **BASE) == 2
    assert bench.value("sidekiq_jobs_completion_seconds_sum") == 3.0
    assert bench.value("sidekiq_jobs_cpu_seconds_sum") == 0.75
    assert bench.value("sidekiq_jobs_db_seconds_sum") == 0.7
    assert bench.value("sidekiq_redis_requests_duration_seconds_sum") == 0.3
    assert bench.value("sidekiq_redis_requests_total", job_status="done") == 3
    assert "sidekiq_jobs_failed_total" not in bench.scrape()
    assert "job_status" not in {
        name for (series, labels) in series_of(bench.scrape()) if "_sum" in series for name, _ in labels
    }


def test_what_jobs_use_is_in_the_histograms_of_all_runs(bench):
    used = Usage()
    used.count_sql(0.7)
    used.count_redis(2, 0.3, 1, 1)
    bench.end(usage=used)
    bench.end()
    assert buckets(bench, "sidekiq_jobs_db_seconds", job_status="done") == [1, 1, 2, 2, 2]
    assert buckets(bench, "sidekiq_redis_requests_duration_seconds", job_status="done") == [1, 1, 2, 2]


def test_payload_tells_of_earlier_runs_and_of_read_servers(bench):
    bench.end(retry_count=0)
    bench.end(interrupted_count=1, load_balancing_strategy="replica", worker_data_consistency="delayed")
    assert bench.value("sidekiq_jobs_retried_total", **BASE) == 1
    assert bench.value("sidekiq_jobs_interrupted_total", **BASE) == 1
    assert (
        bench.value("sidekiq_load_balancing_count", load_balancing_strategy="replica", data_consistency="delayed") == 1
    )


def test_jobs_that_have_not_run_are_no_runs(bench):
    run = ended_run(bench.worker.declaration())
    run.admitted = False
    bench.thread.ended(run)
    run.admitted, run.declaration = True, None
    bench.thread.ended(run)
    assert bench.scrape() == ""


def test_events_have_counters_of_their_own(bench):
    for event in (
        JobsEnqueued("Job", 2, "q", "main", sizes=(500, 5_000)),
        JobsEnqueued("Job", 1, "q", "other", scheduled=True, sizes=(10_000_000,)),
        JobSkipped("Job", queue="q", action="dropped", reason="feature_flag"),
        JobHeld("Job", by="concurrency_limit"),
        JobHeld("Job", by="paused"),
        ClassThrottled("Job", strategy="soft"),
        JobRecovered("Job", cause="death", quarantined=True),
        CountedEnd("Job", counted_as="sidekiq_jobs_expired_total"),
        JobDied("Strange", queue="q"),
        WorkRemains("Job", 7),
        WorkRemains("Job", 0),
    ):
        bench.tally.happened(event)
    assert bench.value("sidekiq_enqueued_jobs_total", **BASE, scheduling="immediate") == 2
    assert bench.value("sidekiq_enqueued_jobs_total", scheduling="delayed", destination_shard_redis="other") == 1
    assert buckets(bench, "application_worker_payload_bytes") == [1, 2, 2, 2, 2, 3]
    assert bench.value("sidekiq_jobs_skipped_total", **BASE, action="dropped", reason="feature_flag") == 1
    assert bench.value("sidekiq_concurrency_limit_deferred_jobs_total", worker="Job") == 1
    assert bench.value("application_worker_held_jobs_total", by="paused") == 1
    assert bench.value("sidekiq_throttling_events_total", strategy="soft", feature_category="not_owned") == 1
    assert bench.value("application_worker_recovered_jobs_total", cause="death") == 1
    assert bench.value("application_worker_quarantined_jobs_total", cause="death") == 1
    assert bench.value("application_worker_ended_jobs_total", how="expired") == 1
    assert bench.value("sidekiq_jobs_dead_total", worker="unknown", urgency="") == 1
    assert bench.value("limited_capacity_worker_remaining_work_count", worker="Job") == 0


def test_classes_beyond_the_most_series_count_as_unknown(job, caplog):
    tally = Tally("histogram", 75, SharedCounts)
    bench = Bench(tally, tally.of_thread(), job)
    bench.end()
    bench.end(queue="another")
    tally.happened(JobHeld("Job", by="paused"))
    assert bench.value("gitlab_sli_sidekiq_execution_total", worker="Job") == 1
    assert bench.value("gitlab_sli_sidekiq_execution_total", worker="unknown") == 1
    assert bench.value("application_worker_series_refused_total") == 2
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1


def test_threads_and_forks_count_on_their_own(bench):
    bench.tally.of_thread().ended(ended_run(bench.worker.declaration()))
    bench.end()
    assert bench.value("gitlab_sli_sidekiq_execution_total") == 2
    bench.tally.reset_in_child()
    assert bench.scrape() == ""
