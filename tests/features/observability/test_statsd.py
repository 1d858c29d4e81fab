"""What a process sends to a StatsD server: the counts since the last time, in packets, without waiting."""

import socket

import pytest

from framework.features.observability.settings import MetricsSettings
from framework.features.observability.statsd import PACKET_BYTES, StatsdSender, packets
from framework.finish.endings import RETRIED
from framework.finish.outcome import Failed
from tests.harness import enqueue, until
from tests.process.conftest import proofs

__all__ = ["proofs"]


@pytest.fixture
def statsd():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(5)
        yield listening


def received(statsd, *, until_line=""):
    lines = []
    while not any(until_line in line for line in lines):
        lines += statsd.recv(65_536).decode().split("\n")
    return lines


def sender_to(bench, statsd, **settings):
    return StatsdSender(bench.tally, MetricsSettings(statsd=f"127.0.0.1:{statsd.getsockname()[1]}", **settings))


def test_counts_are_sent_once_with_their_labels_as_tags(bench, statsd):
    sender = sender_to(bench, statsd)
    bench.end(duration_s=0.5)
    bench.end(Failed(ValueError()), RETRIED)
    bench.tally.set_gauge("sidekiq_concurrency", 7, "w-1")
    lines = list(sender.lines())
    tags = "queue:q,worker:Job,urgency:high,external_dependencies:no,feature_category:not_owned,destination_shard_redis:main"
    assert f"sidekiq_jobs_completion_seconds_sum:0.5|c|#{tags},job_status:done" in lines
    assert f"sidekiq_jobs_failed_total:1|c|#{tags}" in lines
    assert "sidekiq_concurrency:7|g|#pid:w-1" in lines
    assert not [line for line in lines if "_bucket" in line]
    assert list(sender.lines()) == ["sidekiq_concurrency:7|g|#pid:w-1"]


def test_plain_statsd_sums_up_all_labels(bench, statsd):
    sender = sender_to(bench, statsd, statsd_format="statsd")
    bench.end(queue="one")
    bench.end(queue="two")
    assert "gitlab_sli_sidekiq_execution_total:2|c" in list(sender.lines())


def test_lines_are_packed_and_sent(bench, statsd):
    sender = sender_to(bench, statsd)
    bench.end()
    sender.send()
    assert any(
        line.startswith("gitlab_sli_sidekiq_execution_total:1|c")
        for line in received(statsd, until_line="execution_total")
    )
    lines = [f"{number}:{'x' * 90}" for number in range(100)]
    made = list(packets(iter(lines)))
    assert b"\n".join(made).decode().split("\n") == lines
    assert max(map(len, made)) <= PACKET_BYTES < 2 * min(map(len, made[:-1]))


def test_server_that_is_away_is_reported_once(bench, caplog):
    sender = StatsdSender(bench.tally, MetricsSettings(statsd="nowhere.invalid:8125"))
    bench.end()
    sender.send(), sender.send()
    assert [one.getMessage() for one in caplog.records].count(caplog.records[0].getMessage()) == 1


def test_worker_sends_its_counts(site, redis, proofs, statsd):
    enqueue(redis, "NoopWorker")
    site.worker("-q", "default", FRAMEWORK_METRICS__STATSD=f"127.0.0.1:{statsd.getsockname()[1]}")
    proofs("noop")
    lines = until(lambda: [one for one in received(statsd) if one.startswith("gitlab_sli_sidekiq_execution_total")])
    assert "worker:NoopWorker" in lines[0]
