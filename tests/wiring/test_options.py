"""Push with each option of ``set`` through each push method, on two real shards; a refused push writes nothing."""

import json
import os
from datetime import timedelta

import pytest

from framework import middleware, status
from framework.all_settings import load
from framework.application_worker import PushOptions
from framework.declare import registry
from framework.errors import ArgumentsError, Discard
from framework.middleware.chain import CLIENT, Chain
from framework.telemetry import context
from framework.wire import keys
from framework.wiring.client import ProcessClient, override
from tests.harness import forked
from tests.push.conftest import worker
from tests.tables import each_row

OPTIONS = {
    "queue": ("urgent", {"queue": "urgent", "aw_queue": "urgent"}),
    "shard": ("second", {"aw_shard": "second"}),
    "retry": (0, {"retry": 0}),
    "retry_for": (timedelta(minutes=1), {"retry_for": 60}),
    "retry_queue": ("slow", {"retry_queue": "slow"}),
    "dead": (False, {"dead": False}),
    "backtrace": (5, {"backtrace": 5}),
    "tags": (("a",), {"tags": ["a"]}),
    "status_expiration": (60, {"status_expiration": 60}),
    "expires_in": (0.2, {"expires_in": 1}),
    "timeout": (timedelta(seconds=90), {"timeout": 90}),
    "track": (True, {"track": True}),
    "priority": ("high", {"priority": "high"}),
    "result_ttl": (60, {}),
    "profile": (True, {"aw_profile": True}),
    "context": ({"user": "u", "meta.deep": {"k": [1]}}, {"meta.user": "u", "meta.deep": {"k": [1]}}),
}
METHODS = {
    "async": lambda job, cls: [job.perform_async(1)],
    "in": lambda job, cls: [job.perform_in(60, 1)],
    "at": lambda job, cls: [job.perform_at(4_000_000_000, 1)],
    "bulk": lambda job, cls: job.perform_bulk([(1,), (2,)]),
    "bulk_in": lambda job, cls: job.perform_bulk_in(60, [(1,), (2,)], batch_size=1, batch_delay=5),
    "bulk_for": lambda job, cls: job.perform_bulk_for([1, 2], arguments=cls.arguments),
    "bulk_for delayed": lambda job, cls: job.perform_bulk_for([1, 2], arguments=cls.arguments, delay=60),
    "inline": lambda job, cls: job.perform_inline(1),
}


class LetPass:
    def call(self, cls, job, queue, pool):
        yield


@pytest.fixture
def ran():
    return []


@pytest.fixture(params=[(), (LetPass,)], ids=("quick", "middleware"))
def client_chain(request, monkeypatch):
    chain = Chain(CLIENT)
    for one in request.param:
        chain.add(one)
    monkeypatch.setattr(middleware, "client", chain)


@pytest.fixture
def job(tmp_path, redis_url, second_redis_url, ran):
    """Return a class whose pushes and inline runs use a real client; ``ran`` has the payloads of its runs."""
    folder = tmp_path / "config"
    folder.mkdir()
    shards = {"main": {"url": redis_url}, "second": {"url": second_redis_url}}
    (folder / "redis.yml").write_text(json.dumps({"shards": shards}))
    (folder / "routing.yml").write_text(json.dumps({"routing_rules": [["*", "default", "main"]]}))
    enqueuer = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(folder)}, tmp_path))

    def perform(self, number: int) -> None:
        ran.append(dict(self._aw_job))
        if number == 13:
            raise LookupError("13")
        if number == 14:
            raise Discard("14")

    with registry.isolated(), override(enqueuer):
        yield worker(perform=perform, priority="low")
    enqueuer.shards.close()


def written(client):
    """Return every payload on a shard, in any key."""
    queues = [data for key in client.keys("queue:*") for data in client.lrange(key, 0, -1)]
    return [json.loads(data) for data in (*queues, *client.zrange(keys.SCHEDULE, 0, -1))]


def test_option_table_is_complete():
    # Callbacks are for single pushes: tests/features/batches/test_calls.py.
    assert {*OPTIONS, "sync", "on_death", "on_success"} == set(PushOptions.__annotations__)


@pytest.mark.usefixtures("client_chain")
@each_row("method", METHODS)
@each_row("option", OPTIONS)
def test_push_option_works_with_every_method(job, ran, redis, second_redis, option, method):
    ran.clear()
    value, fields = OPTIONS[option]
    jids = METHODS[method](job.set(**{option: value}), job)
    here, there = (second_redis, redis) if option == "shard" else (redis, second_redis)
    found = ran if method == "inline" else written(here)
    if method != "inline":
        assert sorted(one["jid"] for one in found) == sorted(jids)
        assert bool(here.keys("aw:status:*")) == (option == "status_expiration")
        assert written(there) == []
    for payload in found:
        assert {name: payload[name] for name in fields} == fields
        assert not {"shard", "context", "sync", "status"} & set(payload)
        assert payload["queue"] == fields.get("queue", "default")


@pytest.mark.usefixtures("client_chain")
@pytest.mark.parametrize("method", ["async", "bulk", "bulk_for", "inline"])
def test_push_sync_runs_inline(job, ran, redis, method):
    jids = METHODS[method](job.set(sync=True, context={"user": "u"}), job)
    assert [payload["args"] for payload in ran] == ([[1], [2]] if "bulk" in method else [[1]])
    assert all(payload["meta.user"] == "u" for payload in ran)
    assert written(redis) == []
    if method != "inline":
        assert jids == [payload["jid"] for payload in ran]
    METHODS["async"](job.set(sync=True).set(sync=False), job)
    assert len(written(redis)) == 1


