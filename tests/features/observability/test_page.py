"""Test the page of process groups: which processes belong together, the slots that they need, and signals to a whole group."""

from framework.admin import audit_log
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.admin.process_list import WorkerProcess
from framework.all_settings import load
from framework.dashboard import Caller, application
from framework.features.observability.page import groups_of
from framework.features.observability.settings import FleetSettings
from framework.wire import keys
from tests.dashboard.conftest import browser, dashboard, shards, silent_shards
from tests.dashboard.test_actions import send
from tests.harness import encoded, register_process

__all__ = ["browser", "dashboard", "shards", "silent_shards"]

ADMIN = Caller("ann", "admin")


def process(identity, *queues):
    counts = {"slots": 5, "busy": 0, "is_quiet": False, "started_at": None, "beat": None, "rss_kb": 0, "rtt_us": 0}
    more = {"version": "", "embedded": False, "runs": None, "clock_s": None, "lost_at": None}
    return WorkerProcess("main", identity, "h", 1, "", (), queues, **counts, **more)


def test_processes_belong_to_the_group_of_most_of_their_queues():
    named = {"mail": ("mails", "digests"), "idle": ("nights",), "away": ("reports",)}
    listed = [
        process("a", "mails", "digests"),
        process("b", "mails", "other"),
        process("c", "x", "y"),
        process("d", "x", "y"),
    ]
    needed = {"mail": 3, "idle": 0, "away": 2, "x": 1, "y": 4, "other": 5, "lost": 6, "empty": 0}
    found = {
        one.name: ([each.identity for each in one.processes], one.needed) for one in groups_of(listed, named, needed)
    }
    # What needs slots and has no process is there, too.
    assert found == {
        "mail": (["a", "b"], 3),
        "away": ([], 2),
        "x, y": (["c", "d"], 5),
        "lost": ([], 6),
        "other": ([], 5),
    }


def test_sets_with_the_same_first_queues_are_two_groups():
    listed = [process("a", "q1", "q2", "q3", "q4"), process("b", "q1", "q2", "q3", "q5")]
    names = {one.name for one in groups_of(listed, {}, {})}
    assert len(names) == 2
    assert all(one.startswith("q1, q2, q3 and 1 more (") for one in names)


def test_group_is_shown_and_gets_the_signal(browser, shards, redis, second_redis, monkeypatch):
    for client, numbers in ((redis, (1, 2)), (second_redis, (3,))):
        for number in numbers:
            info = {"hostname": "h", "pid": number, "queues": ["mails"], "concurrency": 5, "version": f"v{number % 2}"}
            register_process(client, info, f"h:{number}:aaaaaaaaaaaa", busy=2, concurrency=5, rss=1024)
    redis.sadd(keys.QUEUES, "mails")
    redis.lpush(keys.queue("mails"), *[encoded("Job", jid=f"J{number}") for number in range(900)])
    settings = load({}).model_copy(update={"fleet": FleetSettings(queue_groups={"mail": ("mails",)})})
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, KnownClasses({})))
    client = browser(ADMIN)
    first, second = client.get("/api/groups").json()["groups"]
    # The most missing slots come first: 900 jobs of a second within half a minute.
    assert (first["name"], first["shard"], first["needed"], first["processes"]) == ("mail", "main", 30, 2)
    assert (first["slots"], first["busy"], first["rss_bytes"], first["versions"]) == (10, 4, 2 * 1024 * 1024, "v0, v1")
    assert (second["shard"], second["processes"]) == ("second", 1)
    assert "mail on main: 2 processes, 4 jobs are running" in send(client, "/groups", action="stop", row="main mail")
    assert not redis.exists("h:1:aaaaaaaaaaaa-signals")
    assert "2 processes asked" in send(client, "/groups", action="stop", row="main mail", confirmed="yes")
    for number in (1, 2):
        assert redis.lrange(f"h:{number}:aaaaaaaaaaaa-signals", 0, -1) == [b"TERM"]
    assert not second_redis.exists("h:3:aaaaaaaaaaaa-signals")
    (record,) = audit_log()
    assert (record.actor, record.action, record.count, record.what) == ("ann", "jobs stop", 2, {"group": "mail"})
    send(browser(Caller("bob", "read")), "/groups", 403, action="quiet", all="yes", confirmed="yes")
    assert "/groups" in browser(ADMIN).get("/processes").text


def test_dead_shard_hides_no_group_of_others(browser, silent_shards, redis):
    register_process(redis, {"hostname": "h", "pid": 1, "queues": ["a"], "concurrency": 5}, "h:1:aaaaaaaaaaaa")
    found = browser(ADMIN).get("/api/groups").json()
    assert [one["name"] for one in found["groups"]] == ["a"]
    assert list(found["unanswered"]) == ["second"]
