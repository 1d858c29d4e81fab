"""Run the sample platform for ``application-worker dashboard --sample``: a store for each shard, its configuration, its data."""

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from redis.exceptions import RedisError

from framework.devtools.sample_platform import (
    DEAD_SHARD,
    DEAD_URL,
    SHARDS,
    WRONG_QUEUE,
    WRONG_RULE,
    SamplePlatform,
    sample_classes,
)
from framework.errors import TaskError
from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload, blob_name
from framework.features.encryption.sweep import UNNAMED
from framework.features.reliable_push.kept_push import KeptPush
from framework.features.reliable_push.push_file import FileSystem, PushFile
from framework.features.tasks.access import load_part
from framework.features.tasks.change import EventChange
from framework.push.job_batch import JobBatch
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer
from framework.supervised_threads import SupervisedThread
from framework.wire.json import dumps

_BEAT_S = 5.0
_MODULE = "sample_jobs"
_AWAY_S = 900.0
"""For how long the dead shard has been away."""
_KEPT_CLASSES = 4
_BLOBS, _UNNAMED_BLOBS, _BLOB_EVERY_S = 12, 5, 72_000.0
_TASKS = (
    ("prices-2026-11.xlsx", "ann", "Orders::ExportWorker", 400, 261, 7),
    ("Reindex the catalogue", "search-team", "Search::ReindexWorker", 300, 300, 0),
    ("Invoices of October", "billing-team", "Billing::InvoiceWorker", 500, 500, 23),
)
"""Title, owner, class, jobs, ended jobs, failed jobs."""
_FOREIGN = ("REDIS_URL", "FRAMEWORK_")
"""Variables of the user's shell for another installation."""


@contextmanager
def sample_site(seed: int = 1) -> Generator[None]:
    """Let this process use the sample platform of a seed, within the block. Its stores end with the block, or with the process.

    Call it before anything reads the configuration.

    Raises:
        ConfigurationError: a store does not start.
    """
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sample-")))
        stores = {name: opened.enter_context(EmbeddedServer(folder / name, keeps_data=False)) for name in SHARDS}
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            del os.environ[name]
        _write_configuration(folder / "config", {name: store.url for name, store in stores.items()})
        os.environ |= {"FRAMEWORK_CONFIG_DIR": str(folder / "config"), "FRAMEWORK_VAR_DIR": str(folder)}
        # Its classes are those of a module that only this process can import.
        sys.path.insert(0, str(folder))
        opened.callback(sys.path.remove, str(folder))
        clients = {name: open_client(Endpoint(store.url), name="sample") for name, store in stores.items()}
        platform = SamplePlatform(clients, seed)
        platform.write()
        _keep_pushes(folder / "pushes")
        _store_arguments(folder / "payloads")
        _record_tasks(folder / "tasks.db")
        ended = threading.Event()
        SupervisedThread("sample-beats", lambda: _beat(platform, ended)).start()
        try:
            yield
        finally:
            ended.set()


def _keep_pushes(folder: Path) -> None:
    """Write the file of a producer that has ended while the dead shard was away."""
    file, kept_at = PushFile.create(folder, FileSystem()), time.time() - _AWAY_S
    for number, one in enumerate(sample_classes()[:: len(sample_classes()) // _KEPT_CLASSES]):
        jids = [f"{number:012x}{place:012x}" for place in range(one.per_minute)]
        jobs = [
            {"class": one.name, "jid": jid, "args": [number], "queue": one.queue, "retry": 5, "created_at": kept_at}
            for number, jid in enumerate(jids)
        ]
        batch = JobBatch(one.queue, list(map(dumps, jobs)), jids)
        push = KeptPush(DEAD_SHARD, batch, jids[0], kept_at + number, in_doubt=False, locks_when_due=False)
        file.append(push.encode(), push, tried=False)
    file.close()


def _store_arguments(folder: Path) -> None:
    """Write the blobs of large arguments: the oldest ones are of deleted jobs, and named by none."""
    store, chance, now = FolderStore(folder), random.Random(1), time.time()
    PayloadOffload(store, "", 1).make_store()
    for number in range(_BLOBS):
        blob_id = f"{number:024x}-{number:064x}"
        store.put(blob_name(blob_id), bytes(chance.randint(1_000_000, 1_500_000)))
        at = now - number * _BLOB_EVERY_S
        os.utime(folder / blob_name(blob_id), (at, at))
        if number >= _BLOBS - _UNNAMED_BLOBS:
            store.put(f"{UNNAMED}/{blob_id}", b"")


def _record_tasks(file: Path) -> None:
    """Write tasks of many jobs, the last of which goes on. Without the extra of tasks there are none."""
    try:
        tables, applied = load_part("database"), load_part("apply")
    except TaskError:
        return
    database, classes = tables.TaskDatabase(f"sqlite:///{file}"), {one.name: one for one in sample_classes()}
    for number, (title, owner, name, jobs, ended, failed) in enumerate(_TASKS, 1):
        one, begun, task_id = classes[name], time.time() - 900.0 * number, f"{number:032x}"
        changes: list[EventChange] = []
        for place in range(jobs):
            jid = f"{number:012x}{place:012x}"
            facts: dict[str, Any] = {"worker": name, "queue": one.queue, "shard": one.shard, "task_id": task_id}
            changes.append(EventChange(jid, "push", begun, params=f"[{place}]", whole=True, **facts))
            if place < failed:
                why: dict[str, Any] = {
                    "status": "error",
                    "state": "dead",
                    "reason": "no answer after 30 s",
                    "error_class": "TimeoutError",
                }
                changes.append(EventChange(jid, "end", begun + 60.0 + place, **why, **facts))
            elif place < ended:
                changes.append(EventChange(jid, "end", begun + place, "finish", "completed", **facts))
        row: dict[str, Any] = {"id": task_id, "worker": name, "title": title, "owner": owner, "created_at": begun}
        row |= {"closed_at": begun, "completed_at": begun + 600.0 if ended == jobs else None}
        write = partial(_write_task, tables.tasks.insert().values(**row), applied.apply_changes, changes)
        database.write(write)
    database.dispose()


def _write_task(row: Any, apply: Any, changes: list[EventChange], connection: Any) -> None:
    connection.execute(row)
    apply(connection, changes)


def _beat(platform: SamplePlatform, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_S):
        try:
            platform.beat()
        # The stores end while the process ends.
        except (RedisError, OSError):
            return


def _write_configuration(folder: Path, urls: dict[str, str]) -> None:
    classes = sample_classes()
    shards = {name: {"url": url} for name, url in (*urls.items(), (DEAD_SHARD, DEAD_URL))}
    rules = [
        [f"worker_name={WRONG_RULE}", WRONG_QUEUE],
        *(
            [f"feature_category={area}", None, shard]
            for area, shard in sorted({(one.area, one.shard) for one in classes})
        ),
        ["*", None],
    ]
    files = {
        "redis": {"shards": shards},
        "routing": {"routing_rules": rules},
        "application": {
            "workers_module": _MODULE,
            "payload_offload": {"url": f"file://{folder.parent}/payloads"},
            "fleet": {
                "queue_groups": {name: [one.queue for one in classes if one.shard == name] for name in SHARDS},
            },
        },
        "feature_categories": {"feature_categories": {one.area: {"owner": f"team-{one.area}"} for one in classes}},
    }
    folder.mkdir()
    text = f"from framework.devtools.sample_workers import declare_workers\n\ndeclare_workers({_MODULE!r})\n"
    (folder.parent / f"{_MODULE}.py").write_text(text, encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
