"""Make every alert fire by its fault, on a real Prometheus with the written rules, and clear after it.

Everything waits for conditions, so that a loaded machine makes it slower and no less right: a fault counts from the moment in which
it is in force, and its end from the moment in which it is over. The minute is the only time that is asserted.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from framework.cluster.child import MIN_AGE_S
from framework.features.observability.alert_rules import RECORDED, RULES
from framework.features.observability.dashboards import DASHBOARDS
from framework.features.observability.rules import metric_names
from framework.wire import keys
from tests.chaos.conftest import HERE
from tests.chaos.dashboard_picture import draw
from tests.chaos.test_access import Authority
from tests.harness import ROOT, Process, Site, encoded
from tests.prometheus import PrometheusServer, free_port, prometheus
from tests.servers.guarded import with_all_rights

__all__ = ["prometheus"]

SCALE = "0.003"
"""Three hours are 32 s: every alert can fire within the minute that it has."""
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
OPTIONS = {"shard": "--shard", "destination_shard_redis": "--shard", "worker": "--class", "queue": "--queue"}
"""The options of `diagnose` for the labels of an alert."""
FIRES_S = 60.0
"""The time that the issue gives an alert."""
WAITS_S = 300.0
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


def wait(condition: Callable[[], object], what: str, timeout_s: float = WAITS_S) -> None:
    """Wait until ``condition`` is true. It may be dear: it is asked four times a second."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not true within {timeout_s:g} s: {what}"
        time.sleep(0.25)


def begun(process: Process, event: str) -> Process:
    """Return the process as soon as it has logged the event."""
    wait(lambda: process.find(event_name=event), f"{event} of a process")
    return process


@dataclass
class Fault:
    """A fault, and the alert that must fire for it."""

    alert: str
    what: str
    cause: str
    """The code that `diagnose --alert` must name first, or one of several; a word after a colon must be in its sentence."""
    inject: Callable[[], object] = lambda: None
    """Returns when the fault is in force."""
    remove: Callable[[], object] = lambda: None
    """Returns when the fault is over."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the alert, beside its name."""

    @property
    def rate(self) -> str:
        return f" {self.labels['burn_rate']}x" if "burn_rate" in self.labels else ""

    def found_in(self, firing: list[dict[str, str]]) -> dict[str, str] | None:
        """Return the labels of the alert, if it is among those that fire."""
        wanted = {"alertname": self.alert, **self.labels}
        return next((one for one in firing if wanted.items() <= one.items()), None)

    def is_named(self, code: str, sentence: str) -> bool:
        """Return whether this is the fault that the runbook has named."""
        codes, _, word = self.cause.partition(":")
        return code in codes.split("|") and word in sentence


class Secure:
    """A server with TLS, whose certificate can be replaced by one that ends soon."""

    def __init__(self, server, folder: Path) -> None:
        authority = Authority(folder)
        self._good, self._ending = authority.certificate("good.pem", 60), authority.certificate("ending.pem", 1)
        self._client = Redis.from_url(with_all_rights(server.url))
        self.ca_file, self.port = folder / "ca.pem", free_port()
        files = {"cert-file": self._good, "key-file": folder / "server.key", "ca-cert-file": self.ca_file}
        options = {"auth-clients": "no", **{name: str(path) for name, path in files.items()}, "port": str(self.port)}
        try:
            self._client.config_set(*chain(*((f"tls-{name}", value) for name, value in options.items())))
        except ResponseError as error:
            pytest.skip(f"this redis-server was built without TLS: {error}")

    def use_ending(self) -> None:
        """Show a certificate that ends tomorrow, to connections that begin from now on."""
        self._client.config_set("tls-cert-file", str(self._ending))
        self._client.client_kill_filter(_type="normal")

    def use_good(self) -> None:
        self._client.config_set("tls-cert-file", str(self._good))


