"""Test a shard with Sentinel: a master, a replica and three sentinels, as config/redis.yml allows them."""

import threading
import time

import pytest
from redis.exceptions import RedisError

from framework.store.connect import Endpoint, open_client
from tests.chaos.conftest import Producer
from tests.chaos.rounds.replicated import NAME, ReplicatedStore
from tests.harness import until
from tests.servers.guarded import lacking

RESUMED_S = 5.0
"""Promised: at work so long after the sentinels name another master (reference F9)."""
LOADED_S = 5.0
"""For a loaded machine."""


@pytest.fixture(scope="module")
def store():
    from tests.conftest import short_folder

    with short_folder() as folder, ReplicatedStore(folder / "house") as store:
        yield store
        assert lacking(store.refusals()) == []


@pytest.fixture
def worker_and_producer(store, scene):
    """Start a worker process and a producer, configured with sentinels."""
    scene.site.write(
        "redis.yml", {"shards": {"main": {name: store.settings[name] for name in ("sentinels", "sentinel_name")}}}
    )
    process = scene.site.worker("-q", "default", "-c", "2").ready()
    producer = Producer(scene.site)
    yield scene, process, producer
    producer.close()


def pushed(producer, *values):
    for value in values:
        until(lambda value=value: producer.push("NoteWorker", value).get("jid"), f"{value} is accepted")


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F9")
def test_failover_moves_all_connections_to_new_master(store, worker_and_producer):
    scene, process, producer = worker_and_producer
    pushed(producer, "before")
    scene.wait_for("note", "before")
    check_killed_master_is_followed(store, scene, producer)
    check_replaced_master_is_left(store, scene, producer)
    assert process.end() == 0
    check_every_sentinel_is_asked(store)


def check_killed_master_is_followed(store, scene, producer):
    old, new = store.master, store.replica
    assert producer.push("LongWorker", "one").get("jid")
    scene.wait_for("begun", "one")
    old.stop()
    until(lambda: store.all_name(new), "another master is named")
    began = time.monotonic()
    pushed(producer, "killed")
    scene.let_end("one")  # started on one master, is acknowledged on the other
    scene.wait_for("note", "killed", timeout_s=RESUMED_S + LOADED_S - (time.monotonic() - began))
    scene.wait_for("ended", "one")
    until(lambda: not new.client.keys("aw:working:*"), "acknowledged")
    scene.once("begun")
    old.start(f"replicaof 127.0.0.1 {new.port}")
    until(lambda: old.follows(new.port), "the killed one follows")


def check_replaced_master_is_left(store, scene, producer):
    """The old master is demoted some ten seconds after its replacement, and forgets the writes until then."""
    old, new = store.master, store.replica
    until(lambda: order_failover(store), "a change is ordered")
    until(lambda: store.all_name(new), "another master is named")
    until(lambda: not connected(old), "no client is connected to the old one", RESUMED_S + LOADED_S)
    assert old.role() == "master", "it was demoted before the clients had to notice themselves"
    pushed(producer, "followed 1", "followed 2")
    scene.wait_for("note", "followed 1", "followed 2")


def order_failover(store):
    try:
        return store.sentinels[0].client.execute_command("SENTINEL", "FAILOVER", NAME)
    except RedisError:  # the replica that was just a master is not yet fit
        return False


def connected(node):
    return [one["name"] for one in node.client.client_list() if one["name"].startswith("framework")]


def check_every_sentinel_is_asked(store):
    """Threads look the master up at once, while one sentinel is down, and then another: each is asked as long as it
    takes.
    """
    addresses = tuple(("127.0.0.1", one.port) for one in store.sentinels)
    client = open_client(Endpoint("", addresses, NAME), name="tests")
    found = client.connection_pool.sentinel_manager
    store.sentinels[0].stop()
    failures: list[BaseException] = []

    def look_up():
        try:
            for _ in range(100):
                found.discover_master(NAME)
        except RedisError as error:
            failures.append(error)

    threads = [threading.Thread(target=look_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    ports = {one.connection_pool.connection_kwargs["port"] for one in found.sentinels}
    assert ports == {one.port for one in store.sentinels}
    store.sentinels[0].start()
    store.sentinels[1].stop()
    store.sentinels[2].stop()
    assert client.time()
    client.close()
