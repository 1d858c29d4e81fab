"""Make every alert fire by its fault, on a real Prometheus with the written rules, and clear after it."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis

from framework.features.observability.alert_rules import RECORDED, RULES
from framework.features.observability.dashboards import DASHBOARDS
from framework.features.observability.rules import metric_names
from tests.chaos.conftest import HERE
from tests.chaos.dashboard_picture import draw
from tests.harness import ROOT, Process, Site, encoded, until
from tests.prometheus import PrometheusServer, free_port, prometheus
from tests.servers.guarded import with_all_rights

__all__ = ["prometheus"]

SCALE = "0.004"
"""Three hours are 43 s: every alert can fire within the minute that it has."""
THRESHOLDS = {
    "oldest_job_high": 5,
    "oldest_job_low": 20,
    "held_age": 5,
    "held_jobs": 20,
    "dead_jobs": 20,
    "recovered_jobs": 2,
    "scheduler_lag": 5,
    "cron_lag": 5,
    "kept_age": 3,
    "cut_off_jobs": 2,
    "restarts": 0.5,
    "execution_slow_high": 0.001,
    "bad_events": 5,
}
FIRES_S = 60.0
"""The time that the issue gives an alert."""
CLEARS_S = 300.0
REPORT = ROOT / "var" / "campaigns" / "alerts.json"
STEADY_S = 0.05

# A host whose clock is five seconds ahead.
WRONG_CLOCK = """
import time
true = time.time
time.time = lambda: true() + 5
from framework.cli.main import main
main()
"""


@dataclass
class Fault:
    """A fault, and the alert that must fire for it."""

    alert: str
    what: str
    inject: Callable[[], object] = lambda: None
    remove: Callable[[], object] = lambda: None
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the alert, beside its name."""

    def fires_in(self, firing: list[dict[str, str]]) -> bool:
        wanted = {"alertname": self.alert, **self.labels}
        return any(wanted.items() <= one.items() for one in firing)


class Installation:
    """Two shards, two workers, a cluster, an exporter, and a Prometheus that scrapes them."""

    def __init__(self, prometheus: str, site: Site, servers) -> None:
        self.site, self.servers = site, servers
        shutil.copy(HERE / "alert_jobs.py", site.folder / "jobs.py")
        self.main, self.second = (Redis.from_url(with_all_rights(one.url)) for one in servers)
        self.ports = {name: free_port() for name in ("main", "second", "cluster", "exporter")}
        written = site.run("-m", "framework", "monitoring", "write", str(site.folder / "monitoring"), *self._options())
        assert written.returncode == 0, written.stderr
        self.start_exporter()
        queues = ("steady", "slow", "failing", "held", "skipped", "paused", "cron")
        self.worker = self._start_worker("main", *queues, slots=10)
        self.second_worker = self._start_worker("second", "steady", "late", slots=5)
        self.cluster = site.start(
            "-m", "framework", "cluster", "-r", "jobs", "poison,hungry,long", "--timeout", "1", "--max-concurrency", "5",
            "--hard-rss", "400", FRAMEWORK_HEALTH__PORT=str(self.ports["cluster"]),
        )  # fmt: skip
        self.cluster.line(event_name="child.started")
        self.prometheus = PrometheusServer(
            prometheus,
            site.folder / "prometheus",
            {name: f"127.0.0.1:{port}" for name, port in self.ports.items()},
            site.folder / "monitoring" / "alerts.yml",
        )
        self._stop = threading.Event()
        self._steady = threading.Thread(target=self._push_steadily)
        self._steady.start()

    def _options(self) -> Iterator[str]:
        yield from ("--window-scale", SCALE)
        for name, value in THRESHOLDS.items():
            yield from ("--threshold", f"{name}={value}")

    def start_exporter(self, *program: str) -> None:
        program = program or ("-m", "framework")
        address = f"127.0.0.1:{self.ports['exporter']}"
        argv = [*program, "exporter", "-r", "jobs", "--listen", address]
        self.exporter = Process(argv, self.site.folder, self.site.environment("read-only"))
        self.site.processes.append(self.exporter)

    def _start_worker(self, shard: str, *queues: str, slots: int) -> Process:
        chosen = [word for queue in queues for word in ("-q", queue)]
        health = ("--health-port", str(self.ports[shard]))
        command = ("-m", "framework", "worker", "-r", "jobs", "--shard", shard, "-c", str(slots))
        return self.site.start(*command, *chosen, *health).ready()

    def push(
        self, name: str, queue: str, *args: object, count: int = 1, redis: Redis | None = None, **fields: object
    ) -> None:
        """Push jobs as another program does, with no process of ours."""
        now = time.time()
        jobs = [
            encoded(
                name, queue=queue, args=list(args), jid=os.urandom(12).hex(), created_at=now, enqueued_at=now, **fields
            )
            for _ in range(count)
        ]
        client = redis or self.main
        client.sadd("queues", queue)
        client.lpush(f"queue:{queue}", *jobs)

    def _push_steadily(self) -> None:
        """Push jobs to both shards, as an application does in its normal life."""
        while not self._stop.wait(STEADY_S):
            for one in (self.main, self.second):
                try:
                    self.push("SteadyWorker", "steady", redis=one)
                except Exception:
                    continue

    def operator(self, *words: str) -> None:
        done = self.site.run("-m", "framework", "jobs", *words, role="operator")
        assert done.returncode == 0, done.stderr

    def first_cause(self, alert: str) -> str:
        """Return what the runbook of the alert names first."""
        done = self.site.run("-m", "framework", "diagnose", "--alert", alert, "--json", role="operator")
        found = json.loads(done.stdout or "[]")
        return str(found[0]["code"]) if found else ""

    def close(self) -> None:
        self._stop.set()
        self._steady.join()
        self.prometheus.close()


