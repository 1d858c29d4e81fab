"""Check that application code finds the Redis of a worker's jobs, and no other by mistake."""

import json
import logging

import pytest
from redis import Redis

from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.declare import port, registry
from framework.declare.spread import spread
from framework.errors import ConfigurationError, DeclarationError, UnknownShardError, UnroutedCallError
from framework.sharding import ShardRouter, allow_unrouted, router
from framework.wiring.client import ProcessClient, override
from tests.servers.guarded import with_all_rights


def worker(name, **attributes):
    body = {"feature_category": "not_owned", "wire_name": name, "perform": lambda self: None, **attributes}
    return type(name, (ApplicationWorker,), body)


@pytest.fixture
def configured(tmp_path, redis_url, second_redis_url):
    """Two shards, and the Near worker's jobs on the second. With all rights: a pool is for keys of the application's own."""
    folder = tmp_path / "config"
    folder.mkdir()
    shards = {"main": {"url": with_all_rights(redis_url)}, "queues_shard_a": {"url": with_all_rights(second_redis_url)}}
    (folder / "redis.yml").write_text(json.dumps({"shards": shards}))
    rules = [["worker_name=Near", "near", "queues_shard_a"], ["*", "default"]]
    (folder / "routing.yml").write_text(json.dumps({"routing_rules": rules}))
    return lambda **env: load({"FRAMEWORK_CONFIG_DIR": str(folder), **env}, tmp_path)


@pytest.fixture
def bound(configured):
    """The client of this process, as its first push would make it."""
    made = ProcessClient(configured())
    with registry.isolated(), override(made):
        yield made
    made.shards.close()


def test_shard_for_follows_the_rules(bound):
    assert (router.shard_for(worker("Near")), router.shard_for(worker("Far"))) == ("queues_shard_a", "main")
    assert router.shard_for(worker("Pinned", shard="queues_shard_a")) == "queues_shard_a"
    wide = worker("Wide", shard=spread("queues_shard_a", "main"))
    assert router.shards_for(wide) == ("queues_shard_a", "main")
    assert (router.shard_for(wide), router.shards_for(worker("Far"))) == ("queues_shard_a", ("main",))


def test_via_returns_the_pool_of_the_workers_shard(bound, redis, second_redis):
    near, far = worker("Near"), worker("Far")
    near.perform_bulk([(), ()])
    far.perform_async()
    with router.via(near) as pool:
        assert isinstance(pool, Redis)
        assert pool.llen("queue:near") == 2
    with router.via(far) as pool:
        assert (pool.llen("queue:near"), pool.llen("queue:default")) == (0, 1)
    with pytest.raises(UnroutedCallError):
        pool.llen("queue:default")


def test_via_accepts_the_class_of_an_instance(bound):
    with router.via(type(worker("Near")())) as pool:
        assert pool.ping()


@pytest.mark.parametrize("wrong", ["Near", None, object, dict, ApplicationWorker, lambda: None])
def test_via_without_a_worker_class_is_refused(bound, wrong):
    with pytest.raises(TypeError, match="is not a worker class"):
        router.shard_for(wrong)
    with pytest.raises(TypeError, match="is not a worker class"), router.via(wrong):
        pass


def test_via_with_an_instance_names_its_class(bound):
    with pytest.raises(TypeError, match="pass its class, Near"):
        router.shard_for(worker("Near")())


def test_via_with_an_abstract_class_is_refused(bound):
    class Base(ApplicationWorker, abstract=True):
        pass

    with pytest.raises(DeclarationError, match="abstract"):
        router.shard_for(Base)


def test_via_shard_returns_the_named_pool(bound, second_redis):
    second_redis.set("here", 1)
    with router.via_shard("queues_shard_a") as pool:
        assert pool.get("here") == b"1"


