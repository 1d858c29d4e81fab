"""A round with recorded jobs of a task in two batches: kills, restarts of Redis and of PostgreSQL, then an account of every event.

``scripts/chaos run --round tracked`` and ``tests/chaos/test_tracked_tasks.py`` run it.
"""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from framework.features.tasks.database import TaskDatabase
from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.harness import Process, Site, until
from tests.postgres import Postgres, running
from tests.servers.guarded import GuardedServer

PROCESSES = 3
_WAIT_S = 600.0
RECOVERS_SOON = {"checkpoint_timeout": "30s", "max_wal_size": "64MB"}
"""The settings of PostgreSQL: it is killed, and repeats its log since the last checkpoint."""
_EVENTS = ("complete", "success", "death", "finished")
_WANTED = {f"good-{event}" for event in ("complete", "success", "finished")}
_WANTED |= {f"mixed-{event}" for event in ("complete", "death", "finished")}
"""The callbacks that must come: in the second batch jobs die, so it has no success."""

_COUNTERS = ("total", "enqueue", "working", "finish", "failed", "error")

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
    track = True
    loggable_arguments = ("name",)
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

_STATES = {1: ("failed", "failed"), 2: ("finish", "discarded"), 4: ("error", "dead")}
"""The end of each kind of row; the others are completed."""


