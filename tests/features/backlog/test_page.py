"""The page of the memory: what fills it, and the deletion of jobs of a class from a set."""

from framework.dashboard import Caller
from framework.wire import keys
from tests.dashboard.conftest import _whole, browser, dashboard, declarations, shards
from tests.dashboard.test_actions import send
from tests.harness import encoded

__all__ = ["_whole", "browser", "dashboard", "declarations", "shards"]

ADMIN = Caller("ann", "admin")


def test_memory_page_deletes_the_jobs_of_a_class_from_a_set(browser, shards, redis):
    for number in range(50):
        redis.zadd(keys.DEAD, {encoded("Report", jid=f"D{number}", error_message="x" * 200): number + 1.0})
        redis.lpush(keys.queue("default"), encoded("Mail", jid=f"Q{number}"))
    redis.zadd(keys.DEAD, {encoded("Mail", jid="kept"): 1.0})
    redis.sadd(keys.QUEUES, "default")
    client = browser(ADMIN)
    rows = client.get("/api/memory").json()["memory"]
    assert [(one["class"], one["place"], one["jobs"]) for one in rows if one["class"] == "Report"] == [
        ("Report", "dead", 50)
    ]
    assert rows[0]["name"] == "Report in dead"
    assert "cannot be deleted here" in send(client, "/memory", status=409, action="purge", row="main Mail in queue")
    chosen = {"action": "purge", "row": "main Report in dead"}
    assert "about 50 jobs" in send(client, "/memory", **chosen)
    assert "50 jobs deleted" in send(client, "/memory", **chosen, confirmed="yes")
    assert redis.zcard(keys.DEAD) == 1
    # A copy would take the memory.
    assert not redis.exists(keys.DELETED)
