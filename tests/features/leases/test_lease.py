"""Test exclusive leases on a real shard, in a fake, and the workers and commands that use them."""

import asyncio
import json
import threading
import time
from datetime import timedelta

import pytest
from click.testing import CliRunner

import framework
from framework import lease
from framework.all_settings import load
from framework.errors import DeclarationError, LeaseLostError, LeaseTakenError, ShardUnavailableError
from framework.features.leases import keys
from framework.features.leases.commands import leases as command
from framework.testing import fake
from framework.wiring.client import ProcessClient, override
from tests.harness import Site, until

JOBS = """
from framework import ReenqueuerWorker


class SweepWorker(ReenqueuerWorker):
    feature_category = "not_owned"
    queue = "default"
    lease_timeout = 60
    minimum_duration = 0.3

    def perform(self, left: int) -> bool:
        self.lease.renew()
        self.logger.info("swept", event_name="swept", left=left, lease_s=self.lease.left_s)
        return left > 0


class ASweepWorker(SweepWorker):
    async def perform(self, left: int) -> bool:
        self.logger.info("swept", event_name="swept", left=left)
        # The perform of the parent runs within the lease of this job.
        return not super().perform(left + 1)
"""

PERFORM = {"feature_category": "not_owned", "perform": lambda self: True}
WRONG = [
    ({"name": "a b"}, "name = 'a b' is not allowed"),
    ({"timeout": 0}, "timeout = 0 is not allowed. Allowed: a timedelta or a number of seconds, from 0.1 s to 30 days"),
    ({"timeout": timedelta(days=31)}, "from 0.1 s to 30 days"),
    ({"timeout": True}, "timeout = True"),
    ({"shard": 7}, "shard = 7"),
]


@pytest.fixture
def process(tmp_path, redis, redis_url, monkeypatch):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redis.yml").write_text(f"shards: {{main: {{url: '{redis_url}'}}}}")
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path / "config"))
    client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
    with override(client):
        yield redis
    client.shards.close()


def run(*words, status=0):
    ended = CliRunner().invoke(command, list(words), prog_name="application-worker jobs leases")
    assert ended.exit_code == status, ended.output
    return json.loads(ended.stdout) if "--json" in words else ended.output


def test_lease_has_one_holder_which_may_lose_it(process):
    for wrong, message in WRONG:
        with pytest.raises(DeclarationError, match=message):
            lease.Lease(**{"name": "one", "timeout": 60, **wrong})
    one = lease.Lease("one", timeout=timedelta(minutes=1))
    began = time.monotonic()
    with one.hold() as held, pytest.raises(LeaseTakenError, match=r"held by .*, for .* more unless") as raised:
        assert 60 >= held.left_s >= 60 - (time.monotonic() - began)
        assert one.obtain() is None
        with one.hold(wait=0.05):
            pass
    assert raised.value.name == "one"
    assert one.holder() is None, "the end of the block has ended the lease"
    assert process.keys("aw:exclusive*") == []
    with pytest.raises(LeaseLostError, match="Its timeout is 60 s"), one.hold() as held:
        process.delete(keys.exclusive_lease("one"))
        other = one.obtain()
        with pytest.raises(LeaseLostError):
            held.renew()
        assert held.left_s == 0
    assert other.left_s > 0, "the first holder has not ended the lease of the second"
    assert 0 < process.pttl(keys.exclusive_lease("one")) <= 60_000
    with pytest.raises(ZeroDivisionError), lease.Lease("two", timeout=5).hold():
        assert [row["name"] for row in run("--json")["leases"]] == ["one", "two"]
        1 / 0  # noqa: B018
    assert "one" in run("show", "one")
    assert "main: ended" in run("delete", "one", "--yes")
    assert other.cancel() is False, "the operator has ended it"
    assert run("delete", "one", "--yes", status=1).endswith("No lease was ended: one\n")
    assert "No lease is held" in run()


def test_lease_is_on_the_shard_with_the_role_meta(process, tmp_path, redis_url, make_server):
    meta = make_server()
    shards = {"main": {"url": redis_url}, "second": {"url": meta.url}}
    (tmp_path / "config" / "redis.yml").write_text(json.dumps({"shards": shards, "roles": {"meta": "second"}}))
    fleet = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
    of_fleet, pinned = lease.Lease("one", timeout=60), lease.Lease("one", timeout=60, shard="main")
    with override(fleet):
        held, other = of_fleet.obtain(), pinned.obtain()
        assert held is not None
        assert other is not None
        assert of_fleet.holder() is not None
        with meta.open() as client:
            assert client.exists(keys.exclusive_lease("one"))
        meta.stop()
        for call in (of_fleet.obtain, of_fleet.holder, held.renew):
            with pytest.raises(ShardUnavailableError, match="second"):
                call()
        other.renew()
        # It ends by itself.
        assert held.cancel()
    fleet.shards.close()


