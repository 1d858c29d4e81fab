"""Test the answers of a single worker process to health checks, and its metrics."""

import http.client
import json
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from framework.execute.stats import RunningJobs
from framework.process.shared_state import ProcessState, SharedState
from framework.process.worker_health import WorkerHealth
from framework.timings import STANDARD
from tests.harness import enqueue, until
from tests.tables import each_row

QUIET, DRAINING, STOPPING = ProcessState.QUIET, ProcessState.DRAINING, ProcessState.STOPPING


@pytest.fixture
def health():
    runs = RunningJobs()
    record = SimpleNamespace(queues=["default"], runs=runs, slots=7)
    return WorkerHealth("main", record, SharedState())


def answers(health):
    found = health.liveness(), health.readiness()
    return [(one.well, json.loads(one.body)["reasons"]) for one in found]


def test_process_that_fetches_is_alive_and_ready(health):
    assert answers(health) == [(True, []), (False, ["the process starts: Redis has not answered its first fetch"])]
    health._state.note_heartbeat()
    health._state.publish(ProcessState.READY, 0, time.monotonic())
    assert answers(health) == [(True, []), (True, [])]
    shown = json.loads(health.readiness().body)
    assert 0 <= shown.pop("heartbeat_age_s") < 30 > shown.pop("fetch_age_s") >= 0
    del shown["pid"]
    assert shown == {
        "status": "ok", "reasons": [], "shard": "main", "queues": ["default"], "state": "ready", "busy": 0, "fetches": True,
    }  # fmt: skip


@each_row(
    ("state", "reason"), [(QUIET, "the process is quiet"), (DRAINING, "the process drains"), (STOPPING, "stopping")]
)
def test_process_that_fetches_no_more_is_not_ready(health, state, reason):
    health._state.note_heartbeat()
    health._state.publish(ProcessState.READY, 0, time.monotonic())
    health._state.publish(state, 1, None)
    alive, (ready, reasons) = answers(health)
    assert (alive, ready, reasons[0].startswith(reason)) == ((True, []), False, True)


@pytest.mark.parametrize("limit", ["fetch_silence_limit_s", "lease_s"])
def test_process_without_answers_of_redis_is_not_ready(health, limit):
    health._state.note_heartbeat()
    health._state.publish(ProcessState.READY, 0, time.monotonic())
    health._timings = replace(STANDARD, **{limit: -1.0})
    assert answers(health) == [(True, []), (False, ["Redis does not answer the fetches or the heartbeats"])]


def test_process_with_a_dead_thread_is_neither_alive_nor_ready(health):
    health._state.note_heartbeat()
    health._state.publish(ProcessState.READY, 0, time.monotonic())
    health._died.set()
    for well, reasons in answers(health):
        assert (well, reasons) == (
            False,
            ["a thread of the framework died (component.died in the log): the process ends"],
        )


def test_process_with_a_stuck_main_thread_is_not_alive(health):
    health._timings = replace(STANDARD, stuck_s=-1.0)
    well, (reason,) = answers(health)[0]
    assert (well, reason) == (False, "the main thread has not run for 0 s")
    health._state.publish(STOPPING, 0, None)  # it waits for its last jobs
    assert answers(health)[0] == (True, [])


def request(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    reply = connection.getresponse()
    body = reply.read().decode()
    connection.close()
    return reply.status, reply.headers["Content-Type"], body


def test_worker_answers_health_checks_until_it_ends(site, redis, proofs, release):
    enqueue(redis, "NoopWorker")
    enqueue(redis, "LongWorker", args=["one"])
    process = site.worker("-q", "default", "-c", "2", "-t", "30", "--health-port", "0")
    port = process.line(event_name="health.listening")["port"]
    assert request(port, "/liveness")[0] == 200  # before it is ready
    proofs("begun:one"), proofs("noop")
    until(lambda: request(port, "/readiness")[0] == 200)
    done = (
        'sidekiq_jobs_completion_seconds_count{boundary="",destination_shard_redis="main",external_dependencies="no",'
    )
    done += 'feature_category="not_owned",job_status="done",queue="default",urgency="low",worker="NoopWorker"} 1.0\n'
    until(lambda: done in request(port, "/metrics")[2])
    running = 'external_dependencies="no",feature_category="not_owned",pid="'
    assert running in request(port, "/metrics")[2]
    assert request(port, "/metrics")[1].startswith("text/plain")
    assert json.loads(request(port, "/")[2]) == {"paths": ["/liveness", "/readiness", "/metrics"]}
    process.send(signal.SIGTERM)
    until(lambda: json.loads(request(port, "/readiness")[2])["reasons"] == ["stopping"])
    release("one")
    assert process.wait() == 0


def test_worker_with_a_used_health_port_ends_with_the_setting(site, redis):
    first = site.worker("-q", "default", "--health-port", "0")
    port = first.line(event_name="health.listening")["port"]
    second = site.worker("-q", "default", FRAMEWORK_HEALTH__PORT=str(port))
    assert second.wait() == 78
    error = second.errors.read_text()
    assert f"application.yml: health.port: cannot listen at 127.0.0.1:{port}" in error
    assert first.end() == 0
