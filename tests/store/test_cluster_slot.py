"""Use a shard on a real cluster: its node is found, and the slot is followed when it moves."""

import json
import shutil
import signal
import socket
from dataclasses import replace
from threading import Thread

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.all_settings import load
from framework.errors import ShardUnavailableError
from framework.shard.redis_errors import is_refusal, unavailable_error, wrong_setting
from framework.shard.shard import Shard
from framework.shard.shards import open_shards
from framework.store import cluster_slot
from framework.store.channel import open_channel
from framework.store.cluster_slot import SlotMovedError
from framework.store.connect import Endpoint, UnsupportedServerError, open_client
from framework.store.script import Script
from tests.chaos.test_access import Authority
from tests.conftest import binary_or_skip
from tests.harness import until
from tests.servers.clustered import TAGS, RedisCluster
from tests.servers.guarded import ALL_RIGHTS, PASSWORD, as_user


@pytest.fixture
def client(each_cluster):
    with open_client(each_cluster.endpoint(), name="tests") as client:
        yield client


@pytest.fixture
def impatient(monkeypatch):
    """Let a new connection wait for a tenth of a second while its slot moves."""
    monkeypatch.setattr(cluster_slot, "MOVING_WAIT_S", 0.1)


@pytest.fixture
def shard(each_cluster):
    shard = Shard("main", each_cluster.endpoint(), role="tests")
    yield shard
    shard.close()


def move(cluster, tag="main"):
    """Move the slot of a tag to another node, in the way that the servers have."""
    target = cluster.others(cluster.holder(tag))[0]
    if cluster.moves_at_once:
        cluster.move_at_once(tag, target)
    else:
        cluster.move_key_by_key(tag, target)
    return target


def asked(node):
    """Return how often a node has answered ASK."""
    return node.client.info("errorstats").get("errorstat_ASK", {"count": 0})["count"]


class Reversing(Script):
    """Move the only job of a list to the other end through another key, as scripts do: between the two writes it is nowhere."""

    source = b"local job = redis.call('RPOP', 'one') redis.call('LPUSH', 'other', job) return job"


def test_node_is_found_from_any_other(each_cluster):
    holder = each_cluster.holder("main")
    for node in each_cluster.nodes:
        with open_client(each_cluster.endpoint("main", node), name="tests") as client:
            client.rpush("queue:a", node.port)
    assert each_cluster.keys("main") == {"queue:a": holder.port}


def test_dead_node_of_the_settings_is_passed_over(each_cluster):
    endpoint = each_cluster.endpoint()
    dead = replace(endpoint, cluster=(("127.0.0.1", 1), *endpoint.cluster))
    with open_client(dead, name="tests") as client:
        assert client.ttl("absent") == -2


def test_no_node_answers_is_a_lost_connection():
    nowhere = Endpoint("", cluster=(("127.0.0.1", 1),), tag="main")
    with open_client(nowhere, name="tests") as client, pytest.raises(RedisConnectionError):
        client.ttl("absent")


def test_replies_name_keys_without_prefix(each_cluster, client):
    """Both shards may be on one node, and each sees its own keys only."""
    with open_client(each_cluster.endpoint("second"), name="tests") as second:
        if each_cluster.holder("second") is not each_cluster.holder("main"):
            each_cluster.move_key_by_key("second", each_cluster.holder("main"))
        client.rpush("queue:a", "x")
        second.rpush("queue:b", "y")
        assert list(client.scan_iter()) == list(client.scan_iter(match="queue:*")) == client.keys("*") == [b"queue:a"]
        assert set(client.pipeline(transaction=False).scan(0).randomkey().execute()[1:]) <= {b"queue:a", None}
        assert client.blpop(["queue:a"], timeout=1) == (b"queue:a", b"x")
        assert second.lrange("queue:b", 0, -1) == [b"y"]


def test_moved_slot_is_followed_by_every_connection(each_cluster, client, shard):
    channel = open_channel(client, read_timeout_s=5)
    parked = open_channel(client, read_timeout_s=30)
    shard.enqueue_one("a", b"1")
    assert channel.call("LLEN", "queue:a") == client.llen("queue:a") == 1
    parked.send(("BLMOVE", "queue:b", "working", "RIGHT", "LEFT", 30))
    target = move(each_cluster)
    with pytest.raises(SlotMovedError):
        parked.read()
    shard.enqueue("a", [b"2", b"3"], "token")
    shard.enqueue_one("a", b"4")
    assert client.lrange("queue:a", 0, -1) == [b"4", b"3", b"2", b"1"]
    # The node did not execute it, and the connection goes to the right one at the next call.
    with pytest.raises(SlotMovedError):
        channel.call("LLEN", "queue:a")
    assert channel.call("LLEN", "queue:a") == 4
    assert set(each_cluster.keys("main").values()) == {target.port}
    channel.close()
    parked.close()


def test_no_script_begins_while_its_slot_moves_key_by_key(each_cluster, client, impatient):
    """Its second write could fail: then the job is in neither list."""
    script = Reversing("reversing")
    client.rpush("one", "job")
    refused = []

    def run():
        with pytest.raises(SlotMovedError) as caught:
            script(client, [], [])
        refused.append(caught.value.status_code)

    each_cluster.move_key_by_key("main", each_cluster.others(each_cluster.holder("main"))[0], run)
    assert set(refused) <= {"ASK", "TRYAGAIN"}
    assert client.lrange("one", 0, -1) == [b"job"]
    assert script(client, [], []) == b"job"
    assert client.lrange("other", 0, -1) == [b"job"]