class Rehearsal:
    """Inject faults, and note when their alerts fire and clear."""

    def __init__(self, one: Installation) -> None:
        self.one = one
        self.rows: list[dict[str, object]] = []

    def run(self, *faults: Fault) -> None:
        """Inject all faults, wait until each alert fires, remove them, and wait until each is clear."""
        early = [fault.alert for fault in faults if fault.fires_in(self.one.prometheus.firing())]
        assert early == [], "they fire before their faults"
        began = []
        for fault in faults:
            began.append(time.monotonic())
            fault.inject()
        fired = self._wait(faults, began, fires=True, limit_s=2 * FIRES_S)
        causes = {alert: self.one.first_cause(alert) for alert in dict.fromkeys(fault.alert for fault in faults)}
        ended = []
        for fault in faults:
            ended.append(time.monotonic())
            fault.remove()
        cleared = self._wait(faults, ended, fires=False, limit_s=CLEARS_S)
        for number, fault in enumerate(faults):
            row = {
                "alert": fault.alert,
                **({"burn_rate": fault.labels["burn_rate"]} if "burn_rate" in fault.labels else {}),
                "fault": fault.what,
                "fires_after_s": fired.get(number),
                "clears_after_s": cleared.get(number),
                "first_cause": causes[fault.alert],
            }
            self.rows.append(row)
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(self.rows, indent=1))

    def _wait(self, faults: tuple[Fault, ...], since: list[float], *, fires: bool, limit_s: float) -> dict[int, float]:
        found: dict[int, float] = {}
        deadline = time.monotonic() + limit_s
        while len(found) < len(faults) and time.monotonic() < deadline:
            firing = self.one.prometheus.firing()
            for number, fault in enumerate(faults):
                if number not in found and fault.fires_in(firing) == fires:
                    found[number] = round(time.monotonic() - since[number], 1)
                    sys.stdout.write(f"{fault.alert} {'fires' if fires else 'clears'} after {found[number]} s\n")
                    sys.stdout.flush()
            time.sleep(0.25)
        return found


