"""With one of four shards dead, frozen, slow or full, pushes to the others and runs of their jobs go on as before.

The windows with and without the fault alternate, so that a change of the machine's load hits both. Each push is followed by a pause:
the rate is far below what the shards can do, and what is missing has waited. A loaded machine hides five percent.
"""

import json
import os
import shutil
import signal
import time
from contextlib import contextmanager

import pytest

from tests.chaos.conftest import HERE
from tests.harness import Site, encoded, until
from tests.servers.guarded import with_all_rights
from tests.servers.proxy import Proxy

SHARDS = ("main", "b", "c", "d")
HEALTHY, FAULTY = SHARDS[:3], SHARDS[3]
WINDOW_S, CYCLES = 5.0, 4
LOSS = 0.05
"""Promised: what the other shards lose at most."""
LOADED_LOSS = 0.5
"""The same on a loaded machine, where windows differ by themselves. A thread that waits for the faulty shard loses more."""
MOVED = 20
"""Due jobs of ``main`` that go to the faulty shard, in each window: the poller must not wait for it."""
KINDS = ("pushed by threads", "pushed by tasks", "run")


class FourShards:
    """Four servers; all processes reach the last one through a proxy."""

    def __init__(self, site, servers, proxy, redis) -> None:
        self.site, self.redis, self.proxy = site, redis, proxy
        self.server = servers[-1]
        self.main = servers[0].open()
        self.clients = dict(zip(SHARDS, [self.main, *(server.open() for server in servers[1:])], strict=True))
        urls = [server.url for server in servers[:-1]] + [proxy.url]
        site.write("redis.yml", {"shards": {name: {"url": url} for name, url in zip(SHARDS, urls, strict=True)}})
        rules = [[f"worker_name={name.capitalize()}Worker", None, name] for name in SHARDS]
        site.write("routing.yml", {"routing_rules": [*rules, ["*", None]]})
        module = ("-r", "isolation_jobs", "-q", "default", "-c", "4")
        self.workers = {name: site.worker(*module, "--shard", name) for name in SHARDS}
        for process in self.workers.values():
            process.ready()
        self.producer = site.start("-c", "import isolation_jobs; isolation_jobs.push_until_told()")
        until(lambda: all(self.counts()["run"].values()), "jobs run on every shard")

    def lines(self):
        return [json.loads(line) for line in self.producer.log.read_text().splitlines() if line.endswith("}")]

    def counts(self):
        return until(self.lines, "the producer says what it does")[-1]

    def window(self):
        """Return what was done in a window of time, by kind and shard, in a second."""
        # A shard whose due jobs wait for the faulty one would not reach the others.
        moved = {encoded("DWorker", jid=f"{time.monotonic_ns()}-{number}"): time.time() for number in range(MOVED)}
        self.main.zadd("schedule", moved)
        began, until_s = self.counts(), time.monotonic() + WINDOW_S
        until(lambda: self.counts()["at"] >= until_s, "the window ends")
        ended = self.counts()
        took_s = ended["at"] - began["at"]
        return {
            kind: {shard: (ended[kind][shard] - began[kind][shard]) / took_s for shard in SHARDS}
            for kind in (*KINDS, "slow", "refused")
        }

    def is_well(self):
        """Return whether all shards accept pushes, and run jobs."""
        before, now = self.lines()[-2:]
        return all(now[kind][FAULTY] > before[kind][FAULTY] for kind in ("pushed by threads", "pushed by tasks", "run"))

    def ages_s(self):
        """Return the time since the last heartbeat of each healthy process."""
        return {
            name: time.time() - float(self.clients[name].zscore("aw:processes", self.workers[name].identity) or 0)
            for name in HEALTHY
        }

    def close(self):
        for client in self.clients.values():
            client.close()


@pytest.fixture
def four(short_path, make_server, redis, redis_url):
    site = Site(short_path, redis_url)
    site.proofs_url = with_all_rights(redis_url)
    shutil.copy(HERE / "isolation_jobs.py", short_path)
    servers = [make_server() for _ in SHARDS]
    with Proxy(servers[-1].url) as proxy:
        made = FourShards(site, servers, proxy, redis)
        yield made
        redis.set("stop", 1)
        made.close()
        site.close()


@contextmanager
def dead(four):
    """Kill the server: the proxy refuses connections."""
    four.server.kill()
    four.proxy.reset()
    yield
    four.server.start()


@contextmanager
def frozen(four):
    os.kill(four.server.pid, signal.SIGSTOP)
    yield
    os.kill(four.server.pid, signal.SIGCONT)


@contextmanager
def cut_off(four):
    four.proxy.swallow()
    yield
    four.proxy.heal()


@contextmanager
def slow(four):
    four.proxy.delay_s = 0.3
    yield
    four.proxy.heal()


@contextmanager
def full(four):
    client = four.clients[FAULTY]
    client.config_set("maxmemory", 1)
    yield
    client.config_set("maxmemory", 0)


def on_healthy(windows, kind):
    """Return what was done on the healthy shards together, a second."""
    return sum(window[kind][shard] for window in windows for shard in HEALTHY) / len(windows)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", [dead, frozen, cut_off, slow, full])
def test_fault_of_one_shard_costs_the_others_nothing(four, fault, measured):
    allowed = LOSS if os.getloadavg()[0] < 1.5 else LOADED_LOSS
    before, during = [], []
    oldest_s = 0.0
    for _ in range(CYCLES):
        before.append(four.window())
        with fault(four):
            during.append(four.window())
            oldest_s = max(oldest_s, *four.ages_s().values())
        until(four.is_well, "the shard is back")
    losses = {kind: 1 - on_healthy(during, kind) / on_healthy(before, kind) for kind in KINDS}
    for kind in KINDS:
        measured(f"{kind}, a second without", on_healthy(before, kind))
        measured(f"{kind}, a second with", on_healthy(during, kind))
        measured(f"{kind}, lost", losses[kind])
    for name, windows in (("without", before), ("with", during)):
        measured(f"pushes above 250 ms to the others, a second {name}", on_healthy(windows, "slow"))
    measured("pushes above 250 ms to the faulty shard, a second", sum(one["slow"][FAULTY] for one in during) / CYCLES)
    measured("pushes refused to the faulty shard, a second", sum(one["refused"][FAULTY] for one in during) / CYCLES)
    measured("oldest heartbeat of the others, s", oldest_s)
    assert max(losses.values()) <= allowed, losses
    for name in HEALTHY:
        process = four.workers[name]
        assert not [line for line in process.lines if line.get("event_name") in ("lease.lost", "component.died")]
    assert not sum(window["refused"][shard] for window in during for shard in HEALTHY)
