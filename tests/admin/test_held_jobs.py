"""Report held jobs: one process of a shard reports each place whose oldest job waits too long."""

import time

import pytest

from framework.admin import held_jobs
from framework.admin.held_jobs import HeldJobsAlert, held_keys, measure_held
from framework.process.events import ProcessEvents
from framework.wire import keys
from tests.harness import encoded, full_memory, server_lines


class ReportRecorder:
    def __init__(self):
        self.reports = []

    def __call__(self, kind, name, jobs, oldest_s):
        self.reports.append((kind, name, jobs, round(oldest_s, -2)))


def wait_at_limit(redis, base, scope, *ages, full=False):
    now = time.time()
    key = keys.limit(base)
    for age in ages:
        member = b'["default","j"]\n' + encoded(base, jid=f"{scope}{age}")
        redis.zadd(f"{key}:waiting:{scope}", {member: now - age})
    redis.sadd(keys.LIMITS_WAITING, key)
    redis.sadd(f"{key}:full", scope) if full else redis.zadd(f"{key}:turns", {scope: 1})


def pause(redis, worker, *ages):
    now = time.time()
    redis.zadd(keys.paused_jobs(worker), {b'["q"]\n' + encoded(worker, jid=str(age)): now - age for age in ages})
    redis.sadd(keys.PAUSED_CLASSES, worker)


def test_held_alert_one_process_reports_old_jobs_only(redis, granted):
    wait_at_limit(redis, "OldWorker", "tenant-1", 100, 2_000)
    wait_at_limit(redis, "OldWorker", "tenant-2", 3_600, full=True)
    wait_at_limit(redis, "YoungWorker", "", 100)
    pause(redis, "PausedWorker", 1_800, 10)
    recorder = ReportRecorder()
    alerts = [HeldJobsAlert(granted, recorder, 900) for _ in range(5)]
    for _ in range(2):
        for alert in alerts:
            alert.check()
    assert recorder.reports == [("waiting", "OldWorker", 3, 3_600), ("paused", "PausedWorker", 2, 1_800)]
    assert 0 < redis.ttl(keys.HELD_ALERT) <= held_jobs.CHECK_PERIOD_S
    redis.delete(keys.HELD_ALERT)  # the reporter's key has expired
    HeldJobsAlert(granted, recorder, 900).check()
    assert len(recorder.reports) == 4


def test_held_alert_many_young_jobs_are_reported(redis, granted, monkeypatch):
    monkeypatch.setattr(held_jobs, "ALERT_COUNT", 3)
    pause(redis, "ManyWorker", 1, 2, 3, 4)
    pause(redis, "FewWorker", 1, 2, 3)
    recorder = ReportRecorder()
    HeldJobsAlert(granted, recorder, 900).check()
    assert [reports[:3] for reports in recorder.reports] == [("paused", "ManyWorker", 4)]


def test_held_jobs_key_of_other_type_hides_no_other(redis):
    pause(redis, "PausedWorker", 1_800)
    redis.sadd(keys.PAUSED_CLASSES, "OddWorker", b"\xff")
    redis.set(keys.paused_jobs("OddWorker"), "x")
    redis.sadd(keys.LIMITS_WAITING, keys.limit("OddWorker"))
    redis.set(keys.limit("OddWorker") + ":turns", "x")
    assert [(one.name, one.jobs) for one in measure_held(redis, held_keys(redis))] == [("PausedWorker", 1)]


def test_held_alert_full_server_every_process_reports(redis, granted):
    """Held jobs may have filled the server. No process can store that it is the reporter, so each one reports."""
    pause(redis, "PausedWorker", 1_800)
    recorder = ReportRecorder()
    with full_memory(redis):
        for _ in range(2):
            HeldJobsAlert(granted, recorder, 900).check()
    assert len(recorder.reports) == 2


def test_held_alert_line_has_class_count_and_age(redis, granted):
    pause(redis, "PausedWorker", 1_800)
    with server_lines("info") as lines:
        HeldJobsAlert(granted, ProcessEvents("main").held_too_long, 900).check()
    (line,) = lines()
    assert (line["event_name"], line["severity"], line["class"], line["held_jobs"]) == (
        "jobs.held",
        "WARN",
        "PausedWorker",
        1,
    )
    assert line["oldest_s"] == pytest.approx(1_800, abs=30)


def test_held_alert_worker_process_reports(site, redis):
    wait_at_limit(redis, "LongWorker", "", 50)
    redis.hset(keys.limit("LongWorker"), "override", -1)
    process = site.worker("-q", "default", "-c", "1", FRAMEWORK_HELD_ALERT_AFTER="30")
    line = process.line(event_name="jobs.held")
    assert (line["limit"], line["held_jobs"], line["oldest_s"] >= 50) == ("LongWorker", 1, True)
