"""Test jobs memory: the table, its last line, and JSON."""

from framework.wire import keys
from tests.harness import encoded


def fill(redis):
    redis.sadd(keys.QUEUES, "mail")
    redis.lpush("queue:mail", *(encoded("Mail", jid=f"j{at}", text="x" * 300) for at in range(20)))
    redis.zadd(keys.DEAD, {encoded("Report", jid="d"): 1})


def test_memory_shows_classes_and_the_server(jobs, redis):
    fill(redis)
    headings, first, second, last, budget = jobs("memory").splitlines()
    assert headings.split() == ["SHARD", "CLASS", "PLACE", "JOBS", "BYTES"]
    assert first.split()[:4] == ["main", "Mail", "queue", "20"]
    assert second.split()[:4] == ["main", "Report", "dead", "1"]
    assert last.startswith("main: Redis uses ")
    assert "and has no maxmemory (noeviction)" in last
    assert budget.startswith("main: ")
    assert "(shards.main.memory_budget)" in budget
    assert jobs("memory", "--limit", "1").splitlines()[2] == "and 1 further rows: --limit shows more"


def test_memory_as_json_adds_up_to_the_used_memory(jobs, redis):
    fill(redis)
    found = jobs("memory", "--json", "--exact")
    assert [(one["shard"], one["class"], one["place"], one["jobs"]) for one in found] == [
        ("main", "Mail", "queue", 20),
        ("main", "Report", "dead", 1),
        ("main", None, "other", 0),
    ]
    assert found[0]["bytes"] > 20 * 300
    info = redis.info("memory")
    assert abs(sum(one["bytes"] for one in found) + info["used_memory_startup"] - info["used_memory"]) < 200_000


def test_memory_of_an_empty_shard(jobs, redis):
    assert jobs("memory").startswith("No job and no key of jobs is on main.\nmain: Redis uses ")