def test_waiting_callers_hold_a_lease_in_turn(process):
    inside, most, done = [], [], []

    def work():
        with lease.Lease("turns", timeout=30).hold(wait=20):
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            done.append(1)

    async def work_async():
        async with lease.Lease("turns", timeout=30).ahold(wait=20) as held:
            await held.arenew()
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            done.append(1)

    async def all_async():
        await asyncio.gather(*(work_async() for _ in range(4)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    asyncio.run(all_async())
    for one in threads:
        one.join()
    assert (len(done), max(most)) == (8, 1)
    assert process.keys("aw:exclusive*") == []

    asyncio.run(give_up(lease.Lease("given-up", timeout=30)))
    assert process.keys("aw:exclusive*") == []


async def give_up(one):
    """Cancel calls that obtain the lease, before and after Redis has given it."""

    async def enter():
        async with one.ahold():
            await asyncio.sleep(30)

    for call in (one.aobtain, enter):
        for obtained in (False, True):
            task = asyncio.create_task(call())
            await asyncio.sleep(0)
            if obtained:
                # The event loop stands still meanwhile: the task does not see it.
                until(one.holder, "the lease")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: one.holder() is None, "the end of the lease")


def test_reenqueuer_runs_one_chain_of_jobs(short_path, redis, redis_url):
    for facts, message in [
        ({}, "lease_timeout is missing"),
        ({"lease_timeout": 0.01}, "lease_timeout = 0.01 is not allowed"),
        ({"lease_timeout": 9, "minimum_duration": 0}, "minimum_duration = 0"),
        ({"lease_timeout": 9, "retry": 3}, "retry = 3 is not allowed"),
        (
            {"lease_timeout": 5},
            "lease_timeout = 0:00:05 is not longer than minimum_duration = 0:00:05: the lease would",
        ),
    ]:
        with pytest.raises(DeclarationError, match=message):
            type("WrongWorker", (framework.ReenqueuerWorker,), {**PERFORM, **facts})
    site = Site(short_path, redis_url, warm=True)
    (short_path / "jobs.py").write_text(JOBS)
    try:
        worker = site.worker("-q", "default", "-c", "4")
        worker.ready()
        for number in range(3):
            redis.lpush("queue:default", json.dumps(job("SweepWorker", f"0{number}", 5)))
        redis.lpush("queue:default", json.dumps(job("ASweepWorker", "a", 0)))
        until(lambda: len(ends(worker, "SweepWorker")) >= 5, "a chain of jobs")
        until(lambda: ends(worker, "ASweepWorker"), "the job of an async class")
        assert ends(worker, "ASweepWorker")[0]["extra.a_sweep_worker.reenqueued"] is False
        rows = ends(worker, "SweepWorker")
        taken = [row for row in rows if row.get("extra.sweep_worker.lease_taken")]
        assert len(taken) == 2, "two of the three jobs found the lease held"
        assert all(row["duration_s"] >= 0.3 for row in rows if row not in taken)
    finally:
        site.close()


def test_cut_off_reenqueuer_waits_for_its_own_lease(site, redis):
    (site.folder / "jobs.py").write_text(JOBS.replace("lease_timeout = 60", "lease_timeout = 3"))
    worker = site.worker("-q", "default")
    worker.ready()
    own = f"SweepWorker {'07' * 3} host:1"  # as the run of a killed process leaves it
    redis.hset(keys.exclusive_lease("reenqueuer:SweepWorker"), mapping={"token": "gone", "holder": own})
    redis.pexpire(keys.exclusive_lease("reenqueuer:SweepWorker"), 4_000)
    redis.lpush("queue:default", json.dumps(job("SweepWorker", "07", 0)))
    snoozed = worker.line(job_status="snoozed")
    assert (snoozed["extra.sweep_worker.lease_taken"], snoozed["retry_in_s"] <= 4) == (True, True)
    until(lambda: ends(worker, "SweepWorker"), "the run after the lease")
    assert "extra.sweep_worker.lease_taken" not in ends(worker, "SweepWorker")[0]


def job(name, jid, *args):
    return {"class": name, "jid": jid * 3, "args": list(args), "queue": "default", "retry": False, "created_at": 1.5}


def ends(worker, name):
    return [row for row in worker.lines if row.get("class") == name and row.get("job_status") == "done"]


def test_fake_lease_is_held_by_the_test(application_worker):
    one = lease.Lease("import", timeout=60)
    with one.hold() as held:
        assert one.holder().left_s == pytest.approx(60, abs=5)
        application_worker.leases.take("import")
        with pytest.raises(LeaseLostError):
            held.renew()
        application_worker.leases.clear()
        held.obtain()
    assert one.holder() is None


def test_fake_lease_is_on_the_shard_with_the_role_meta(tmp_path, monkeypatch):
    (tmp_path / "redis.yml").write_text(
        "{shards: {main: {url: embedded}, second: {url: embedded}}, roles: {meta: second}}"
    )
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    one = lease.Lease("import", timeout=60)
    with fake() as jobs, pytest.raises(LeaseLostError), one.hold() as held:
        jobs.leases.take("import")
        held.renew()
