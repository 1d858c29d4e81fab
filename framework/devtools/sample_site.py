"""Run the sample platform for ``application-worker dashboard --sample``: stores, processes, configuration, data."""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from redis.exceptions import RedisError

from framework.declare import registry
from framework.devtools.sample_controls import BOB
from framework.devtools.sample_platform import (
    DEAD_SHARD,
    DEAD_URL,
    LIVE,
    LIVE_FROM,
    SHARDS,
    WRONG_QUEUE,
    WRONG_RULE,
    SamplePlatform,
    load_of,
    sample_classes,
)
from framework.errors import TaskError
from framework.features.cron import keys as cron_keys
from framework.features.cron.entries import CronEntry, Order, entry_of
from framework.features.cron.settings import CronEntrySettings, CronSection
from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload, blob_name
from framework.features.encryption.sweep import UNNAMED
from framework.features.history.urgencies import UrgencyRuns
from framework.features.reliable_push.kept_push import KeptPush
from framework.features.reliable_push.push_file import FileSystem, PushFile
from framework.features.tasks.access import load_part
from framework.features.tasks.change import EventChange
from framework.process.signals import SUPERVISOR_VARIABLE
from framework.push.job_batch import JobBatch
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer
from framework.supervised_threads import SupervisedThread
from framework.types import Urgency
from framework.wire import keys
from framework.wire.json import dumps
from framework.wire.urgency_counts import WAITS

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
"""Title, owner, class, jobs, ended jobs, failed jobs. The jobs that are left of the first one run."""
_FAILURES = (
    ("TimeoutError", "no answer after 30 s"),
    ("ValueError", "invalid literal for int() with base 10: 'n/a'"),
    ("PermissionError", "the ledger of 2025 is closed"),
)
_SCHEDULE: Mapping[str, Mapping[str, Any]] = {
    "catalogue-snapshot": {"cron": "*/15 * * * *", "class": "Search::SnapshotWorker"},
    "publish-drafts": {"cron": "*/10 * * * *", "class": "Media::PublishWorker", "overlap": "skip"},
    "sitemap": {"cron": "5 * * * *", "class": "Orders::ExportWorker"},
    "rollup-hour": {"cron": "10 * * * *", "class": "Analytics::RollupWorker", "missed": "all"},
    "crm-sync": {"cron": "0 */4 * * *", "class": WRONG_RULE, "overlap": "queue"},
    "digest": {"cron": "0 6 * * *", "class": "Mailers::DigestWorker", "time_zone": "Europe/Berlin"},
    "prune-index": {"cron": "30 2 * * *", "class": "Search::PruneWorker"},
    "rotate-keys": {"cron": "15 3 * * 0", "class": "Webhooks::RotateWorker"},
    "close-month": {"cron": "0 2 1 * *", "class": "Billing::TaxReportWorker", "time_zone": "America/New_York"},
}
"""The entries of cron."""
_DISABLED = "prune-index"
_KEPT_DAYS = 90
_TICKS, _LONGEST_RHYTHM_S = 24, 40 * 86_400
_LIVE_JOBS, _LIVE_SLOTS = 12, 5
_HOUR_S = 3_600
_FINE_DAYS, _STEP_HOURS = 10, 6
"""The runs of so many days are written by the hour, older ones by some hours: pages show those by the day."""
_MEGABYTES = {"main": 24, "shop": 16, "media": 16}
"""The memory that each store may use."""
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
        for name, client in clients.items():
            client.config_set("maxmemory", _MEGABYTES[name] << 20)
        platform = SamplePlatform(clients, seed)
        platform.write()
        import_module(_MODULE)
        for name, client in clients.items():
            _tick(client, name)
            _push_live(client, name)
        _keep_pushes(folder / "pushes")
        _store_arguments(folder / "payloads")
        _record_tasks(folder / "tasks.db")
        ended = threading.Event()
        SupervisedThread("sample-beats", lambda: _beat(platform, ended)).start()
        processes = [_start_process(folder, name) for name in SHARDS]
        try:
            yield
        finally:
            ended.set()
            for one in processes:
                # Its jobs may be lost: the stores end too.
                one.kill()
                one.wait()