class Repeated:
    """Do something again and again while a fault lasts."""

    def __init__(self, act: Callable[[], object], period_s: float) -> None:
        self._act, self._period_s = act, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        self._act()
        while not self._stop.wait(self._period_s):
            self._act()


@pytest.mark.campaign
@pytest.mark.timeout(3_000)
def test_every_alert_fires_within_a_minute_and_clears(prometheus, site, make_server):
    servers = [make_server("redis-server"), make_server("redis-server")]
    site.write(
        "redis.yml", {"shards": {name: {"url": one.url} for name, one in zip(("main", "second"), servers, strict=True)}}
    )
    site.write("application.yml", {"workers_module": "jobs"})
    one = Installation(prometheus, site, servers)
    rehearsal, began = Rehearsal(one), time.time()
    try:
        until(lambda: not one.prometheus.firing() and steady_runs(one) > 10, "the fleet is healthy", 120)
        for stage in (
            jobs_stage, late_stage, stopped_stage, busy_stage, cluster_stage, cron_stage, exporter_stage, redis_stage, away_stage,
        ):  # fmt: skip
            stage(one, rehearsal)
        unseen = never_seen(one.prometheus)
        draw(one.prometheus, began, REPORT.with_name("dashboards.svg"))
    finally:
        one.close()
    slow = [row for row in rehearsal.rows if (row["fires_after_s"] or 999) > FIRES_S or row["clears_after_s"] is None]
    assert slow == []
    assert unseen == UNUSED
    assert {row["alert"] for row in rehearsal.rows} == {rule.alert for rule in RULES}


UNUSED = {
    "application_worker_shard_batch_events_total",
    "application_worker_shard_workflows_total",
    "sidekiq_mem_total_bytes",
    "sidekiq_throttling_events_total",
}
"""Metrics of features that the jobs of this campaign do not use: their series begin with the first event."""


def never_seen(prometheus: PrometheusServer) -> set[str]:
    """Return the metrics of rules and dashboards that no scrape had."""
    queries = [*RECORDED.values(), *(rule.expression for rule in RULES)]
    queries += [query for dashboard in DASHBOARDS for query in dashboard.expressions()]
    names = {name for query in queries for name in metric_names(query)}
    return {name for name in names if not prometheus.get("query", query=f"last_over_time({name}[1h])")["result"]}


def steady_runs(one: Installation) -> float:
    found = one.prometheus.get("query", query='sum(gitlab_sli_sidekiq_execution_total{worker="SteadyWorker"})')[
        "result"
    ]
    return float(found[0]["value"][1]) if found else 0


def burns(alert: str, what: str, first: Fault, **labels: str) -> tuple[Fault, ...]:
    """Return the faults of the three burn rates of a service level: one cause, that of the first."""
    rates = ("14.4", "6", "1")
    return tuple(
        Fault(
            alert, what, *((first.inject, first.remove) if rate == "14.4" else ()), labels={**labels, "burn_rate": rate}
        )
        for rate in rates
    )


