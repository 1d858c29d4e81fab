"""Test results by id: of jobs pushed with ``call``, of classes with ``keep_result``, on real processes and in fakes."""

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

import framework
from framework import errors, status
from framework.all_settings import load
from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.features.results.payload import WAIT_S
from framework.testing import FakeClock, fake
from framework.wire import keys
from framework.wire.job import generate_jid
from framework.wiring.client import ProcessClient, override
from tests import result_jobs as jobs


@pytest.fixture
def site(site):
    shutil.copy(Path(jobs.__file__), site.folder / "jobs.py")
    return site


@pytest.fixture
def process(tmp_path, redis, redis_url, second_redis_url, monkeypatch):
    (tmp_path / "config").mkdir()
    shards = f"shards: {{main: {{url: '{redis_url}'}}, second: {{url: '{second_redis_url}'}}}}"
    (tmp_path / "config" / "redis.yml").write_text(shards)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path / "config"))
    client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
    with override(client):
        yield redis
    client.shards.close()


def test_result_by_id_has_an_answer_for_every_end(process, site):
    waiting = [jobs.KeptWorker.perform_async(1), jobs.KeptWorker.perform_in(3_600, 1), jobs.SumWorker.call(1, 2).jid]
    waiting += jobs.KeptWorker.perform_bulk([(1,)])
    for jid in waiting:
        assert process.ttl(keys.status(jid)) > WAIT_S - 10, "it may wait longer than its result is kept"
        with pytest.raises(errors.ResultTimeoutError, match=rf"^the job {jid} has not ended"):
            framework.result(jid)
    late, cancelled = jobs.KeptLateWorker.perform_async(), jobs.KeptWorker.perform_async(5)
    with pytest.raises(errors.ResultTimeoutError, match=r"within 1\.1 s"):
        framework.result(late, timeout=1.1)  # the shortest expiry is a second
    framework.cancel(cancelled)
    refused = jobs.FailingWorker.call("tuple").jid
    site.hurried_worker("-q", "default", "-c", "5").ready()
    for jid, value in [(waiting[0], [1]), (waiting[2], {"sum": 3}), (waiting[3], [1])]:
        assert framework.result(jid, timeout=timedelta(seconds=20)) == value
        assert framework.result(jid) == asyncio.run(framework.aresult(jid)) == value
    for jid, kind in [
        (late, errors.JobExpiredError),
        (cancelled, errors.JobRemovedError),
        (refused, errors.ResultRefusedError),
        (jobs.KeptSyncWorker.perform_async(-1), errors.JobFailedError),
        (jobs.DyingWorker.call("raise").jid, errors.JobFailedError),
        (jobs.FailingWorker.call("discard").jid, errors.JobDiscardedError),
    ]:
        with pytest.raises(kind):
            framework.result(jid, timeout=20)
    kept = jobs.KeptSyncWorker.perform_async(2)
    assert asyncio.run(framework.aresult(kept, timeout=20)) == [2]
    assert 0 < process.ttl(keys.result(kept)) <= 60 < process.ttl(keys.status(kept)) <= 120
    process.delete(keys.result(kept))
    with pytest.raises(
        errors.ResultExpiredError, match=r"has ended \(completed\), and its result is not kept any more"
    ):
        framework.result(kept, timeout=20)


def test_unknown_id_is_an_error_at_once(process):
    with pytest.raises(errors.UnknownResultError, match="is not known: it was pushed neither with call nor") as raised:
        framework.result(generate_jid(), timeout=60)
    assert not isinstance(raised.value, errors.ResultExpiredError)
    with pytest.raises(LookupError):
        asyncio.run(framework.aresult(generate_jid()))
    with pytest.raises(errors.UnknownResultError):
        framework.result(jobs.SumWorker.perform_async(1, 1))
    with pytest.raises(TypeError, match="None"):
        framework.result(None)

    async def wait():
        with pytest.raises(errors.MisuseError, match=r"await framework\.aresult"):
            framework.result("a", timeout=1)

    asyncio.run(wait())


def test_push_without_a_result_costs_nothing(process):
    jid = jobs.SumWorker.perform_async(1, 2)
    assert process.exists(keys.result(jid), keys.status(jid)) == 0
    assert b"aw_result" not in process.lindex("queue:default", 0)


def test_result_by_id_expires_in_a_fake():
    with fake(clock=FakeClock()) as found:
        kept, called = jobs.KeptWorker.perform_async(3), jobs.SumWorker.call(1, 1).jid
        with pytest.raises(errors.ResultTimeoutError):
            framework.result(kept)
        found.drain()
        assert (framework.result(kept), framework.result(called)) == ([3], {"sum": 2})
        assert status.of(kept) == "completed"
        found.clock.advance(61)
        with pytest.raises(errors.ResultExpiredError):
            framework.result(kept)
        found.clock.advance(61)
        with pytest.raises(errors.UnknownResultError):
            framework.result(kept)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"keep_result": 8 * 86_400}, "from 1 s to 7 days"),
        ({"keep_result": 0}, "from 1 s to 7 days"),
        ({"keep_result": 60, "encrypt": True}, "keep_result.* results are not encrypted"),
        (
            {
                "keep_result": 60,
                "idempotent": True,
                "deduplicate": Deduplicate("debounce", window=timedelta(seconds=1)),
            },
            "no caller has a result of its own",
        ),
    ],
)
def test_class_that_cannot_keep_results_is_refused(body, words):
    facts = {"feature_category": "not_owned", "perform": lambda self: None, **body}
    with registry.isolated(), pytest.raises(errors.DeclarationError, match=words):
        type("RefusedWorker", (framework.ApplicationWorker,), facts)