def _start_process(folder: Path, shard: str) -> "subprocess.Popen[bytes]":
    """Start the real process of a shard: it runs the jobs of one class, and leads the schedule. It ends with this process."""
    queue = next(one.queue for one in sample_classes() if one.name == LIVE[shard])
    options = ("--shard", shard, "-q", queue, "-c", str(_LIVE_SLOTS), "-t", "2", "--tag", "live")
    environment = {**os.environ, SUPERVISOR_VARIABLE: str(os.getpid())}
    with (folder / f"{shard}.log").open("wb") as log:
        command = [sys.executable, "-m", "framework", "worker", *options]
        return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _push_live(client: Any, shard: str) -> None:
    """Push jobs that the real process runs: those that are left of the first task, on its shard."""
    (one,) = [one for one in sample_classes() if one.name == LIVE[shard]]
    _, _, name, jobs, ended, _ = _TASKS[0]
    places, now = (range(ended, jobs) if one.name == name else range(_LIVE_JOBS)), time.time()
    for place in places:
        jid = _task_jid(1, place) if one.name == name else f"{SHARDS.index(shard) + 0xA1:012x}{place:012x}"
        job = {
            "class": one.name,
            "jid": jid,
            "args": [LIVE_FROM + place],
            "queue": one.queue,
            "retry": 5,
            "track": True,
        }
        more = {"aw_task": _task_id(1)} if one.name == name else {}
        client.lpush(keys.queue(one.queue), dumps({**job, **more, "created_at": now - 900, "enqueued_at": now - 900}))
    client.sadd(keys.QUEUES, one.queue)


def _task_id(number: int) -> str:
    return f"{number:032x}"


def _task_jid(number: int, place: int) -> str:
    return f"{number:012x}{place:012x}"


def _tick(client: Any, shard: str) -> None:
    """Write the last ticks of the entries of cron, as their leader does, and the order that disables one."""
    application = CronSection().application
    shards = {one.name: one.shard for one in sample_classes()}
    chance, now = random.Random(shard), time.time()
    for name, facts in _SCHEDULE.items():
        if shards[facts["class"]] != shard:
            continue
        worker: Any = registry.find(facts["class"])
        entry = entry_of(name, worker.declaration(), CronEntrySettings.model_validate(facts), CronSection())
        ticks = _ticks_before(entry, now)
        if name == _DISABLED:
            order = Order(enabled=False, reason="the index is being rebuilt", set_by=BOB, set_at=now - 40_000)
            client.hset(cron_keys.cron_orders(application), name, order.encode())
            entry = entry.ordered(order)
        jids = [f"{chance.getrandbits(96):024x}" for _ in ticks]
        client.hset(cron_keys.cron_states(application), name, f"{ticks[-1]} {entry.fingerprint} {jids[-1]}")
        for tick, jid in zip(ticks, jids, strict=True):
            # One tick in some has found its last job at work.
            outcome = "overlap" if entry.overlap == "skip" and tick % 7_200 == 0 else "pushed"
            client.lpush(cron_keys.cron_ticks(application, name), f"{tick + 0.4:.6f} {tick} {outcome} {jid}")


def _ticks_before(entry: CronEntry, now: float) -> list[int]:
    """Return the last ticks of an entry."""
    found: list[int] = []
    for back_s in (86_400, _LONGEST_RHYTHM_S):
        found = list(takewhile(lambda tick: tick < now, entry.expression.ticks_after(int(now - back_s))))
        if len(found) >= _TICKS:
            break
    return found[-_TICKS:]


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
        one, begun, task_id = classes[name], time.time() - 900.0 * number, _task_id(number)
        changes: list[EventChange] = []
        for place in range(jobs):
            jid = _task_jid(number, place)
            facts: dict[str, Any] = {"worker": name, "queue": one.queue, "shard": one.shard, "task_id": task_id}
            changes.append(EventChange(jid, "push", begun, params=f"[{place}]", whole=True, **facts))
            if place < failed:
                error, reason = _FAILURES[place % len(_FAILURES)]
                why: dict[str, Any] = {"status": "error", "state": "dead", "reason": reason, "error_class": error}
                changes.append(EventChange(jid, "end", begun + 60.0 + place, **why, **facts))
            elif place < ended:
                changes.append(EventChange(jid, "end", begun + place, "finish", "completed", **facts))
        row: dict[str, Any] = {"id": task_id, "worker": name, "title": title, "owner": owner, "created_at": begun}
        row |= {"closed_at": begun, "completed_at": begun + 600.0 if ended == jobs else None}
        write = partial(_write_task, tables.tasks.insert().values(**row), applied.apply_changes, changes)
        database.write(write)
    runs = list(kept_runs(time.time()))
    for table, rows in ((tables.history, runs), (tables.urgency_history, kept_urgencies(runs))):
        database.write(partial(_write_rows, table.insert(), rows))
    database.dispose()


