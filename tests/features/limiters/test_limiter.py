"""Test the public module of rate limiters with a real shard, and with real processes."""

import asyncio
import json
import threading
from contextlib import contextmanager
from contextvars import Context
from datetime import timedelta

import pytest

from framework import limiter
from framework.all_settings import load
from framework.errors import DeclarationError, LeaseTakenError, NestedLimiterError, OverLimit, ShardUnavailableError
from framework.feature import Late
from framework.features.limiters import keys
from framework.wiring.client import ProcessClient, override
from tests.harness import server_lines, until
from tests.tables import each_row

JOBS = """
from framework import ApplicationWorker, limiter

HOURLY = limiter.window("hourly", 1, "hour", wait_timeout=0, backoff=lambda count: 500 * count)


class CallWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self, number: int) -> None:
        with HOURLY.within():
            self.logger.info("called", event_name="called", number=number)
"""

_LIMITERS = Late("framework.features.limiters.store:LimiterStore")


@pytest.fixture
def process(tmp_path, redis_url):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redis.yml").write_text(f"shards: {{main: {{url: '{redis_url}'}}}}")
    client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
    with override(client):
        yield client
    client.shards.close()


@pytest.fixture
def site(site):
    (site.folder / "jobs.py").write_text(JOBS)
    return site


@pytest.mark.usefixtures("process")
def test_block_over_the_limit_raises_with_the_remedy(redis):
    one = limiter.window("partner", 1, "day", wait_timeout=0)
    with one.within("ada"):
        assert one.used("ada") == 1
    with pytest.raises(
        OverLimit, match=r"limiter 'partner' is at its limit of 1 for 'ada'. It may admit a call in"
    ) as raised:
        one.within("ada").__enter__()
    assert 0 < raised.value.retry_after_s <= 86_400
    assert (raised.value.limiter, raised.value.key, raised.value.policy) == ("partner", "ada", "reschedule")
    one.reset("ada")
    one.resize(2)
    with one.within("ada", used=2):
        assert one.used("ada") == 2
    with one.within():
        assert one.used() == 1


@pytest.mark.usefixtures("process")
def test_call_of_more_than_the_limit_is_never_admitted(redis):
    quota = limiter.points("quota", 100, 1, wait_timeout=0)
    with pytest.raises(
        OverLimit, match=r"limiter 'quota' never admits a call that uses 500 for 'ada': its limit is 100"
    ) as raised:
        quota.within("ada", estimate=500).__enter__()
    assert "limiters resize quota" in str(raised.value)
    with quota.within("ada", estimate=100):
        pass


@each_row(("seconds", "words"), [(0.25, "0.25 s"), (59.2, "59.2 s"), (5_400.0, "1 h 30 min"), (86_400.0, "1 d")])
def test_messages_of_waits_have_readable_units(seconds, words):
    assert f"may admit a call in {words}." in str(OverLimit("api", "", 3, seconds))
    assert f", for {words} more" in str(LeaseTakenError("one", "w1", seconds))


@pytest.mark.usefixtures("process")
def test_block_waits_until_there_is_room(redis):
    one = limiter.concurrent("lock", 1)
    with one.within():
        waiting = threading.Thread(target=lambda: one.within().__enter__())
        waiting.start()
        until(lambda: redis.hget(keys.limiter("lock"), "refused"))
    waiting.join()
    assert one.used() == 1
    assert redis.hget(keys.limiter("lock"), "waited") == b"1"


@pytest.mark.usefixtures("process")
def test_rate_waits_only_for_room_in_time(redis):
    quick = limiter.window("quick", 1, 0.05, wait_timeout=20)
    for _ in range(3):
        with quick.within():
            pass
    assert int(redis.hget(keys.limiter("quick"), "taken")) == 3
    slow = limiter.window("slow", 1, "day", wait_timeout=20)
    slow.within().__enter__()
    with pytest.raises(OverLimit):  # at once: there is no room for a day
        slow.within().__enter__()


@pytest.mark.usefixtures("process")
def test_lock_is_released_by_any_end_of_the_block():
    one = limiter.concurrent("lock", 1)
    with pytest.raises(KeyError), one.within():
        raise KeyError
    assert one.used() == 0


@pytest.mark.usefixtures("process")
def test_decorated_function_runs_within_the_limit():
    one = limiter.concurrent("lock", 1, wait_timeout=0)

    @one.within()
    def call(value: int) -> int:
        return value + one.used()

    assert (call(1), call(2)) == (2, 3)
    with held(one), pytest.raises(OverLimit):
        call(1)
    # Its body begins after the call.
    for generator in (lambda: (yield), anext_of):
        with pytest.raises(TypeError, match=r"limiter 'lock': within\(\) around the generator function"):
            one.within()(generator)


async def anext_of():
    yield


