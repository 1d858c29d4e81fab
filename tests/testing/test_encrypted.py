"""Jobs of classes with encrypted arguments, in a fake and on real servers with real workers: pushes, runs, retries, locks."""

import base64
import json
from datetime import timedelta

import pytest

from framework import ApplicationWorker, ConcurrencyScope, Deduplicate, limiter
from framework.errors import EncryptionKeyError
from framework.testing import FakeJobs, fake, real
from framework.wire import keys
from framework.wire.resources import lock_key

KEY = base64.b64encode(b"k" * 32).decode()
CARD = "4111 1111"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("FRAMEWORK_ENCRYPTION__KEYS__1", KEY)


def charge_worker(**attributes):
    class ChargeWorker(ApplicationWorker):
        feature_category = "not_owned"
        encrypt = True
        retry = 1
        _ran = []

        def perform(self, card: str, amount: int = 5) -> None:
            self._ran.append((card, amount))
            if amount == 13 and len(self._ran) == 1:
                raise ValueError("refused")

    return type("PaymentWorker", (ChargeWorker,), {"__module__": "workers.payment_worker", **attributes})


def stored(jobs):
    """Return the bytes of every job."""
    client = (jobs.client if isinstance(jobs, FakeJobs) else jobs._client).shards["main"].client
    sets = [client.zrange(name, 0, -1) for name in (keys.SCHEDULE, keys.RETRY, keys.DEAD)]
    lists = [client.lrange(name, 0, -1) for name in client.scan_iter(match="queue:*")]
    return b"".join(data for found in (*sets, *lists) for data in found)


def test_every_way_of_pushing_encrypts(jobs):
    worker = charge_worker()
    worker.perform_async(CARD, 1)
    worker.perform_in(60, CARD, 2)
    worker.perform_bulk([(CARD, 3), (CARD, 4)])
    worker.set(queue="other").perform_async(CARD, 5)
    assert CARD.encode() not in stored(jobs)
    assert [job.args[0] for job in jobs.enqueued(worker)] == [CARD] * 5
    jobs.drain()
    assert sorted(worker._ran) == [(CARD, number) for number in range(1, 6)]


def everything(client):
    """Return the names and the values of all keys of a Redis."""
    read = {b"hash": client.hgetall, b"list": lambda key: client.lrange(key, 0, -1), b"string": client.get}
    read |= {b"set": client.smembers, b"zset": lambda key: client.zrange(key, 0, -1)}
    return repr([(name, read[client.type(name)](name)) for name in client.scan_iter()])


@pytest.mark.parametrize("jobs", ["real"], indirect=True)
def test_keys_made_of_arguments_are_digests(jobs, redis):
    def card_of(args):
        return args[0]

    found = []

    def perform(self, card: str, amount: int = 5) -> None:
        found.append(everything(redis))

    scope = ConcurrencyScope(by=card_of, limit=2)
    rule = limiter.bucket("cards", 5, "minute").by(card_of)
    worker = charge_worker(
        perform=perform, fair_by=card_of, concurrency_limit=5, concurrency_scope=scope, limiter=rule, queue="default"
    )
    # The oldest job of a key waits in the queue itself.
    worker.perform_bulk([(CARD, 1), (CARD, 2)])
    found.append(everything(redis))
    jobs.drain()
    # Of waiting and of running jobs.
    assert len(found) == 3
    assert CARD not in "".join(found)
    assert all(part in found[1] for part in ("aw:limiter:cards:", ":scopes"))
    assert "queue:default~" in found[0]


def test_failed_job_keeps_its_encrypted_arguments(jobs):
    worker = charge_worker()
    worker.perform_async(CARD, 13)
    with pytest.raises(ValueError, match="refused"):
        jobs.drain()
    assert stored(jobs)
    assert CARD.encode() not in stored(jobs)
    jobs.drain()
    assert worker._ran == [(CARD, 13)] * 2


