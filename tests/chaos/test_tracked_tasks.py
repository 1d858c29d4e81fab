"""A round with recorded jobs of a task in two batches: kills, restarts of Redis and of PostgreSQL, then an account of every event."""

import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from redis.exceptions import RedisError

from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.harness import Site, until
from tests.postgres import running
from tests.tasks.task_bench import TaskBench

JOBS = int(os.environ.get("CHAOS_TRACKED_JOBS", "2000"))
"""The jobs of the round. A campaign of the release runs 20,000 and more."""

FAULTS = max(12, JOBS // 1_000)
PROCESSES = 3
CALLBACKS = ("complete", "success", "death", "finished")

MODULE = """
import os
from framework import ApplicationWorker, BusinessError, Discard

PLACE = os.environ["ROUND_FOLDER"]

def note(text):
    # One write of a few bytes: complete lines, also when the process is killed.
    file = os.open(os.path.join(PLACE, "effects"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{text}\\n".encode())
    os.close(file)

class RowWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    track = True
    retry = 3
    max_retries_after_interruption = -1

    @classmethod
    def retry_in(cls, count, error, job):
        return 1

    def perform(self, row: int) -> None:
        self.record("begun", row=row)
        note(f"row {row}")
        kind = row % 50
        if kind == 1:
            raise BusinessError(f"row {row} has no price")
        if kind == 2:
            raise Discard("not wanted")
        if kind == 3:
            try:
                os.close(os.open(os.path.join(PLACE, f"once-{row}"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            raise LookupError("once")
        if kind == 4:
            raise LookupError("always")

class CallbackWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    max_retries_after_interruption = -1

    def perform(self, name: str) -> None:
        note(f"callback {name} {self.jid}")
"""

PUSH = """
import sys
import jobs
from framework.batches import Batch
from framework.tasks import Task

count = int(sys.argv[1])
rows = {"good": [row for row in range(count) if row % 50 not in (1, 4)], "mixed": [row for row in range(count) if row % 50 in (1, 4)]}
with Task.create(jobs.RowWorker, title="rows") as task:
    for name, found in rows.items():
        batch = Batch(description=name)
        for event in ("complete", "success", "death", "finished"):
            getattr(batch, f"on_{event}")(jobs.CallbackWorker, f"{name}-{event}")
        with batch.jobs():
            task.perform_bulk(jobs.RowWorker, [(row,) for row in found if row % 50 != 4])
            task.perform_bulk(jobs.RowWorker, [(row,) for row in found if row % 50 == 4], retry=0)
print(task.id)
"""

STATES = {1: ("failed", "failed"), 2: ("finish", "discarded"), 4: ("error", "dead")}
"""The end of each kind of row; the others are completed."""


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_tracked_jobs_end_right_under_all_faults(make_server, short_path):
    server = make_server()
    rng = random.Random(JOBS)
    with running() as postgres:
        one = TaskBench(postgres.url())
        one.database.migrate()
        site = Site(short_path, server.url)
        (site.folder / "jobs.py").write_text(MODULE)
        site.write("application.yml", {"tasks": {"url": postgres.url()}})
        try:
            os.environ["ROUND_FOLDER"] = str(site.folder)
            # Longer than a command of `site.run` may take.
            command = [sys.executable, "-c", PUSH, str(JOBS)]
            environment = site.environment("producer")
            pushed = subprocess.run(
                command, cwd=site.folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
            )
            account = _play(site, server, postgres, rng)
            with server.open("account") as client:
                _wait_for_the_end(site, one, client, pushed.stdout.strip())
            for process in site.processes:
                if process.popen.poll() is None:
                    process.end()
            print(f"{JOBS:,} jobs, {dict(account)}, {_check(site, one)}")  # noqa: T201 - the account of the round
        finally:
            del os.environ["ROUND_FOLDER"]
            site.close()
            one.close()


def _effects(site, word):
    """Return the lines that jobs wrote, without their first word."""
    lines = (site.folder / "effects").read_text().splitlines() if (site.folder / "effects").exists() else []
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{word} ")]


def _play(site, server, postgres, rng):
    """Inject the faults, one after each part of the rows, and return how many of each kind there were."""
    account = Counter()
    workers = [site.worker("-q", "default", "-c", "5").ready() for _ in range(PROCESSES)]
    faults = ["kill"] * (FAULTS - 4) + ["redis"] * 2 + ["postgres"] * 2
    rng.shuffle(faults)
    for number, fault in enumerate(faults, 1):
        reached = number * JOBS // (FAULTS + 1)
        until(lambda reached=reached: len(set(_effects(site, "row"))) >= reached, f"{reached} rows have begun", 300)
        account[fault] += 1
        if fault == "kill":
            victim = workers.pop(rng.randrange(len(workers))).ready()
            victim.kill()
            with server.open("killer") as client:
                mark_dead(client, victim.identity)
            workers.append(site.worker("-q", "default", "-c", "5"))
        elif fault == "redis":
            server.kill()
            server.start()
        else:
            postgres.stop()
            postgres.start()
    return account


def _wait_for_the_end(site, one, client, task_id):
    def has_ended():
        try:
            waiting = client.zcard(keys.TASK_EVENTS) + client.llen("queue:default") + client.zcard("retry")
        except RedisError:
            return False
        callbacks = {line.split()[0] for line in _effects(site, "callback")}
        return not waiting and len(callbacks) >= 6 and one.task(task_id)["completed_at"] is not None

    until(has_ended, "every job, its event and every callback have ended", 300)


def _check(site, one):
    """Check the end of every event, the counters of the task, and the callbacks; return the account."""
    with one.database.reading() as connection:
        stored = connection.exec_driver_sql("SELECT params, status, state FROM aw_events").all()
        task = connection.exec_driver_sql(f"SELECT {', '.join(_COUNTERS)} FROM aw_tasks").one()
    ends = {int(params[1:-1]): (status, state) for params, status, state in stored}
    assert len(stored) == len(ends) == JOBS
    wrong = {row: end for row, end in ends.items() if end != STATES.get(row % 50, ("finish", "completed"))}
    assert wrong == {}
    statuses = Counter(status for status, _ in ends.values())
    assert tuple(task) == (JOBS, 0, 0, statuses["finish"], statuses["failed"], statuses["error"])
    runs = Counter(_effects(site, "row"))
    assert len(runs) == JOBS
    callbacks = {}
    for name, jid in (line.split() for line in _effects(site, "callback")):
        callbacks.setdefault(name, set()).add(jid)
    wanted = {f"good-{event}" for event in ("complete", "success", "finished")}
    wanted |= {f"mixed-{event}" for event in ("complete", "death", "finished")}
    assert {name: len(jids) for name, jids in callbacks.items()} == dict.fromkeys(wanted, 1)
    return {"ends": dict(Counter(ends.values())), "extra runs": sum(runs.values()) - JOBS, "callbacks": len(callbacks)}


_COUNTERS = ("total", "enqueue", "working", "finish", "failed", "error")