class Installation:
    """Three shards, two workers, a cluster, an exporter, and a Prometheus that scrapes them."""

    def __init__(self, prometheus: str, site: Site, servers, secure: Secure) -> None:
        self.site, self.servers, self.secure = site, servers, secure
        shutil.copy(HERE / "alert_jobs.py", site.folder / "jobs.py")
        self.main, self.second = (Redis.from_url(with_all_rights(one.url)) for one in servers)
        self.ports = {name: free_port() for name in ("main", "second", "cluster", "exporter")}
        written = site.run("-m", "framework", "monitoring", "write", str(site.folder / "monitoring"), *self._options())
        assert written.returncode == 0, written.stderr
        self.start_exporter()
        queues = ("steady", "slow", "failing", "held", "skipped", "paused", "cron")
        self.worker = self.start_worker("main", *queues, slots=10)
        self.second_worker = self.start_worker("second", "steady", "late", slots=5)
        self.cluster = site.start(
            "-m", "framework", "cluster", "-r", "jobs", "poison,hungry,long", "--timeout", "1", "--max-concurrency", "5",
            "--hard-rss", "400", FRAMEWORK_HEALTH__PORT=str(self.ports["cluster"]),
        )  # fmt: skip
        begun(self.cluster, "process.ready")
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

    def start_exporter(self) -> None:
        address = f"127.0.0.1:{self.ports['exporter']}"
        argv = ["-m", "framework", "exporter", "-r", "jobs", "--listen", address]
        self.exporter = Process(argv, self.site.folder, self.site.environment("read-only"))
        self.site.processes.append(self.exporter)

    def start_worker(self, shard: str, *queues: str, slots: int, program: tuple[str, ...] = ()) -> Process:
        """Start a worker; without a ``program`` of its own it is scraped."""
        chosen = [word for queue in queues for word in ("-q", queue)]
        health = () if program else ("--health-port", str(self.ports[shard]))
        command = (*(program or ("-m", "framework")), "worker", "-r", "jobs", "--shard", shard, "-c", str(slots))
        return begun(self.site.start(*command, *chosen, *health), "process.ready")

    def push(
        self, name: str, queue: str, *args: object, count: int = 1, redis: Redis | None = None, **fields: object
    ) -> set[str]:
        """Push jobs as another program does, with no process of ours; return their ids."""
        now = time.time()
        jids = {os.urandom(12).hex() for _ in range(count)}
        jobs = [
            encoded(name, queue=queue, args=list(args), jid=jid, created_at=now, enqueued_at=now, **fields)
            for jid in jids
        ]
        client = redis or self.main
        client.sadd("queues", queue)
        client.lpush(f"queue:{queue}", *jobs)
        return jids

    def _push_steadily(self) -> None:
        """Push jobs to both shards, as an application does in its normal life."""
        while not self._stop.wait(STEADY_S):
            for one in (self.main, self.second):
                with suppress(Exception):
                    self.push("SteadyWorker", "steady", redis=one)

    def in_flight(self, *names: str) -> int:
        """Return how many jobs of these classes the processes have."""
        texts = [f'"{name}"'.encode() for name in names]
        lists = [
            client.lrange(key, 0, -1) for client in (self.main, self.second) for key in client.scan_iter("aw:working:*")
        ]
        return sum(any(text in job for text in texts) for jobs in lists for job in jobs)

    def end_jobs(self, name: str, queue: str) -> None:
        """Remove the waiting jobs of a queue, and wait for the running ones."""
        for client in (self.main, self.second):
            client.delete(f"queue:{queue}")
        wait(lambda: not self.in_flight(name), f"the last job of {name} has ended")

    def operator(self, *words: str) -> None:
        """Run a command on the shard with the fault: a loaded machine has no time for the others."""
        done = self.site.run("-m", "framework", "jobs", *words, "--shard", "main", role="operator")
        assert done.returncode == 0, done.stderr

    def first_cause(self, labels: dict[str, str]) -> tuple[str, str]:
        """Return what the runbook of an alert names first: its code, and its sentence or what was wrong.

        The labels of the alert are options of the command, as docs/operate/troubleshooting.md says.
        """
        options = [word for label, option in OPTIONS.items() if labels.get(label) for word in (option, labels[label])]
        command = ("-m", "framework", "diagnose", "--alert", labels["alertname"], *options, "--json")
        try:
            done = self.site.run(*command, role="operator")
        except subprocess.TimeoutExpired:
            return "", "the command has not ended in time"
        found = json.loads(done.stdout or "[]")
        return (str(found[0]["code"]), str(found[0]["cause"])) if found else ("", done.stderr.strip())

    def close(self) -> None:
        self._stop.set()
        self._steady.join()
        self.prometheus.close()


