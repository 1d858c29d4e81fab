"""Push single jobs."""

import json
import logging
import math
import re
import time
from datetime import timedelta

import pytest

from framework.declare import port
from framework.errors import ArgumentsError, ShardUnavailableError, UnknownShardError, UnroutedCallError
from framework.feature import Late
from framework.features.batches.calls import BlockClient
from framework.features.batches.store import Batches
from framework.process_clock import process_clock
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from framework.telemetry import context
from framework.wire import keys
from tests.harness import full_memory, opened
from tests.push.conftest import LetPass, Pusher, worker


def all_keys(redis):
    return sorted(redis.keys("*"))


def test_push_writes_the_fields_of_sidekiq(pusher, jobs, redis):
    before = time.time()
    jid = worker(queue="default").perform_async(1, "ä", None, {"k": [2**70]})
    (job,) = jobs()
    assert re.fullmatch(r"[0-9a-f]{24}", jid)
    assert before - 1 <= job["created_at"] <= job["enqueued_at"] <= time.time() + 1
    assert job == {
        "class": "Job",
        "args": [1, "ä", None, {"k": [2**70]}],
        "retry": True,
        "queue": "default",
        "jid": jid,
        "created_at": job["created_at"],
        "enqueued_at": job["enqueued_at"],
        "correlation_id": job["correlation_id"],
    }
    text = redis.lindex("queue:default", 0).decode()
    for name in ("created_at", "enqueued_at"):  # an integer would be milliseconds to Sidekiq 8
        assert re.search(rf'"{name}":\d+\.\d*[1-9]\d*[,}}]', text), text
    assert all_keys(redis) == [b"queue:default", b"queues"]
    assert redis.smembers(keys.QUEUES) == {b"default"}


@pytest.mark.parametrize("second", [0, 1, 2])
def test_push_on_a_full_second_writes_a_fraction(pusher, redis, second, monkeypatch):
    monkeypatch.setattr(process_clock, "now", lambda: 1_750_000_000.0 + second)
    worker(queue="default").perform_async()
    text = redis.lindex("queue:default", 0).decode()
    assert re.search(r'"created_at":\d+\.\d*[1-9]', text)
    assert re.search(r'"enqueued_at":\d+\.\d*[1-9]', text)


def test_push_adds_at_the_left(pusher, jobs):
    job = worker(queue="default")
    jids = [job.perform_async(number) for number in range(3)]
    assert [one["jid"] for one in jobs()] == jids


def test_push_writes_the_attributes_of_the_class(pusher, jobs):
    worker(
        queue="default",
        version=2,
        retry=3,
        retry_for=timedelta(hours=1),
        retry_queue="slow",
        dead=False,
        backtrace=5,
        tags=("a", "b"),
        queue_namespace="ns",
        expires_in=timedelta(minutes=1),
        status_expiration=60,
    ).perform_async()
    (job,) = jobs()
    expected = {"version": 2, "retry": 3, "retry_for": 3600, "retry_queue": "slow", "dead": False, "backtrace": 5}
    expected |= {"tags": ["a", "b"], "queue_namespace": "ns", "expires_in": 60, "status_expiration": 60}
    assert {name: job[name] for name in expected} == expected
    assert isinstance(job["retry_for"], int)


def test_push_of_a_duration_below_a_second_rounds_up(pusher, jobs):
    job = worker(queue="default", retry_for=0.5, expires_in=timedelta(milliseconds=1), status_expiration=90.2)
    job.perform_async()
    job.set(retry_for=0.1).perform_async()
    first, second = jobs()
    assert (first["retry_for"], first["expires_in"], first["status_expiration"], second["retry_for"]) == (1, 1, 91, 1)


def test_set_overrides_the_class_for_one_push(pusher, jobs, redis):
    job = worker(queue="default", retry=3, tags=("a",))
    job.set(queue="urgent", retry=0).set(tags=("b",), dead=False).perform_async()
    job.set(retry=False, backtrace=True).perform_async()
    job.perform_async()
    (first,) = jobs("urgent")
    assert (first["queue"], first["retry"], first["tags"], first["dead"]) == ("urgent", 0, ["b"], False)
    second, third = jobs()
    assert (second["retry"], second["backtrace"], second["tags"]) == (False, True, ["a"])
    assert (third["retry"], "backtrace" in third, "dead" in third) == (3, False, False)
    assert redis.smembers(keys.QUEUES) == {b"urgent", b"default"}


