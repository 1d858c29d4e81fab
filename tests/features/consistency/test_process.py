"""Run real worker processes with a real primary and its streaming replica, whose replay is paused and resumed."""

import json
import shutil
from pathlib import Path

import pytest

from framework.version import install_extra
from framework.wire import keys
from tests.harness import HURRIED, Site, until

JOBS = Path(__file__).resolve().parent / "consistency_jobs.py"


PATIENT = """
from framework.features.consistency import databases
databases.DEADLINE_S = 20.0
"""
"""A worker with a long deadline, so that a loaded machine fails no test."""


@pytest.fixture
def site(short_path, redis, redis_url, postgres, standby, shop):
    made = Site(short_path, redis_url, warm=True)
    shutil.copy(JOBS, made.folder / "jobs.py")
    main = {"url": postgres.url(shop), "replicas": [standby.url(shop)]}
    made.write("application.yml", {"databases": {"main": main}, "poll_interval": 0.1})
    yield made
    made.close()


@pytest.fixture
def push(site):
    def run(text):
        done = site.run("-c", f"{PATIENT}from jobs import *\n{text}")
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def proof(redis):
    def read(name):
        return json.loads(until(lambda: redis.lpop(f"proof:{name}"), f"proof of {name}"))

    return read


def come_due(redis):
    """Make the waiting retry due now."""
    (member,) = until(lambda: redis.zrange(keys.RETRY, 0, -1), "a retry")
    redis.zadd(keys.RETRY, {member: 1}, xx=True)
    return json.loads(member)


def test_consistency_run_reads_replica_that_shows_its_push(site, redis, push, proof, postgres, standby):
    push("order(1, AlwaysWorker, StickyWorker, DelayedWorker, AsyncWorker, ParentWorker)")
    standby.catch_up(postgres)
    process = site.start("-c", PATIENT + HURRIED, "-r", "jobs", "-q", "shop", "-c", "4")
    assert proof("AlwaysWorker") == {"id": 1, "seen": 1, "before": False, "after": False}
    assert proof("StickyWorker") == {"id": 1, "seen": 1, "before": True, "after": False}  # the first write decides
    assert proof("DelayedWorker") == {"id": 1, "seen": 1, "before": True, "after": False}
    assert proof("AsyncWorker") == {"id": 1, "seen": 1, "before": True}
    pushes_of = {
        name: process.line(job_status="done", **{"class": f"{name}Worker"}) for name in ("Always", "Sticky", "Parent")
    }
    assert "load_balancing_strategy" not in pushes_of["Always"]
    assert pushes_of["Sticky"]["load_balancing_strategy"] == pushes_of["Parent"]["load_balancing_strategy"] == "replica"
    after, before = (json.loads(one) for one in redis.lrange("queue:unserved", 0, -1))
    assert before["worker_data_consistency"] == "sticky"
    assert before["wal_location_sources"] == {"main": "replica"}
    assert after["wal_location_sources"] == {"main": "primary"}
    assert "worker_data_consistency_per_db" not in before

    standby.pause_replay()
    push("order(2, StickyWorker)")
    assert proof("StickyWorker") == {"id": 2, "seen": 1, "before": False, "after": False}
    push("order(3, DelayedWorker)")
    waits = come_due(redis)
    assert (waits["error_class"], waits["retry_count"]) == ("framework.errors.JobReplicaNotUpToDate", 0)
    failed = process.line(job_status="fail")
    assert (failed["load_balancing_strategy"], failed["args"]) == ("retry", ["3"])
    assert proof("DelayedWorker") == {"id": 3, "seen": 1, "before": False, "after": False}
    assert process.line(job_status="done", args=["3"])["load_balancing_strategy"] == "primary"

    push("order(4, DelayedWorker)")
    until(lambda: redis.zcard(keys.RETRY), "a retry")
    standby.resume_replay()
    standby.catch_up(postgres)
    come_due(redis)
    assert proof("DelayedWorker") == {"id": 4, "seen": 1, "before": True, "after": False}
    assert process.line(job_status="done", args=["4"])["load_balancing_strategy"] == "replica_retried"

    name = "sidekiq_load_balancing_count"
    labels = 'data_consistency="{}",load_balancing_strategy="{}",worker="{}"'
    expected = {
        labels.format("delayed", "retry", "DelayedWorker"): 2,
        labels.format("delayed", "primary", "DelayedWorker"): 1,
        labels.format("delayed", "replica_retried", "DelayedWorker"): 1,
        labels.format("sticky", "primary", "StickyWorker"): 1,
        labels.format("sticky", "replica", "AsyncWorker"): 1,
    }
    for series, count in expected.items():
        until(lambda: redis.hget(keys.COUNTERS, f"{name}{{{series}}}") == str(count).encode(), series)  # noqa: B023


