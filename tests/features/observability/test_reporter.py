"""Test that one process of a shard has the figures of the shard in its own /metrics, or its supervisor for it."""

import os
import signal

import pytest

from framework.features.observability import keys, reporter
from framework.features.observability.catalogue import FLEET, METRICS, PROCESS
from framework.features.observability.reporter import is_here
from framework.process.identity import identity_of
from tests.cluster.conftest import cluster
from tests.features.observability.conftest import series_of
from tests.features.observability.test_exposition import promtool_says
from tests.features.observability.test_processes import scraped
from tests.harness import until
from tests.process.conftest import cold_site

__all__ = ["cluster", "cold_site"]


@pytest.fixture
def settings(site):
    """Let workers report, with all rights: the role of a worker alone may not read the figures."""
    site.write("application.yml", {"fleet": {"reporter": True}})
    return {"REDIS_URL": site.proofs_url}


def ups(process):
    return [value for (name, _), value in series_of(scraped(process)).items() if name == "application_worker_up"]


@pytest.mark.campaign
def test_one_of_two_workers_reports_and_the_other_takes_over(site, redis, settings, monkeypatch):
    first, second = (site.hurried_worker("-q", "default", "--health-port", "0", **settings).ready() for _ in range(2))
    until(lambda: ups(first) == [1] and ups(second) == [], "the first process reports")
    text = scraped(first)
    assert promtool_says(text) == ""
    assert 'application_worker_slots_needed{queue_group="default",shard="main"}' in text
    assert 'sidekiq_processes_size{shard="main"} 2.0' in text
    assert first.end() == 0
    # As if the lease had expired.
    redis.delete(keys.REPORTER)
    until(lambda: ups(second) == [1], "the second process reports")


def test_supervisor_reports_for_its_child(cluster, redis, site, settings):
    process = cluster("default", "--processes", "1", "--health-port", "0", **settings)
    until(lambda: ups(process) == [1], "the supervisor reports")
    text = scraped(process)
    assert promtool_says(text) == ""
    # A supervisor loads no classes, and so knows no targets.
    assert "application_worker_slots_needed" not in text


def test_reporter_of_a_silent_shard_says_so_and_others_do_not(make_server, tmp_path):
    server = make_server()
    shards = {"main": {"url": server.url}}
    settings = reporter.Settings(config_dir=tmp_path, root=tmp_path, var_dir=tmp_path, shards=shards)
    own, other = (reporter.Reporter(settings) for _ in range(2))
    with server.open() as client:
        client.set(keys.REPORTER, identity_of(1, "00000000000a"))
    assert list(other.figures()) == []
    with server.open() as client:
        client.set(keys.REPORTER, identity_of(os.getpid(), "00000000000a"))
    assert {one.name for one in own.figures()} > {"application_worker_up"}
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for one in (own, other):
            one._fleet._read_at = -10.0
        assert {one.name for one in own.figures()} == {"application_worker_up", "application_worker_shard_state"}
        assert list(other.figures()) == []
    finally:
        os.kill(server.pid, signal.SIGCONT)
        own.close()
        other.close()


def test_identity_of_another_host_or_pid_is_not_here():
    assert is_here(identity_of(os.getpid(), "a").encode())
    for identity in (None, b"", b"x", identity_of(1, "a").encode(), f"other:{os.getpid()}:a".encode()):
        assert not is_here(identity)


def test_metrics_of_processes_and_shards_have_different_names():
    """Both stand in one scrape; with one name, sums would count an event twice."""
    assert len(METRICS) == len(PROCESS) + len(FLEET)
    families = [one.name.removesuffix("_total") for one in METRICS.values()]
    assert len(set(families)) == len(families)