@contextmanager
def held(one):
    """Hold the limiter as another job does."""
    block, job = one.within(), Context()
    job.run(block.__enter__)
    yield
    job.run(block.__exit__, None, None, None)


@pytest.mark.usefixtures("process")
def test_block_inside_of_its_own_lock_raises_at_once():
    one = limiter.concurrent("lock", 2, wait_timeout=60)
    with one.within("ada"):
        with pytest.raises(NestedLimiterError, match="limiter 'lock' for 'ada' is taken inside of a block"):
            one.within("ada").__enter__()
        with one.within("bob"):
            pass
    with one.within("ada"):
        pass

    async def scene():
        async with one.awithin():
            with pytest.raises(NestedLimiterError):
                await one.awithin().__aenter__()
            # Another task is another holder.
            await asyncio.create_task(leave(one))
        async with one.awithin():
            pass

    asyncio.run(scene())
    # A job of a class with the limiter: whatever it starts is inside.
    payload = {"args": [], "jid": "j"}

    async def job():
        permit = one.admit_job(payload, "meta.")
        with pytest.raises(NestedLimiterError):
            await asyncio.create_task(leave(one))
        permit.release()

    asyncio.run(job())
    assert (one.used(), one.used("ada")) == (0, 0)


async def leave(one):
    async with one.awithin():
        pass


@pytest.mark.usefixtures("process")
def test_decorated_function_is_left_out_with_skip():
    one = limiter.concurrent("lock", 1, wait_timeout=0, policy="skip")
    calls = []

    @one.within()
    def call() -> str:
        calls.append("call")
        return "done"

    @one.within()
    async def acall() -> str:
        calls.append("acall")
        return "done"

    with held(one):
        assert (call(), asyncio.run(acall())) == (None, None)
    assert (call(), asyncio.run(acall()), calls) == ("done", "done", ["call", "acall"])


def test_async_block_waits_and_releases_also_when_cancelled(process, redis, monkeypatch):
    one = limiter.concurrent("lock", 1)

    async def scene():
        inside = asyncio.Event()

        async def hold():
            async with one.awithin():
                inside.set()
                await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await inside.wait()
        waiting = asyncio.create_task(one.awithin().__aenter__())
        await asyncio.to_thread(until, lambda: redis.hget(keys.limiter("lock"), "refused"))
        holding.cancel()
        await waiting
        return await one.aused()

    assert asyncio.run(scene()) == 1
    asyncio.run(cancel_while_taking(process, limiter.concurrent("other", 1, lock_timeout=3_600), monkeypatch))


async def cancel_while_taking(process, one, monkeypatch):
    """Cancel the task before, and after, its thread has the lock: it is given back both times."""
    take = process.service(_LIMITERS).take
    asked, answer = threading.Event(), threading.Event()

    def slow_take(*words, **options):
        taken = take(*words, **options)
        asked.set()
        answer.wait(10)
        return taken

    monkeypatch.setattr(process.service(_LIMITERS), "take", slow_take)
    task = asyncio.create_task(leave(one))
    await asyncio.to_thread(asked.wait, 10)
    assert await one.aused() == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    answer.set()
    await asyncio.to_thread(until, lambda: one.used() == 0)

    def taken_then_cancelled(*words, **options):
        taken = take(*words, **options)
        loop.call_soon_threadsafe(task.cancel)
        return taken

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(process.service(_LIMITERS), "take", taken_then_cancelled)
    task = asyncio.create_task(leave(one))
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(until, lambda: one.used() == 0)


@pytest.mark.usefixtures("process")
def test_points_are_corrected_within_the_block():
    one = limiter.points("llm", 100, 0.001, wait_timeout=0)
    with one.within(estimate=40) as permit:
        assert one.used() == pytest.approx(40, abs=0.1)
        permit.points_used(70)
        permit.points_used(90.5)
    assert one.used() == pytest.approx(90.5, abs=0.1)
    with pytest.raises(OverLimit):
        one.within(estimate=10).__enter__()


def test_unlimited_sends_nothing():
    with limiter.unlimited().within("any"):
        pass
    asyncio.run(limiter.unlimited().within()(asyncio.sleep)(0))


def test_unreachable_shard_raises_and_a_lost_release_is_logged(process, redis, monkeypatch):
    one = limiter.concurrent("lock", 1)
    with server_lines("info") as lines, held(one):
        redis.set(keys.state("lock", ""), "no set")
        with pytest.raises(ShardUnavailableError):
            one.within().__enter__()
    assert [line["event_name"] for line in lines()] == ["limiter.release_failed"]


