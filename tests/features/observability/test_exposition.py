"""The text of ``/metrics``: Prometheus accepts all metrics of the catalogue, in both formats and modes."""

import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from framework.features.observability import catalogue, layout
from framework.features.observability.catalogue import METRICS, PROCESS, of_mode
from framework.features.observability.exposition import process_text
from framework.features.observability.tally import key_of

OPEN_METRICS = "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"


def promtool_says(text):
    """Return what ``promtool check metrics`` has to say of a scrape; nothing if all is well."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr + (f"status {done.returncode}" if done.returncode else "")


def rows_of_everything():
    """Return sums with every metric of a process."""
    row = [0.0] * layout.RUN_NUMBERS
    row[layout.COUNT] = row[layout.FAILED] = 1.0
    sums = {key_of(layout.RUN, ("q", "Job", "low", "no", "", "", "main")): row}
    for one in PROCESS:
        numbers = len(one.buckets) + 2 if one.buckets else 1
        if not one.name.startswith("gitlab_sli_"):
            sums[key_of(one.name, [f"{label} of it" for label in one.labels])] = [1.0] * numbers
    return sums


@pytest.mark.parametrize("mode", ["histogram", "counters"])
def test_promtool_accepts_every_metric(mode):
    text, kind = process_text(rows_of_everything(), mode)
    shown = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    assert shown == {one.name for one in of_mode(PROCESS, mode)}
    assert kind.startswith("text/plain")
    assert promtool_says(text.decode()) == ""


def test_open_metrics_is_written_for_those_who_accept_it():
    text, kind = process_text(rows_of_everything(), "histogram", OPEN_METRICS)
    assert kind.startswith("application/openmetrics-text")
    families = {one.name: one for one in text_string_to_metric_families(text.decode())}
    assert {f"{name}_total" if one.type == "counter" else name for name, one in families.items()} == {
        one.name for one in of_mode(PROCESS, "histogram")
    }


def test_metrics_that_are_not_gitlabs_begin_with_our_prefix():
    for name, one in METRICS.items():
        assert name.startswith(("sidekiq_", "gitlab_sli_", "limited_capacity_worker_", "application_worker_"))
        assert (one.origin == "ours") == name.startswith("application_worker_"), name


def test_gitlabs_labels_and_buckets_are_exact():
    """From ``server_metrics.rb``, ``client_metrics.rb`` and ``metrics_helper.rb`` of GitLab."""
    base = [
        "queue",
        "worker",
        "urgency",
        "external_dependencies",
        "feature_category",
        "boundary",
        "destination_shard_redis",
    ]
    assert list(catalogue.BASE) == base
    histograms = {
        name: one.buckets for name, one in METRICS.items() if one.kind == "histogram" and one.origin == "GitLab"
    }
    assert histograms == {
        "sidekiq_jobs_completion_seconds": (10, 300),
        "sidekiq_jobs_queue_duration_seconds": (10, 60),
        "sidekiq_jobs_cpu_seconds": (0.1, 0.5, 1, 2.5),
        "sidekiq_jobs_db_seconds": (0.1, 0.5, 1, 2.5),
        "sidekiq_redis_requests_duration_seconds": (0.1, 0.25, 0.5),
    }
    with_status = {name for name, one in METRICS.items() if "job_status" in one.labels}
    assert with_status == {
        *(name for name in histograms if "queue" not in name),
        *("sidekiq_redis_requests_total", "sidekiq_mem_total_bytes", "sidekiq_load_balancing_count"),
    }