def test_equal_jobs_are_deduplicated_by_a_keyed_digest(jobs):
    policy = Deduplicate("until_executing", ttl=timedelta(hours=1), including_scheduled=False)
    worker = charge_worker(idempotent=True, deduplicate=policy)
    assert worker.perform_async(CARD) is not None
    assert worker.perform_async(CARD) is None
    assert worker.perform_bulk([(CARD,), ("other",)])[0] is None
    plain = lock_key(worker.declaration().wire_name, b'["4111 1111"]')
    assert plain.encode() not in stored(jobs)
    # The poller takes the lock of a scheduled job when it is due, so it has to read the arguments.
    worker.perform_in(60, CARD)
    jobs.drain()
    assert (CARD, 5) in worker._ran
    assert ("other", 5) in worker._ran


def test_one_more_run_of_a_job_is_encrypted_for_its_own_id(jobs):
    policy = Deduplicate("until_executed", ttl=timedelta(hours=1), if_deduplicated="reschedule_once")
    ran = []

    def perform(self, card: str) -> None:
        ran.append((self.jid, card))
        if len(ran) == 1:
            assert type(self).perform_async(card) is None

    worker = charge_worker(idempotent=True, deduplicate=policy, perform=perform)
    worker.perform_async(CARD)
    jobs.drain()
    assert [card for _, card in ran] == [CARD] * 2
    assert ran[0][0] != ran[1][0]


def test_inline_run_reads_its_arguments(jobs):
    worker = charge_worker()
    worker.perform_inline(CARD, 2)
    assert worker._ran == [(CARD, 2)]


def test_push_without_a_key_writes_nothing(application, monkeypatch):
    monkeypatch.delenv("FRAMEWORK_ENCRYPTION__KEYS__1")
    worker = charge_worker()
    with real(), pytest.raises(EncryptionKeyError, match="no key is configured"):
        worker.perform_async(CARD)


def test_fake_needs_no_key(application, monkeypatch):
    monkeypatch.delenv("FRAMEWORK_ENCRYPTION__KEYS__1")
    worker = charge_worker()
    with fake() as jobs:
        worker.perform_async(CARD)
        assert jobs.enqueued(worker)[0].args == [CARD]
        jobs.drain()
    assert worker._ran == [(CARD, 5)]


def test_job_waits_for_a_missing_key(jobs, monkeypatch):
    if isinstance(jobs, FakeJobs):
        pytest.skip("a fake has the keys of its own start")
    worker = charge_worker(retry=0)
    worker.perform_async(CARD)
    monkeypatch.setenv("FRAMEWORK_ENCRYPTION__KEYS__1", base64.b64encode(b"x" * 32).decode())
    jobs.drain()
    client = jobs._client.shards["main"].client
    (data,) = client.zrange(keys.SCHEDULE, 0, -1)
    assert (json.loads(data)["deferred_by"], worker._ran) == ("missing_key", [])
    assert CARD.encode() not in data
    monkeypatch.setenv("FRAMEWORK_ENCRYPTION__KEYS__1", KEY)
    jobs.drain()
    assert worker._ran == [(CARD, 5)]


def test_changed_text_is_quarantined_with_its_bytes(jobs):
    if isinstance(jobs, FakeJobs):
        pytest.skip("the bytes are changed in Redis")
    worker = charge_worker()
    worker.perform_async(CARD)
    client = jobs._client.shards["main"].client
    queue = keys.queue(worker.route().queue)
    (data,) = client.lrange(queue, 0, -1)
    changed = data.replace(b'"jid":"', b'"jid":"f')
    client.lpush(queue, changed)
    client.lrem(queue, 1, data)
    jobs.drain(raise_errors=False)
    (entry,) = client.zrange(keys.DEAD, 0, -1)
    assert base64.b64decode(json.loads(entry)["aw_raw"]) == changed
    assert worker._ran == []
