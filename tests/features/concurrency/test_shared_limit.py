"""A limit that holds on all shards together, with real processes on several servers."""

import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from framework.features.concurrency.admin import read_limits
from framework.features.moves.keys import MOVES
from framework.store.connect import server_time
from framework.wire import keys
from tests.harness import ROOT, encoded, until

NAMES = ("main", "second", "third", "fourth")
FIFTY = 50


class SharedFleet:
    """Servers of several shards, with processes on each of them."""

    def __init__(self, site, servers):
        self.site, self.servers = site, servers
        self.clients = {name: server.open() for name, server in servers.items()}
        shards = {name: {"url": server.url} for name, server in servers.items()}
        site.write("redis.yml", {"shards": shards, "roles": {"meta": "main"}})

    def worker(self, name, threads):
        return self.site.hurried_worker("-q", "default", "-c", str(threads), "--shard", name)

    def push(self, name, worker, count, *arguments):
        jobs = [
            encoded(worker, args=[f"{name} {number}", *arguments], jid=f"{name}-{number}") for number in range(count)
        ]
        for at in range(0, count, 1_000):
            self.clients[name].lpush("queue:default", *jobs[at : at + 1_000])

    def running(self, worker):
        return {name: client.zcard(f"{keys.limit(worker)}:running") for name, client in self.clients.items()}

    def close(self):
        for client in self.clients.values():
            client.close()


@pytest.fixture
def shared(site, make_server):
    made = []

    def make(*names):
        made.append(SharedFleet(site, {name: make_server() for name in names}))
        return made[0]

    yield make
    for one in made:
        one.close()