def test_limiter_is_on_the_shard_with_the_role_meta(process, redis, make_server):
    meta = make_server()
    source = process.settings.root / "config" / "redis.yml"
    shards = {"main": {"url": process.settings.shards["main"].url}, "second": {"url": meta.url}}
    source.write_text(json.dumps({"shards": shards, "roles": {"meta": "second"}}))
    fleet = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(source.parent)}, source.parent.parent))
    strict = limiter.concurrent("strict", 1, wait_timeout=0)
    lax = limiter.points("lax", 1, 0.001, wait_timeout=0, without_shard="proceed")
    pinned = limiter.window("pinned", 1, "day", wait_timeout=0, shard="main")
    with override(fleet):
        for one in (strict, lax, pinned):
            one.within().__enter__()
        with pytest.raises(OverLimit):
            lax.within().__enter__()
        with meta.open() as client:
            assert sorted(client.zrange(keys.NAMES, 0, -1)) == [b"lax", b"strict"]
        assert redis.zrange(keys.NAMES, 0, -1) == [b"pinned"]
        meta.stop()
        with pytest.raises(ShardUnavailableError, match="second"):
            Context().run(strict.within().__enter__)
        with server_lines("info") as lines, lax.within() as permit:
            permit.points_used(2)
        assert [(line["event_name"], line["shard"]) for line in lines()] == [("limiter.shard_away", "second")]
        with pytest.raises(OverLimit):
            pinned.within().__enter__()
    fleet.shards.close()


WRONG = {
    "name": (lambda: limiter.bucket("a b", 1, "day"), "name = 'a b' is not allowed. Allowed: a name of at most 100"),
    "limit": (lambda: limiter.window("a", True, "day"), "limiter 'a': limit = True"),
    "size": (lambda: limiter.leaky("a", 0, "day"), "size = 0 is not allowed. Allowed: a whole number from 1"),
    "capacity": (lambda: limiter.points("a", 1.5, 1), "capacity = 1.5"),
    "refill": (lambda: limiter.points("a", 1, 0), "refill = 0"),
    "interval": (
        lambda: limiter.bucket("a", 1, "week"),
        "interval = 'week' is not allowed. Allowed: 'second', 'minute'",
    ),
    "interval too long": (lambda: limiter.bucket("a", 1, timedelta(days=400)), "from 10 ms to 366 days"),
    "wait": (lambda: limiter.bucket("a", 1, "day", wait_timeout=-1), "wait_timeout = -1"),
    "lock": (lambda: limiter.concurrent("a", 1, lock_timeout=0), "lock_timeout = 0"),
    "policy": (lambda: limiter.bucket("a", 1, "day", policy="ignore"), "policy = 'ignore'"),
    "reschedules": (lambda: limiter.bucket("a", 1, "day", reschedules=-1), "reschedules = -1"),
    "backoff": (lambda: limiter.bucket("a", 1, "day", backoff=5), "backoff = 5"),
    "shard": (lambda: limiter.bucket("a", 1, "day", shard="a/b"), "shard = 'a/b'"),
    "without_shard": (
        lambda: limiter.bucket("a", 1, "day", without_shard="hold"),
        "without_shard = 'hold' is not allowed. Allowed: one of 'raise', 'proceed'",
    ),
}
ONE = limiter.bucket("a", 3, "day")
WRONG_CALLS = {
    "key": (lambda: ONE.within(""), "key = '' is not allowed. Allowed: a printable text"),
    "long key": (lambda: ONE.within("k" * 201), "of 1 to 200 characters"),
    "key of bytes": (lambda: ONE.within(b"k"), "key = b'k'"),
    "used": (lambda: ONE.within(used=0), "limiter 'a': used = 0 is not allowed. Allowed: a whole number from 1"),
    "locks": (lambda: limiter.concurrent("a", 3).within(used=2), "used = 2 is not allowed. Allowed: 1"),
    "estimate": (
        lambda: limiter.points("a", 3, 1).within(estimate=-1),
        "estimate = -1 is not allowed. Allowed: a number",
    ),
    "by": (lambda: ONE.by("a b"), "key = 'a b' is not allowed. Allowed: the name of a fact"),
    "resize": (lambda: ONE.resize(-1), "limit = -1"),
    "resize for": (lambda: ONE.resize(1, expires_in=0), "expires_in = 0 is not allowed. Allowed: a positive timedelta"),
}


@each_row("make, message", WRONG.values(), ids=WRONG)
def test_wrong_declaration_is_refused(make, message):
    with pytest.raises(DeclarationError, match=message.replace("(", r"\(")):
        make()


@each_row("make, message", WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_wrong_call_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_job_over_the_limit_is_scheduled_without_a_failure(site, redis):
    process = site.hurried_worker().ready()
    for number in (1, 2):
        site.run("-c", f"import jobs; jobs.CallWorker.perform_async({number})")
        process.line(job_status="done" if number == 1 else "snoozed")
    line = process.line(job_status="snoozed")
    assert (line["snoozed_by"], line["limiter"], line["over_limit_count"]) == ("limiter", "hourly", 1)
    assert redis.get("stat:failed") in (None, b"0")
    assert not process.find(severity="ERROR")
