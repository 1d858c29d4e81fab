"""Recorded jobs in real processes: a kill, a stop, a database that comes back, the commands."""

import json
import signal

import pytest

from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.store import drain
from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.features.tasks.task_bench import TaskBench
from tests.harness import ROOT, until
from tests.postgres import running

JOBS = """
import os
from redis import Redis
from framework import ApplicationWorker, BusinessError

redis = Redis.from_url(os.environ["PROOF_URL"], socket_timeout=60)

class ImportWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    track = True

    def perform(self, row: int) -> None:
        self.record("begun", row=row)
        redis.rpush("proof:begun", row)
        if row == 13:
            redis.blpop("release:thirteen", 60)
        if row == 5:
            raise BusinessError("row 5 has no name")

class LongWorker(ImportWorker):
    def perform(self, length: int) -> None:
        self.record("x" * length)

class AsyncWorker(ImportWorker):
    async def perform(self, row: int) -> None:
        self.record("begun", row=row)
"""

PUSH = """
import sys
import jobs
from framework.tasks import Task

with Task.create(jobs.ImportWorker, title="rows", owner="me") as task:
    task.perform_bulk(jobs.ImportWorker, [(int(row),) for row in sys.argv[1].split(",")])
    task.perform_bulk(jobs.AsyncWorker, [(1,), (2,)])
print(task.id)
"""


@pytest.fixture
def site(site):
    (site.folder / "jobs.py").write_text(JOBS)
    return site


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request, site):
    url = f"sqlite:///{site.folder}/tasks.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("database")
        made = TaskDatabase(url)
        made.migrate()
        made.dispose()
    site.write("application.yml", {"tasks": {"url": url}})
    one = TaskBench(url)
    yield one
    one.close()


def push(site, rows):
    done = site.run("-c", PUSH, rows)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def command(site, name, *words, status=0):
    done = site.run(str(ROOT / "scripts" / name), *words)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def counts(bench, task_id):
    row = bench.task(task_id)
    return row["finish"], row["failed"], row["error"], row["completed_at"] is not None


def test_killed_process_loses_no_event(site, redis, bench):
    task_id = push(site, "1,5,13")
    first = site.worker("-q", "default", "-c", "1").ready()
    until(lambda: b"13" in redis.lrange("proof:begun", 0, -1))
    first.kill()
    mark_dead(redis, first.identity)
    redis.lpush("release:thirteen", 1)
    second = site.worker("-q", "default", "-c", "2").ready()
    until(lambda: counts(bench, task_id) == (4, 1, 0, True), "the task completes", 60)
    second.end(signal.SIGTERM)
    (failed,) = json.loads(command(site, "tasks", "failures", task_id, "--json"))["failures"]
    assert (failed["status"], failed["reason"]) == ("failed", "row 5 has no name")
    with bench.database.reading() as connection:
        texts = connection.exec_driver_sql(
            "SELECT m.text FROM aw_messages m JOIN aw_events e ON e.jid = m.jid WHERE e.params = '[13]' ORDER BY m.id"
        ).scalars()
        assert "its process died; the job is in its queue again" in list(texts)


def test_stopped_process_returns_the_job_with_its_event(site, redis, bench):
    task_id = push(site, "13")
    process = site.worker("-q", "default", "-c", "2", "-t", "0").ready()
    until(lambda: redis.llen("proof:begun"))
    until(lambda: bench.task(task_id)["finish"] == 2)
    assert process.end(signal.SIGTERM) == 0
    row = bench.task(task_id)
    assert (row["enqueue"], row["working"]) == (1, 0)
    assert "rows" in command(site, "tasks", "list", "--owner", "me")


