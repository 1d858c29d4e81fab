"""Test the stores and the configuration of ``dashboard --sample``: pages know its classes, its routes and its dead shard."""

import os
import time

from pydantic_core import from_json

from framework.all_settings import load
from framework.declare import registry
from framework.devtools import sample_platform, sample_site
from framework.devtools.sample_platform import DEAD_SHARD, SHARDS, WRONG_QUEUE, WRONG_RULE, sample_classes
from framework.features.encryption.protection import open_offload
from framework.features.encryption.sweep import count_store
from framework.features.history.rollup import read_kept_urgencies
from framework.features.history.series import DAY_S, HOUR_S
from framework.features.history.urgencies import sum_urgencies, urgency_runs
from framework.features.reliable_push.kept_files import KeptFiles
from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.progress import list_tasks
from framework.route.router import load_workers
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import endpoint_of


def test_sample_has_the_runs_by_urgency_of_90_days():
    rows = sample_site.kept_urgencies(sample_site.kept_runs(200 * DAY_S))
    assert {row["start"] // DAY_S for row in rows} >= set(range(111, 200))
    for shard in SHARDS:
        of_shard = [from_json(row["counts"])["urgencies"] for row in rows if row["shard"] == shard]
        runs = sum_urgencies({name: urgency_runs(one) for name, one in each.items()} for each in of_shard)
        for urgency, total in runs.items():
            if any(one.shard == shard and one.urgency == urgency for one in sample_classes()):
                assert total.processed > 100_000
                assert 0.95 < (total.execution_apdex or 0) < 1
                assert (total.queueing_apdex(urgency) or 1.0) > 0.95


def test_sample_site_routes_its_classes_as_its_data(monkeypatch):
    monkeypatch.setattr(sample_platform, "_FLOOD_JOBS", 20)
    monkeypatch.setattr(sample_platform, "_HOURS", 0)
    monkeypatch.setattr(sample_site, "_KEPT_DAYS", 2)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with registry.isolated(), sample_site.sample_site():
        settings = load()
        assert sorted(settings.shards) == sorted((*SHARDS, DEAD_SHARD))
        router = load_workers(settings, list(settings.workers_module))
        routes = {one.declaration().wire_name: router.route(one.declaration())[:2] for one in registry.workers()}
        expected = {one.name: (one.queue, one.shard) for one in sample_classes()}
        assert routes == expected | {WRONG_RULE: (WRONG_QUEUE, "main")}
        (kept,) = KeptFiles().read(settings.pushes_dir)
        assert (kept.is_running, kept.problem, {shard for shard, _ in kept.kept}) == (False, "", {DEAD_SHARD})
        assert count_store(open_offload(settings), settings.payload_offload.keep, 60.0).noted == 5
        database = TaskDatabase(settings.tasks_url)
        with database.reading() as connection:
            rows = list_tasks(connection, None, None, 10, None)
        assert [(row["total"], row["finish"], row["error"]) for row in rows] == [
            (400, 254, 7),
            (300, 300, 0),
            (500, 477, 23),
        ]
        urgencies = read_kept_urgencies(database, [time.time() - 2 * DAY_S, time.time()], HOUR_S, SHARDS)
        assert {one.shard for one in urgencies} == set(SHARDS)
        assert len(urgencies) >= 46 * len(SHARDS)
        database.dispose()
        client = open_client(Endpoint(endpoint_of(settings, "shop").url), name="tests")
        assert client.zcard("dead") == 40
        client.close()
