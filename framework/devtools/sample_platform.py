"""Write the data of a believable platform into empty shards: 40 classes, 3 shards, incidents going on. For the dashboard.

The data are those of a seed: two calls with the same seed and time write the same. ``beat`` keeps the records of the processes, which
are no real ones: a real process of each shard runs the classes ``LIVE``, if ``sample_site`` has started it.
"""

import json
import math
import random
import struct
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import redis

from framework.declare.names import queue_name
from framework.devtools.sample_controls import SampleControls
from framework.execute.job_log import TARGETS
from framework.execute.stats import BUCKETS_MS
from framework.features.batches import keys as batch_keys
from framework.features.history.marks import mark_deploy
from framework.features.workflows import keys as workflow_keys
from framework.features.workflows.definition import StepCondition, StepJobs, WorkflowDefinition, WorkflowStep, step_bid
from framework.process.record import RUNS_FIELD
from framework.types import Urgency
from framework.version import VERSION
from framework.wire import keys, urgency_counts
from framework.wire.compress import pack_backtrace
from framework.wire.urgency_counts import CLASS_COUNT_BITS, FAILED, PROCESSED, WAITED_MS, WAITS

SHARDS = ("main", "shop", "media")
DEAD_SHARD, DEAD_URL = "archive", "redis://127.0.0.1:1/0"
"""A shard of the configuration that does not answer: the incident "dead shard"."""

_AREAS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Mailers": ("main", ("Welcome", "Digest", "Receipt", "Reminder", "Bounce")),
    "Billing": ("shop", ("Invoice", "Charge", "Refund", "Dunning", "TaxReport")),
    "Orders": ("shop", ("Confirm", "Ship", "Cancel", "Export", "Restock")),
    "Search": ("main", ("Index", "Reindex", "Suggest", "Prune", "Snapshot")),
    "Media": ("media", ("Transcode", "Thumbnail", "Scan", "Publish", "Expire")),
    "Accounts": ("main", ("Provision", "Audit", "Merge", "Anonymize", "Sync")),
    "Webhooks": ("main", ("Deliver", "Retry", "Verify", "Rotate", "Report")),
    "Analytics": ("media", ("Ingest", "Rollup", "Funnel", "Cohort", "Backfill")),
}
_URGENCIES: Mapping[str, Urgency] = {
    "Webhooks": "high",
    "Accounts": "high",
    "Media": "throttled",
    "Analytics": "throttled",
}
_CALLERS: Mapping[str, str] = {
    "Mailers": "POST /signup",
    "Billing": "POST /invoices",
    "Orders": "POST /orders",
    "Search": "PUT /products",
    "Media": "POST /uploads",
    "Accounts": "PATCH /accounts",
    "Webhooks": "POST /orders",
    "Analytics": "cron rollup",
}
_ERRORS = (
    ("TimeoutError", "no answer after 30 s"),
    ("ConnectionError", "the payment provider has closed the connection"),
    ("ValueError", "invalid literal for int() with base 10: 'n/a'"),
    ("OperationalError", "deadlock detected: process 4711 waits for ShareLock"),
    ("HTTPStatusError", "503 Service Unavailable for https://api.example/v2/items"),
)
"""Errors of the jobs that are retried."""
FLOOD, STUCK, POISON, BAD_DEPLOY, SLOW, WRONG_RULE, LEFT_LOCK = (
    *("Search::IndexWorker", "Billing::InvoiceWorker", "Media::TranscodeWorker", "Orders::ConfirmWorker"),
    *("Analytics::RollupWorker", "Accounts::SyncWorker", "Billing::ChargeWorker"),
)
"""The classes of the incidents."""
WRONG_QUEUE = "accounts_snyc"
"""The queue of a misspelt rule, which no process serves."""

LIVE: Mapping[str, str] = {
    "main": "Search::SnapshotWorker",
    "shop": "Orders::ExportWorker",
    "media": "Media::PublishWorker",
}
"""By shard, the class whose jobs a real process runs."""
LIVE_FROM = 1_000
"""The first record whose job pushes that of the next one."""

