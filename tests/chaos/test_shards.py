"""Test two shards, one of them slow, or unreachable for some: the other is not affected, and pushes to the first fail
soon.
"""

import signal
import threading
import time

import pytest

from framework.shard.connection import PROBE_PERIOD_S
from framework.store.connect import COMMAND_TIMEOUT_S
from tests.harness import encoded, until
from tests.servers.proxy import Proxy

AT_ONCE_S = 0.25
"""Promised of a push to a shard that is known to be silent."""
REFUSED = 200
"""The pushes that are refused; they take less than the 2 s until one of them tests the shard."""
BACK_S = 5.0
"""Promised from a shard's return until pushes to it are accepted."""
TAKEN_OVER_S = 25.0
"""Promised from the silence of a process until another has its jobs."""
AT_WORK_S = 15.0
"""Promised from the end of a network partition until the processes in it work again."""
LOADED_S = 5.0
"""The time that a loaded machine may add to a promise of seconds."""
UNAFFECTED_S = 2.0
"""A push and its run that wait for no deadline of another shard take less, on any machine."""


class Pair:
    """Shards ``main`` and ``second``; a process that is ``cut_off`` reaches ``second`` through the proxy only."""

    def __init__(self, scene, server, proxy) -> None:
        self.scene, self.proxy = scene, proxy
        self.client = server.open()
        shards = {"main": {"url": scene.url}, "second": {"url": server.url}}
        scene.site.write("redis.yml", {"shards": shards})
        rules = [["worker_name=ElsewhereWorker", None, "second"], ["*", None]]
        scene.site.write("routing.yml", {"routing_rules": rules})
        self.cut_off = {"FRAMEWORK_SHARDS__SECOND__URL": proxy.url}

    def worker(self, shard, **env):
        return self.scene.site.worker("-q", "default", "--shard", shard, "-c", "2", REDIS_URL=self.scene.url, **env)

    def enqueue(self, name, value):
        self.client.lpush("queue:default", encoded(name, args=[value], jid=value))


@pytest.fixture
def pair(scene, make_server):
    server = make_server()
    with Proxy(server.url) as proxy:
        made = Pair(scene, server, proxy)
        yield made
        made.client.close()


def pushed(producer, name, value):
    """Push; return the producer's result and the time it took."""
    answer = producer.push(name, value)
    return answer, answer["ended"] - answer["began"]


def check_main_is_unaffected(scene, producer, label):
    """Run twenty jobs of main, one after the other; return the median time from the push to the run."""
    took = []
    for number in range(20):
        began = time.monotonic()
        answer, _ = pushed(producer, "NoteWorker", f"{label} {number}")
        assert answer["jid"]
        scene.wait_for("note", f"{label} {number}")
        took.append(time.monotonic() - began)
        assert took[-1] < UNAFFECTED_S
    return sorted(took)[10]


def check_pushes_fail_soon(producer, measured):
    """Check that the first push waits for its answer, and that none does until the shard is tested again."""
    answer, took_s = pushed(producer, "ElsewhereWorker", "into the hole")
    assert (answer["error"], answer["shard"], answer["maybe_written"]) == ("ShardUnavailableError", "second", True)
    measured("circuit_open_s", took_s)
    refused_s = []
    while len(refused_s) < REFUSED:
        tested_at = answer["began"] + COMMAND_TIMEOUT_S + PROBE_PERIOD_S
        refused, took_s = pushed(producer, "ElsewhereWorker", "into the hole")
        assert (refused["error"], refused["shard"], refused["maybe_written"]) == (
            "ShardUnavailableError",
            "second",
            False,
        )
        if refused["began"] < tested_at:
            assert took_s < AT_ONCE_S
            refused_s.append(took_s)
        else:  # a loaded machine may take seconds to log the first failure: this push tested the shard
            answer = refused
    measured("refused_s", max(refused_s))


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F11", "F21", "F22", "F47", "R3")
def test_shard_partition_affects_only_its_own_jobs(scene, pair, measured):
    producer, another = (scene.producer(**pair.cut_off) for _ in range(2))
    here = pair.worker("main", **pair.cut_off)
    partitioned = pair.worker("second", **pair.cut_off).ready()
    here.ready()
    pair.enqueue("LongWorker", "one")
    scene.wait_for("begun", "one")
    peer = pair.worker("second").ready()
    assert pushed(producer, "ElsewhereWorker", "before")[0]["jid"]
    measured("main_before_s", check_main_is_unaffected(scene, producer, "before"))

    pair.proxy.swallow()
    gone_at = time.monotonic()
    check_pushes_fail_soon(producer, measured)
    measured("main_during_a_hole_s", check_main_is_unaffected(scene, producer, "during the hole"))
    until(lambda: scene.proven("begun") == ["one"] * 2, "the peer has taken over", TAKEN_OVER_S + LOADED_S)
    measured("taken_over_s", time.monotonic() - gone_at)

    pair.proxy.heal()
    back_at = time.monotonic()
    until(lambda: "jid" in pushed(producer, "ElsewhereWorker", "back")[0], "pushes are taken", BACK_S + LOADED_S)
    measured("circuit_closed_s", time.monotonic() - back_at)
    peer.send(signal.SIGTSTP)
    peer.line(event_name="process.quiet")
    pair.enqueue("NoteWorker", "after")
    scene.wait_for("note", "after", timeout_s=AT_WORK_S + LOADED_S)
    measured("at_work_s", time.monotonic() - back_at)
    scene.let_end("one")
    until(lambda: scene.proven("ended") == ["one"] * 2, "both runs of it end")
    until(lambda: partitioned.find(job_status="fenced"), "the end of the first is not written")

    pair.proxy.delay_s = 2.0
    slow = threading.Thread(target=pushed, args=(another, "ElsewhereWorker", "slow"))
    slow.start()
    measured("main_beside_a_slow_one_s", check_main_is_unaffected(scene, producer, "slow"))
    slow.join()
    pair.proxy.heal()
    scene.wait_for("note", "slow")
    assert "into the hole" not in scene.proven("note")
    assert [line["jid"] for line in peer.find(job_status="recovered")] == ["one"]
    assert [process.end() for process in (here, partitioned, peer)] == [0, 0, 0]