def jobs_stage(one: Installation, rehearsal: Rehearsal) -> None:
    """Jobs that fail, wait, are held or skipped, while every process is healthy."""
    failing = Repeated(lambda: one.push("FailWorker", "failing", count=10, retry=0), 0.5)
    held = Repeated(lambda: one.push("HeldWorker", "held", 0.05, count=20), 0.5)
    skipped = Repeated(lambda: one.push("SkippedWorker", "skipped"), 0.5)
    orphans = Repeated(lambda: one.push("PushWorker", "steady"), 1)
    ghosts = Repeated(lambda: one.push("GhostWorker", "steady"), 1)

    paused = Repeated(lambda: one.push("PausedWorker", "paused"), 1)

    def pause() -> None:
        one.operator("pause-queue", "paused")
        paused.start()

    def unpause() -> None:
        paused.stop()
        one.operator("unpause-queue", "paused")

    def skip() -> None:
        one.operator("drop", "SkippedWorker", "--reason", "the campaign", "--for", "1h")
        skipped.start()

    def unskip() -> None:
        skipped.stop()
        one.operator("flags", "clear", "SkippedWorker")

    def forget_ghosts() -> None:
        ghosts.stop()
        one.main.delete("schedule")

    def serve_no_more() -> None:
        orphans.stop()
        one.main.delete("queue:orphan")

    rehearsal.run(
        *burns("ExecutionErrorBurn", "20 failing jobs per second", Fault("", "", failing.start, failing.stop), urgency="low"),
        Fault("DeadSetGrowing", "20 failing jobs per second without retries"),
        Fault("OldestHeldTooOld", "jobs of a class with a limit of 1 arrive too fast", held.start, held.stop),
        Fault("HeldJobsGrowing", "jobs of a class with a limit of 1 arrive too fast"),
        Fault("JobsSkippedTooLong", "a drop flag left set", skip, unskip),
        Fault("QueuePausedTooLong", "a queue left paused", pause, unpause),
        Fault(
            "ClassNotDequeued",
            "jobs for a queue that no process serves",
            orphans.start,
            serve_no_more,
            {"worker": "OrphanWorker"},
        ),
        Fault("QueueNotProcessed", "jobs for a queue that no process serves", labels={"queue": "orphan"}),
        Fault("OldestJobTooOld", "jobs for a queue that no process serves", labels={"queue": "orphan"}),
        Fault("UnknownClass", "jobs of a class that no process has", ghosts.start, forget_ghosts),
    )  # fmt: skip


def late_stage(one: Installation, rehearsal: Rehearsal) -> None:
    cause = Fault("", "", lambda: one.push("LateWorker", "late", count=300, redis=one.second))
    what = "300 jobs of 0.5 s at once for 5 slots"
    rehearsal.run(*burns("QueueingApdexBurn", what, cause, destination_shard_redis="second", urgency="high"))


def stopped_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def stop() -> None:
        job = json.loads(encoded("SteadyWorker", queue="steady", jid=os.urandom(12).hex()))
        one.second.zadd("schedule", {json.dumps(job): time.time() + 1})
        one.second_worker.send(signal.SIGSTOP)

    shard = {"shard": "second"}
    rehearsal.run(
        Fault(
            "HeartbeatLate",
            "the only process of a shard frozen",
            stop,
            lambda: one.second_worker.send(signal.SIGCONT),
            shard,
        ),
        Fault("NoProgress", "the only process of a shard frozen", labels=shard),
        Fault("SchedulerStalled", "the only process of a shard frozen, a job is due", labels=shard),
    )


def busy_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def fill() -> None:
        for number in range(40):
            one.push("SlowWorker", "slow", 10.2 + number % 10 / 2)
        one.push("LongWorker", "long", 30.0, count=10)

    cause = Fault("", "", fill)
    rehearsal.run(
        Fault("SlotsSaturated", "slow jobs in every slot", labels={"shard": "main"}),
        *burns("ExecutionApdexBurn", "runs of 10.2 to 15 s, the target is 10 s", cause, urgency="high"),
    )