def test_push_in_a_long_move_fails_and_writes_nothing(each_cluster, client, shard, impatient):
    """The producer knows that nothing was written."""
    shard.enqueue_one("b", b"0")
    pushed = []

    def push():
        if not pushed:
            with pytest.raises(ShardUnavailableError) as caught:
                shard.enqueue("a", [b"1"], "first")
            pushed.append(caught.value)

    each_cluster.move_key_by_key("main", each_cluster.others(each_cluster.holder("main"))[0], push)
    assert not pushed[0].maybe_written
    assert "on its way to another node" in str(pushed[0])
    shard.enqueue("a", [b"1"], "first")
    assert client.lrange("queue:a", 0, -1) == [b"1"]


def test_push_waits_for_a_short_move(each_cluster, client, shard):
    """A thread of the producer waits in its new connection until the slot has arrived."""
    client.rpush("other", "x")
    threads = []

    def push():
        if not threads:
            threads.append(Thread(target=lambda: shard.enqueue_one("a", b"1")))
            threads[0].start()
            # Without a wait, a push asks twice, and fails.
            until(lambda: asked(holder) >= before + 3, "the push waits", 10)

    holder = each_cluster.holder("main")
    before = asked(holder)
    each_cluster.move_key_by_key("main", each_cluster.others(holder)[0], push)
    threads[0].join()
    assert client.lrange("queue:a", 0, -1) == [b"1"]


def test_node_without_rights_for_nodes_is_enough(each_cluster, client):
    """The list of all nodes is a help, and an ACL may refuse it."""
    for node in each_cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+ttl", "+get", "+client|setname")
    poor = replace(each_cluster.endpoint(), options=(("username", "poor"), ("password", "x")))
    with open_client(poor, name="tests") as one:
        assert one.get("absent") is None
    assert all("poor cluster|slots" in entry for entry in each_cluster.refusals())


def test_plain_scheme_names_the_right_one(each_cluster):
    plain = Endpoint(as_user(f"redis://127.0.0.1:{each_cluster.nodes[0].port}", "all-rights"))
    with (
        open_client(plain, name="tests") as client,
        pytest.raises(UnsupportedServerError, match="redis\\+cluster://") as caught,
    ):
        client.time()
    assert wrong_setting(caught.value) == "url"


def test_error_of_a_moving_slot_is_an_outage():
    error = SlotMovedError("1 127.0.0.1:1", status_code="TRYAGAIN")
    assert wrong_setting(error) is None
    assert not is_refusal(error)
    assert "on its way" in str(unavailable_error("main", Endpoint("", cluster=(("h", 1),), tag="main"), error))


def test_shown_address_has_tag_and_nodes():
    assert Endpoint("", cluster=(("h", 1), ("::1", 2)), tag="a").shown == "{a}:* of the cluster h:1, [::1]:2"


def test_nodes_of_the_cluster_are_learned(each_cluster):
    """A process that knows one node of the settings goes on when that node has gone."""
    only = each_cluster.others(each_cluster.holder("main"))[0]
    with open_client(each_cluster.endpoint("main", only), name="tests") as client:
        client.ttl("absent")
        slot = client.connection_pool.connection_kwargs["slot"]
        until(lambda: {("127.0.0.1", node.port) for node in each_cluster.nodes} <= set(slot._candidates()), "learned")


def test_node_that_never_answers_is_passed_over(each_cluster, monkeypatch):
    """A frozen node takes connections; the time of the call must suffice for the next one."""
    monkeypatch.setattr(cluster_slot, "NODE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = each_cluster.endpoint()
        places = (silent.getsockname(), *endpoint.cluster)
        with open_client(replace(endpoint, cluster=places), name="tests", read_timeout_s=2.0) as client:
            assert client.ttl("absent") == -2


def test_takeover_ends_the_connections_to_a_frozen_node(each_cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_slot, "NODE_TIMEOUT_S", 0.2)
    parked = open_channel(client, read_timeout_s=600)
    parked.send(("BLMOVE", "queue:b", "working", "RIGHT", "LEFT", 0))
    frozen = each_cluster.holder("main")
    frozen.send(signal.SIGSTOP)
    try:
        with open_client(each_cluster.endpoint(), name="tests", read_timeout_s=1.0) as another:
            # Nobody has taken over: the node that the others name does not answer, and a call fails without a wait for more.
            with pytest.raises(RedisTimeoutError):
                another.ttl("absent")
            each_cluster.take_over("main", next(node for node in each_cluster.nodes if node is not frozen))
            assert another.ttl("absent") == -2
        with pytest.raises(RedisConnectionError):
            parked.read()
    finally:
        frozen.send(signal.SIGCONT)
        parked.close()
    until(lambda: not each_cluster.holds(frozen, "main"), "it has heard of its successor")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_slot_is_followed_over_tls(short_path):
    """The nodes have no other port, and speak TLS to each other."""
    authority = Authority(short_path)
    authority.certificate("server.pem", 1)
    binary = binary_or_skip("redis-server")
    with RedisCluster(short_path, binary, tags=TAGS, certificates=short_path) as cluster:
        main = {"url": cluster.url, "tls": {"ca_file": str(short_path / "ca.pem")}}
        login = {"username": ALL_RIGHTS, "password": PASSWORD}
        (short_path / "redis.yml").write_text(json.dumps({"shards": {"main": main | login}}))
        shards = open_shards(load({"FRAMEWORK_CONFIG_DIR": str(short_path)}, short_path), role="tests")
        shards["main"].enqueue_one("a", b"1")
        target = move(cluster)
        shards["main"].enqueue("a", [b"2"], "token")
        assert shards["main"].client.lrange("queue:a", 0, -1) == [b"2", b"1"]
        assert target.client.exists("{main}:queue:a")
        shards.close()