def test_commands_show_cancel_and_retry(site, redis, bench):
    task_id = push(site, "1,5")
    assert "jobs: enqueue  4" in command(site, "tasks", "show", task_id)
    # Its class was removed, and the text of its story is too long.
    redis.lpush("queue:default", json.dumps({"class": "GoneWorker", "args": [], "jid": "gone", "track": True}))
    redis.lpush("queue:default", json.dumps({"class": "LongWorker", "args": [1_000_000], "jid": "long"}))
    process = site.worker("-q", "default", "-c", "2").ready()
    until(lambda: counts(bench, task_id) == (3, 1, 0, True))
    until(lambda: bench.event("gone") and bench.event("long") and bench.event("long").ended_at)
    process.end(signal.SIGTERM)
    assert (bench.event("gone").state, "GoneWorker" in bench.event("gone").reason) == ("deferred", True)
    (message,) = bench.event("long").messages
    assert (message.text[65_530:], bench.event("long").status) == ("xxxxxx... (934,464 characters more)", "finish")
    page = command(site, "tasks", "failures", task_id)
    jid = page.splitlines()[1].split()[1]
    story = command(site, "jobs", "story", jid)
    assert "begun  row=5" in story
    assert "row 5 has no name" in story
    assert "1 job is pushed again" in command(site, "tasks", "retry", task_id, "-r", "jobs", "--yes")
    assert "1 job is cancelled" in command(site, "tasks", "cancel", task_id, "--yes")
    assert command(site, "tasks", "migrate").endswith("are up to date.\n")
    command(site, "tasks", "show", "nothing", status=1)
    command(site, "jobs", "story", "nothing", status=1)


KILLS = """
import os, signal
from pathlib import Path
from framework.features.tasks import writer
from framework.features.tasks.access import LazyRecorder

point, kind = Path("kill_at").read_text().split()

def killed():
    if redis.set("proof:killed", 1, nx=True):
        os.kill(os.getpid(), signal.SIGKILL)

def at(original, chosen):
    def call(*args, **options):
        if point == "before" and chosen(*args):
            killed()
        found = original(*args, **options)
        if point == "after" and chosen(*args):
            killed()
        return found
    return call

if kind == "push":
    LazyRecorder.enqueued = at(LazyRecorder.enqueued, lambda *_: True)
else:
    def has(database, changes, **_):
        return any(one.kind == "end" and one.status == {"end": "finish", "retry": "enqueue"}[kind] for one in changes)
    writer.write_changes = at(writer.write_changes, has)
"""


@pytest.mark.campaign
@pytest.mark.parametrize(
    "point", ["before push", "after push", "before end", "after end", "before retry", "after retry"]
)
def test_kill_between_database_and_redis_loses_no_job(site, redis, bench, point):
    """At each step: the event is written before the job moves, so what a kill leaves is repeated or healed."""
    site.write("application.yml", {"tasks": {"url": str(bench.database._url), "ledger": "keep"}})
    (site.folder / "kill_at").write_text(point)
    retried = JOBS.replace("raise Bus", 'redis.incr("proof:five") == 1 and 1 / 0\n            raise Bus')
    (site.folder / "jobs.py").write_text((retried if point.endswith("retry") else JOBS) + KILLS)
    if point.endswith("push"):
        done = site.run("-c", PUSH, "1,5")
        assert done.returncode != 0
        with bench.database.reading() as connection:
            task_id = connection.exec_driver_sql("SELECT id FROM aw_tasks").scalar()
        expected = (1, 1) if point == "after push" else (0, 0)
    else:
        task_id, expected = push(site, "1,5"), (3, 1)
        first = site.worker("-q", "default", "-c", "1").ready()
        until(lambda: redis.exists("proof:killed"))
        until(lambda: first.popen.poll() is not None)
        mark_dead(redis, first.identity)
    done = site.run(str(ROOT / "scripts/ledger"), "heal", "--grace", "0", "--yes")
    assert done.returncode == 0, done.stderr
    second = site.worker("-q", "default", "-c", "2").ready()
    until(lambda: bench.task(task_id)["enqueue"] + bench.task(task_id)["working"] == 0, "all events end", 90)
    # A kill after the event leaves a job that runs again, though its end is recorded.
    until(lambda: not redis.exists("queue:default") and not redis.keys(keys.working("*")), "no job is left", 90)
    second.end(signal.SIGTERM)
    assert counts(bench, task_id)[:3] == (*expected, 0)
    assert (redis.llen("queue:default"), redis.zcard("retry"), redis.zcard("dead")) == (0, 0, 0)