def _write_rows(insert: Any, rows: list[dict[str, Any]], connection: Any) -> None:
    connection.execute(insert, rows)


def kept_urgencies(runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs by urgency of the hours of ``kept_runs``, as the leader keeps them. It makes the days of them."""
    chance = random.Random(1)
    urgency_of: dict[str, Urgency] = {one.name: one.urgency for one in sample_classes()}
    sums: dict[tuple[int, str], dict[Urgency, tuple[int, int]]] = {}
    for one in runs:
        of_hour = sums.setdefault((one["hour"], one["shard"]), {})
        processed, failed = of_hour.get(urgency_of[one["worker"]], (0, 0))
        of_hour[urgency_of[one["worker"]]] = processed + one["processed"], failed + one["failed"]
    rows: list[dict[str, Any]] = []
    for (hour, shard), of_hour in sums.items():
        counts: dict[Urgency, UrgencyRuns] = {}
        for urgency, (processed, failed) in of_hour.items():
            # Fewer jobs wait for longer.
            waits = tuple(int(processed * chance.uniform(0.5, 1.5) * 0.03 * 0.6**place) for place in range(len(WAITS)))
            slow = int(processed * chance.uniform(0.0, 0.004))
            counts[urgency] = UrgencyRuns(processed, failed, slow, 0, int(processed * 180), waits)
        text = json.dumps({"until": hour + _HOUR_S, "urgencies": counts})
        total = sum(one.processed for one in counts.values())
        rows.append({"step_s": _HOUR_S, "start": hour, "shard": shard, "runs": total, "counts": text})
    return rows


def kept_runs(now: float) -> Iterator[dict[str, Any]]:
    """Yield the runs of 90 days by hour and class, as the leader keeps them."""
    chance, today = random.Random(1), int(now // 3_600) * 3_600
    for hours_back in range(1, _KEPT_DAYS * 24):
        step = 1 if hours_back <= _FINE_DAYS * 24 else _STEP_HOURS
        if hours_back % step:
            continue
        hour = today - hours_back * 3_600
        for one in sample_classes():
            # The platform grows.
            growth = 1 - 0.3 * hours_back / _KEPT_DAYS / 24
            processed = int(one.per_minute * 45 * step * load_of(hour) * growth * chance.uniform(0.9, 1.1))
            failed = int(processed * chance.uniform(0.004, 0.012) * (12 if hours_back // 24 == _KEPT_DAYS // 3 else 1))
            yield {
                "hour": hour,
                "shard": one.shard,
                "worker": one.name,
                "processed": processed,
                "failed": failed,
                "seconds": (processed - failed) * one.mean_s,
            }


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
            "tasks": {"url": f"sqlite:///{folder.parent}/tasks.db"},
            "payload_offload": {"url": f"file://{folder.parent}/payloads"},
            "fleet": {
                "queue_groups": {name: [one.queue for one in classes if one.shard == name] for name in SHARDS},
            },
        },
        "schedule": {"schedule": {name: {**one, "args": [7]} for name, one in _SCHEDULE.items()}},
        "feature_categories": {"feature_categories": {one.area: {"owner": f"team-{one.area}"} for one in classes}},
    }
    folder.mkdir()
    text = f"from framework.devtools.sample_workers import declare_workers\n\ndeclare_workers({_MODULE!r})\n"
    (folder.parent / f"{_MODULE}.py").write_text(text, encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
