"""Test the page of kept pushes: what it shows of files of real producers, to whom, and that it pushes those of ended ones."""

import time

import pytest

from framework.admin import audit_log
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, application
from framework.features.reliable_push.kept_push import KeptPush
from framework.features.reliable_push.push_file import FileSystem, PushFile, push_files
from framework.features.reliable_push.reliable_push import KeepLimits, ReliablePush
from framework.push.job_batch import JobBatch
from tests.admin.conftest import SILENT_URL, bound
from tests.dashboard.conftest import browser, dashboard
from tests.dashboard.test_actions import send
from tests.dashboard.test_pages import ATTACKS, check_inert
from tests.features.reliable_push.conftest import DOWN
from tests.harness import encoded, opened
from tests.push.conftest import worker

__all__ = ["browser", "dashboard"]

ADMIN = Caller("ann", "admin")


@pytest.fixture
def kept(producer, no_thread, redis_url, monkeypatch, tmp_path):
    """Keep pushes of two classes in the file of a producer that then ends; return its file."""
    made = producer(url=DOWN)
    classes = [worker("Charge", feature_category="billing", queue="default"), worker("Mail", queue="default")]
    for one, count in zip(classes, (2, 1), strict=True):
        for number in range(count):
            one.perform_async(number)
    (path,) = made.files
    settings = load({}).model_copy(update={"var_dir": tmp_path})
    known = KnownClasses({one.declaration().wire_name: one.declaration() for one in classes})
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, known))
    for _ in bound({"main": opened(redis_url), "second": opened(SILENT_URL, "second")}):
        yield made, path


def test_files_are_shown_with_their_classes_and_replayed_once_ended(browser, kept, redis):
    made, path = kept
    client = browser(ADMIN)
    found = client.get("/api/pushes").json()
    (row,) = found["files"]
    assert (row["is_running"], row["shards"], row["jobs"]) == (True, ["main"], 3)
    assert row["classes"] == [{"class": "Charge", "jobs": 2}, {"class": "Mail", "jobs": 1}]
    # The shards for which pushes are kept are those that are away: their files are shown, too.
    assert list(found["unanswered"]) == ["second"]
    assert found["host"] in client.get("/pushes").text
    # A running process replays its file itself.
    assert "Resend 0 jobs" in send(client, "/pushes", action="replay")
    made.end()
    assert "Resend 3 jobs" in send(client, "/pushes", action="replay")
    assert path.exists()
    assert "main: 3 jobs pushed, 0 in Redis already; 0 jobs are left" in send(
        client, "/pushes", action="replay", confirmed="yes"
    )
    assert redis.llen("queue:default") == 3
    assert push_files(path.parent) == []
    (record,) = audit_log(shard="main")
    assert (record.actor, record.action, record.count) == ("ann", "pushes replay", 3)


def test_caller_sees_own_jobs_and_pushes_those_of_own_shards(browser, kept, redis):
    made, path = kept
    made.end()
    ours = browser(Caller("eve", feature_categories={"billing": "operate"}))
    (row,) = ours.get("/api/pushes").json()["files"]
    assert row["classes"] == [{"class": "Charge", "jobs": 2}]
    for caller in (
        Caller("eve", feature_categories={"billing": "operate"}),
        Caller("eve", "read", {"second": "operate"}),
    ):
        client = browser(caller)
        client.get("/pushes")
        client.post("/pushes", data={"token": client.cookies["aw_token"], "action": "replay", "confirmed": "yes"})
        assert redis.llen("queue:default") == 0
    assert browser(Caller("eve", shards={"second": "read"})).get("/api/pushes").json()["files"] == []
    assert path.exists()


def test_fields_of_files_are_escaped(browser, kept):
    file = PushFile.create(kept[1].parent, FileSystem())
    for attack in ATTACKS:
        batch = JobBatch(attack, [encoded(attack)], [attack])
        push = KeptPush("main", batch, attack, 1.0, in_doubt=False, locks_when_due=False)
        file.append(push.encode(), push, tried=False)
    file.close()
    client = browser(ADMIN)
    found = check_inert(client.get("/pushes").text, "pushes").text
    assert [attack for attack in ATTACKS if attack not in found] == []
    check_inert(send(client, "/pushes", action="replay"), "preview")


def test_files_that_cannot_be_replayed_say_why(browser, kept):
    made, path = kept
    client = browser(ADMIN)
    (path.parent / "x.pushes").write_bytes(b"no header\n")
    assert [one["problem"] for one in client.get("/api/pushes").json()["files"]] == ["", "no readable header"]
    path.parent.chmod(0o777)
    client = browser(ADMIN)
    assert "chmod go-w" in client.get("/pushes?live=1").text
    assert send(client, "/pushes", 409, action="replay")
    made.end()


def test_replay_of_one_shard_leaves_the_others_and_their_files(tmp_path, redis_url, redis):
    folder = tmp_path / "pushes"
    file = PushFile.create(folder, FileSystem())
    for shard in ("main", "second"):
        batch = JobBatch(shard, [encoded("Job", jid=shard)], [shard])
        push = KeptPush(shard, batch, shard, time.time(), in_doubt=False, locks_when_due=False)
        file.append(push.encode(), push, tried=False)
    file.close()
    shards = {name: opened(redis_url, name) for name in ("main", "second")}
    first = ReliablePush(folder, KeepLimits(10, 10_000), shards)
    assert first.replay("main").written == 1
    assert (redis.llen("queue:main"), redis.llen("queue:second")) == (1, 0)
    # Until it is closed, the file is its own.
    assert ReliablePush(folder, KeepLimits(10, 10_000), shards).replay().written == 0
    first.close()
    assert first.replay().written == 0
    assert ReliablePush(folder, KeepLimits(10, 10_000), shards).replay().written == 1
    for one in shards.values():
        one.close()
