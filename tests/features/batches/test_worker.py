"""The lines of batch events: real scripts note them, and any process logs each once."""

from framework.batches import Batch
from framework.features.batches import keys as batch_keys
from framework.features.batches.worker import BatchEventLog
from framework.store.absent_keys import AbsentKeys
from tests.features.batches.test_batches import end, filled
from tests.harness import full_memory
from tests.push.conftest import closed_circuit, pusher

__all__ = ["closed_circuit", "pusher"]


def test_event_of_a_batch_is_logged_once(redis, pusher, caplog):
    batch = Batch(description="Import of spring")
    one, two = filled(batch)
    end(redis, batch, one, "dead")
    end(redis, batch, two)
    redis.rpush(
        batch_keys.BATCH_EVENTS,
        b"no event",
        b'{"event":"other"}',
        b'{"event":"success","bid":7,"total":"many","at":"x"}',
    )
    absent = AbsentKeys((batch_keys.BATCH_EVENTS,), 60.0)
    first, second = (BatchEventLog(redis, "main", absent) for _ in range(2))
    with caplog.at_level("INFO", "framework"):
        first.step()
        second.step()
    found = [one.getMessage() for one in caplog.records]
    assert [
        f"batch.{name}" in line for name, line in zip(("death", "complete", "finished", "success"), found, strict=True)
    ]
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO", "INFO", "INFO"]
    for field in (f"bid='{batch.bid}'", "description='Import of spring'", "shard='main'", "failures=1", "total=2"):
        assert all(field in line for line in found[:3]), field
    # As it was when the event came about, not as it is when it is logged.
    assert ["pending=2" in line for line in found[:3]] == [True, False, False]
    assert "pending=1" in found[2]
    assert "dead_jobs=1" in found[2]
    assert not redis.exists(batch_keys.BATCH_EVENTS)
    # Events that no process logs take little room.
    redis.rpush(batch_keys.BATCH_EVENTS, *[b"{}"] * 5_000)
    with (empty := Batch()).jobs():
        pass
    assert redis.llen(batch_keys.BATCH_EVENTS) == 1_000
    # A key of another type stops no batch.
    redis.set(batch_keys.BATCH_EVENTS, "no list")
    with (other := Batch()).jobs():
        pass
    assert empty.status.finished
    assert other.status.finished
    log = BatchEventLog(redis, "main", AbsentKeys((batch_keys.BATCH_EVENTS,)))
    log.step()
    log.step()
    assert caplog.text.count("batch.events_not_read") == 1


def test_event_is_logged_on_a_full_server(each_redis, caplog):
    each_redis.rpush(batch_keys.BATCH_EVENTS, b'{"event":"success","bid":"b"}')
    with full_memory(each_redis), caplog.at_level("INFO", "framework"):
        BatchEventLog(each_redis, "main", AbsentKeys((batch_keys.BATCH_EVENTS,))).step()
    assert "batch.success" in caplog.text
    assert not each_redis.exists(batch_keys.BATCH_EVENTS)