def test_push_scheduled_writes_neither_at_nor_enqueued_at(pusher, redis):
    before = time.time()
    jid = worker(queue="default").perform_in(3600, 1)
    ((member, due),) = redis.zrange(keys.SCHEDULE, 0, -1, withscores=True)
    job = json.loads(member)
    assert (job["jid"], job["queue"], job["args"]) == (jid, "default", [1])
    assert not {"at", "enqueued_at"} & set(job)
    assert before + 3590 < due < time.time() + 3610
    assert all_keys(redis) == [b"schedule"]  # its queue has a name when it has a job


def test_push_already_due_is_enqueued_at_once(pusher, jobs, redis):
    worker(queue="default").perform_at(1_000_000_001)
    assert "enqueued_at" in jobs()[0]
    assert not redis.exists(keys.SCHEDULE)


def test_push_writes_the_ambient_context(pusher, jobs):
    job = worker(queue="default")
    with context.bound("cafe", user="u1"):
        job.perform_async()
    job.perform_async()
    first, second = jobs()
    assert (first["correlation_id"], first["meta.user"]) == ("cafe", "u1")
    assert second["correlation_id"] == second["jid"]  # the first job of a chain names the chain
    assert "meta.user" not in second


@pytest.mark.parametrize("middleware", [(), (LetPass,)], ids=("quick", "middleware"))
def test_push_of_a_reloaded_class_uses_its_new_attributes(pusher, jobs, middleware):
    pusher.open(*middleware)
    worker(queue="default", version=1).perform_async()
    worker(queue="default", version=2, retry=1).perform_async()
    worker(queue="default", version=2, retry=1).perform_bulk([()])
    assert [(job["version"], job["retry"]) for job in jobs()] == [(1, True), (2, 1), (2, 1)]


def test_push_with_a_new_client_uses_its_rules(pusher, jobs):
    job = worker()
    pusher.open(rules=[("*", "one")])
    job.perform_async(1)
    pusher.open(rules=[("*", "two")])
    job.perform_async(2)
    job.perform_bulk([(3,)])
    assert [[one["args"] for one in jobs(queue)] for queue in ("one", "two")] == [[[1]], [[2], [3]]]


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_push_nested_too_deep_is_refused(pusher, redis):
    job = worker(queue="default")
    for push in (lambda: job.perform_async(nested(63)), lambda: job.perform_bulk([(1,), (nested(63),)])):
        with pytest.raises(ArgumentsError, match="nested deeper than 64 levels"):
            push()
    assert all_keys(redis) == []
    job.perform_async(nested(62))
    job.perform_bulk([(nested(62),)])
    assert redis.llen("queue:default") == 2


# --- routes and shards ----------------------------------------------------------------------------------------------


@pytest.mark.proves("I18")
def test_push_follows_a_rule_to_another_shard(pusher, jobs, redis, second_redis, second_redis_url):
    other = opened(second_redis_url, "second")
    Pusher({"main": pusher.shards["main"], "second": other}).open(
        rules=[("worker_name=Job", "there", "second"), ("*", "here")]
    )
    worker().perform_async(1)
    worker("Other").perform_async(2)
    worker("Other").perform_in(100, 3)
    worker("Job").perform_in(100, 4)
    assert [job["args"] for job in jobs("here")] == [[2]]
    assert [json.loads(data)["args"] for data in second_redis.lrange("queue:there", 0, -1)] == [[1]]
    assert (redis.zcard(keys.SCHEDULE), second_redis.zcard(keys.SCHEDULE)) == (1, 1)
    assert second_redis.smembers(keys.QUEUES) == {b"there"}
    other.close()


def test_unknown_shard_error_names_the_known_ones(pusher):
    with pytest.raises(UnknownShardError, match=r"'nowhere'.*has: main"):
        pusher.shards["nowhere"]


