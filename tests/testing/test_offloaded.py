"""Jobs with large arguments in the payload store, in a fake and on real servers with real workers, with and without encryption."""

import base64
import json
import os
from datetime import timedelta

import pytest

from framework import ApplicationWorker, Deduplicate
from framework.errors import ExceedLimitError, PayloadStoreError
from framework.testing import FakeJobs
from framework.wire import keys

TEXT = os.urandom(20_000).hex()
LIMITS = {"compression_threshold": 1_000, "limit": 15_000}


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    folder = tmp_path / "payloads"
    settings = {"payload_offload": {"url": f"file://{folder}", "threshold": 2_000}, "size_limit": LIMITS}
    for section, values in settings.items():
        for name, value in values.items():
            monkeypatch.setenv(f"FRAMEWORK_{section}__{name}".upper(), str(value))
    monkeypatch.setenv("FRAMEWORK_ENCRYPTION__KEYS__1", base64.b64encode(b"k" * 32).decode())
    return folder


def import_worker(**attributes):
    class ImportWorker(ApplicationWorker):
        feature_category = "not_owned"
        retry = 1
        _ran = []

        def perform(self, text: str, number: int = 0) -> None:
            self._ran.append((text, number))
            if number == 13 and len(self._ran) == 1:
                raise ValueError("refused")

    return type("TextWorker", (ImportWorker,), {"__module__": "workers.text_worker", "_ran": [], **attributes})


def blobs(jobs, store):
    if isinstance(jobs, FakeJobs):
        return [one.name for one in jobs.client.protection._offload.store.list("blobs")]
    return [path.name for path in store.glob("blobs/*/*")]


def test_large_arguments_wait_in_the_store(jobs, store):
    """On every way of pushing; each job deletes its own when it has ended, and a failed one keeps them."""
    for dead_jobs, encrypt in enumerate((False, True)):

        def waiting(dead=dead_jobs):
            return len(blobs(jobs, store)) - dead

        worker = import_worker(encrypt=encrypt)
        worker.perform_async(TEXT, 1)
        worker.perform_in(60, TEXT, 2)
        worker.perform_bulk([(TEXT, 3), ("small", 4), (TEXT, 5)])
        worker.perform_async("x" * 20_000, 6)
        assert waiting() == 4
        assert max(job.args for job in jobs.enqueued(worker)) == ["x" * 20_000, 6]
        jobs.drain()
        assert sorted(number for _, number in worker._ran) == [1, 2, 3, 4, 5, 6]
        assert {text for text, _ in worker._ran} == {TEXT, "small", "x" * 20_000}
        assert waiting() == 0
        failing = import_worker(encrypt=encrypt)
        failing.perform_async(TEXT, 13)
        with pytest.raises(ValueError, match="refused"):
            jobs.drain()
        assert waiting() == 1
        jobs.drain()
        assert (failing._ran, waiting()) == ([(TEXT, 13)] * 2, 0)
        worker.perform_inline(TEXT, 7)
        assert (worker._ran[-1], waiting()) == ((TEXT, 7), 0)
        # A dead job keeps them for its retry.
        import_worker(encrypt=encrypt, retry=0).perform_async(TEXT, 13)
        with pytest.raises(ValueError, match="refused"):
            jobs.drain()
        assert waiting() == 1
    # Its queue has readers that cannot decompress: the limit holds.
    with pytest.raises(ExceedLimitError):
        import_worker(compress=False).perform_async(TEXT)


def test_deduplication_sees_the_real_arguments(jobs, store):
    policy = Deduplicate("until_executed", ttl=timedelta(hours=1), if_deduplicated="reschedule_once")
    for encrypt in (False, True):
        worker = import_worker(idempotent=True, deduplicate=policy, perform=push_again_once, encrypt=encrypt)
        assert worker.perform_async(TEXT)
        assert worker.perform_async(TEXT) is None
        # The arguments of the dropped duplicate are gone from the store.
        assert len(blobs(jobs, store)) == 1
        jobs.drain()
        assert [text for text, _ in worker._ran] == [TEXT] * 2
        assert worker._ran[0][1] != worker._ran[1][1]
        # Encrypted arguments are bound to the id: a run that nothing followed has stored them for another. The sweep deletes them.
        assert len(blobs(jobs, store)) <= int(encrypt)


def push_again_once(self, text: str, number: int = 0) -> None:
    self._ran.append((text, self.jid))
    if len(self._ran) == 1:
        assert type(self).perform_async(text) is None


def test_unreadable_store_delays_jobs_and_a_lost_blob_kills(jobs, store, monkeypatch):
    if isinstance(jobs, FakeJobs):
        pytest.skip("a fake has its store in memory")
    worker = import_worker(retry=0)
    queue = keys.queue(worker.route().queue)
    worker.perform_async(TEXT, 1)
    client = jobs._client.shards["main"].client
    # The workers see another folder, as one that is not mounted.
    monkeypatch.setenv("FRAMEWORK_PAYLOAD_OFFLOAD__URL", f"file://{store}-2")
    jobs.drain()
    (data,) = client.zrange(keys.SCHEDULE, 0, -1)
    assert (json.loads(data)["deferred_by"], worker._ran) == ("payload_store", [])
    monkeypatch.setenv("FRAMEWORK_PAYLOAD_OFFLOAD__URL", f"file://{store}")
    jobs.drain()
    assert (worker._ran, blobs(jobs, store)) == ([(TEXT, 1)], [])
    away = store.rename(store.with_name("away"))
    store.write_text("a file")
    with pytest.raises(PayloadStoreError, match="which did not take them"):
        worker.perform_async(TEXT, 2)
    assert client.llen(queue) == 0
    store.unlink()
    away.rename(store)
    worker.perform_async(TEXT, 3)
    (queued,) = client.lrange(queue, 0, -1)
    next(store.glob("blobs/*/*")).unlink()
    jobs.drain()
    assert (client.zrange(keys.DEAD, 0, -1), len(worker._ran)) == ([queued], 1)
    # It vanishes during a run that has one more run: that one goes to the dead set, and the process goes on.
    policy = Deduplicate("until_executed", ttl=timedelta(hours=1), if_deduplicated="reschedule_once")
    for dead, encrypt in enumerate((False, True), 2):
        again = import_worker(idempotent=True, deduplicate=policy, perform=lose_the_blob, encrypt=encrypt, _store=store)
        again.perform_async(TEXT)
        jobs.drain()
        found = client.zrange(keys.DEAD, 0, -1)
        assert (len(found), len(again._ran), client.llen(queue)) == (dead, 1, 0)
        again.perform_async(TEXT, 4)
        jobs.drain()
        assert len(again._ran) == 2


def lose_the_blob(self, text: str, number: int = 0) -> None:
    self._ran.append(self.jid)
    if number:
        return
    lost = list(self._store.glob("blobs/*/*"))
    assert type(self).perform_async(text) is None
    for one in lost:
        one.unlink()