WORKFLOW, BATCH = "wf-nightly-export", "aw-nightly-mails"
"""A workflow that runs, one of whose steps has failed, and a batch with nested ones."""

_DEPLOYED_AGO_S, _HOURS = 25 * 60, 8
_LONGER, _DAYS = 9, 30
"""How many times as long the metrics by ten minutes go back, and the days of the counts by day, as Sidekiq keeps them."""
_FLOOD_JOBS, _POISON_JOBS, _HELD_JOBS = 5_000, 30, 120
_FLOOD_COMES, _FLOOD_ENDS, _FLOOD_RATE = 14, 9, 108
"""The jobs of the flood that come and end with each beat, and that end in a minute."""
_STEP_S, _DAY_S = 60, 86_400
_QUIETEST_S, _WEEKEND = 3 * 3_600, (5, 6)
"""The time of the day (UTC) with the fewest runs, and the days with fewer."""
_MEAN_SHARE = 0.75
"""The mean of ``_runs_of_minute``, as a share of the most runs."""
_PROCESSES, _SLOTS = 3, 10
"""The processes of each shard, and the slots of each."""


def _lines(name: str, error: str, message: str) -> list[str]:
    """Return the traceback of a failed run."""
    area, _, worker = name.partition("::")
    file = f"workers/{area.lower()}/{queue_name(worker, None)}_worker.py"
    return [
        "Traceback (most recent call last):",
        f'  File "{file}", line 31, in perform',
        "    record = self.load(record_id)",
        f'  File "{file}", line 44, in load',
        "    return self.client.fetch(record_id)",
        f"{error}: {message}",
    ]


class SampleClass(NamedTuple):
    """One class of the platform."""

    name: str
    area: str
    queue: str
    shard: str
    per_minute: int
    mean_s: float
    urgency: Urgency


def sample_classes(seed: int = 1) -> list[SampleClass]:
    """Return the 40 classes with their rates."""
    chance = random.Random(seed)
    return [
        SampleClass(
            f"{area}::{name}Worker",
            area.lower(),
            queue_name(f"{area}::{name}Worker", None),
            shard,
            _FLOOD_RATE if f"{area}::{name}Worker" == FLOOD else chance.randint(2, 120),
            chance.choice((0.02, 0.08, 0.3, 1.2, 4.0)),
            _URGENCIES.get(area, "low"),
        )
        for area, (shard, names) in _AREAS.items()
        for name in names
    ]


def load_of(at: float) -> float:
    """Return the share of the usual runs at a time: fewer at night (UTC), and at weekends."""
    weekend = time.gmtime(at).tm_wday in _WEEKEND
    return (0.45 if weekend else 1.0) * (0.7 - 0.3 * math.cos((at % _DAY_S - _QUIETEST_S) * 2 * math.pi / _DAY_S))


def _add_waits(numbers: Counter[int], of_minute: Mapping[str, int]) -> None:
    """Add the runs of a class in a minute to the numbers of ``keys.class_waits``."""
    waits = [of_minute.get(word, 0) for word in WAITS]
    succeeded = of_minute[PROCESSED] - of_minute[FAILED]
    for at, number in enumerate((of_minute[PROCESSED] - sum(waits), *waits, succeeded, of_minute[urgency_counts.SLOW])):
        numbers[at] += number