@pytest.mark.parametrize("push", ["perform_async", "perform_in"])
def test_push_to_a_stopped_server_names_the_remedy(pusher, short_path, push):
    gone = opened(f"unix://:secret@{short_path}/gone.sock")
    Pusher({"main": gone})
    arguments = (10,) if push == "perform_in" else ()
    with pytest.raises(ShardUnavailableError) as caught:
        getattr(worker(), push)(*arguments)
    assert (caught.value.shard, caught.value.maybe_written) == ("main", False)
    for word in (
        "'main'",
        f"{short_path}/gone.sock",
        "application-worker store start",
        "REDIS_URL",
        "config/redis.yml",
    ):
        assert word in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "may have been applied" not in str(caught.value)


def test_push_refused_is_not_maybe_written(pusher, jobs, redis):
    job = worker(queue="default")
    with full_memory(redis), pytest.raises(ShardUnavailableError, match="maxmemory") as caught:
        job.perform_async(1)
    assert not caught.value.maybe_written
    assert all_keys(redis) == []
    job.perform_async(2)
    assert [one["args"] for one in jobs()] == [[2]]


@pytest.mark.proves("R17")
def test_push_with_a_lost_reply_is_maybe_written(pusher, redis, redis_url):
    """The server is frozen: the command is sent, and no reply comes."""
    # Long enough to connect on a loaded machine.
    short_timeout_shard = Shard("main", Endpoint(redis_url), role="tests", read_timeout_s=1)
    Pusher({"main": short_timeout_shard})
    assert worker(queue="default").perform_async()  # the connection is made
    redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        with pytest.raises(ShardUnavailableError, match="may have been applied") as caught:
            worker(queue="default").perform_async()
        assert caught.value.maybe_written
    finally:
        redis.execute_command("CLIENT", "UNPAUSE")
    short_timeout_shard.close()


def test_push_after_a_restart_of_the_server_succeeds(make_server, pusher, redis):
    own = make_server()
    shard = opened(own.url)
    Pusher({"main": shard})
    job = worker(queue="default")
    job.perform_async(1)
    own.kill()
    with pytest.raises(ShardUnavailableError):
        job.perform_async(2)
    own.start()
    job.perform_async(3)
    assert [json.loads(data)["args"] for data in shard.client.lrange("queue:default", 0, -1)] == [[3], [1]]
    shard.close()


# --- client middleware ----------------------------------------------------------------------------------------------


def test_middleware_receives_class_payload_queue_and_pool(pusher, jobs):
    seen = []

    class Look:
        def call(self, cls, job, queue, pool):
            seen.append((cls, dict(job), queue, pool.llen("queue:x")))
            yield
            seen.append("after")

    pusher.open(Look)
    cls = worker(queue="default")
    jid = cls.perform_async("x" * 200_000)
    ((found, job, queue, length), after) = seen
    assert (found, job["jid"], job["args"], queue, length, after) == (cls, jid, ["x" * 200_000], "default", 0, "after")
    assert "compressed" not in job


def test_middleware_pool_is_routed_only_during_the_call(pusher, jobs, second_redis_url):
    kept, names = [], []

    class Keep:
        def call(self, cls, job, queue, pool):
            kept.append(pool)
            names.append(pool.connection_pool.connection_kwargs["client_name"])
            yield
            names.append(pool.connection_pool.connection_kwargs["client_name"])

    other = opened(second_redis_url, "second")
    both = Pusher({"main": pusher.shards["main"], "second": other})
    both.open(Keep, rules=[("worker_name=There", "there", "second")])
    here, there = worker("Here", queue="default"), worker("There")
    for push in (here.perform_async, there.perform_async, lambda: here.perform_bulk([()]), lambda: here.perform_in(9)):
        push()
        with pytest.raises(UnroutedCallError) as caught:
            kept[-1].ping()
        assert caught.value.shard == ("second" if push == there.perform_async else "main")
    assert {name if isinstance(name, str) else name.decode() for name in names} == {"framework:tests:application"}
    assert len(names) == 8
    other.close()


