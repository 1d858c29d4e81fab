"""Test the public module of feature flags with two real shards, and with real processes."""

import asyncio
import threading
from datetime import timedelta

import pytest

from framework import flags
from framework.all_settings import load
from framework.errors import ShardUnavailableError
from framework.features.flags import process_flags
from framework.features.flags.flag import Flag
from framework.features.flags.process_flags import serve_flags
from framework.features.flags.redis_flags import RedisFlags, ShardFlags, read_flags, set_flag
from framework.wire import keys
from framework.wiring.client import ProcessClient, override
from tests.harness import until
from tests.tables import each_row

JOBS = """
from framework import ApplicationWorker, flags


class SwitchWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"

    def perform(self, number: int) -> None:
        before = flags.enabled("switch")
        flags.set("switch", reason=f"job {number}")
        self.logger.info("asked", event_name="asked", answers=[before, flags.enabled("switch")])


class LimitedWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "default"
    concurrency_limit = lambda: None if flags.enabled("unlimited") else -1

    def perform(self) -> None: ...
"""


@pytest.fixture
def process(tmp_path, redis_url, second_redis_url):
    """Use two shards in this process."""
    (tmp_path / "config").mkdir()
    shards = f"shards: {{main: {{url: '{redis_url}'}}, second: {{url: '{second_redis_url}'}}}}"
    (tmp_path / "config" / "redis.yml").write_text(shards)
    client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
    with override(client):
        yield client
    client.shards.close()


@pytest.fixture
def served(process, monkeypatch):
    """Make this process one that serves the second shard."""
    stored = RedisFlags(process.shards["second"].client, "second")
    monkeypatch.setattr(process_flags._ServedFlags, "flags", None)
    monkeypatch.setattr(process_flags._ServedFlags, "shard", "main")
    serve_flags("second", ShardFlags(stored, stored))
    return stored


@pytest.fixture
def site(site):
    (site.folder / "jobs.py").write_text(JOBS)
    return site


@pytest.mark.usefixtures("process")
def test_flags_set_is_seen_at_once_and_on_every_shard(redis, second_redis):
    assert not flags.enabled("new_invoices")
    made = flags.set("new_invoices", reason="the launch", expires_in=timedelta(hours=1))
    assert flags.enabled("new_invoices")
    assert flags.enabled("new_invoices", key=7)
    assert (made.percentage, made.reason, made.expires_at - made.set_at) == (100, "the launch", 3_600)
    assert flags.all() == {"new_invoices": made}
    assert [read_flags(shard)["new_invoices"].reason for shard in (redis, second_redis)] == ["the launch"] * 2
    assert flags.clear("new_invoices")
    assert not flags.enabled("new_invoices")
    assert not flags.clear("new_invoices")
    assert flags.all() == {}
    assert not redis.exists(keys.FLAGS)
    assert not second_redis.exists(keys.FLAGS)


@pytest.mark.usefixtures("process")
def test_flags_percentage_decides_by_key_or_at_random():
    flags.set("some", 30)
    answers = [flags.enabled("some", key=f"user {number}") for number in range(300)]
    assert answers == [flags.enabled("some", key=f"user {number}") for number in range(300)]
    assert 40 < sum(answers) < 140
    assert {flags.enabled("some") for _ in range(300)} == {True, False}


@pytest.mark.usefixtures("process")
def test_flags_ended_flag_and_flags_of_classes_are_not_listed(redis):
    flags.set("short", expires_in=0.001)
    until(lambda: not flags.enabled("short"), "the end of the flag")
    set_flag(redis, Flag("drop_jobs_NoopWorker", 100), None)
    redis.hset(keys.FLAGS, "broken", "{")
    assert flags.all() == {}


def test_flags_worker_process_asks_its_own_shard(redis, second_redis, served):
    set_flag(redis, Flag("a", 100), None)
    set_flag(second_redis, Flag("b", 100), None)
    served.read()
    assert (flags.enabled("a"), flags.enabled("b"), list(flags.all())) == (False, True, ["b"])
    flags.set("c")
    assert flags.enabled("c")
    assert served.read() is True
    assert read_flags(redis).keys() == {"a", "c"}


@pytest.mark.usefixtures("process")
def test_flags_refused_by_one_shard_names_both(redis, second_redis):
    second_redis.set(keys.FLAGS, "no hash")
    with pytest.raises(ShardUnavailableError, match="the flag a is set on main, and not on second") as caught:
        flags.set("a")
    assert caught.value.shard == "second"
    assert flags.enabled("a")
    with pytest.raises(ShardUnavailableError, match="the flag a is cleared on main, and not on second"):
        flags.clear("a")
    assert not flags.enabled("a")
    redis.set(keys.FLAGS, "no hash")
    with pytest.raises(ShardUnavailableError, match="shard 'main' refuses the command"):
        flags.all()


@each_row(
    ("percentage", "expires_in", "reason", "says"),
    [
        (101, None, "", "from 0 to 100"),
        (-1, None, "", "from 0 to 100"),
        (True, None, "", "from 0 to 100"),
        (float("nan"), None, "", "from 0 to 100"),
        ("50", None, "", "from 0 to 100"),
        (1, 0, "", "expires_in = 0"),
        (1, timedelta(0), "", "expires_in"),
        (1, "1h", "", "expires_in = '1h'"),
        (1, None, None, "reason = None"),
        (1, None, "two\nlines", "one line"),
        (1, None, "\udc80", "one line"),
    ],
)
def test_flags_set_wrong_value_is_refused(percentage, expires_in, reason, says):
    with pytest.raises(ValueError, match=says):
        flags.set("a", percentage, expires_in, reason)


def test_flags_flag_of_a_class_names_the_command():
    with pytest.raises(ValueError, match="application-worker jobs drop"):
        flags.set("drop_jobs_NoopWorker")
    with pytest.raises(ValueError, match="application-worker jobs flags clear"):
        flags.clear("run_jobs_NoopWorker")


@pytest.mark.usefixtures("process")
def test_flags_async_twins_leave_the_event_loop_free(monkeypatch):
    loop_thread = threading.get_ident()
    reading = RedisFlags._read_from_redis
    threads = []

    def read(self):
        threads.append(threading.get_ident())
        return reading(self)

    monkeypatch.setattr(RedisFlags, "_read_from_redis", read)

    async def use():
        first = await flags.aenabled("a")
        written = await flags.aset("a", 100, timedelta(hours=1), "why")
        seen = await flags.aenabled("a", key=1), await flags.aall()
        return first, written, seen, await flags.aclear("a"), await flags.aenabled("a")

    first, written, seen, cleared, last = asyncio.run(use())
    assert (first, seen, cleared, last) == (False, (True, {"a": written}), True, False)
    assert loop_thread not in threads


def test_flags_jobs_ask_set_and_limit_by_flags(site, redis):
    program = "import jobs; jobs.LimitedWorker.perform_async(); jobs.SwitchWorker.perform_async(1)"
    assert site.run("-c", program).returncode == 0
    process = site.hurried_worker("-q", "default")
    assert process.line(event_name="asked")["answers"] == [False, True]
    assert process.line(job_status="concurrency_limit")["class"] == "LimitedWorker"
    set_flag(redis, Flag("unlimited", 100), None)
    process.line(job_status="done", **{"class": "LimitedWorker"})
    assert process.end() == 0
    assert read_flags(redis)["switch"].reason == "job 1"
