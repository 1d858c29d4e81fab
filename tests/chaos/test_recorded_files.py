"""Test the reading of the servers' files by ``scripts/chaos``: forgotten pushes and ends, and the fetchers of a job."""

import random
import time
from types import SimpleNamespace

import pytest

from framework.shard.connection import QueueTransaction
from tests.chaos.rounds.failover_faults import replica_behind
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.history import End, Files
from tests.chaos.rounds.redis_faults import power_cut
from tests.chaos.rounds.replicated import ReplicatedStore
from tests.chaos.rounds.stores import SingleStore
from tests.harness import encoded, until
from tests.servers.recorded import RecordedServer

LIST_A, LIST_B = "aw:working:host:1:aa", "aw:working:host:2:bb/heavy"


def job(serial):
    return encoded(args=[serial, 1.5], queue="chaos", jid=f"{serial}")


@pytest.fixture
def recorded(short_path):
    """Return a running server that keeps all its writes."""
    with RecordedServer(short_path / "recorded") as server:
        yield server


def group(server, *commands):
    """Execute the commands in one step."""
    with server.open() as client, client.pipeline(transaction=True) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        pipe.execute(raise_on_error=False)
    server.written()


# --- the settings of the server


def kept_settings(server):
    """Return the settings of the file, and whether a client set anything."""
    with server.open() as client:
        names = ("auto-aof-rewrite-percentage", "aof-timestamp-enabled")
        values = [client.config_get(name)[name] for name in names]
        return values, "cmdstat_config|set" in client.info("commandstats")


def test_recorded_server_has_settings_from_first_moment(recorded):
    assert kept_settings(recorded) == (["0", "yes"], False)
    recorded.kill()
    recorded.start()
    assert kept_settings(recorded) == (["0", "yes"], False)


# --- pushes


@pytest.mark.proves("R15")
def test_files_show_the_last_job_of_a_bulk_push(recorded):
    files = Files(recorded.data_dir)
    group(recorded, *QueueTransaction("first", "chaos", [job(1), job(2), job(3)]).commands)
    assert files.pushed_since({}) == {1, 2, 3}
    group(recorded, *QueueTransaction("second", "chaos", [job(4)]).commands)
    assert files.pushed_since({}) == {1, 2, 3, 4}


def test_files_show_no_push_into_a_key_of_another_type(recorded):
    files = Files(recorded.data_dir)
    group(recorded, ("SET", "queue:chaos", "text"), *QueueTransaction("token", "chaos", [job(1)]).commands)
    assert files.pushed_since({}) == set()


# --- ends


def test_files_tell_the_end_of_a_job_from_its_return(recorded):
    files = Files(recorded.data_dir)
    group(recorded, ("LPUSH", LIST_A, job(1), job(2), job(3)), ("LPUSH", LIST_B, job(4)))
    before = files.now
    group(recorded, ("LREM", LIST_A, -1, job(1)), ("LREM", LIST_A, -1, job(2)))
    group(recorded, ("LREM", LIST_A, 1, job(3)), ("RPUSH", "queue:chaos", job(3)))
    group(recorded, ("LREM", LIST_B, -1, job(4)), ("ZADD", "retry", 5, job(4)))
    assert files.ends_between(before, files.now) == {End(LIST_A.encode(), 1), End(LIST_A.encode(), 2)}
    assert files.ends_between(before, before) == set()


@pytest.mark.proves("R15")
def test_cut_names_the_ends_that_it_removes(recorded):
    files = Files(recorded.data_dir)
    group(recorded, ("LPUSH", LIST_A, job(1), job(2)), ("LREM", LIST_A, -1, job(1)), ("SET", "chaos:mark", "here 7"))
    group(recorded, ("LREM", LIST_A, -1, job(2)))
    recorded.kill()
    assert files.cut_back(b"here 7").ended == {2}


def test_files_are_read_from_the_next_whole_command(recorded):
    files = Files(recorded.data_dir)
    group(recorded, ("LPUSH", "queue:chaos", job(1)))
    amid = {path: length - 5 for path, length in files.now.items()}
    group(recorded, ("LPUSH", "queue:chaos", job(2)))
    assert files.pushed_since(amid) == {2}


# --- fetchers


def test_files_show_the_fetchers_of_a_job(recorded):
    group(recorded, ("LPUSH", LIST_A, job(1)))
    group(recorded, ("LREM", LIST_A, 1, job(1)), ("RPUSH", "queue:chaos", job(1)))
    group(recorded, ("LMOVE", "queue:chaos", LIST_B, "RIGHT", "LEFT"))
    group(recorded, ("LREM", LIST_B, -1, job(1)))
    first, second = Files(recorded.data_dir).fetchers()[1]
    assert (first.pid, second.pid) == (1, 2)
    assert time.monotonic() - 5 < first.until <= second.until <= time.monotonic()


# --- a power cut


def test_power_cut_that_ends_early_leaves_no_mark(short_path):
    with SingleStore(short_path / "main") as store:
        steps = power_cut.act(SimpleNamespace(store=store, rng=random.Random(1)), Injection("power cut", 0, 0.0))
        for _ in range(50):  # the mark is on the disk, and the cut comes after 0.1 s
            next(steps)
        assert store.client.exists("chaos:mark")
        steps.close()
        assert not store.client.keys()
        assert store.client.config_get("appendfsync") == {"appendfsync": "everysec"}


# --- a failover


@pytest.mark.slow
@pytest.mark.proves("R15")
def test_failover_names_the_writes_that_the_replica_lacks(short_path):
    with ReplicatedStore(short_path / "main") as store:
        injection = Injection("master killed, lagging", 0, 0.0)
        master = store.master
        master.client.lpush(LIST_A, job(1), job(2))
        master.client.lrem(LIST_A, -1, job(1))
        until(lambda: store.replica.client.llen(LIST_A) == 1, "the replica has the first end")
        steps = replica_behind.act(SimpleNamespace(store=store, rng=random.Random(1)), injection)
        next(steps)  # the replica is cut off
        master.client.lrem(LIST_A, -1, job(2))
        with master.client.pipeline(transaction=True) as pipe:
            for command in QueueTransaction("token", "chaos", [job(3), job(4)]).commands:
                pipe.execute_command(*command)
            pipe.execute()
        for _ in steps:
            time.sleep(0.01)
        assert (injection.forgotten, injection.forgotten_ends) == ({3, 4}, {2})
        assert store.client.llen(LIST_A) == 1