class TrackedRound:
    """One round of ``jobs`` rows. ``stop_asked`` ends it early, between two faults."""

    def __init__(
        self,
        folder: Path,
        server: GuardedServer,
        postgres: Postgres,
        jobs: int,
        rng: random.Random,
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._server = server
        self._postgres = postgres
        self._jobs = jobs
        self._rng = rng
        self._stop_asked = stop_asked
        self._workers: list[Process] = []

    def run(self) -> dict[str, Any]:
        """Run the round; return its account, empty if it was stopped. Raises AssertionError if a promise is broken."""
        database = TaskDatabase(self._postgres.url())
        database.migrate()
        site = Site(self._folder, self._server.url)
        (site.folder / "jobs.py").write_text(MODULE)
        site.write("application.yml", {"tasks": {"url": self._postgres.url()}})
        try:
            with _environment(ROUND_FOLDER=str(site.folder)):
                task_id = self._push(site)
                faults = self._play(site)
                if self._stop_asked():
                    return {}
                with self._server.open("account") as client:
                    self._wait_for_the_end(site, database, client, task_id)
                for process in self._workers:
                    process.end()
            return {"jobs": self._jobs, "faults": dict(faults), **self._checked(site, database)}
        finally:
            site.close()
            database.dispose()

    def _push(self, site: Site) -> str:
        # Longer than a command of `site.run` may take.
        command, environment = [sys.executable, "-c", PUSH, str(self._jobs)], site.environment("producer")
        pushed = subprocess.run(
            command, cwd=site.folder, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=1_200
        )
        return pushed.stdout.strip()

    def _play(self, site: Site) -> Counter[str]:
        """Inject the faults, one after each part of the rows, and return how many of each kind there were."""
        account = Counter[str]()
        count = max(12, self._jobs // 1_000)
        faults = ["kill"] * (count - 4) + ["redis"] * 2 + ["postgres"] * 2
        self._rng.shuffle(faults)
        self._workers = [_worker(site).ready() for _ in range(PROCESSES)]
        for number, fault in enumerate(faults, 1):
            self._wait_for_rows(site, number * self._jobs // (count + 1))
            if self._stop_asked():
                break
            account[fault] += 1
            if fault == "kill":
                self._kill(site)
            elif fault == "redis":
                self._server.kill()
                self._server.start()
            else:
                self._postgres.stop()
                self._postgres.start(_WAIT_S)
        return account

    def _wait_for_rows(self, site: Site, count: int) -> None:
        def have_begun() -> bool:
            return self._stop_asked() or len(set(_effects(site, "row"))) >= count

        until(have_begun, f"{count} rows have begun", _WAIT_S)

    def _kill(self, site: Site) -> None:
        victim = self._workers.pop(self._rng.randrange(len(self._workers))).ready()
        victim.kill()
        with self._server.open("killer") as client:
            mark_dead(client, victim.identity)
        self._workers.append(_worker(site))

    def _wait_for_the_end(self, site: Site, database: TaskDatabase, client: Any, task_id: str) -> None:
        def has_ended() -> bool:
            try:
                waiting = client.zcard(keys.TASK_EVENTS) + client.llen("queue:default") + client.zcard("retry")
            except RedisError:
                return False
            callbacks = {line.split()[0] for line in _effects(site, "callback")}
            return not waiting and len(callbacks) >= len(_WANTED) and _is_complete(database, task_id)

        until(has_ended, "every job, its event and every callback have ended", _WAIT_S)

    def _checked(self, site: Site, database: TaskDatabase) -> dict[str, Any]:
        """Check the end of every event, the counters of the task, the callbacks and the log lines; return the account."""
        ends, callbacks = self._ends(database)
        wrong = {row: end for row, end in ends.items() if end != _STATES.get(row % 50, ("finish", "completed"))}
        _check("rows with a wrong end", wrong, {})
        _check("ends of the callbacks", callbacks, dict.fromkeys(_WANTED, ("finish", "completed")))
        statuses = Counter(status for status, _ in ends.values())
        with database.reading() as connection:
            task = connection.exec_driver_sql(f"SELECT {', '.join(_COUNTERS)} FROM aw_tasks").one()  # noqa: S608 - constants
        _check("counters of the task", tuple(task), (self._jobs, 0, 0, *(statuses[name] for name in _COUNTERS[3:])))
        runs = Counter(_effects(site, "row"))
        _check("rows that ran", len(runs), self._jobs)
        return {
            "ends": {" ".join(end): number for end, number in Counter(ends.values()).items()},
            "extra runs": sum(runs.values()) - self._jobs,
            "callbacks": _checked_callbacks(site),
            "batch lines": _checked_lines(site),
        }

    def _ends(self, database: TaskDatabase) -> tuple[Mapping[int, tuple[str, str]], Mapping[str, tuple[str, str]]]:
        """Return the ends of the rows, and those of the callbacks. Each has one event."""
        with database.reading() as connection:
            stored = connection.exec_driver_sql("SELECT worker, params, status, state FROM aw_events").all()
        _check("events without arguments", [one for one in stored if one[1] is None], [])
        rows = [(json.loads(params)[0], (status, state)) for worker, params, status, state in stored if "Row" in worker]
        others = [
            (json.loads(params)[0], (status, state)) for worker, params, status, state in stored if "Row" not in worker
        ]
        ends, callbacks = dict(rows), dict(others)
        _check("events of rows, and rows", (len(rows), len(ends)), (self._jobs, self._jobs))
        _check("events of callbacks, and callbacks", (len(others), len(callbacks)), (len(_WANTED), len(_WANTED)))
        return ends, callbacks


def run_tracked_round(folder: Path, jobs: int, rng: random.Random, stop_asked: Callable[[], bool]) -> dict[str, Any]:
    """Run the round with a Redis and a PostgreSQL of its own; return its account. Raises AssertionError."""
    server = GuardedServer(folder / "redis")
    server.start()
    site = folder / "site"
    site.mkdir()
    try:
        with running(**RECOVERS_SOON) as postgres:
            return TrackedRound(site, server, postgres, jobs, rng, stop_asked).run()
    finally:
        server.stop()


def _check(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{what}: {str(found)[:2_000]}, and not {str(wanted)[:2_000]}")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _worker(site: Site) -> Process:
    return site.worker("-q", "default", "-c", "5")


def _is_complete(database: TaskDatabase, task_id: str) -> bool:
    with database.reading() as connection:
        found = connection.exec_driver_sql("SELECT completed_at FROM aw_tasks WHERE id = %s", (task_id,)).scalar()
    return found is not None


def _effects(site: Site, word: str) -> list[str]:
    """Return the lines that jobs wrote, without their first word."""
    file = site.folder / "effects"
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{word} ")]


def _checked_callbacks(site: Site) -> int:
    """Check that each callback is one job; return how many there are."""
    found: dict[str, set[str]] = {}
    for name, jid in (line.split() for line in _effects(site, "callback")):
        found.setdefault(name, set()).add(jid)
    _check("jobs of each callback", {name: len(jids) for name, jids in found.items()}, dict.fromkeys(_WANTED, 1))
    return len(found)


def _checked_lines(site: Site) -> int:
    """Check that no event of a batch is logged twice; return how many lines there are: a kill may lose some."""
    wanted = {f"batch.{event}" for event in _EVENTS}
    lines = [line for process in site.processes for line in process.lines if line.get("event_name") in wanted]
    found = [(line["bid"], line["event_name"]) for line in lines]
    _check("lines that repeat another one", len(found) - len(set(found)), 0)
    return len(found)
