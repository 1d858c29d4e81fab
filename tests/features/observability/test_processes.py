"""``/metrics`` of real processes: a worker, and a cluster that loses a child."""

import os
import signal

import pytest

from tests.cluster.conftest import children, cluster
from tests.features.observability.conftest import series_of
from tests.features.observability.test_exposition import promtool_says
from tests.harness import enqueue, until
from tests.process.conftest import cold_site, proofs, release
from tests.process.test_worker_health import request

__all__ = ["cluster", "cold_site", "proofs", "release"]

RUNS = "gitlab_sli_sidekiq_execution_total"
CHILDREN = "application_worker_child_events_total"
JOBS = 2_000


def scraped(process):
    port = process.line(event_name="health.listening")["port"]
    status, _, text = request(port, "/metrics")
    assert status == 200, text
    return text


def total(process, name, **labels):
    found = series_of(scraped(process)).items()
    return sum(value for (series, given), value in found if series == name and labels.items() <= dict(given).items())


def test_worker_shows_all_series_with_zero_before_its_first_job(site, redis, proofs):
    process = site.worker("-q", "default", "-c", "2", "--health-port", "0").ready()
    text = scraped(process)
    assert promtool_says(text) == ""
    series = series_of(text)
    for worker in ("NoopWorker", "LongWorker"):
        own = {name for (name, labels), value in series.items() if dict(labels).get("worker") == worker and value == 0}
        assert own >= {
            *("sidekiq_jobs_completion_seconds_count", "sidekiq_jobs_failed_total", "sidekiq_jobs_retried_total"),
            *("sidekiq_enqueued_jobs_total", "sidekiq_jobs_dead_total", "sidekiq_jobs_skipped_total", RUNS),
            *("sidekiq_jobs_queue_duration_seconds_sum", "sidekiq_redis_requests_total", "sidekiq_running_jobs"),
        }
    enqueue(redis, "NoopWorker")
    proofs("noop")
    until(lambda: total(process, RUNS, worker="NoopWorker") == 1)
    assert total(process, "sidekiq_concurrency") == 2
    assert total(process, "application_worker_heartbeat_age_seconds") < 30


def test_metrics_say_what_is_missing(site):
    process = site.worker("-q", "default", "--health-port", "0", FRAMEWORK_METRICS__MODE="off").ready()
    port = process.line(event_name="health.listening")["port"]
    assert request(port, "/metrics")[::2] == (
        503,
        "the metrics of this process are off: set metrics.mode in config/application.yml\n",
    )


def test_missing_extra_is_named(cold_site):
    (cold_site.folder / "prometheus_client.py").write_text("raise ImportError")
    process = cold_site.worker("-q", "default", "--health-port", "0", PYTHONPATH=str(cold_site.folder)).ready()
    port = process.line(event_name="health.listening")["port"]
    status, _, text = request(port, "/metrics")
    assert (status, "[prometheus]" in text) == (503, True)


def test_cluster_sums_its_children_and_keeps_those_of_the_dead(cluster, redis, proofs):
    process = cluster("default", "--processes", "2", "--health-port", "0")
    until(lambda: process.find(event_name="process.ready")[1:])
    assert total(process, RUNS, worker="NoopWorker") == 0
    assert (total(process, CHILDREN, event="started"), total(process, CHILDREN, event="died")) == (2, 0)
    assert "pid" in process.find(event_name="child.started")[0]
    for _ in range(50):
        enqueue(redis, "NoopWorker")
    until(lambda: total(process, RUNS, worker="NoopWorker") == 50)
    assert promtool_says(scraped(process)) == ""
    until(lambda: total(process, "application_worker_processes") == 2)
    for pid in children(process):
        os.kill(pid, signal.SIGKILL)
    until(lambda: children(process, "died")[1:])
    assert total(process, CHILDREN, event="died") == 2
    assert total(process, RUNS, worker="NoopWorker") == 50
    enqueue(redis, "NoopWorker")
    until(lambda: total(process, RUNS, worker="NoopWorker") == 51)


@pytest.mark.campaign
def test_kills_under_load_lose_no_counted_run(cluster, redis, proofs):
    """Children are killed while they run jobs: each run that ended is counted once, and no other."""
    process = cluster("default", "--processes", "3", "--max-concurrency", "5", "--health-port", "0")
    until(lambda: process.find(event_name="process.ready")[2:])
    kills, pushed = 0, 0
    for _ in range(JOBS // 100):
        for _ in range(100):
            enqueue(redis, "NoopWorker")
        pushed += 100
        victim = until(lambda: sorted(set(children(process)) - set(children(process, "died"))))[0]
        os.kill(victim, signal.SIGKILL)
        kills += 1
        until(lambda pid=victim: pid in children(process, "died"))
    until(lambda: not redis.llen("queue:default") and not redis.keys("aw:working:*"), "all jobs have ended")
    counted = total(process, RUNS, worker="NoopWorker")
    ended = len(process.find(job_status="done"))
    # A run is counted before its line is written: a kill in between, in each of the five threads, leaves no line.
    assert pushed <= ended <= counted <= ended + 5 * kills
    print(f"{kills} kills, {pushed} jobs, {ended} runs by the log, {counted:.0f} by the metrics")  # noqa: T201
