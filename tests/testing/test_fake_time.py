"""The clock of a fake in the database of each shard: for scripts, commands, and the ends of keys."""

from datetime import UTC, datetime, timedelta
from importlib import import_module
from pkgutil import walk_packages

import pytest

from framework import admin, batches, features, lease, status
from framework.lease import LeaseLostError
from framework.store import script
from framework.store.script import READ_DUE, Script
from framework.testing import FakeClock, fake
from framework.testing.modes import known_settings
from framework.wire import keys
from tests.push.conftest import worker

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def folder(application):
    """The configuration of two shards."""


def test_scripts_and_commands_see_the_clock_of_the_fake():
    with fake(clock=FakeClock(PAST)) as jobs:
        client = jobs.client.shards["main"].client
        for _ in range(2):
            now = jobs.clock()
            assert float(READ_DUE(client, [keys.SCHEDULE], [1])[0]) == pytest.approx(now, abs=0.001)
            assert client.time() == (int(now), 0)
            assert client.pipeline().time().execute()[0] == (int(now), 0)
            assert jobs.client.shards["second"].time() == now
            jobs.clock.advance(3_600)


def test_moved_clock_goes_on_with_the_hosts():
    with fake() as jobs:
        jobs.clock.advance(3_600)
        before = jobs.clock()
        shown = float(READ_DUE(jobs.client.shards["main"].client, [keys.SCHEDULE], [1])[0])
        assert before <= shown + 0.01 <= jobs.clock() + 0.02


def test_step_of_the_clock_shortens_what_keys_have_left():
    with fake(clock=FakeClock(PAST)) as jobs:
        for shard in jobs.client.shards.values():
            shard.client.set("short", 1, ex=60)
            shard.client.set("long", 1, ex=3_600)
            shard.client.set("for ever", 1)
        jobs.clock.advance(100)
        for shard in jobs.client.shards.values():
            assert [shard.client.ttl(name) for name in ("short", "for ever")] == [-2, -1]
            assert 3_490 < shard.client.ttl("long") <= 3_500


@pytest.mark.parametrize("start", [PAST, datetime(2040, 1, 1, tzinfo=UTC)])
def test_state_of_a_scheduled_job_lasts_by_the_clock(start):
    tracked = worker("Tracked", queue="default", status_expiration=600)
    with fake(clock=FakeClock(start)) as jobs:
        jids = [tracked.perform_at(start + timedelta(hours=1), 1), tracked.perform_in(3_600, 2)]
        jobs.clock.advance(3_900)
        assert [status.of(jid) for jid in jids] == ["queued"] * 2
        jobs.clock.advance(900)
        assert [status.of(jid) for jid in jids] == ["unknown"] * 2


def test_lease_and_batch_have_the_time_of_the_clock():
    with fake(clock=FakeClock(PAST)) as jobs:
        batch = batches.Batch()
        with batch.jobs():
            worker("Row", queue="default").perform_async()
        assert batch.status.created_at == pytest.approx(PAST.timestamp())
        one = lease.Lease("import", timeout=60)
        with pytest.raises(LeaseLostError), one.hold():
            jobs.clock.advance(61)
            assert one.holder() is None


def test_data_api_sees_the_jobs_of_a_fake():
    with fake():
        worker("Row", queue="default").perform_async()
        assert admin.Queue("default").size == 1


def test_every_script_with_the_time_has_the_replaced_part():
    rooms = [import_module(one.name) for one in walk_packages(features.__path__, "framework.features.")]
    scripts = [one for module in (script, *rooms) for one in vars(module).values() if isinstance(one, Script)]
    assert len({one.name for one in scripts}) > 50
    for one in scripts:
        text = one.source.replace(script.part_text("time"), b"")
        assert b"'TIME'" not in text, one.name
        assert (b"redis_now()" in text) <= (len(text) < len(one.source)), one.name


def test_settings_are_read_again_after_a_change_of_them(application, monkeypatch):
    first = known_settings()
    assert known_settings() is first
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    assert known_settings() is first
    (application / "config" / "application.yml").write_text("max_retries: 7\n")
    assert known_settings().max_retries == 7
    monkeypatch.setenv("FRAMEWORK_MAX_RETRIES", "8")
    assert known_settings().max_retries == 8
