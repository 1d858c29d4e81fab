"""Test calls of jobs: a real worker process ends jobs in every way, and the caller gets a result or a typed error."""

import asyncio
import json
import shutil
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import framework
from framework import Deduplicate, admin, errors
from framework.all_settings import load
from framework.declare import port, registry
from framework.features.results.calls import RESULTS
from framework.wire import keys
from framework.wiring.client import ProcessClient, override
from tests import result_jobs as jobs
from tests.harness import until

ENDS = [
    (jobs.FailingWorker, ("raise",), errors.JobFailedError, "LookupError: no row"),
    (jobs.DyingWorker, ("raise",), errors.JobFailedError, "(dead): LookupError: no row. No retry is left"),
    (jobs.FailingWorker, ("discard",), errors.JobDiscardedError, "(discarded): no such row"),
    (jobs.FailingWorker, ("tuple",), errors.ResultRefusedError, "result['rows'] is a tuple"),
    (jobs.FailingWorker, ("large",), errors.ResultRefusedError, "its JSON has 300,002 bytes, and at most 262,144"),
]
VALUES = [
    (jobs.SumWorker, (1, 2), {"sum": 3}),
    (jobs.AsyncSumWorker, (2,), "éé"),
    (jobs.TimedSumWorker, (4,), 5),
    (jobs.IsolatedSumWorker, (3,), [3, 3]),
    (jobs.RetriedWorker, (), 7),
]


@pytest.fixture
def site(site):
    shutil.copy(Path(jobs.__file__), site.folder / "jobs.py")
    return site


@pytest.fixture
def process(tmp_path, redis, redis_url, monkeypatch):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "redis.yml").write_text(f"shards: {{main: {{url: '{redis_url}'}}}}")
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path / "config"))
    client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
    with override(client):
        yield redis
    client.shards.close()


def test_called_jobs_give_results_and_typed_errors(process, site):
    late = jobs.LateWorker.call()
    with pytest.raises(errors.ResultTimeoutError, match=r"has not ended within 1.1 s.*jobs explain"):
        late.result(timeout=1.1)  # the shortest expiry is a second
    cancelled = jobs.SumWorker.call(9, 9)
    assert framework.cancel(cancelled.jid)
    worker = site.hurried_worker("-q", "default", "-c", "5").ready()
    with pytest.raises(errors.JobExpiredError):
        late.result(timedelta(seconds=20))
    with pytest.raises(errors.JobRemovedError, match="cancelled"):
        cancelled.result(20)
    calls = [one.call(*args) for one, args, _ in VALUES]
    for call, (_, _, value) in zip(calls, VALUES, strict=True):
        assert call.result(20) == value
        assert call.result(0) == value, "a known result is not asked for again"
    for one, args, kind, words in ENDS:
        with pytest.raises(kind) as raised:
            one.call(*args).result(20)
        assert words in str(raised.value)
    # The answer is kept, for callers in another process and for later ones.
    again = jobs.SumWorker.set(result_ttl=60).call(2, 2)
    until(lambda: process.get(keys.result(again.jid)), "the answer")
    assert again.result() == {"sum": 4}
    assert 0 < process.ttl(keys.result(again.jid)) <= 60
    assert process.ttl(keys.result(calls[0].jid)) > 3_000
    # The process of an isolated job may have made up anything.
    for data in ('{"end":[]}', '{"end":"dead","reason":5}', "[]", "x"):
        made_up = jobs.SumWorker.set(queue="unserved").call(3, 3)
        process.set(keys.result(made_up.jid), data)
        with pytest.raises(errors.ResultRefusedError, match="cannot be read"):
            made_up.result(5)
    jid = jobs.SumWorker.perform_async(1, 1)
    until(lambda: worker.find(jid=jid, job_status="done"), "a job without a call")
    assert process.get(keys.result(jid)) is None
    assert worker.line(jid=again.jid, job_status="done")["result_bytes"] == len('{"value":{"sum":4}}')
    assert len(worker.find(event_name="result.refused")) == 2


