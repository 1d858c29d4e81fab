"""Check that the routing of every kind of call of redis-py is validated before anything is sent."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from redis.exceptions import RedisError

from framework.errors import UnroutedCallError
from framework.process_clock import process_clock
from framework.shard import routing_validator as routing_validator_module
from framework.shard.routing_validator import RoutedScope, RoutingValidator, allow_unrouted
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from tests.harness import RecordingTracker, server_lines, until
from tests.servers.guarded import with_all_rights
from tests.store.test_connect import started
from tests.tables import each_row

__all__ = ["started"]  # a fixture


def via(*names):
    return RoutedScope(names)


def opened(url, name="main", **options):
    """Use all rights: a pool is for the application, and a role grants nothing on its keys."""
    return Shard(name, Endpoint(with_all_rights(url)), role="tests", validator=RoutingValidator(**options))


@pytest.fixture
def pool(redis_url):
    shard = opened(redis_url)
    yield shard.pool
    shard.close()


@pytest.fixture
def second(second_redis_url):
    shard = opened(second_redis_url, "second")
    yield shard.pool
    shard.close()


def piped(pool, *, transaction):
    with pool.pipeline(transaction=transaction) as pipe:
        return pipe.llen("queue:a").get("b").execute()


def watched(pool):
    with pool.pipeline() as pipe:
        pipe.watch("a")
        pipe.multi()
        return pipe.get("a").execute()


def monitored(pool):
    with pool.monitor():
        return True


def subscribed(pool):
    with pool.pubsub() as pubsub:
        pubsub.subscribe("a")
        return pubsub.get_message(timeout=5)


def by_hand(pool):
    connection = pool.connection_pool.get_connection()
    try:
        connection.send_command("PING")
        return connection.read_response()
    finally:
        pool.connection_pool.release(connection)


HOLDERS = ("monitor", "one connection", "module")
"""Kinds of calls that keep a connection until they are closed or collected, refused or not."""


def connections(redis):
    """Return the number of connections that the server has accepted."""
    return redis.info("stats")["total_connections_received"]


CALLS = {
    "command": (lambda pool: pool.ping(), "PING"),
    "execute_command": (lambda pool: pool.execute_command("CONFIG GET", "port"), "CONFIG"),
    "pipeline": (lambda pool: piped(pool, transaction=False), "LLEN, GET"),
    "transaction": (lambda pool: piped(pool, transaction=True), "LLEN, GET"),
    "watch": (watched, "WATCH"),
    "transaction function": (lambda pool: pool.transaction(lambda pipe: pipe.get("a"), "a"), "WATCH"),
    "iterator": (lambda pool: list(pool.scan_iter()), "SCAN"),
    "script": (lambda pool: pool.register_script("return 1")(), "EVALSHA"),
    "blocking": (lambda pool: pool.blpop("a", timeout=0.01), "BLPOP"),
    "subscription": (subscribed, "SUBSCRIBE"),
    "lock": (lambda pool: pool.lock("a", timeout=1).acquire(), "SET"),
    "monitor": (monitored, "MONITOR"),
    "one connection": (lambda pool: pool.client().ping(), "PING"),
    "module": (lambda pool: pool.json().pipeline().get("a").execute(), "JSON.GET"),
    "connection": (by_hand, "PING"),
}


@pytest.mark.parametrize(("call", "command"), CALLS.values(), ids=CALLS)
def test_unrouted_call_of_any_kind_is_refused(redis, pool, call, command):
    before = connections(redis)
    with pytest.raises(UnroutedCallError) as caught:
        call(pool)
    assert (caught.value.shard, caught.value.command) == ("main", command)
    for word in (command, "'main'", "outside of any route", "router.via(TheWorker)", "allow_unrouted(reason=...)"):
        assert word in str(caught.value)
    assert connections(redis) == before
    with via("main"), contextlib.suppress(RedisError):  # this server may lack the command; it was asked
        call(pool)
    assert connections(redis) == before + 1
    with pytest.raises(UnroutedCallError):  # also on an open connection
        call(pool)


def test_unrouted_call_is_refused_without_a_server(short_path):
    pool = opened(f"unix://{short_path}/gone.sock").pool
    with pytest.raises(UnroutedCallError):
        pool.ping()
    with via("main"), pytest.raises(RedisError):
        pool.ping()


def test_unrouted_calls_use_no_connections(pool):
    pool.connection_pool.max_connections = 2
    for _ in range(5):
        for name, (call, _) in CALLS.items():
            if name not in HOLDERS:
                with pytest.raises(UnroutedCallError):
                    call(pool)
    with via("main"):
        assert pool.ping()


def test_unrouted_pipeline_error_names_few_commands(pool):
    pipe = pool.pipeline(transaction=True)
    for number in range(9):
        pipe.set("a", number)
    with pytest.raises(UnroutedCallError) as caught:
        pipe.execute()
    assert caught.value.command == "SET, SET, SET, ..."


# --- scopes -----------------------------------------------------------------------------------------------------------


def test_pool_used_after_its_scope_is_refused(pool):
    with via("main"):
        pipe = pool.pipeline()
        pipe.set("a", 1)
        found = pool.scan_iter(count=1)
        script = pool.register_script("return redis.call('SET', 'a', 1)")
        pubsub = pool.pubsub()
        pubsub.subscribe("news")
        lock = pool.lock("l", timeout=60)
        assert lock.acquire()
    for kept in (pool.ping, pipe.execute, lambda: next(found), script, lambda: pubsub.subscribe("more"), lock.release):
        with pytest.raises(UnroutedCallError):
            kept()
    pubsub.close()
    with via("main"):
        assert pool.get("a") is None


def test_pool_of_another_shard_is_refused(pool, second):
    with via("second"):
        assert second.ping()
        with pytest.raises(UnroutedCallError, match=r"PING on shard 'main' inside a route to 'second' only"):
            pool.ping()


def test_scope_continues_after_a_nested_one(pool, second):
    with via("main"):
        with via("second"):
            assert pool.ping()
            assert second.ping()
        assert pool.ping()
        with pytest.raises(UnroutedCallError):
            second.ping()
        with via("main"):
            assert pool.ping()
        assert pool.ping()


def test_scope_that_ended_is_not_kept(pool):
    for _ in range(9):
        with via("main"), allow_unrouted(reason="a test"):
            assert len(routing_validator_module._scopes.get()) == 2
    assert routing_validator_module._scopes.get() == ()


def test_scope_ends_with_an_error(pool):
    with pytest.raises(LookupError), via("main"):
        raise LookupError
    with pytest.raises(UnroutedCallError):
        pool.ping()


def test_scope_does_not_reach_a_new_thread(pool):
    with via("main"), ThreadPoolExecutor(1) as threads:
        with pytest.raises(UnroutedCallError):
            threads.submit(pool.ping).result()
        assert threads.submit(copy_context().run, pool.ping).result()


def test_scope_ends_in_copies_of_the_context(pool):
    with via("main"):
        copy = copy_context()
    with pytest.raises(UnroutedCallError):
        copy.run(pool.ping)


def test_scope_reaches_tasks_until_it_ends(pool):
    async def main():
        go_on = asyncio.Event()

        async def twice():
            first = pool.ping()
            await go_on.wait()
            return first, pool.ping()

        with via("main"):
            task = asyncio.create_task(twice())
            assert await asyncio.to_thread(pool.ping)
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(UnroutedCallError):
            await task
        with pytest.raises(UnroutedCallError):
            await asyncio.to_thread(pool.ping)

    asyncio.run(main())


def test_scope_of_one_task_does_not_reach_another(pool):
    async def main():
        entered, asked = asyncio.Event(), asyncio.Event()

        async def one():
            with via("main"):
                entered.set()
                await asked.wait()

        async def other():
            await entered.wait()
            with pytest.raises(UnroutedCallError):
                pool.ping()
            asked.set()

        await asyncio.gather(one(), other())

    asyncio.run(main())


def lengths(pool):
    with via("main"):
        yield pool.llen("a")
        yield pool.llen("b")


def test_scope_in_a_generator_lasts_until_its_end(pool):
    """Python's context variables behave so: between two values the caller is inside the scope too."""
    generator = lengths(pool)
    assert next(generator) == 0
    assert pool.ping()
    generator.close()
    with pytest.raises(UnroutedCallError):
        pool.ping()


