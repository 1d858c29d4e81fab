"""Run a worker process with a real PostgreSQL and a Prometheus API server; each reports trouble, then recovers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.health.conftest import EAGER, VACUUMS
from tests.features.health.prometheus_server import PrometheusServer, prometheus_server
from tests.harness import Process, Site, until
from tests.postgres import Postgres, database_on

JOBS = Path(__file__).with_name("sample_jobs.py")
STOP = "SELECT pg_cancel_backend(pid) FROM pg_stat_progress_vacuum WHERE datname = current_database()"
NOWHERE = {"prometheus": {"url": "http://127.0.0.1:1"}, "indicators": {"traffic": {"query": "up", "below": 1}}}


@pytest.fixture
def site(short_path, redis_url) -> Iterator[Site]:
    one = Site(short_path, redis_url, warm=True)
    shutil.copy(JOBS, one.folder / "jobs.py")
    yield one
    one.close()


@pytest.fixture
def prometheus() -> Iterator[PrometheusServer]:
    with prometheus_server() as server:
        yield server


def push(redis, name: str, *args: str) -> str:
    jid = f"{name}-{redis.incr('test:jids')}"
    fields = {"class": name, "args": args, "jid": jid, "queue": "default", "retry": True, "created_at": 1.75e9}
    redis.lpush("queue:default", json.dumps({**fields, "enqueued_at": 1.75e9, "foreign": [1]}))
    return jid


def done(worker: Process, jid: str) -> dict:
    return worker.line(jid=jid, job_status="done")


def deferred(worker: Process, jid: str, count: int = 1) -> dict:
    return worker.line(jid=jid, job_status="deferred", deferred_count=count)


def test_health_process_defers_until_database_recovers(site, redis, failing_server: Postgres, prometheus):
    prometheus.answers["traffic"] = "vector 9"
    with database_on(failing_server) as name:
        with failing_server.connect(name) as session:
            session.execute("CREATE TABLE notes (id int)")
            session.execute("CREATE TABLE backlog (id int)")
            session.execute(f"ALTER TABLE notes SET ({EAGER})")
            session.execute("INSERT INTO notes SELECT generate_series(1, 100000)")
            session.execute("DELETE FROM notes WHERE id % 2 = 0")
            session.execute("INSERT INTO backlog VALUES (1)")
        health = {
            "cache": 0.1,
            "timeout": 10,
            "prometheus": {"url": prometheus.url},
            "indicators": {"traffic": {"query": "traffic", "above": 5}},
        }
        site.write("application.yml", {"databases": {"main": {"url": failing_server.url(name)}}, "health": health})
        worker = site.worker("-q", "default", "-c", "3").ready()
        until(lambda: failing_server.execute(f"{VACUUMS} WHERE datname = '{name}'"), "autovacuum runs")
        waits_for_vacuum(worker, redis, failing_server, name)
        waits_for_the_query_and_the_backlog(worker, redis, failing_server, name, prometheus)
        runs_when_indicators_fail(worker, redis, failing_server, name, prometheus)
    assert worker.end() == 0
    assert redis.hgetall("aw:counters").keys() >= {
        b'sidekiq_jobs_skipped_total{action="deferred",reason="database_health_check",worker="%b"}' % one
        for one in (b"VacuumWorker", b"TrafficWorker", b"BacklogWorker", b"AllWorker", b"PatientWorker")
    }
    assert redis.llen("queue:default") == redis.zcard("retry") == redis.zcard("dead") == 0


def waits_for_vacuum(worker: Process, redis, server: Postgres, name: str) -> None:
    jid, other, all_, patient = (
        push(redis, "VacuumWorker", "notes"),
        push(redis, "VacuumWorker", "backlog"),
        push(redis, "AllWorker"),
        push(redis, "PatientWorker"),
    )
    line = deferred(worker, jid)
    wanted = {
        "job_deferred_by": "database_health_check",
        "health_status_indicator": "autovacuum",
        "indicator_signal": "Stop",
        "signal_reason": "autovacuum runs on notes",
        "database": "main",
    }
    assert wanted.items() <= line.items()
    assert 0.27 <= line["deferred_for_s"] <= 0.3
    deferred(worker, jid, 3)
    done(worker, other)  # its table is another
    assert deferred(worker, all_)["health_status_indicator"] == "wal_archiving"
    ((member, _),) = [one for one in redis.zrange("schedule", 0, -1, withscores=True) if all_.encode() in one[0]]
    stored = json.loads(member)
    assert (stored["jid"], stored["deferred"], stored["deferred_by"]) == (all_, True, "database_health_check")
    assert (stored["deferred_count"], stored["created_at"], stored["foreign"]) == (1, 1.75e9, [1])
    done(worker, patient)
    assert len(worker.find(jid=patient, job_status="deferred")) == 2
    worker.line(event_name="health.max_deferrals_reached", job_class_name="PatientWorker")
    assert not worker.find(jid=jid, job_status="start")
    with server.connect(name) as session:
        session.execute("ALTER TABLE notes SET (autovacuum_enabled = false)")
        session.execute(STOP)
    done(worker, jid)
    assert len(worker.find(jid=jid, job_status="start")) == 1
    assert len(worker.find(event_name="health.stop", job_class_name="VacuumWorker")) == 1


def waits_for_the_query_and_the_backlog(
    worker: Process, redis, server: Postgres, name: str, prometheus: PrometheusServer
) -> None:
    traffic, backlog = push(redis, "TrafficWorker"), push(redis, "BacklogWorker")
    assert deferred(worker, traffic, 2)["signal_reason"] == "9 is above 5"
    assert deferred(worker, backlog, 2)["signal_reason"] == "1 rows are to be done"
    prometheus.answers["traffic"] = "vector 1"
    server.execute("DELETE FROM backlog", name)
    done(worker, traffic)
    done(worker, backlog)


def runs_when_indicators_fail(
    worker: Process, redis, server: Postgres, name: str, prometheus: PrometheusServer
) -> None:
    def unknown(worker_class: str, indicator: str, *args: str) -> dict:
        """Push jobs until one finds the indicator unknown; the first may still use the cached signal."""

        def unknown_lines() -> list[dict]:
            done(worker, push(redis, worker_class, *args))
            return worker.find(event_name="health.unknown", health_status_indicator=indicator)

        return until(unknown_lines)[0]

    prometheus.answers["traffic"] = "status 503"
    assert "status 503" in unknown("TrafficWorker", "traffic")["signal_reason"]
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    assert unknown("VacuumWorker", "autovacuum", "notes")["exception.class"].startswith("psycopg.")
    server.execute(f"CREATE DATABASE {name}")  # for the end of the test, which drops it


def test_health_process_hanging_indicator_delays_no_exit(site, redis):
    site.write("application.yml", {"health": {"timeout": 0.2, **NOWHERE}})
    worker = site.worker("-q", "default", "-c", "1").ready()
    done(worker, push(redis, "HangingWorker"))
    line = worker.line(event_name="health.unknown")
    assert line["signal_reason"] == "it did not respond within 0.2 s"
    assert worker.end() == 0


@pytest.mark.parametrize(
    ("application", "message"),
    [
        (
            {"databases": {"main": {"url": "postgresql://h/d"}}},
            "jobs.TrafficWorker: defer_on_health.indicators: names an unknown indicator 'traffic': there are autovacuum",
        ),
        (
            {
                "databases": {"mein": {"url": "postgresql://h/d"}},
                "health": NOWHERE,
            },
            "jobs.VacuumWorker: defer_on_health.database: there is no 'main' (did you mean 'mein'?); the setting databases has mein",
        ),
    ],
)
def test_health_process_unknown_names_refuse_to_boot(site, application, message):
    site.write("application.yml", application)
    worker = site.worker("-q", "default", "-c", "1")
    assert worker.wait() == 78
    assert message in worker.errors.read_text()
