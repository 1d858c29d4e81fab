"""The cause of a shard whose memory is near its budget."""

from contextlib import closing

import pytest

from framework.admin.diagnosis.diagnose import diagnose
from framework.admin.diagnosis.facts import DiagnosisScope, Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.shard.memory_report import HeldClass, MemoryPart, MemoryReport
from framework.wire import keys
from tests.harness import opened


@pytest.fixture
def found(redis, redis_url):
    """Return a function that returns the causes of the shard with a budget of this share of the used memory."""

    def read(used_share):
        budget = int(redis.info("memory")["used_memory"] / used_share)
        settings = load({"FRAMEWORK_SHARDS__MAIN__MEMORY_BUDGET": str(budget)})
        with closing(opened(redis_url)) as shard:
            result = diagnose([shard], Installation(settings, KnownClasses()), DiagnosisScope())
        assert result.notes == []
        return [one for one in result.causes if one.code == "memory_budget"]

    return read


def test_budget_that_is_half_used_is_no_cause(found):
    assert found(0.5) == []


def test_budget_that_is_almost_used_names_what_fills_it(found, redis):
    parts = [MemoryPart("Report", "dead", 900, 5_000_000), MemoryPart("Mail", "queue", 10, 2_000)]
    redis.set(keys.MEMORY, MemoryReport(1, 1, {}, parts).encode())
    (one,) = found(0.95)
    assert one.cause == "the memory budget of the shard is almost full"
    assert one.evidence[1] == "Report in dead: 900 jobs, about 5 MB"
    assert one.remedy == "application-worker jobs delete --in dead --class Report"
    assert one.classes == {"Report"}


def test_full_budget_names_the_classes_that_are_held_back(found, redis):
    parts = [MemoryPart("Mail", "queue", 10, 2_000)]
    redis.set(keys.MEMORY, MemoryReport(1, 1, {"Mail": HeldClass(10, 2_000)}, parts).encode())
    (one,) = found(1.1)
    assert one.cause == "the memory budget of the shard is full: pushes of Mail are held back"
    assert one.remedy == "application-worker jobs memory --shard main"
    redis.delete(keys.MEMORY)
    redis.sadd(keys.MEMORY, "of another program")
    (one,) = found(1.1)
    assert one.cause == "the memory budget of the shard is full"