def shared_command(fleet, *words):
    ended = fleet.site.run(str(ROOT / "scripts" / "jobs"), *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def ran(redis):
    return redis.llen("ended")


def test_shared_limit_holds_on_two_shards_and_slots_go_where_jobs_wait(shared, redis):
    fleet = shared("main", "second")
    for name in ("main", "second"):
        fleet.worker(name, 8)
    fleet.push("main", "FiveWorker", 8, "first")
    until(lambda: fleet.running("FiveWorker") == {"main": 5, "second": 0}, "one shard uses the whole limit")
    fleet.push("second", "FiveWorker", 8, "second")
    until(lambda: fleet.clients["second"].zcard(f"{keys.limit('FiveWorker')}:waiting:") == 8, "they wait")
    (report,) = read_limits(fleet.clients["second"], server_time(fleet.clients["second"]), ["FiveWorker"])
    assert (report.usage, report.source) == ("0/0 here of 5 on all shards", "portion")
    redis.set("first", 1)
    until(lambda: fleet.running("FiveWorker") == {"main": 0, "second": 5}, "the other shard has all slots")
    redis.set("second", 1)
    until(lambda: ran(redis) == 16, "all have run")
    assert max(map(int, redis.lrange("seen", 0, -1))) == 5
    shown = shared_command(fleet, "limits", "forget", "second", "--yes")
    assert shown == "main: 5 slots of second can go to other shards\n"


HOT = """
from framework import Deduplicate, spread
from jobs import Limited


class HotWorker(Limited):
    queue = "default"
    shard = spread("main", "second")
    concurrency_limit = 3
    idempotent = True
    deduplicate = Deduplicate("until_executed")
"""
PUSH = """
from hot_jobs import HotWorker

for _ in range(2):
    print(*HotWorker.perform_bulk([(f"now {number}", "go") for number in range(8)]))
HotWorker.perform_bulk_in(0.5, [(f"later {number % 8}", "go") for number in range(16)])
"""


def test_class_on_two_shards_has_one_limit_and_one_lock(shared, redis):
    fleet = shared("main", "second")
    (fleet.site.folder / "hot_jobs.py").write_text(HOT)
    pushed = fleet.site.run("-c", PUSH)
    first, again = pushed.stdout.splitlines()
    assert ("None" in first, again) == (False, " ".join(["None"] * 8)), pushed.stderr
    waiting = {name: client.llen("queue:default") for name, client in fleet.clients.items()}
    assert all(waiting.values())
    assert sum(waiting.values()) == 8
    for name in fleet.clients:
        fleet.site.hurried_worker("-r", "hot_jobs", "-q", "default", "-c", "8", "--shard", name)
    until(lambda: sum(fleet.running("HotWorker").values()) == 3, "the limit is used")
    until(lambda: not any(client.zcard("schedule") for client in fleet.clients.values()), "all are due")
    redis.set("go", 1)
    until(lambda: ran(redis) == 16, "all have run")
    ended = sorted(name.decode() for name in redis.lrange("ended", 0, -1))
    assert ended == sorted(f"{word} {number}" for word in ("now", "later") for number in range(8))
    assert max(map(int, redis.lrange("seen", 0, -1))) == 3
    until(lambda: not any(list(client.scan_iter("aw:lock:*")) for client in fleet.clients.values()), "no lock is left")


def is_alive(pid):
    """Return whether a process is alive; a killed one whose supervisor has not seen its end is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class UsedSlots(NamedTuple):
    """The slots of all shards that are taken at a moment; a slot reserved for a job on its way to a process counts as living."""

    living: int
    dead: int

    @classmethod
    def of(cls, fleet, worker):
        found = [
            member.decode().partition(" ")[0]
            for client in fleet.clients.values()
            for member in client.zrange(f"{keys.limit(worker)}:running", 0, -1)
        ]
        living = sum(not identity or is_alive(identity.split(":")[-2]) for identity in found)
        return cls(living, len(found) - living)


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_limit_of_four_shards_is_never_exceeded_under_kills_and_partitions(
    shared, redis, start_cluster, record_property
):
    """Kill processes of supervisors, stop servers, the one with the role meta among them; count the running jobs at each start.

    Jobs wait on each shard until the end, so that each slot is of use. The slots of a killed process stay taken until its supervisor
    has seen its end, and another process of the shard has put its jobs back.
    """
    fleet = shared(*NAMES)
    chance = random.Random(7)
    options = ("--processes", "2", "--max-concurrency", "20")
    supervisors = {name: start_cluster("default", "--shard", name, *options) for name in NAMES}
    for name in NAMES:
        fleet.push(name, "FiftyWorker", 20_000, "", 0.05)
    until(lambda: sum(fleet.running("FiftyWorker").values()) >= FIFTY - 5, "the slots are used")
    used, kills, stops = [], 0, 0
    until_s = time.monotonic() + 90
    next_fault = time.monotonic() + 5
    while time.monotonic() < until_s:
        used.append(UsedSlots.of(fleet, "FiftyWorker"))
        if time.monotonic() > next_fault:
            name = chance.choice(NAMES)
            if chance.random() < 0.7:
                started = (line["child_pid"] for line in supervisors[name].find(event_name="child.started"))
                os.kill(chance.choice([pid for pid in started if is_alive(pid)]), signal.SIGKILL)
                kills += 1
            else:
                os.kill(fleet.servers[name].pid, signal.SIGSTOP)
                time.sleep(3)
                os.kill(fleet.servers[name].pid, signal.SIGCONT)
                stops += 1
            next_fault = time.monotonic() + 3
        time.sleep(0.05)
    waiting = [client.zcard(f"{keys.limit('FiftyWorker')}:waiting:") for client in fleet.clients.values()]
    seen = [int(one) for one in redis.lrange("seen", 0, -1)]
    most = max(map(sum, used))
    record_property(
        "report", {"kills": kills, "stops": stops, "jobs": len(seen), "most_seen": max(seen), "most_slots": most}
    )
    share = {"taken": sum(map(sum, used)), "taken by living processes": sum(one.living for one in used)}
    share = {name: round(count / len(used) / FIFTY, 3) for name, count in share.items()}
    record_property("used", share)
    assert max(seen) <= FIFTY
    assert most <= FIFTY
    assert min(waiting) > 0
    assert share["taken"] >= 0.95, share


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_limit_is_never_exceeded_while_its_class_moves(shared, redis, record_property):
    """Move a class there, back and there again, and kill movers and workers; count the running jobs at each start."""
    fleet = shared("main", "second")
    chance, jobs, kills, most = random.Random(11), 2_000, 0, 0
    started = {name: fleet.worker(name, 12).ready() for name in fleet.clients}
    fleet.push("main", "FiveWorker", jobs, "", 0.02)
    until(lambda: sum(fleet.running("FiveWorker").values()) == 5, "the slots are used")
    move = ("move", "--class", "FiveWorker", "--to", "second", "--rate", "100")
    for number in range(6):
        back = ("undo", fleet.clients["main"].hkeys(MOVES)[0].decode()) if number == 3 else move
        mover = fleet.site.start("-m", "framework", "shards", *back, "-r", "jobs")
        goal = min(ran(redis) + jobs // 8, jobs - 100)
        shard = chance.choice(list(started))
        while ran(redis) < goal:
            most = max(most, sum(fleet.running("FiveWorker").values()))
            time.sleep(0.02)
        mover.kill()
        started[shard].kill()
        started[shard] = fleet.worker(shard, 12).ready()
        kills += 2
    until(lambda: len({*redis.lrange("ended", 0, -1)}) == jobs, "all have run", timeout_s=400)
    seen = [int(one) for one in redis.lrange("seen", 0, -1)]
    ran_there = int(fleet.clients["second"].get("stat:processed") or 0)
    record_property("report", {"kills": kills, "most_seen": max(seen), "most_slots": most, "on_second": ran_there})
    assert max(seen) <= 5
    assert most <= 5
    assert ran_there > jobs // 10
