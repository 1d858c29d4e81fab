"""Run a process under an ACL: a missing right ends its boot; a right removed later stops the class, not the process."""

import json

import pytest

from framework.store.rights import WORKER
from framework.wire import keys
from tests.harness import ROOT, enqueue, until

PASSWORD = "of-the-user"
WITHOUT_LIMITS = ["resetkeys", *(f"~{key}" for key in WORKER.keys if key != "aw:*"), "~aw:[^l]*", "~aw:lease:*"]
"""Every key of the framework except those of limits and locks."""

LIMITED = """

class LimitedWorker(Base):
    concurrency_limit = 1

    def perform(self, value: str) -> None:
        prove("limited", value)

"""


@pytest.fixture
def user(redis, redis_url):
    """Set the rules of a user; return the URL with its name and password."""

    def give(*rules):
        redis.execute_command("ACL", "SETUSER", "tested", *rules, f">{PASSWORD}")
        return redis_url.replace("://", f"://tested:{PASSWORD}@")

    yield give
    redis.execute_command("ACL", "DELUSER", "tested")


@pytest.mark.refused("tested *")
@pytest.mark.parametrize("command", [("worker", "-q", "default"), ("cluster", "default")], ids=["worker", "cluster"])
def test_boot_without_rights_ends_with_78_and_names_them(site, user, command):
    url = user(*WORKER.rules, "-zadd", "-hincrby", "resetkeys", *(f"~{key}" for key in WORKER.keys if key != "retry"))
    done = site.run("-m", "framework", *command, "-r", "jobs", REDIS_URL=url)
    assert done.returncode == 78
    for words in (
        "shards.main.username",
        "refuses the commands hincrby, zadd and the key retry to the user 'tested'",
        "ACL SETUSER tested ~retry +hincrby +zadd",
        "application-worker acl worker --user tested",
    ):
        assert words in done.stderr, done.stderr
    (line,) = [
        one for one in map(json.loads, done.stdout.splitlines()) if one.get("event_name") == "boot.rights_refused"
    ]
    assert (line["severity"], line["commands"], line["keys"]) == ("ERROR", ["hincrby", "zadd"], ["retry"])
    assert PASSWORD not in done.stdout + done.stderr


@pytest.mark.refused("tested *")
def test_boot_without_decorative_rights_warns_of_the_budget_only(site, user, redis, proofs):
    url = user(*WORKER.rules, *(f"-{command}" for command in WORKER.optional))
    enqueue(redis, "NoopWorker")
    process = site.worker("-q", "default", REDIS_URL=url, FRAMEWORK_LOGGING__LEVEL="debug").ready()
    proofs("noop")
    line = process.line(event_name="boot.optional_rights")
    assert set(line["commands"]) == set(WORKER.optional)
    assert process.end() == 0
    # Without measuring rights no budget holds a class back, which an operator has to know.
    others = [one for one in process.lines if one.get("event_name") != "backlog.not_measured"]
    assert {one["severity"] for one in others} <= {"DEBUG", "INFO"}
    assert any("without a name" in one["message"] for one in process.lines)


@pytest.mark.refused("tested aw:*")
def test_right_removed_at_run_time_stops_the_class_only(site, user, redis, proofs):
    with (site.folder / "jobs.py").open("a") as module:
        module.write(LIMITED)
    process = site.worker("-q", "default", REDIS_URL=user(*WORKER.rules)).ready()
    enqueue(redis, "LimitedWorker", args=["before"])
    proofs("limited")
    until(lambda: not redis.exists(f"{keys.limit('LimitedWorker')}:running"), "its slot is free")
    user(*WITHOUT_LIMITS)
    for number in range(3):
        enqueue(redis, "LimitedWorker", args=[str(number)], jid=f"j{number}")
    enqueue(redis, "NoopWorker")
    proofs("noop")  # the other classes continue
    waiting = [
        json.loads(data)
        for data in until(lambda: redis.zcard(keys.SCHEDULE) == 3 and redis.zrange(keys.SCHEDULE, 0, -1))
    ]
    assert {(job["jid"], job["deferred_by"]) for job in waiting} == {
        (f"j{number}", "right_refused") for number in range(3)
    }
    assert redis.lrange("proof:limited", 0, -1) == [b"before"]
    line = process.line(event_name="policy.right_refused")
    assert (line["severity"], line["class"]) == ("ERROR", "LimitedWorker")
    assert "acl worker" in line["message"]
    assert "access a key" in line["exception.message"]
    user(*WORKER.rules)
    for data in redis.zrange(keys.SCHEDULE, 0, -1):  # half a minute later
        redis.zadd(keys.SCHEDULE, {data: 1})
    assert set(proofs("limited", 4)) == {"before", "0", "1", "2"}
    assert process.end() == 0


def test_acl_command_of_checkout_matches_the_package(site):
    shown = site.run(str(ROOT / "scripts" / "acl"), "worker", "--user", "w")
    assert shown.stdout.startswith("ACL SETUSER w on resetkeys ")
    assert site.run("-m", "framework", "acl", "worker", "--user", "w").stdout == shown.stdout
    listed = site.run("-m", "framework", "acl").stdout
    assert all(role in listed for role in ("producer", "worker", "operator", "read-only"))
    assert site.run("-m", "framework", "acl", "boss").returncode == 2
    assert site.run("-m", "framework", "acl", "worker", "--user", "two words").returncode == 2