class Rehearsal:
    """Inject faults, and note when their alerts fire and clear."""

    def __init__(self, one: Installation, say: Callable[[str], object]) -> None:
        self.one, self.say = one, say
        self.rows: list[dict[str, object]] = []
        self.problems: list[str] = []
        """What was not as it must be."""
        # One at a time: a command takes a processor for a second.
        self._runbooks = ThreadPoolExecutor(1)

    def stage(self, stage: "Callable[[Installation, Rehearsal], None]") -> None:
        """Run the faults of a stage. After an error the further stages run nevertheless."""
        self.say(f"--- {stage.__name__.removesuffix('_stage')}")
        try:
            stage(self.one, self)
        except (Exception, pytest.fail.Exception) as error:
            self.problems.append(f"{stage.__name__}: {error!r}")
            self.say(self.problems[-1])

    def run(self, *faults: Fault) -> None:
        """Inject all faults, wait until each alert fires, remove them, and wait until each is clear."""
        early = self._wait(faults, fires=False)
        self.problems += [f"{fault.alert} fires before its fault" for at, fault in enumerate(faults) if at not in early]
        causes: dict[str, Future[tuple[str, str]]] = {}
        began, ended, cleared = list[float](), list[float](), set[int]()
        try:
            for fault in faults:
                fault.inject()
                began.append(time.time())
            self._wait(faults, fires=True, limit_s=2 * FIRES_S, causes=causes)
            for one in causes.values():
                one.result()
        finally:
            for fault in faults:
                try:
                    fault.remove()
                except (Exception, pytest.fail.Exception) as error:
                    self.problems.append(f"{fault.alert}: its fault could not be removed: {error!r}")
                ended.append(time.time())
        cleared = self._wait(faults, fires=False)
        for number, fault in enumerate(faults):
            times = self._firing_times(fault, began[number])
            # The next evaluation after the last one with the alert.
            clear_s = max(0.0, times[-1] + 1 - ended[number]) if times and number in cleared else None
            code, text = causes[fault.alert].result() if fault.alert in causes else ("", "the alert did not fire")
            row = {
                "alert": fault.alert,
                **({"burn_rate": fault.labels["burn_rate"]} if "burn_rate" in fault.labels else {}),
                "fault": fault.what,
                "fires_after_s": round(max(0.0, times[0] - began[number]), 1) if times else None,
                "clears_after_s": None if clear_s is None else round(clear_s, 1),
                "first_cause": code,
                "cause": text,
            }
            self.rows.append(row)
            if not times or times[0] - began[number] > FIRES_S:
                self.problems.append(f"{fault.alert} did not fire within a minute: {row}")
            if number not in cleared:
                self.problems.append(f"{fault.alert} did not clear: {row}")
            if not fault.is_named(code, text):
                self.problems.append(f"{fault.alert}: the first cause is not {fault.cause}: {row}")
            self.say(
                f"{fault.alert}{fault.rate} fires after {row['fires_after_s']} s, clears after {row['clears_after_s']} s"
            )
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(json.dumps(self.rows, indent=1))
        REPORT.with_suffix(".md").write_text("".join(map(table_row, self.rows)))

    def _wait(
        self,
        faults: tuple[Fault, ...],
        *,
        fires: bool,
        limit_s: float = WAITS_S,
        causes: dict[str, Future[tuple[str, str]]] | None = None,
    ) -> set[int]:
        """Return the faults whose alert fires, or is clear. For ``causes`` the runbook runs as soon as one fires."""
        found = set[int]()
        deadline = time.monotonic() + limit_s
        while len(found) < len(faults) and time.monotonic() < deadline:
            firing = self.one.prometheus.firing()
            for number, fault in enumerate(faults):
                labels = fault.found_in(firing)
                if number not in found and (labels is not None) == fires:
                    found.add(number)
                    if causes is not None and labels is not None and fault.alert not in causes:
                        self.say(f"{fault.alert} fires")
                        causes[fault.alert] = self._runbooks.submit(self._ask, fault, labels)
            time.sleep(0.25)
        return found

    def _firing_times(self, fault: Fault, began: float) -> list[float]:
        """Return the seconds at which the alert has fired since its fault, as Prometheus has recorded them."""
        matchers = {"alertname": fault.alert, "alertstate": "firing", **fault.labels}
        query = f"ALERTS{{{','.join(f'{name}={json.dumps(value)}' for name, value in matchers.items())}}}"
        series = self.one.prometheus.get("query_range", query=query, start=began, end=time.time(), step=1)["result"]
        return sorted(float(at) for one in series for at, _ in one["values"])

    def _ask(self, fault: Fault, labels: dict[str, str]) -> tuple[str, str]:
        """Return the first cause. On a loaded machine a shard, or the command, may need longer than it has: then once more."""
        for _ in range(3):
            code, text = self.one.first_cause(labels)
            self.say(f"{fault.alert} has the first cause {code or 'none'}: {text}")
            if code not in ("", "shard_away") or fault.is_named(code, text):
                break
        return code, text