def children_of(one: Installation) -> list[int]:
    started = [line["child_pid"] for line in one.cluster.find(event_name="child.started")]
    return [
        pid for pid in started if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def cluster_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def busy_child() -> int | None:
        """Return the only child, once it runs five long jobs."""
        if len(pids := children_of(one)) != 1:
            return None
        started = one.cluster.find(job_status="start", pid=pids[0], **{"class": "LongWorker"})
        return pids[0] if len(started) >= 5 else None

    def fill_and_send(number: int) -> None:
        until(lambda: len(children_of(one)) == 1, "the replaced child has ended")
        one.push("LongWorker", "long", 20.0, count=5)
        os.kill(until(busy_child, "the long jobs run"), number)

    # First: the memory of a young child is not watched.
    rehearsal.run(
        Fault("MemoryLimitExceeded", "a job that takes 500 MB", lambda: one.push("HungryWorker", "hungry", 500))
    )
    rehearsal.run(
        Fault("RecoveredSpike", "kill -9 of a process with 5 jobs", lambda: fill_and_send(signal.SIGKILL)),
        Fault("ProcessesFlapping", "kill -9 of a process with 5 jobs"),
    )
    rehearsal.run(
        Fault(
            "JobsQuarantined", "a job that kills each process that runs it", lambda: one.push("PoisonWorker", "poison")
        )
    )
    stop = "a stop with 5 running jobs of 20 s and a timeout of 1 s"
    rehearsal.run(Fault("ForcedShutdowns", stop, lambda: fill_and_send(signal.SIGTERM)))


def cron_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def processes() -> list[int]:
        return [one.worker.pid, *children_of(one)]

    def freeze() -> None:
        for pid in processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw() -> None:
        for pid in processes():
            os.kill(pid, signal.SIGCONT)

    # The tick of the next minute is the one that nobody pushes.
    until(lambda: 40 < time.time() % 60 < 50, "the end of a minute", 70)
    rehearsal.run(Fault("CronMissed", "all processes of main frozen", freeze, thaw))


def exporter_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def use_wrong_clock() -> None:
        one.exporter.end()
        one.start_exporter("-c", WRONG_CLOCK)

    def use_right_clock() -> None:
        one.exporter.end()
        one.start_exporter()

    rehearsal.run(Fault("ClockSkew", "the clock of a host is 5 s ahead", use_wrong_clock, use_right_clock))
    rehearsal.run(Fault("FleetMetricsMissing", "the exporter has stopped", one.exporter.end, one.start_exporter))


def redis_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def limit(factor: float) -> None:
        one.second.config_set("maxmemory", int(one.second.info("memory")["used_memory"] * factor))

    def unlimited() -> None:
        one.second.config_set("maxmemory", 0)

    def evict() -> None:
        one.second.config_set("maxmemory-policy", "allkeys-random")
        one.second.set("junk", b"x" * 5_000_000)
        limit(0.7)

    def restore() -> None:
        unlimited()
        one.second.config_set("maxmemory-policy", "noeviction")

    second = {"shard": "second"}
    rehearsal.run(
        Fault("RedisMemoryHigh", "maxmemory near the used memory", lambda: limit(1.2), unlimited, second),
        Fault("RedisMemoryFull", "maxmemory near the used memory", labels=second),
        Fault(
            "UnsafeRedisConfig",
            "a maxmemory-policy that evicts",
            lambda: one.second.config_set("maxmemory-policy", "volatile-ttl"),
            lambda: one.second.config_set("maxmemory-policy", "noeviction"),
            second,
        ),
    )
    rehearsal.run(
        Fault("RedisEvictsKeys", "maxmemory below the used memory, and a policy that evicts", evict, restore, second)
    )


PUSHES = """
import time
from jobs import KeptWorker
KeptWorker.perform_async()
print("pushed", flush=True)
time.sleep(600)
"""


def away_stage(one: Installation, rehearsal: Rehearsal) -> None:
    producers: list[Process] = []

    def freeze() -> None:
        os.kill(one.servers[1].pid, signal.SIGSTOP)
        environment = one.site.environment("producer", FRAMEWORK_RELIABLE_PUSH__ENABLED="true")
        producers.append(Process(["-c", PUSHES], one.site.folder, environment))

    def thaw() -> None:
        os.kill(one.servers[1].pid, signal.SIGCONT)

    rehearsal.run(
        Fault("ShardAway", "a frozen Redis", freeze, thaw, {"shard": "second"}),
        Fault("PushesKept", "a push to a frozen Redis"),
    )
    for process in producers:
        process.kill()