@pytest.mark.parametrize("ask", [router.pool, lambda name: router.via_shard(name).__enter__()])
def test_via_shard_with_a_wrong_name_suggests_another(bound, ask):
    with pytest.raises(UnknownShardError, match=r"'queue_shard_a' \(did you mean 'queues_shard_a'\?\).*has: main"):
        ask("queue_shard_a")


def test_via_all_returns_all_pools(bound, redis, second_redis):
    with router.via_all() as pools:
        assert {name: pool.ping() for name, pool in pools.items()} == {"main": True, "queues_shard_a": True}
        pools["main"].set("here", 1)
    assert (redis.get("here"), second_redis.get("here")) == (b"1", None)
    for pool in pools.values():
        with pytest.raises(UnroutedCallError):
            pool.ping()


def test_pool_that_is_kept_serves_inside_of_scopes(bound):
    near, far = worker("Near"), worker("Far")
    pool = router.pool("queues_shard_a")
    with pytest.raises(UnroutedCallError, match="outside of any route"):
        pool.ping()
    with router.via(near) as same:
        assert pool.ping()
        assert same is pool
    with router.via(far), pytest.raises(UnroutedCallError, match="inside a route to 'main' only"):
        pool.ping()
    with allow_unrouted(reason="a test"):
        assert pool.ping()


def test_pool_has_the_timeouts_of_the_frameworks_clients(bound):
    options = router.pool("main").connection_pool.connection_kwargs
    own = bound.shards["main"].client.connection_pool.connection_kwargs
    for name in ("socket_timeout", "socket_connect_timeout", "health_check_interval", "decode_responses"):
        assert options[name] == own[name]
    assert options["retry"].get_retries() == 0


@pytest.mark.parametrize(("environment", "raises"), [("development", True), ("test", True), ("production", False)])
def test_unrouted_call_raises_outside_of_production(configured, environment, raises, caplog):
    made = ProcessClient(configured(FRAMEWORK_ENV=environment))
    with override(made), caplog.at_level(logging.WARNING):
        pool = ShardRouter().pool("main")
        if raises:
            with pytest.raises(UnroutedCallError):
                pool.ping()
        else:
            assert pool.ping()
    messages = [record.getMessage() for record in caplog.records if record.name == "framework"]
    assert len(messages) == (0 if raises else 1)
    for text in messages:
        assert all(
            part in text for part in ("shard.unrouted", "shard='main'", "command='PING'", f"caller='{__file__}:")
        )
    made.shards.close()


def test_router_uses_the_process_beside_a_fake_client(bound):
    with port.override(object()):
        assert router.pool("main") is bound.shards["main"].pool


# --- real programs ----------------------------------------------------------------------------------------------------


def test_router_import_opens_no_connection(cold_site, redis):
    code = (
        "from framework.sharding import router\nfrom pathlib import Path\n"
        "print([fd for fd in Path('/proc/self/fd').iterdir() if int(fd.name) > 2 and fd.is_socket()])\n"
        "import jobs\n"
        "with router.via(jobs.NoopWorker) as pool: print(pool.llen('queue:default'))"
    )
    ended = cold_site.run("-W", "error", "-c", code)
    assert (ended.stdout, ended.stderr) == ("[]\n0\n", "")


def test_router_raises_configuration_errors_like_a_push(site):
    site.write("redis.yml", {"shards": {"other": {"url": "redis://x"}}})
    code = (
        "from framework.sharding import router\nimport jobs\n"
        "try:\n    router.shard_for(jobs.NoopWorker)\n"
        "except Exception as error:\n    print(type(error).__name__)"
    )
    assert site.run("-c", code).stdout == f"{ConfigurationError.__name__}\n"