@pytest.mark.campaign
@pytest.mark.proves("F8")
def test_flushed_shard_is_healed_from_the_database(site, redis, bench):
    site.write("application.yml", {"tasks": {"url": str(bench.database._url), "ledger": "keep"}})
    task_id = push(site, "1,13,5,7")
    first = site.worker("-q", "default", "-c", "1").ready()
    until(lambda: b"13" in redis.lrange("proof:begun", 0, -1))
    redis.flushall()
    until(lambda: redis.keys("*:work"), "the process says again what it runs", 30)
    until(lambda: not redis.exists(keys.TASK_EVENTS))
    shown = json.loads(command(site, "ledger", "diff", "--grace", "0", "--json", status=1))
    assert (shown["lost"], shown["with_payload"]) == (4, 4)  # rows 5 and 7, and those of AsyncWorker
    assert "4 jobs are enqueued again" in command(site, "ledger", "heal", "--grace", "0", "--yes")
    assert command(site, "ledger", "diff", "--grace", "0") == "No job is lost.\n"
    redis.lpush("release:thirteen", 1)
    until(lambda: counts(bench, task_id) == (5, 1, 0, True), "the task completes", 60)
    assert first.end(signal.SIGTERM) == 0
    assert sorted(redis.lrange("proof:begun", 0, -1)) == [b"5", b"7"]  # the running job ran once
    with bench.database.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM aw_events WHERE payload IS NOT NULL").scalar() == 0


@pytest.mark.proves("F24")
def test_jobs_go_on_while_the_database_is_down(site, redis):
    with running() as server:
        url = server.url()
        one = TaskBench(url)
        one.database.migrate()
        site.write("application.yml", {"tasks": {"url": url}})
        task_id = push(site, "1,5")
        one.database.dispose()
        server.stop()
        jid = site.run("-c", "import jobs; print(jobs.ImportWorker.perform_async(7))").stdout.strip()
        process = site.worker("-q", "default", "-c", "2").ready()
        until(lambda: redis.zcard(keys.TASK_EVENTS) and not redis.llen("queue:default"), "the jobs ran", 60)
        assert process.line(event_name="tasks.database_failed")["severity"] == "ERROR"
        assert process.end(signal.SIGTERM) == 0
        server.start()
        drain(redis, one.database, one.recorder)
        assert counts(one, task_id) == (3, 1, 0, True)
        assert (one.event(jid).status, one.event(jid).params) == ("finish", [7])
        one.close()


@pytest.mark.proves("F24")
def test_jobs_go_on_while_the_database_hangs(site, redis):
    """Its host acknowledges, and nothing answers: pushes go on, ends are kept, and a stop returns no job that has run."""
    with running() as server:
        one = TaskBench(server.url())
        one.database.migrate()
        site.write("application.yml", {"tasks": {"url": server.url()}})
        (site.folder / "jobs.py").write_text(
            f"{JOBS}\nfrom framework.features.tasks import writer\nwriter.WRITE_S = 0.5\n"
        )
        task_id = push(site, "1,5,13")
        process = site.worker("-q", "default", "-c", "2").ready()
        until(lambda: one.task(task_id)["working"] == 1, "row 13 runs, the others have ended")
        with server.frozen():
            jid = site.run("-c", "import jobs; print(jobs.ImportWorker.perform_async(7))").stdout.strip()
            redis.lpush("release:thirteen", 1)
            # The push of row 7, and its start, its message and its end with those of row 13.
            until(lambda: redis.zcard(keys.TASK_EVENTS) >= 5 and not redis.llen(keys.working(process.identity)))
            assert process.find(event_name="tasks.database_failed")
            assert process.end(signal.SIGTERM) == 0
            assert process.line(event_name="process.stopped")["returned"] == 0
        assert redis.llen("queue:default") == 0
        drain(redis, one.database, one.recorder)
        assert counts(one, task_id) == (4, 1, 0, True)
        assert (one.event(jid).status, one.event(jid).runs) == ("finish", 1)
        one.close()