def test_scope_ended_in_another_context_is_not_kept(pool):
    def block():
        with via("main"):
            yield

    def enter_and_end_elsewhere():
        for _ in range(10):
            steps = block()
            next(steps)
            copy_context().run(steps.close)
        return routing_validator_module._scopes.get()

    assert len(copy_context().run(enter_and_end_elsewhere)) <= 1


def test_scope_in_a_generator_may_end_in_any_context(pool):
    with via("main"):
        generator = lengths(pool)
        copy_context().run(next, generator)
        generator.close()  # in another context than the one it entered in
        assert pool.ping()
        unfinished = copy_context()
        another = lengths(pool)
        unfinished.run(next, another)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(another.close).result()
    with pytest.raises(UnroutedCallError):
        unfinished.run(pool.ping)


def test_subscription_is_read_outside_of_the_scope(pool, redis):
    with via("main"):
        pubsub = pool.pubsub(ignore_subscribe_messages=True)
        pubsub.subscribe("news")
        pubsub.get_message(timeout=5)
    redis.publish("news", "hello")
    assert until(lambda: pubsub.get_message(timeout=0.1))["data"] == b"hello"
    pubsub.close()


def test_pool_after_a_restart_of_the_server_connects(make_server):
    server = make_server()
    pool = opened(server.url).pool
    with via("main"):
        assert pool.ping()
        server.kill()
        server.start()
        assert pool.ping()