@pytest.mark.parametrize("method", ["in", "at", "bulk_in", "bulk_for delayed"])
def test_push_sync_with_a_delay_is_refused(job, ran, redis, method):
    with pytest.raises(ArgumentsError, match=r"sync=True.*cannot wait"):
        METHODS[method](job.set(sync=True), job)
    assert (ran, redis.keys("*")) == ([], [])


def test_sync_checks_every_job_before_the_first_runs(job, ran):
    with pytest.raises(ArgumentsError, match="job 1 of the bulk"):
        job.set(sync=True).perform_bulk([(1,), ("x",)])
    assert ran == []
    with pytest.raises(LookupError):
        job.set(sync=True).perform_bulk([(1,), (13,), (2,)])
    assert [payload["args"] for payload in ran] == [[1], [13]]


def test_push_sync_gives_each_job_its_context(job, ran):
    job.set(sync=True, context={"a": 0, "b": 0}).perform_bulk_for(
        [1, 2], arguments=job.arguments, context=lambda number: {"b": number}
    )
    assert [(payload["meta.a"], payload["meta.b"]) for payload in ran] == [(0, 1), (0, 2)]


@pytest.mark.usefixtures("client_chain")
@pytest.mark.parametrize("method", METHODS)
def test_push_to_an_unknown_shard_writes_nothing(job, ran, redis, second_redis, method):
    with pytest.raises(ArgumentsError, match=r"set\(shard='secnd'\).*did you mean 'second'.*has: main, second"):
        METHODS[method](job.set(shard="secnd"), job)
    assert (redis.keys("*"), second_redis.keys("*"), ran) == ([], [], [])


def test_options_are_chained_kept_and_overridden(job, redis, second_redis):
    first = job.set(shard="second", retry=3, context={"a": 1})
    first.set(retry=0, context={"b": 2}).perform_async(1)
    first.perform_async(2)
    one, two = sorted(written(second_redis), key=lambda payload: payload["args"])
    assert (one["retry"], one["meta.b"], "meta.a" in one) == (0, 2, False)
    assert (two["retry"], two["meta.a"], "meta.b" in two) == (3, 1, False)
    assert redis.keys("*") == []


@pytest.mark.usefixtures("client_chain")
def test_push_inner_context_overrides_outer_context(job, redis):
    with context.bound("chain", a="ambient", b="ambient", c="ambient"):
        job.set(context={"b": "set", "c": "set"}).perform_bulk_for(
            [1], arguments=job.arguments, context=lambda number: {"c": "own"}
        )
        job.set(context={"b": "set"}).perform_async(2)
    one, two = sorted(written(redis), key=lambda payload: payload["args"])
    assert (one["meta.a"], one["meta.b"], one["meta.c"], one["correlation_id"]) == ("ambient", "set", "own", "chain")
    assert (two["meta.a"], two["meta.b"], two["meta.c"], two["correlation_id"]) == (
        "ambient",
        "set",
        "ambient",
        "chain",
    )


# --- states of inline runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "state"), [(1, "completed"), (13, "failed"), (14, "discarded")])
def test_inline_run_tracked_has_its_states(job, ran, redis, number, state):
    seen = []

    class Look:
        def call(self, worker, payload, queue):
            seen.append(status.of(payload["jid"]))
            yield

    middleware.server.allow_changes()
    middleware.server.add(Look)
    try:
        job.set(status_expiration=60).perform_inline(number)
    except (LookupError, Discard):
        assert number != 1
    finally:
        middleware.server.allow_changes()
        middleware.server.remove(Look)
    assert seen == ["running"]
    assert status.of(ran[0]["jid"]) == state
    assert redis.keys("*") == [keys.status(ran[0]["jid"]).encode()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_async_inline_runs_go_on_in_a_forked_child(job):
    started = []

    async def perform(self, depth: int) -> None:
        started.append((os.getpid(), depth))
        if depth:
            slow.perform_inline(depth - 1)  # from the event loop, which waits

    slow = worker("Slow", perform=perform)
    slow.perform_inline(1)
    assert forked(lambda: slow.perform_inline(1)) == 0
    slow.perform_inline(2)
    assert started == [(os.getpid(), depth) for depth in (1, 0, 2, 1, 0)]


def test_inline_run_stopped_by_middleware_is_discarded(job, redis):
    class Stop:
        def call(self, worker, payload, queue):
            return
            yield

    middleware.server.allow_changes()
    middleware.server.add(Stop)
    try:
        jid = job.set(status_expiration=60, sync=True).perform_async(1)
    finally:
        middleware.server.allow_changes()
        middleware.server.remove(Stop)
    assert status.of(jid) == "discarded"


def test_inline_run_untracked_sends_no_command(job, ran, redis):
    before = redis.info("stats")["total_commands_processed"]
    job.perform_inline(1)
    assert redis.info("stats")["total_commands_processed"] == before + 1  # the query of the test itself
    assert len(ran) == 1


def test_inline_run_without_redis_continues(job, ran, redis, caplog):
    redis.config_set("maxmemory", 1)
    try:
        jid = job.set(status_expiration=60, sync=True).perform_async(1)
    finally:
        redis.config_set("maxmemory", 0)
    assert len(ran) == 1
    assert status.of(jid) == "unknown"
    assert "status.write_failed" in caplog.text
