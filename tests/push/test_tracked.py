"""Check that a push writes the status of a tracked job in the job's packet, before it; a refused job leaves none."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from framework.errors import BulkPushError, ShardUnavailableError
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from framework.wire import keys
from tests.harness import full_memory, opened, until
from tests.push.conftest import LetPass, Pusher, worker

pytestmark = pytest.mark.usefixtures("room")


class DropOdd:
    def call(self, cls, job, queue, pool):
        if job["args"][0] % 2 == 0:
            yield


def tracked(**attributes):
    return worker(queue="default", status_expiration=60, **attributes)


def states(redis):
    return {key.decode().removeprefix("aw:status:"): redis.get(key).decode() for key in redis.keys("aw:status:*")}


def numbered(count):
    return [(number,) for number in range(count)]


# --- the written statuses ---------------------------------------------------------------------------------------------


def test_push_writes_queued_with_its_expiration(push_mode, redis):
    jid = tracked().perform_async(1)
    assert states(redis) == {jid: "queued"}
    assert 50 < redis.ttl(keys.status(jid)) <= 60
    assert redis.llen("queue:default") == 1


def test_push_untracked_writes_no_status(push_mode, redis):
    worker(queue="default").perform_async(1)
    worker(queue="default").perform_bulk(numbered(2))
    assert states(redis) == {}


def test_set_status_expiration_tracks_one_push(push_mode, redis):
    job = worker(queue="default")
    job.perform_async(1)
    jid = job.set(status_expiration=timedelta(hours=1)).perform_async(2)
    began = redis.time()[0]
    other = tracked().set(status_expiration=59.5).perform_async(3)
    assert states(redis) == {jid: "queued", other: "queued"}
    assert redis.ttl(keys.status(jid)) > 3_500
    assert redis.expiretime(keys.status(other)) >= began + 60  # begun seconds count: none is not a time
    fields = [json.loads(data).get("status_expiration") for data in reversed(redis.lrange("queue:default", 0, -1))]
    assert fields == [None, 3600, 60]


@pytest.mark.proves("R46")
def test_status_of_a_scheduled_job_outlives_its_wait(push_mode, redis):
    jid = tracked().perform_in(1_000, 1)
    assert 1_050 < redis.ttl(keys.status(jid)) <= 1_061
    assert states(redis) == {jid: "queued"}
    assert redis.zcard(keys.SCHEDULE) == 1
    assert redis.exists(keys.status(tracked().perform_at(1e13, 1)))


def test_status_is_written_for_each_job_of_a_bulk(push_mode, redis):
    jids = tracked().perform_bulk(numbered(2_500))
    assert states(redis) == dict.fromkeys(jids, "queued")
    assert redis.llen("queue:default") == 2_500


def test_status_of_a_spread_bulk_outlives_each_wait(push_mode, redis):
    jids = tracked().perform_bulk_in(100, numbered(1_500), batch_size=700, batch_delay=1_000)
    with redis.pipeline(transaction=False) as pipe:
        for jid in jids:
            pipe.ttl(keys.status(jid))
        lifetimes = [round(seconds, -2) for seconds in pipe.execute()]
    assert lifetimes == [200] * 700 + [1_200] * 700 + [2_200] * 100


@pytest.mark.parametrize("count", [1, 1_000])
def test_status_is_sent_with_the_jobs(push_mode, redis, count):
    """One packet: no command of another connection is executed between status and job, and the status comes first."""
    with redis.monitor() as monitor:
        tracked().perform_bulk(numbered(count))
        redis.publish("end", "of test")
        seen = []
        for command in monitor.listen():
            if command["command"].startswith("PUBLISH"):
                break
            if command["client_type"] != "lua":
                seen.append((command["client_port"], command["command"].split()[0]))
    seen = [entry for entry in seen if entry[1] in ("SET", "SADD", "LPUSH", "LMOVE", "MGET", "GET", "EVALSHA")]
    assert [word for _, word in seen] == ["SET"] * count + ["SADD"] + ["LPUSH"] * (count > 1) + ["LMOVE"]


# --- client middleware ----------------------------------------------------------------------------------------------


def test_status_of_a_dropped_job_is_not_written(pusher, redis):
    pusher.open(DropOdd)
    assert tracked().perform_async(1) is None
    assert states(redis) == {}
    jids = tracked().perform_bulk(numbered(5))
    assert states(redis) == {jid: "queued" for jid in jids if jid}
    assert len(states(redis)) == 3


def test_status_expiration_set_by_a_middleware_counts(pusher, redis):
    class Choose:
        def call(self, cls, job, queue, pool):
            if job["args"] == [1]:
                job["status_expiration"] = 30
            else:
                del job["status_expiration"]
            yield

    pusher.open(Choose)
    jid = worker(queue="default").perform_async(1)
    tracked().perform_async(2)
    assert states(redis) == {jid: "queued"}
    assert redis.ttl(keys.status(jid)) <= 30


# --- refusals -------------------------------------------------------------------------------------------------------


def pushes(job):
    return [
        lambda: job.perform_async(1),
        lambda: job.perform_in(60, 1),
        lambda: job.perform_bulk(numbered(3)),
        lambda: job.perform_bulk_in(60, numbered(3)),
    ]


@pytest.mark.parametrize("number", range(4))
def test_full_server_refuses_job_and_status(push_mode, redis, number):
    push = pushes(tracked())[number]
    with full_memory(redis), pytest.raises((ShardUnavailableError, BulkPushError)) as caught:
        push()
    assert redis.keys("*") == []
    cause = caught.value.__cause__ if isinstance(caught.value, BulkPushError) else caught.value
    assert not cause.maybe_written
    push()
    assert states(redis)


@pytest.mark.parametrize("number", range(4))
def test_replica_refuses_job_and_status(push_mode, redis, number):
    redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises((ShardUnavailableError, BulkPushError), match="read only replica"):
            pushes(tracked())[number]()
    finally:
        redis.execute_command("REPLICAOF", "NO", "ONE")
    assert redis.keys("*") == []


@pytest.mark.parametrize("number", range(4))
def test_queue_of_another_type_leaves_no_status(push_mode, redis, number):
    """The statuses are accepted and the jobs refused: the statuses are deleted."""
    redis.set("queue:default", "no list")
    redis.set(keys.SCHEDULE, "no set")
    with pytest.raises((ShardUnavailableError, BulkPushError), match="wrong kind"):
        pushes(tracked())[number]()
    assert states(redis) == {}


def test_status_of_a_written_job_survives_a_refused_one(pusher, redis):
    class Split:
        def call(self, cls, job, queue, pool):
            job["queue"] = f"q{job['args'][0]}"
            yield

    pusher.open(Split)
    redis.set("queue:q1", "no list")
    with pytest.raises(BulkPushError) as caught:
        tracked().perform_bulk(numbered(2))
    assert caught.value.__cause__.maybe_written
    (in_it,) = [json.loads(data)["jid"] for data in redis.lrange("queue:q0", 0, -1)]
    assert states(redis)[in_it] == "queued"


@pytest.mark.refused("producer aw:status:*", "producer aw:push:*")
def test_acl_without_status_keys_allows_the_push(pusher, redis, redis_url, caplog):
    """A refused status does not refuse its job: without rights on status keys only the statuses are lost, with a log line."""
    redis.execute_command("ACL", "SETUSER", "producer", "on", ">secret", "~queue*", "~schedule", "+@all")
    shard = opened(redis_url.replace("unix://", "unix://producer:secret@"))
    try:
        Pusher({"main": shard})
        assert tracked().perform_async(1)
        assert tracked().perform_bulk_in(60, numbered(2))
        assert (redis.llen("queue:default"), redis.zcard(keys.SCHEDULE), states(redis)) == (1, 2, {})
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "status.write_failed" in caplog.text
    finally:
        shard.close()
        redis.execute_command("ACL", "DELUSER", "producer")


class Killing(Shard):
    """Kill its server during the second chunk: the packet has arrived and gets no reply."""

    def enqueue(self, *arguments):
        self.chunks = getattr(self, "chunks", 0) + 1
        if self.chunks != 2:
            return super().enqueue(*arguments)
        with self.server.open() as other, ThreadPoolExecutor(1) as pool:
            other.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
            killed = pool.submit(self.kill_midway, other)
            try:
                return super().enqueue(*arguments)
            finally:
                killed.result()

    def kill_midway(self, other):
        until(lambda: any("b" in client["flags"] for client in other.client_list()), "the packet of chunk 2")
        self.server.kill()


def resumed(error):
    """Resume the push. On a busy machine the failure was slow and has opened the circuit, which rejects all calls but probes."""
    with suppress(BulkPushError):
        return error.resume()


@pytest.mark.parametrize("middleware", [(), (LetPass,)], ids=("quick", "middleware"))
def test_bulk_on_a_killed_server_keeps_statuses_of_jobs(pusher, make_server, middleware):
    """The error names the first job that may be missing; the jobs it calls written are there, with their statuses."""
    own = make_server()
    shard = Killing("main", Endpoint(own.url), role="tests")
    shard.server = own
    Pusher({"main": shard}).open(*middleware)
    cls = tracked()
    with pytest.raises(BulkPushError) as caught:
        cls.perform_bulk_for(range(2_500), arguments=cls.arguments, context=lambda number: {"number": number})
    error = caught.value
    assert (error.failed_from, len(error.jids), len(set(error.jids))) == (1_000, 1_000, 1_000)
    assert error.__cause__.maybe_written
    own.start()
    client = own.open()
    found = [json.loads(data) for data in reversed(shard.client.lrange("queue:default", 0, -1))]
    assert [(job["jid"], job["args"], job["meta.number"]) for job in found[:1_000]] == [
        (jid, [number], number) for number, jid in enumerate(error.jids)
    ]
    assert set(error.jids) <= set(states(client))
    assert (error.maybe_written, len(error.in_doubt)) == (True, 1_000)
    jids = until(lambda: resumed(error), "a resumed push")
    found = [json.loads(data) for data in reversed(shard.client.lrange("queue:default", 0, -1))]
    assert [job["jid"] for job in found] == [*error.jids, *jids]
    assert [job["meta.number"] for job in found] == list(range(2_500))
    assert states(client) == dict.fromkeys([*error.jids, *jids], "queued")
    client.close()
    shard.close()