def table_row(row: dict[str, object]) -> str:
    """Return the row of the table in docs/internals/chaos.md."""
    rate = f", {row['burn_rate']} times" if "burn_rate" in row else ""
    times = ["not" if row[name] is None else f"{row[name]:.0f} s" for name in ("fires_after_s", "clears_after_s")]
    return f"| `{row['alert']}`{rate} | {row['fault']} | {' | '.join(times)} | `{row['first_cause']}` |\n"


class Repeated:
    """Do something again and again while a fault lasts."""

    def __init__(self, act: Callable[[], object], period_s: float) -> None:
        self._act, self._period_s = act, period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Do it once, and from now on in a thread."""
        self._act()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._act()


@pytest.mark.campaign
@pytest.mark.timeout(3_600)
def test_every_alert_fires_within_a_minute_and_clears(prometheus, site, make_server, capfd):
    began = time.time()
    names = os.environ.get("ALERT_STAGES", "").split()
    chosen = [one for one in STAGES if not names or one.__name__.removesuffix("_stage") in names]

    def say(text: str) -> None:
        with capfd.disabled():
            sys.stdout.write(f"{time.time() - began:5.0f} s  {text}\n")
            sys.stdout.flush()

    servers = [make_server("redis-server") for _ in range(3)]
    (site.folder / "tls").mkdir()
    secure = Secure(servers.pop(), site.folder / "tls")
    shards = {name: {"url": one.url} for name, one in zip(("main", "second"), servers, strict=True)}
    shards["secure"] = {"url": f"rediss://127.0.0.1:{secure.port}/0", "tls": {"ca_file": str(secure.ca_file)}}
    site.write("redis.yml", {"shards": shards})
    site.write("application.yml", {"workers_module": "jobs"})
    say("starts three Redis servers, two workers, a cluster, an exporter and a Prometheus")
    one = Installation(prometheus, site, servers, secure)
    rehearsal = Rehearsal(one, say)
    try:
        wait(lambda: not one.prometheus.firing() and steady_runs(one) > 10, "the fleet is healthy, and no alert fires")
        for stage in chosen:
            rehearsal.stage(stage)
        unseen = never_seen(one.prometheus)
        draw(one.prometheus, began, REPORT.with_name("dashboards.svg"))
    finally:
        one.close()
    say(f"{len(rehearsal.rows)} rows: {REPORT.with_suffix('.md')}")
    assert rehearsal.problems == []
    if names:
        pytest.skip("only some stages have run (ALERT_STAGES)")
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


def burns(alert: str, what: str, cause: str, first: Fault, **labels: str) -> tuple[Fault, ...]:
    """Return the faults of the three burn rates of a service level: one fault, that of the first."""
    rates = ("14.4", "6", "1")
    return tuple(
        Fault(
            alert,
            what,
            cause,
            *((first.inject, first.remove) if rate == "14.4" else ()),
            labels={**labels, "burn_rate": rate},
        )
        for rate in rates
    )


def jobs_stage(one: Installation, rehearsal: Rehearsal) -> None:
    """Jobs that fail, are held, skipped or unknown, while every process is healthy."""
    failing = Repeated(lambda: one.push("FailWorker", "failing", count=10, retry=0), 0.5)
    held = Repeated(lambda: one.push("HeldWorker", "held", 0.05, count=20), 0.5)
    skipped = Repeated(lambda: one.push("SkippedWorker", "skipped"), 0.5)
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

    def let_go() -> None:
        """Stop the pushes, and remove the held jobs: their limit would need minutes for them."""
        held.stop()
        one.main.delete("queue:held", f"{keys.limit('HeldWorker')}:waiting:")
        one.end_jobs("HeldWorker", "held")

    def forget_ghosts() -> None:
        ghosts.stop()
        one.main.delete("schedule")

    fails, arrives = "20 failing jobs per second", "jobs of a class with a limit of 1 arrive too fast"
    rehearsal.run(
        *burns(
            "ExecutionErrorBurn",
            fails,
            "failing:FailWorker",
            Fault("", "", "", failing.start, failing.stop),
            urgency="low",
        ),
        Fault("DeadSetGrowing", f"{fails} without retries", "failing:FailWorker"),
        Fault("OldestHeldTooOld", arrives, "limit_reached:HeldWorker", held.start, let_go),
        Fault("HeldJobsGrowing", arrives, "limit_reached:HeldWorker"),
        Fault("JobsSkippedTooLong", "a drop flag left set", "dropping:SkippedWorker", skip, unskip),
        Fault("QueuePausedTooLong", "a queue left paused", "queue_paused:paused", pause, unpause),
        Fault(
            "UnknownClass",
            "jobs of a class that no process has",
            "unknown_class:GhostWorker",
            ghosts.start,
            forget_ghosts,
        ),
    )


def unserved_stage(one: Installation, rehearsal: Rehearsal) -> None:
    orphans = Repeated(lambda: one.push("PushWorker", "steady"), 1)

    def serve_no_more() -> None:
        orphans.stop()
        one.end_jobs("PushWorker", "orphan")

    what, labels = "jobs for a queue that no process serves", {"queue": "orphan"}
    rehearsal.run(
        Fault("ClassNotDequeued", what, "unserved:orphan", orphans.start, serve_no_more, {"worker": "OrphanWorker"}),
        Fault("QueueNotProcessed", what, "unserved:orphan", labels=labels),
        Fault("OldestJobTooOld", what, "unserved:orphan", labels=labels),
    )


PUSHES_LOCKED = "from jobs import LockedWorker; LockedWorker.perform_async()"


def late_stage(one: Installation, rehearsal: Rehearsal) -> None:
    """A flood on one shard, and a lock without its job on the other."""
    duplicates = Repeated(lambda: one.push("PushLockedWorker", "steady"), 0.5)

    def leave_lock() -> None:
        """Delete the job of a lock, as a program does that knows no locks; no process serves its queue."""
        done = one.site.run("-c", PUSHES_LOCKED)
        assert done.returncode == 0, done.stderr
        assert one.main.delete("queue:locked") == 1
        duplicates.start()

    def delete_lock() -> None:
        duplicates.stop()
        one.main.delete(*one.main.scan_iter(f"{keys.LOCKS}*"))

    flood = Repeated(lambda: one.push("LateWorker", "late", count=150, redis=one.second), 5)

    def end_flood() -> None:
        flood.stop()
        one.end_jobs("LateWorker", "late")

    what = "30 jobs of 0.5 s per second for 5 slots"
    shard = {"destination_shard_redis": "second", "urgency": "high"}
    rehearsal.run(
        *burns("QueueingApdexBurn", what, "flood:late", Fault("", "", "", flood.start, end_flood), **shard),
        Fault("OrphanLocks", "the job of a lock deleted by hand", "lock_left:LockedWorker", leave_lock, delete_lock),
    )


def stopped_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def stop() -> None:
        job = json.loads(encoded("SteadyWorker", queue="steady", jid=os.urandom(12).hex()))
        one.second.zadd("schedule", {json.dumps(job): time.time() + 1})
        one.second_worker.send(signal.SIGSTOP)

    shard, what = {"shard": "second"}, "the only process of a shard frozen"

    def go_on() -> None:
        one.second_worker.send(signal.SIGCONT)

    rehearsal.run(
        Fault("HeartbeatLate", what, "process_silent", stop, go_on, shard),
        Fault("NoProgress", what, "process_silent|unserved", labels=shard),
        Fault("SchedulerStalled", f"{what}, a job is due", "process_silent", labels=shard),
    )


def busy_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def fill() -> None:
        for number in range(40):
            one.push("SlowWorker", "slow", 10.2 + number % 10 * 2)
        one.push("LongWorker", "long", 30.0, count=10)
        wait(lambda: one.in_flight("SlowWorker") >= 10, "the slow jobs run")

    what = "runs of 10 to 28 s, the target is 10 s"

    def empty() -> None:
        one.end_jobs("SlowWorker", "slow")
        one.end_jobs("LongWorker", "long")

    cause = Fault("", "", "", fill, empty)
    rehearsal.run(
        *burns("ExecutionApdexBurn", what, "slow_class:SlowWorker", cause, urgency="high"),
        Fault("SlotsSaturated", "slow jobs in every slot", "slow_class|few_slots", labels={"shard": "main"}),
    )


def age_of(pid: int) -> float:
    """Return the seconds since the start of a process."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - started