def test_calls_from_one_process_share_a_thread_and_a_loop(process, site):
    site.worker("-q", "default", "-c", "5").ready()
    before = set(threading.enumerate())

    async def all_of_them():
        calls = [await jobs.SumWorker.acall(number, 1) for number in range(60)]
        with pytest.raises(errors.MisuseError, match="await call"):
            calls[0].result()
        found = await asyncio.gather(*calls)
        threads = [one.name for one in set(threading.enumerate()) - before if "results" in one.name]
        with pytest.raises(errors.JobFailedError):
            await (await jobs.FailingWorker.set(tags=("a",)).acall("raise"))
        # The thread does not go on for a wait that is cancelled at its beginning.
        waiting = asyncio.create_task((await jobs.SumWorker.set(queue="unserved").acall(1, 1)).aresult())
        for _ in range(3):
            await asyncio.sleep(0)
        store = port.current().service(RESULTS)
        # The event loop stands still meanwhile: the task does not see that its thread has registered it.
        until(lambda: store._threads["main"]._waiting, "a waiting call")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(until, lambda: not store._threads["main"]._waiting, "no waiting call")
        return found, threads

    found, threads = asyncio.run(all_of_them())
    assert [one["sum"] for one in found] == list(range(1, 61))
    assert threads == ["results-main"]


def test_jobs_ended_by_operators_end_their_calls(process):
    jobs_of_class = admin.scheduled().where(cls="SumWorker")
    for act, scheduled, words in [
        (admin.Queue("default").clear, False, r"\(removed\)"),
        (jobs_of_class.delete, True, r"\(removed\)"),
        (jobs_of_class.kill, True, r"\(dead\)"),
    ]:
        call = jobs.SumWorker.call(1, 2)
        if scheduled:
            process.zadd("schedule", {process.rpop("queue:default"): 9e9})
        act()
        with pytest.raises((errors.JobRemovedError, errors.JobFailedError), match=words):
            call.result(10)
    admin.dead().where(cls="SumWorker").retry()
    assert process.get(keys.result(call.jid)) is None, "the job may succeed now"


def test_call_refuses_what_it_cannot_answer(application_worker):
    facts = {"feature_category": "not_owned", "encrypt": True, "perform": lambda self: None}
    windowed = Deduplicate("debounce", window=timedelta(seconds=1))
    debounces = {
        "feature_category": "not_owned",
        "idempotent": True,
        "deduplicate": windowed,
        "perform": lambda self: None,
    }
    with registry.isolated():
        secret = type("SecretResultWorker", (framework.ApplicationWorker,), facts)
        debounced = type("DebouncedResultWorker", (framework.ApplicationWorker,), debounces)
    for wrong, words in [
        (secret.call, "results are not encrypted"),
        (debounced.call, r"Deduplicate\('debounce'\): a later push takes the place of the job"),
        (lambda: jobs.SumWorker.set(sync=True).call(1, 2), "leave out sync"),
        (lambda: jobs.SumWorker.set(result_ttl=timedelta(days=8)).call(1, 2), "from 1 s to 7 days"),
        (lambda: jobs.SumWorker.set(result_ttl="1").call(1, 2), r"result_ttl='1'\) is not allowed"),
        (lambda: jobs.SumWorker.call(1), "second"),
        (lambda: jobs.SumWorker.call(1, 2).result(timeout=-1), "timeout = -1 is not allowed"),
        (lambda: jobs.SumWorker.call(1, 2).result(timeout="x"), "timeout = 'x' is not allowed"),
    ]:
        with pytest.raises(errors.ArgumentsError, match=words):
            wrong()
    application_worker.clear()
    call = jobs.SumWorker.call(1, 2)
    with pytest.raises(errors.ResultTimeoutError) as raised:
        call.result()
    assert "drain()" in str(raised.value.__cause__)
    application_worker.drain()
    assert call.result() == {"sum": 3}
    failed = jobs.DyingWorker.call("raise")
    application_worker.drain(raise_errors=False)
    with pytest.raises(errors.JobFailedError):
        failed.result()
    first, second = jobs.TimedSumWorker.call(1), jobs.TimedSumWorker.call(1)
    with pytest.raises(errors.JobDiscardedError, match="dropped at its push"):
        second.result()
    with framework.testing.inline():
        assert jobs.AsyncSumWorker.call(1).result() == "é"
    application_worker.drain()
    assert first.result() == 2


def test_call_asks_no_other_shard_for_its_answer(tmp_path, redis, redis_url, monkeypatch):
    """A frozen shard takes connections and never answers: each call of another shard would wait for it."""
    (tmp_path / "config").mkdir()
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path / "config"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        urls = {"main": redis_url, "second": f"redis://127.0.0.1:{silent.getsockname()[1]}/0"}
        shards = {"shards": {name: {"url": url} for name, url in urls.items()}}
        (tmp_path / "config" / "redis.yml").write_text(json.dumps(shards))
        client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path))
        with override(client):
            pending = jobs.SumWorker.call(1, 2)
            redis.set(keys.result(pending.jid), b'{"value":{"sum":3}}')
            assert pending.result(timeout=20) == {"sum": 3}
            with pytest.raises(BlockingIOError):
                silent.accept()
        client.shards.close()