def test_middleware_with_another_shards_pool_is_refused(pusher, second_redis_url, redis):
    other = opened(second_redis_url, "second")

    class SwitchShard:
        def call(self, cls, job, queue, pool):
            other.pool.ping()
            yield

    Pusher({"main": pusher.shards["main"], "second": other}).open(SwitchShard)
    with pytest.raises(UnroutedCallError, match="inside a route to 'main' only"):
        worker(queue="default").perform_async()
    assert all_keys(redis) == []
    other.close()


def test_middleware_may_change_the_job(pusher, jobs, redis):
    class Alter:
        def call(self, cls, job, queue, pool):
            job["queue"] = "elsewhere"
            job["args"] = [9]
            job["bid"] = "b"
            yield

    pusher.open(Alter)
    jid = worker(queue="default").perform_async(1)
    (job,) = jobs("elsewhere")
    assert (job["jid"], job["args"], job["bid"], job["queue"]) == (jid, [9], "b", "elsewhere")
    assert redis.smembers(keys.QUEUES) == {b"elsewhere"}


def test_middleware_may_drop_the_job(pusher, redis):
    class Drop:
        def call(self, cls, job, queue, pool):
            if job["args"] == [13]:
                return
            yield

    pusher.open(Drop)
    job = worker(queue="default")
    assert job.perform_async(13) is None
    assert job.perform_in(60, 13) is None
    assert all_keys(redis) == []
    assert job.perform_async(14)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, "\ud800", object(), (math.nan,)],
    ids=("nan", "inf", "surrogate", "object", "nan-in-tuple"),
)
def test_middleware_adding_no_json_is_refused(pusher, redis, value):
    class Spoil:
        def call(self, cls, job, queue, pool):
            job["extra"] = {"deep": [value]}
            yield

    pusher.open(Spoil)
    with pytest.raises(ArgumentsError, match="Job"):
        worker(queue="default").perform_async()
    with pytest.raises(ArgumentsError):
        worker(queue="default").perform_bulk([(1,)])
    assert all_keys(redis) == []


# --- arguments and their size ---------------------------------------------------------------------------------------


@pytest.mark.proves("R54", "I22")
@pytest.mark.parametrize(
    "value",
    [math.nan, (1,), b"x", {1: 2}, object(), "\ud800"],
    ids=("nan", "tuple", "bytes", "integer-key", "object", "surrogate"),
)
def test_push_of_no_json_writes_nothing(pusher, redis, value):
    with pytest.raises(ArgumentsError):
        worker().perform_async(value)
    with pytest.raises(ArgumentsError):
        worker().perform_bulk([(1,), (value,)])
    assert all_keys(redis) == []


# --- output -----------------------------------------------------------------------------------------------------------


def test_push_prints_and_logs_nothing(pusher, capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        worker(queue="default").perform_async(1)
        worker(queue="default").perform_bulk([(1,), (2,)])
    assert tuple(capfd.readouterr()) == ("", "")
    assert caplog.records == []


def test_client_shared_by_threads_writes_all_jobs(pusher, jobs):
    from concurrent.futures import ThreadPoolExecutor

    job = worker(queue="default")
    with ThreadPoolExecutor(8) as pool:
        jids = list(pool.map(job.perform_async, range(400)))
    assert sorted(one["jid"] for one in jobs()) == sorted(jids)
    assert sorted(one["args"][0] for one in jobs()) == list(range(400))


def test_route_is_returned_without_a_push(pusher, redis):
    pusher.open(rules=[("feature_category=not_owned", "q")])
    route = worker().route()
    assert (route.queue, route.shard, route.rule) == ("q", "main", "feature_category=not_owned")
    assert all_keys(redis) == []
    assert port.current().route(worker("X").declaration()).queue == "q"


def test_service_belongs_to_one_client(pusher):
    """Each client, and each block of a batch before it, has one object of a kind."""
    batches: Late[type[Batches]] = Late("framework.features.batches.store:Batches")
    first = pusher.client
    made = first.service(batches)
    assert type(made) is Batches
    assert first.service(batches) is made
    assert BlockClient(first).service(batches) is made
    assert pusher.open().client.service(batches) is not made