def children_of(one: Installation) -> list[int]:
    started = [line["child_pid"] for line in one.cluster.find(event_name="child.started")]
    return [
        pid for pid in started if Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def cluster_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def only_child() -> int | None:
        return pids[0] if len(pids := children_of(one)) == 1 else None

    def fill_and_send(number: int) -> None:
        """Send a signal to the child while it runs five jobs that have met no death."""
        one.end_jobs("LongWorker", "long")
        jids = one.push("LongWorker", "long", 20.0, count=5)

        def runs_them() -> bool:
            started = one.cluster.find(job_status="start", pid=only_child())
            return jids <= {line["jid"] for line in started}

        wait(runs_them, "the child runs the five jobs")
        for pid in children_of(one):
            os.kill(pid, number)

    def end_long_jobs() -> None:
        one.end_jobs("LongWorker", "long")

    # First: the memory of a young child is not watched.
    wait(lambda: (pid := only_child()) and age_of(pid) > MIN_AGE_S, "the child is old enough")
    rehearsal.run(
        Fault(
            "MemoryLimitExceeded",
            "a job that takes 500 MB",
            "large_process:HungryWorker",
            lambda: one.push("HungryWorker", "hungry", 500),
            lambda: one.end_jobs("HungryWorker", "hungry"),
        )
    )
    killed = "kill -9 of a process with 5 jobs"
    kills = Repeated(lambda: fill_and_send(signal.SIGKILL), 20)

    def stop_kills() -> None:
        kills.stop()
        end_long_jobs()

    rehearsal.run(
        Fault("RecoveredSpike", killed, "process_died", kills.start, stop_kills),
        Fault("ProcessesFlapping", killed, "process_died"),
    )
    poison = Repeated(lambda: one.push("PoisonWorker", "poison"), 20)

    def end_poison() -> None:
        poison.stop()
        one.end_jobs("PoisonWorker", "poison")
        one.main.delete("interrupted")

    what = "a job that kills each process that runs it"
    rehearsal.run(Fault("JobsQuarantined", what, "poison:PoisonWorker", poison.start, end_poison))
    what = "a stop with 5 running jobs of 20 s and a timeout of 1 s"
    rehearsal.run(
        Fault("ForcedShutdowns", what, "cut_off:LongWorker", lambda: fill_and_send(signal.SIGTERM), end_long_jobs)
    )


def cron_stage(one: Installation, rehearsal: Rehearsal) -> None:
    """Every process of a shard is frozen: no tick of the next minute is pushed, and no slot renewed."""
    limit = keys.limit("HeldWorker")

    def processes() -> list[int]:
        # The supervisor first: it would replace its child.
        return [one.cluster.pid, one.worker.pid, *children_of(one)]

    def freeze() -> None:
        wait(lambda: 35 < time.time() % 60 < 45, "the end of a minute")
        one.push("HeldWorker", "held", 40.0)
        one.push("HeldWorker", "held", 0.05, count=3)
        wait(
            lambda: one.main.zcard(f"{limit}:running") and one.main.zcard(f"{limit}:waiting:"),
            "a job has the only slot, and others wait for it",
        )
        for pid in processes():
            os.kill(pid, signal.SIGSTOP)

    def thaw() -> None:
        for pid in reversed(processes()):
            os.kill(pid, signal.SIGCONT)
        one.end_jobs("HeldWorker", "held")

    what = "all processes of a shard frozen"
    rehearsal.run(
        Fault("CronMissed", what, "process_silent", freeze, thaw),
        Fault("LeakedSlots", f"{what}, one of them has the slot of a limit", "process_silent|slots_leaked"),
    )


def clocks_stage(one: Installation, rehearsal: Rehearsal) -> None:
    """A wrong clock, lost data and an old certificate."""
    hosts: list[Process] = []

    def start_wrong() -> None:
        hosts.append(one.start_worker("second", "clock", slots=1, program=("-c", WRONG_CLOCK)))

    def end_wrong() -> None:
        hosts[0].end()

    second = {"shard": "second"}
    rehearsal.run(
        Fault("ClockSkew", "the clock of a host is 5 s ahead", "clock_skew", start_wrong, end_wrong, second),
        Fault("CertificateExpiry", "a certificate that ends tomorrow", "certificate_ends", one.secure.use_ending,
              one.secure.use_good, {"shard": "secure"}),
        Fault("DataLossSuspected", "FLUSHALL", "data_lost", one.second.flushall, labels=second),
    )  # fmt: skip


def exporter_stage(one: Installation, rehearsal: Rehearsal) -> None:
    what = "the exporter has stopped"
    rehearsal.run(Fault("FleetMetricsMissing", what, "no_figures", one.exporter.end, one.start_exporter))


def redis_stage(one: Installation, rehearsal: Rehearsal) -> None:
    def limit(factor: float) -> None:
        one.second.config_set("maxmemory", int(one.second.info("memory")["used_memory"] * factor))

    def unlimited() -> None:
        one.second.config_set("maxmemory", 0)

    def policy(name: str) -> None:
        one.second.config_set("maxmemory-policy", name)

    def evict() -> None:
        policy("allkeys-random")
        one.second.set("junk", b"x" * 5_000_000)
        limit(0.7)

    def restore() -> None:
        unlimited()
        policy("noeviction")

    second, near, evicts = {"shard": "second"}, "maxmemory near the used memory", "a maxmemory-policy that evicts"
    use_volatile, use_safe = (lambda: policy("volatile-ttl")), (lambda: policy("noeviction"))
    rehearsal.run(
        Fault("RedisMemoryHigh", near, "memory_full", lambda: limit(1.2), unlimited, second),
        Fault("RedisMemoryFull", near, "memory_full", labels=second),
        Fault("UnsafeRedisConfig", evicts, "evicts", use_volatile, use_safe, second),
    )
    what = "maxmemory below the used memory, and a policy that evicts"
    rehearsal.run(Fault("RedisEvictsKeys", what, "evicts", evict, restore, second))


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

    def is_kept() -> None:
        wait(lambda: b"pushed" in producers[0].log.read_bytes(), "the push has returned")

    def thaw() -> None:
        os.kill(one.servers[1].pid, signal.SIGCONT)

    rehearsal.run(
        Fault("ShardAway", "a frozen Redis", "shard_away", freeze, thaw, {"shard": "second"}),
        Fault("PushesKept", "a push to a frozen Redis", "shard_away", is_kept),
    )
    for process in producers:
        process.kill()


STAGES = (
    *(jobs_stage, unserved_stage, late_stage, stopped_stage, busy_stage, cluster_stage, cron_stage, clocks_stage),
    *(exporter_stage, redis_stage, away_stage),
)