def test_pool_behind_sentinels_is_validated(started):
    port = started()
    sentinel = started(f"sentinel monitor house 127.0.0.1 {port} 1", sentinel=True)
    endpoint = Endpoint("", (("127.0.0.1", sentinel),), "house")
    pool = Shard("main", endpoint, role="tests").pool

    def answers():
        with contextlib.suppress(RedisError), via("main"):
            return pool.ping()

    assert until(answers, "the sentinel names a master that answers")
    with via("main"):
        assert pool.client_getname() == "framework:tests:application"
    with pytest.raises(UnroutedCallError):
        pool.ping()
    monitor = Shard("main", endpoint, role="tests").pool.monitor()  # its connection could not open yet
    with via("main"), monitor:
        assert monitor.connection.is_connected


def test_framework_client_is_not_validated(redis_url):
    assert opened(redis_url).client.ping()


# --- allow_unrouted -------------------------------------------------------------------------------------------------


@pytest.fixture
def lines():
    with server_lines("debug") as read:
        yield read


def test_allow_unrouted_logs_its_reason_at_debug_level(pool, lines):
    with allow_unrouted(reason="one-off migration"):
        with allow_unrouted(reason="its clean-up"):
            pool.ping()
        pool.get("a")
    with pytest.raises(UnroutedCallError):
        pool.ping()
    found = [(line["command"], line["shard"], line["reason"], line["severity"]) for line in lines()]
    assert found == [("PING", "main", "its clean-up", "DEBUG"), ("GET", "main", "one-off migration", "DEBUG")]


def test_allow_unrouted_logs_no_routed_calls(pool, lines):
    with allow_unrouted(reason="mixed"), via("main"):
        pool.ping()
    assert lines() == []


def test_allow_unrouted_decorates_functions_and_coroutines(pool):
    @allow_unrouted(reason="a report")
    def report(pool, *, depth):
        return pool.ping() if not depth else report(pool, depth=depth - 1)

    @allow_unrouted(reason="a report")
    async def awaited():
        await asyncio.sleep(0)
        return pool.ping()

    async def main():
        work = awaited()
        with pytest.raises(UnroutedCallError):
            pool.ping()
        return await work

    assert report.__name__ == "report"
    assert report(pool, depth=2)
    assert asyncio.run(main())
    with pytest.raises(UnroutedCallError):
        pool.ping()