JOBS = """
import asyncio

from framework import ApplicationWorker
from framework.sharding import allow_unrouted, router
from framework import middleware

from jobs import NoopWorker, prove

KEPT = []


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"
    retry = 0


class FarWorker(Base):
    shard = "second"
    queue = "far"

    def perform(self, number):
        pass


class CountWorker(Base):
    def perform(self):
        with router.via(FarWorker) as pool:
            prove("count", pool.llen("queue:far"))


class AsyncCountWorker(Base):
    async def perform(self):
        def count():
            with router.via(FarWorker) as pool:
                return pool.llen("queue:far")
        prove("async", await asyncio.to_thread(count))


class StrayWorker(Base):
    def perform(self, times):
        for _ in range(times):
            router.pool("second").set("stray", 1)  # the stray call
        prove("stray", "gone through")


class PushWorker(Base):
    def perform(self):
        FarWorker.perform_async(1)
        FarWorker.perform_in(60, 2)
        FarWorker.perform_bulk([(3,), (4,)])
        FarWorker.set(retry=2, queue="urgent").perform_async(5)
        FarWorker.perform_inline(6)
        NoopWorker.perform_async("plain")
"""


@pytest.fixture
def two(site, second_redis, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    (site.folder / "far.py").write_text(JOBS)
    return lambda *options, **env: site.worker("-r", "far", "-q", "default", *options, **env).ready()


def test_router_in_a_job_reaches_another_shard(two, site, second_redis, proofs):
    process = two()
    second_redis.rpush("queue:far", "a", "b")
    assert (
        site.run("-c", "import far; far.CountWorker.perform_async(); far.AsyncCountWorker.perform_async()").stderr == ""
    )
    assert (proofs("count"), proofs("async")) == (["2"], ["2"])
    assert process.end() == 0
    assert not process.find(severity="WARN")


@pytest.mark.parametrize("environment", ["development", "test"])
def test_unrouted_call_fails_its_job(two, site, second_redis, environment):
    process = two("-e", environment)
    site.run("-c", "import far; far.StrayWorker.perform_async(1)")
    failed = process.line(job_status="fail")
    assert failed["exception.class"] == "framework.errors.UnroutedCallError"
    assert process.end() == 0
    assert not second_redis.exists("stray")


def test_unrouted_call_of_a_job_in_production_is_reported(two, site, second_redis, second_redis_url, proofs):
    process = two("-e", "production", FRAMEWORK_SHARDS__SECOND__URL=with_all_rights(second_redis_url))
    site.run("-c", "import far; far.StrayWorker.perform_async(5)")
    assert proofs("stray") == ["gone through"]
    line = process.line(event_name="shard.unrouted")
    number = JOBS.splitlines().index('            router.pool("second").set("stray", 1)  # the stray call') + 1
    assert line["caller"] == f"{site.folder / 'far.py'}:{number}"
    assert (line["shard"], line["command"], line["severity"], line["count"]) == ("second", "SET", "WARN", 1)
    assert process.end() == 0
    assert len(process.find(event_name="shard.unrouted")) == 1
    assert second_redis.get("stray") == b"1"


def test_push_in_a_job_needs_no_scope(two, site, second_redis, proofs):
    process = two()
    site.run("-c", "import far; far.PushWorker.perform_async()")
    proofs("noop")
    process.line(job_status="done", **{"class": "PushWorker"})
    assert process.end() == 0
    assert not process.find(job_status="fail")
    assert [json.loads(data)["args"] for data in second_redis.lrange("queue:far", 0, -1)] == [[4], [3], [1]]
    assert [json.loads(data)["args"] for data in second_redis.lrange("queue:urgent", 0, -1)] == [[5]]
    assert [json.loads(data)["args"] for data in second_redis.zrange("schedule", 0, -1)] == [[2]]


def test_push_in_any_scope_needs_no_other(bound, redis, second_redis):
    near, far = worker("Near"), worker("Far")
    with router.via(far):
        near.perform_async()
        near.perform_in(60)
    with router.via(near):
        far.perform_async()
    assert (second_redis.llen("queue:near"), second_redis.zcard("schedule")) == (1, 1)
    assert redis.llen("queue:default") == 1
