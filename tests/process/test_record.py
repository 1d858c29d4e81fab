import pytest
from redis.exceptions import RedisError

from framework.execute.runs import Runs
from framework.fetch.queues import QueueOrder
from framework.process.record import ProcessRecord
from framework.wire import keys
from tests.harness import IDENTITY, full_memory


def test_what_a_dashboard_asks_is_obeyed_at_maxmemory_and_no_count_is_lost(redis):
    runs = Runs()
    record = ProcessRecord(redis, IDENTITY, QueueOrder.of([("default", 0)]), 1, "1", runs)
    runs.tally().processed = 3
    redis.rpush(keys.signals(IDENTITY), "TSTP")
    with full_memory(redis):
        assert record.beat() == ["TSTP"]
        with pytest.raises(RedisError):
            record.beat()
    assert record.beat() == []
    assert redis.get(keys.STAT_PROCESSED) == b"3"