def test_allow_unrouted_function_runs_in_many_threads(pool):
    both = threading.Barrier(2, timeout=20)

    @allow_unrouted(reason="a report")
    def report(leave_first):
        both.wait()
        if not leave_first:
            both.wait()
        return pool.ping()

    def first():
        answer = report(leave_first=True)
        both.wait()
        return answer

    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(first), threads.submit(report, leave_first=False)]
        assert all(answer.result() for answer in answers)


def test_allow_unrouted_refuses_generators():
    for function in (lengths, async_generator):
        with pytest.raises(TypeError, match=f"{function.__name__}.*inside"):
            allow_unrouted(reason="a report")(function)


async def async_generator():
    yield 1


@each_row("reason", ["", " \n", None, 7, ["why"]])
def test_allow_unrouted_without_reason_is_refused(reason):
    with pytest.raises(ValueError, match="say in words why"):
        allow_unrouted(reason=reason)


def test_allow_unrouted_has_no_default_reason():
    with pytest.raises(TypeError):
        allow_unrouted()


# --- production -----------------------------------------------------------------------------------------------------


class Broken(RecordingTracker):
    def capture(self, error, tags, transaction):
        raise OSError("no network")


def reported(lines):
    return [line for line in lines() if line.get("event_name") == "shard.unrouted"]


def test_unrouted_call_in_production_is_reported(redis, redis_url, lines):
    tracker = RecordingTracker()
    pool = opened(redis_url, strict=False, tracker=lambda: tracker).pool
    assert pool.set("a", 1)
    assert redis.get("a") == b"1"
    (line,) = reported(lines)
    here = f"{__file__}:{test_unrouted_call_in_production_is_reported.__code__.co_firstlineno + 3}"
    assert {**line, "severity": "WARN", "shard": "main", "command": "SET", "caller": here, "count": 1} == line
    ((error, tags, transaction),) = tracker.captured
    assert isinstance(error, UnroutedCallError)
    assert tags == {"shard": "main", "command": "SET", "caller": here}
    assert transaction == "shard.unrouted"


@pytest.mark.parametrize(("call", "command"), CALLS.values(), ids=CALLS)
def test_unrouted_call_of_any_kind_reports_its_caller(redis_url, lines, call, command):
    with contextlib.suppress(RedisError):
        call(opened(redis_url, strict=False).pool)
    found = reported(lines)
    assert found[0]["command"] == command
    assert {line["caller"].rpartition(":")[0] for line in found} == {__file__}


def test_unrouted_line_is_reported_once_a_minute(redis_url, lines, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(process_clock, "monotonic", lambda: now[0])
    tracker = RecordingTracker()
    pool = opened(redis_url, strict=False, tracker=lambda: tracker).pool
    for _ in range(70):
        pool.ping()
        now[0] += 1
    pool.ping()
    counts = [line["count"] for line in reported(lines)]
    assert counts == [1, 60, 1]  # the last is called from another line
    assert len(tracker.captured) == 3


def test_unrouted_lines_are_reported_separately(redis_url, lines):
    validator = RoutingValidator(strict=False)
    shard = Shard("main", Endpoint(with_all_rights(redis_url)), role="tests", validator=validator)
    for number in range(10):
        exec(compile("shard.pool.ping()", f"made-{number}", "exec"), {"shard": shard})
    assert len(reported(lines)) == 10


def test_unrouted_call_with_a_failing_tracker_passes(redis_url, lines):
    pool = opened(redis_url, strict=False, tracker=Broken).pool
    assert pool.ping()
    assert [line["event_name"] for line in lines()] == ["shard.unrouted", "hook.failed"]


def test_unrouted_packet_that_is_no_command_passes(redis_url, lines):
    pool = opened(redis_url, strict=False).pool
    connection = pool.connection_pool.get_connection()
    connection.send_packed_command([b"PING\r\n"])
    assert connection.read_response() == b"PONG"
    assert reported(lines)[0]["command"] == "?"


def test_routed_call_is_not_reported(redis_url, lines):
    pool = opened(redis_url, strict=False).pool
    with via("main"):
        pool.ping()
    assert lines() == []
