"""Interrupt iterable jobs in real processes, by deploys and by kills, and count what they have done in a real database."""

import json
import logging
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, insert, select

from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.harness import enqueue, until

MODULE = Path(__file__).with_name("prune_jobs.py")
JID = "ab" * 12
STATE = keys.iteration(JID)
OLD = 10
"""Rows above this age are pruned: two thirds."""


class Pruning:
    """A table of events, and the processes that prune it."""

    def __init__(self, site, redis, url, monkeypatch):
        monkeypatch.setenv("DATABASE_URL", url)
        shutil.copy(MODULE, site.folder / MODULE.name)
        self.site, self.redis, self.url = site, redis, url
        self.engine = create_engine(url)
        self.processes = []

    def fill(self, tables, count):
        tables.metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            for start in range(0, count, 50_000):
                rows = [{"id": at, "age": at % 30 // 10 * 10 + 5} for at in range(start, min(count, start + 50_000))]
                connection.execute(insert(tables.events), rows)

    def start(self):
        process = self.site.start("-m", "framework", "worker", "-r", "prune_jobs", "-q", "default", "-t", "20")
        self.processes.append(process)
        return process

    def count(self, table):
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(table))

    def check_exact(self, tables, count):
        """Check that each old row was pruned once, and no other."""
        with self.engine.connect() as connection:
            gone = Counter(connection.scalars(select(tables.pruned.c.id)))
            left = set(connection.scalars(select(tables.events.c.id)))
        assert set(gone.values()) <= {1}
        assert gone.keys() == {at for at in range(count) if at % 30 // 10 * 10 + 5 > OLD}
        assert left == set(range(count)) - gone.keys()

    def ended(self):
        return not self.redis.exists(STATE) and any(one.find(job_status="done", jid=JID) for one in self.processes)

    def lines(self, status):
        return [line for one in self.processes for line in one.find(job_status=status, jid=JID)]


@pytest.fixture
def tables(monkeypatch, tmp_path):
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path}/unused.db")
    from framework.declare import registry

    with registry.isolated():
        from tests.process import prune_jobs

        yield prune_jobs


@pytest.fixture
def pruning(site, redis, short_path, monkeypatch, tables):
    made = Pruning(site, redis, f"sqlite:///{short_path}/events.db", monkeypatch)
    yield made
    made.engine.dispose()


def test_pruning_interrupted_by_stops_and_kills_is_exact(pruning, tables):
    """At each stop the job goes back with its cursor; after a kill it is recovered."""
    count, size = 3_000, 20
    pruning.fill(tables, count)
    enqueue(pruning.redis, "PruneWorker", jid=JID, args=[OLD, size, 0.01])

    def progressed(before):
        return pruning.count(tables.pruned) >= before + 10 * size

    process = pruning.start().ready()
    until(lambda: progressed(0))
    assert process.end() == 0
    assert pruning.lines("yielded")[0]["yield_reason"] == "stop"
    (cursor,) = json.loads(pruning.redis.hget(STATE, "c"))
    assert pruning.count(tables.pruned) == sum(1 for at in range(cursor) if at % 30 >= 10)
    (job,) = map(json.loads, pruning.redis.lrange("queue:default", 0, -1))
    assert not {"retry_count", "interrupted_count"} & job.keys()
    killed, before = pruning.start().ready(), pruning.count(tables.pruned)
    until(lambda: progressed(before))
    killed.kill()
    mark_dead(pruning.redis, killed.identity)
    pruning.start()
    until(pruning.ended, "the end", 60)
    pruning.check_exact(tables, count)
    (line,) = pruning.lines("done")
    assert line["iteration_run"] == 3


def test_killed_job_repeats_only_the_items_since_its_save(pruning, tables):
    tables.metadata.create_all(pruning.engine)
    enqueue(pruning.redis, "NoteWorker", jid=JID, args=[400])
    killed = pruning.start().ready()
    until(lambda: pruning.redis.hget(STATE, "c") not in (None, b"null") and pruning.count(tables.notes) > 50)
    killed.kill()
    saved, noted = int(pruning.redis.hget(STATE, "c")), pruning.count(tables.notes)
    assert 0 < saved <= noted
    mark_dead(pruning.redis, killed.identity)
    pruning.start()
    until(pruning.ended, "the end", 60)
    with pruning.engine.connect() as connection:
        times = Counter(connection.scalars(select(tables.notes.c.item)))
    assert set(times) == set(range(400))
    assert [item for item, count in times.items() if count > 1] == list(range(saved, noted))
    assert set(times.values()) <= {1, 2}


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_million_rows_pruned_through_a_deploy_every_5_s(site, redis, database, monkeypatch, tables):
    """On PostgreSQL; each third process is killed in place of a stop."""
    count = 1_000_000
    pruning = Pruning(site, redis, database, monkeypatch)
    pruning.fill(tables, count)
    enqueue(redis, "PruneWorker", jid=JID, args=[OLD, 1_000, 0.05])
    begun = time.monotonic()

    while not pruning.ended():
        process, started = pruning.start().ready(), time.monotonic()
        until(lambda started=started: pruning.ended() or time.monotonic() - started > 5, "a deploy", 60)
        process.send(signal.SIGKILL if len(pruning.processes) % 3 == 0 and not pruning.ended() else signal.SIGTERM)
        process.wait()
    pruning.check_exact(tables, count)
    stops, last = len(pruning.lines("yielded")), pruning.lines("done")[0]
    figures = f"{len(pruning.processes)} processes, {stops} stops, run {last['iteration_run']} was the last"
    logging.getLogger(__name__).info("%s rows in %.0f s: %s", count, time.monotonic() - begun, figures)
    pruning.engine.dispose()