class SamplePlatform:
    """Write the platform into the shards ``SHARDS``, by their clients. Methods raise redis errors."""

    def __init__(self, clients: "Mapping[str, redis.Redis]", seed: int = 1, now: float | None = None) -> None:
        self._clients = clients
        self._chance = random.Random(seed)
        self._now = time.time() if now is None else now
        self._classes = sample_classes(seed)
        # Beats change nothing of what ``write`` writes.
        self._beats = random.Random(seed)
        self._waits = random.Random(seed)
        self._counted = 0
        """The last minute whose runs are counted: none since the time of the platform, or less."""

    def write(self) -> None:
        """Write everything.

        Raises:
            ValueError: a shard has data already; nothing was written.
        """
        for name, client in self._clients.items():
            if client.dbsize():
                raise ValueError(f"the shard {name} has data: the sample is written into empty shards only")
        for shard in self._clients:
            self._write_runs(shard, range(_HOURS * 60, -1, -1))
            self._write_days(shard)
        for one in self._classes:
            self._write_waiting(one)
        self._write_incidents()
        self._write_workflow()
        self._write_batches()
        SampleControls(self._clients, self._chance.randint(1, 1_000_000), self._now).write(self._job)
        self.beat()

    def beat(self) -> None:
        """Let the platform go on: other jobs run and wait, and the runs of the last minutes are counted.

        Call it at least every 30 s: the records of the processes, which it renews, live for a minute.
        """
        # The minutes since the last call, by their distance to the time of the platform.
        ended = -int((time.time() - self._now) // _STEP_S)
        backs, self._counted = range(self._counted - 1, ended - 1, -1), min(self._counted, ended)
        for shard, client in self._clients.items():
            classes = [one for one in self._classes if one.shard == shard]
            pipeline: Any = client.pipeline(transaction=False)
            for number in range(1, 1 + _PROCESSES):
                self._add_process(pipeline, f"{shard}-{number}.example:{100 + number}:{number:012x}", classes)
            pipeline.execute()
            if backs:
                self._write_runs(shard, backs)
            self._take_and_push(client, classes)

    def _take_and_push(self, client: "redis.Redis", classes: Sequence[SampleClass]) -> None:
        """Take the waiting jobs of the queues that are served, and push others; the flood grows."""
        paused: Any = client.smembers(keys.PAUSED)
        served = [one for one in classes if one.queue.encode() not in paused and one.name not in LIVE.values()]
        pipeline: Any = client.pipeline(transaction=False)
        for one in served:
            pipeline.llen(keys.queue(one.queue))
        for one, size in zip(served, pipeline.execute(), strict=True):
            taken, pushed = (size, self._beats.randint(0, 8)) if one.name != FLOOD else (_FLOOD_ENDS, _FLOOD_COMES)
            if size and (one.name != FLOOD or size < 2 * _FLOOD_JOBS):
                pipeline.rpop(keys.queue(one.queue), min(taken, size))
            if pushed:
                age_s = self._now - time.time() + 1.0
                jobs = [self._job(one.name, one.queue, age_s, chance=self._beats) for _ in range(pushed)]
                pipeline.lpush(keys.queue(one.queue), *jobs)
        pipeline.execute()

    def _add_process(self, pipeline: Any, identity: str, classes: Sequence[SampleClass]) -> None:
        host, pid, _ = identity.split(":")
        started_at = self._now - _DEPLOYED_AGO_S
        facts = {
            "hostname": host,
            "pid": int(pid),
            "identity": identity,
            "tag": "platform",
            "labels": ["python"],
            "concurrency": _SLOTS,
            "queues": sorted(one.queue for one in classes),
            "started_at": started_at,
            "version": VERSION,
        }
        # The flood has nearly all slots of its shard.
        flooded = [one for one in classes if one.name == FLOOD]
        busy = self._beats.randint(_SLOTS - 1, _SLOTS) if flooded else self._beats.randint(4, 8)
        chosen = [self._beats.choice(flooded if flooded and number > 3 else classes) for number in range(busy)]
        work = {f"thread{number}": self._run(one) for number, one in enumerate(chosen)}
        since_s = time.time() - started_at
        runs = {one.queue: int(since_s * one.per_minute / 60 / _PROCESSES) for one in classes}
        record = {
            "info": json.dumps(facts),
            RUNS_FIELD: json.dumps(runs),
            "concurrency": _SLOTS,
            "busy": len(work),
            "beat": time.time(),
            "quiet": "false",
            "rss": 180_000 + self._beats.randint(0, 9_000),
            "rtt_us": self._beats.randint(200, 400),
        }
        running = keys.work(identity)[0]
        pipeline.sadd(keys.PROCESSES, identity)
        pipeline.hset(identity, mapping=record)
        pipeline.delete(running)
        pipeline.hset(running, mapping=work)
        for key in (identity, running):
            pipeline.expire(key, 60)

    def _run(self, one: SampleClass) -> str:
        """Return the entry of a running job."""
        run_s = self._beats.uniform(0.0, one.mean_s * 3)
        job = self._job(one.name, one.queue, run_s + 1.0, chance=self._beats).decode()
        return json.dumps({"queue": one.queue, "payload": job, "run_at": int(time.time() - run_s)})

    def _job(self, name: str, queue: str, age_s: float, chance: random.Random | None = None, **fields: Any) -> bytes:
        chance = chance or self._chance
        jid = f"{chance.getrandbits(96):024x}"
        at = self._now - age_s
        number = chance.randint(1, 90_000)
        job = {
            "class": name,
            "jid": jid,
            "args": [number],
            "queue": queue,
            "retry": 5,
            "created_at": at,
            "enqueued_at": at,
        }
        context = {
            "correlation_id": f"{chance.getrandbits(128):032x}",
            "meta.user": f"user{number % 400}",
            "meta.caller_id": _CALLERS[name.partition("::")[0]],
        }
        return json.dumps({**job, **context, **fields}).encode()

    def _push(self, shard: str, queue: str, jobs: list[bytes]) -> None:
        pipeline: Any = self._clients[shard].pipeline(transaction=False)
        pipeline.sadd(keys.QUEUES, queue)
        for at in range(0, len(jobs), 500):
            pipeline.lpush(keys.queue(queue), *jobs[at : at + 500])
        pipeline.execute()

    def _write_runs(self, shard: str, backs: Sequence[int]) -> None:
        """Add the runs of the shard's classes in the minutes so many minutes before the time of the platform to the metrics."""
        pipeline: Any = self._clients[shard].pipeline(transaction=False)
        counts: dict[tuple[str, int], Counter[str]] = {}
        waits: dict[str, Counter[int]] = {}
        for one in self._classes:
            for back in backs if one.shard == shard else ():
                moment = time.gmtime(self._now - back * _STEP_S)
                processed, failed, milliseconds = self._runs_of_minute(one, back)
                for named in keys.metrics(8, moment):
                    added = counts.setdefault(named, Counter())
                    added[f"{one.name}|p"] += processed
                    added[f"{one.name}|f"] += failed
                    added[f"{one.name}|ms"] += milliseconds * (processed - failed)
                of_minute = dict(self._urgency_of_minute(one, processed, failed, milliseconds))
                for named in keys.urgencies(moment):
                    added = counts.setdefault(named, Counter())
                    for word, count in of_minute.items():
                        added[f"{one.urgency}|{word}"] += count
                _add_waits(waits.setdefault(keys.class_waits(one.name, moment), Counter()), of_minute)
                buckets = [0] * (len(BUCKETS_MS) + 1)
                buckets[bisect_right(BUCKETS_MS, milliseconds)] = processed - failed
                packed = struct.pack(f">{len(buckets)}H", *buckets)
                pipeline.set(keys.histogram(8, one.name, moment), packed, ex=keys.METRICS_SHORT_S)
        for (key, ttl_s), fields in counts.items():
            for field, count in fields.items():
                pipeline.hincrby(key, field, count)
            pipeline.expire(key, ttl_s)
        for key, numbers in waits.items():
            words = [("INCRBY", f"u{CLASS_COUNT_BITS}", f"#{at}", number) for at, number in numbers.items()]
            pipeline.execute_command("BITFIELD", key, *chain(*words))
            pipeline.expire(key, keys.METRICS_SHORT_S)
        pipeline.execute()

    def _write_days(self, shard: str) -> None:
        """Write the counts of the last days, and the metrics of the ten minutes before those of ``_write_runs``."""
        pipeline: Any = self._clients[shard].pipeline(transaction=False)
        classes = [one for one in self._classes if one.shard == shard]
        for back in range(_HOURS * 6 + 1, _HOURS * 6 * _LONGER):
            (_, (key, ttl_s)) = keys.metrics(8, time.gmtime(self._now - back * 10 * _STEP_S))
            fields: dict[str, int] = {}
            for one in classes:
                processed, failed, milliseconds = self._runs_of_minute(one, back * 10)
                fields[f"{one.name}|p"] = 10 * processed
                fields[f"{one.name}|f"] = 10 * failed
                fields[f"{one.name}|ms"] = 10 * milliseconds * (processed - failed)
            pipeline.hset(key, mapping=fields)
            pipeline.expire(key, ttl_s)
        a_minute = sum(one.per_minute for one in classes) * _MEAN_SHARE
        midnight = self._now - self._now % _DAY_S
        for back in range(_DAYS):
            begins = midnight - back * _DAY_S
            ends = min(self._now, begins + _DAY_S)
            minutes = sum(load_of(begins + at) * 60 for at in range(0, int(ends - begins), 3_600))
            processed = int(a_minute * minutes * self._chance.uniform(0.95, 1.05))
            # One day of trouble.
            failed = int(processed * (0.07 if back == _DAYS // 3 else self._chance.uniform(0.006, 0.012)))
            day = time.strftime("%Y-%m-%d", time.gmtime(begins))
            for name, count in ((keys.STAT_PROCESSED, processed), (keys.STAT_FAILED, failed)):
                pipeline.set(f"{name}:{day}", count)
                pipeline.incrby(name, count)
        pipeline.execute()

    def _runs_of_minute(self, one: SampleClass, back: int) -> tuple[int, int, int]:
        """Return the runs of a class in the minute that many minutes ago, the failed ones, and the milliseconds of a run."""
        most = one.per_minute * load_of(self._now - back * _STEP_S)
        processed = int(self._chance.uniform(0.5, 1.0) * most + 0.5)
        mean_s = one.mean_s * (10 if one.name == SLOW and back < 120 else 1) * self._chance.uniform(0.8, 1.3)
        if one.name == BAD_DEPLOY and back * _STEP_S < _DEPLOYED_AGO_S:
            return processed, processed * 2 // 3, int(mean_s * 1000)
        # About one in a hundred fails.
        return (
            processed,
            min(processed, int(self._chance.expovariate(1.0) * processed * 0.01 + 0.4)),
            int(mean_s * 1000),
        )

    def _urgency_of_minute(
        self, one: SampleClass, processed: int, failed: int, milliseconds: int
    ) -> Iterator[tuple[str, int]]:
        """Yield the counts by urgency of the runs of a class in a minute: some jobs in a hundred wait for longer."""
        yield PROCESSED, processed
        yield FAILED, failed
        yield urgency_counts.SLOW, processed - failed if milliseconds >= 1_000 * TARGETS[one.urgency][1] else 0
        yield WAITED_MS, int(processed * 1_000 * self._waits.expovariate(5.0))
        yield (
            WAITS[self._waits.choice((0, 0, 0, 1, 2, 3, 5))],
            int(self._waits.expovariate(1.0) * processed * 0.02 + 0.4),
        )

    def _write_waiting(self, one: SampleClass) -> None:
        waiting = [self._job(one.name, one.queue, 3.0) for _ in range(self._chance.randint(0, 8))]
        # The jobs of the flood are older.
        self._push(one.shard, one.queue, waiting if one.name != FLOOD else [])
        later = {
            self._job(one.name, one.queue, 60.0): self._now + self._chance.randint(60, 86_400)
            for _ in range(self._chance.randint(0, 4))
        }
        if later:
            self._clients[one.shard].zadd(keys.SCHEDULE, dict(later))
        self._fail(one.name, one.queue, one.shard, keys.RETRY, 2, *self._chance.choice(_ERRORS))

    def _fail(self, name: str, queue: str, shard: str, place: str, count: int, error: str, message: str) -> None:
        members: dict[bytes, float] = {}
        for _ in range(count):
            age_s = self._chance.uniform(30, _DEPLOYED_AGO_S)
            failed: dict[str, Any] = {
                "error_class": error,
                "error_message": message,
                "failed_at": self._now - age_s,
                "error_backtrace": pack_backtrace(_lines(name, error, message)),
            }
            failures = 0 if place == keys.INTERRUPTED else self._chance.randint(1, 5) if place == keys.RETRY else 6
            if failures:
                failed["retry_count"] = failures - 1
            waits_s = self._chance.uniform(15, 120) + 60 * failures**3
            score = self._now + waits_s if place == keys.RETRY else self._now - age_s
            # A job that has failed several times is older than its last failure.
            members[self._job(name, queue, age_s + 60 * failures**3, **failed)] = score
        self._clients[shard].zadd(place, members)

    def _write_incidents(self) -> None:
        by_name = {one.name: one for one in self._classes}
        flood = by_name[FLOOD]
        # The newest job is pushed last: the left end of the list.
        ages = sorted((self._chance.uniform(1, 2_400) for _ in range(_FLOOD_JOBS)), reverse=True)
        self._push(flood.shard, flood.queue, [self._job(FLOOD, flood.queue, age_s) for age_s in ages])
        poison = by_name[POISON]
        message = "the process was killed while it ran the job"
        self._fail(POISON, poison.queue, poison.shard, keys.INTERRUPTED, _POISON_JOBS, "MemoryError", message)
        deployed = by_name[BAD_DEPLOY]
        for place, count in ((keys.RETRY, 80), (keys.DEAD, 40)):
            self._fail(BAD_DEPLOY, deployed.queue, deployed.shard, place, count, "KeyError", "'shipping_address'")
        for name, count, error in (("Webhooks::VerifyWorker", 4, 3), ("Mailers::BounceWorker", 2, 4), (FLOOD, 1, 0)):
            one = by_name[name]
            self._fail(name, one.queue, one.shard, keys.DEAD, count, *_ERRORS[error])
        for client in self._clients.values():
            for number in range(11, 0, -1):
                mark_deploy(client, f"v{41 - number}", self._now - number * 8 * 86_400 + 3_600)
            mark_deploy(client, "v41", self._now - 5 * 3_600)
            mark_deploy(client, "v42", self._now - _DEPLOYED_AGO_S)
        self._write_stuck_limit(by_name[STUCK])
        jobs = [self._job(WRONG_RULE, WRONG_QUEUE, age_s) for age_s in range(3_000, 0, -60)]
        self._push(by_name[WRONG_RULE].shard, WRONG_QUEUE, jobs)
        locks: Any = self._clients[by_name[LEFT_LOCK].shard]
        fields = {"v": 1, "jid": "0" * 24, "class": LEFT_LOCK, "since": self._now - 7_200}
        locks.hset(keys.lock("a" * 40), mapping=fields)

    def _write_stuck_limit(self, one: SampleClass) -> None:
        """Let holders whose processes are gone keep all slots, while jobs wait."""
        limit, client = keys.limit(one.name), self._clients[one.shard]
        gone = {f"gone.example:9:{'f' * 12} {number:024x}": self._now + 86_400 for number in range(3)}
        begun = self._now - 1_800.0
        waiting = {
            json.dumps({"at": number}).encode() + b"\n" + self._job(one.name, one.queue, 1_800.0 - number): begun
            + number
            for number in range(_HELD_JOBS)
        }
        client.hset(limit, mapping={"limit": 3, "known": self._now})
        client.sadd(keys.LIMITS, limit)
        client.zadd(f"{limit}:running", gone)
        client.zadd(f"{limit}:waiting:", waiting)
        # The waiting jobs of the one scope, whose name is empty.
        client.zadd(f"{limit}:turns", {"": 0})
        client.sadd(keys.LIMITS_WAITING, limit)

    def _write_workflow(self) -> None:
        """Write a workflow of the orders: two steps have ended, one runs, and a branch undoes a failed one."""
        steps: tuple[tuple[str, StepCondition, str, str, dict[str, Any]], ...] = (
            ("collect", "start", "", "Orders::ExportWorker", {"state": "succeeded", "jobs": 24, "started_at": -900}),
            ("price", "success", "collect", "Billing::TaxReportWorker", {"state": "failed", "jobs": 24, "dead": 2}),
            ("publish", "success", "price", "Orders::ShipWorker", {"jobs": 6}),
            ("announce", "success", "publish", "Mailers::DigestWorker", {"jobs": 1}),
            (
                "repair",
                "failure",
                "price",
                "Billing::RefundWorker",
                {"state": "running", "jobs": 12, "started_at": -240},
            ),
            ("report", "success", "repair", "Mailers::ReceiptWorker", {"jobs": 1}),
            ("alarm", "failure", "", "Webhooks::ReportWorker", {"jobs": 1}),
        )
        definition = WorkflowDefinition(
            tuple(WorkflowStep(name, on, after, (StepJobs(cls, {}),)) for name, on, after, cls, _ in steps)
        )
        facts: Any = {
            "name": "nightly export",
            "description": "orders of the last day",
            "definition": definition.encode(),
            "steps": " ".join(one[0] for one in steps),
            "ttl_s": 86_400,
            "created_at": self._now - 900,
            "failed_steps": 1,
            "price:started_at": self._now - 700,
            "price:ended_at": self._now - 240,
            "collect:ended_at": self._now - 700,
        }
        for name, *_, known in steps:
            times = {"started_at": self._now + known["started_at"]} if "started_at" in known else {}
            facts |= {f"{name}:{field}": value for field, value in {**known, **times}.items()}
        client = self._clients["shop"]
        client.hset(workflow_keys.workflow(WORKFLOW), mapping=facts)
        client.zadd(workflow_keys.WORKFLOWS, {WORKFLOW: self._now + 86_400})
        self._write_batch("shop", step_bid(WORKFLOW, "repair"), "nightly export: repair", total=12, pending=5)

    def _write_batches(self) -> None:
        """Write a batch of mails: one batch for each region in it, and one of these has dead jobs."""
        callback = [["mailers_digest", json.dumps({"class": "Mailers::DigestWorker", "args": []})]]
        regions = [f"aw-mails-{name}" for name in ("africa", "america", "asia", "europe")]
        events: dict[str, Any] = {
            "on_success": json.dumps(callback),
            "on_death": json.dumps(callback),
            "death_at": self._now - 300,
        }
        self._write_batch("main", BATCH, "nightly mails", regions, total=8, pending=3, **events)
        for number, bid in enumerate(regions):
            ended: dict[str, Any] = {"success_at": self._now - 60.0} if number < 2 else {}
            cities = [f"{bid}-{city}" for city in ("lagos", "cairo")] if number == 0 else []
            pending = 0 if ended else 140 * number
            self._write_batch("main", bid, bid.rpartition("-")[2], cities, BATCH, total=500, pending=pending, **ended)
            for city in cities:
                ended_at = self._now - 90.0
                self._write_batch(
                    "main", city, city.rpartition("-")[2], (), bid, total=90, pending=0, success_at=ended_at
                )
        self._clients["main"].sadd(f"{batch_keys.batch(regions[-1])}:dead", f"{1:024x}", f"{2:024x}")

    def _write_batch(
        self, shard: str, bid: str, description: str, nested: Sequence[str] = (), parent: str = "", **fields: Any
    ) -> None:
        client, key = self._clients[shard], batch_keys.batch(bid)
        known = {"description": description, "parent": parent, "children": len(nested), "ttl_s": 86_400}
        mapping: Any = {**known, "created_at": self._now - 900, **fields}
        client.hset(key, mapping=mapping)
        client.expire(key, 86_400)
        client.zadd(batch_keys.BATCHES, {bid: self._now + 86_400})
        if nested:
            client.sadd(f"{key}:children", *nested)