def test_consistency_run_sees_writes_of_dropped_duplicates(site, redis, push, proof, postgres, standby):
    push("order(21, MirrorWorker)")
    standby.catch_up(postgres)
    standby.pause_replay()
    push("order(22, MirrorWorker)\norder(23, MirrorWorker)")
    assert redis.llen("queue:shop") == 1  # the replica shows the job's own position, and not those of its duplicates
    process = site.start("-c", PATIENT + HURRIED, "-r", "jobs", "-q", "shop")
    assert proof("MirrorWorker") == {"id": 21, "seen": 3, "before": False}
    standby.resume_replay()
    push("order(24, MirrorWorker)")
    standby.catch_up(postgres)
    assert proof("MirrorWorker")["seen"] == 4
    done = until(lambda: len(found := process.find(job_status="done")) == 2 and found, "both have run")
    assert done[0]["load_balancing_strategy"] == "primary"


def test_consistency_dead_servers_delay_no_push_and_no_job(site, redis, push, proof, postgres, standby, shop):
    main = {"url": postgres.url(shop), "replicas": [f"{standby.url(shop)}&port=1"]}
    site.write("application.yml", {"databases": {"main": main}, "poll_interval": 0.1})
    process = site.worker("-q", "shop", "-c", "1")
    push("order(5, StickyWorker, DelayedWorker)")
    assert proof("StickyWorker") == {"id": 5, "seen": 1, "before": False, "after": False}
    assert proof("DelayedWorker") == {"id": 5, "seen": 1, "before": False, "after": False}
    assert process.line(event_name="consistency.server_unavailable")["database"] == "main replica 1"
    assert process.line(job_status="done", **{"class": "DelayedWorker"})["load_balancing_strategy"] == "primary"

    main["url"] += "&port=1"
    site.write("application.yml", {"databases": {"main": main}})
    errors = push("StickyWorker.perform_async(5)").stderr
    assert "does not return its WAL position" in errors
    assert proof("StickyWorker") == {"id": 5, "seen": 1, "before": False, "after": False}
    until(lambda: len(process.find(job_status="done")) == 3)
    assert process.find(job_status="done")[-1]["load_balancing_strategy"] == "primary_no_wal"


PLAIN = """
from framework import ApplicationWorker
from framework.version import install_extra


class PlainWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "shop"
    data_consistency = {word!r}

    def perform(self) -> None: ...
"""


@pytest.mark.parametrize(
    "word",
    [pytest.param("always", marks=[pytest.mark.refused("role-producer srandmember"), pytest.mark.campaign]), "sticky"],
)
def test_consistency_without_replicas_needs_no_sqlalchemy(site, word):
    site.warm = False  # a forked process has loaded SQLAlchemy already
    (site.folder / "plain.py").write_text(PLAIN.format(word=word))
    head = "import sys\nsys.modules['sqlalchemy'] = None\nimport framework, plain\n"
    booted = site.run("-c", f"{head}framework.boot()")
    pushed = site.run("-c", f"{head}plain.PlainWorker.perform_async()")
    imported = site.run("-c", f"{head}import framework.databases")
    advice = f"config/application.yml: databases: needs sqlalchemy, the extra sql: {install_extra('sql')}"
    assert [advice in done.stderr for done in (booted, pushed)] == [word == "sticky"] * 2
    assert (booted.returncode, pushed.returncode) == ((0, 0) if word == "always" else (1, 1))
    assert advice in imported.stderr


def test_consistency_unknown_override_refuses_to_boot(site):
    (site.folder / "plain.py").write_text(
        PLAIN.format(word="sticky") + '    data_consistency_overrides = {"mian": "delayed"}\n'
    )
    done = site.run("-c", "import framework, plain\nframework.boot()")
    assert "plain.PlainWorker: data_consistency_overrides names 'mian'" in done.stderr
    assert "(did you mean 'main'?)" in done.stderr
