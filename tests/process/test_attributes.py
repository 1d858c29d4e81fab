"""Check class attributes with real processes: push a job, run it, and find it where the attribute sends it."""

import base64
import json
import signal
import zlib

import pytest

from framework.recover.reaper import mark_dead
from framework.wire import keys
from tests.harness import until

HEAD = """
import asyncio
import os
import signal

from jobs import prove

from framework import ApplicationWorker


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"

"""

FAILING = """
class Failing(Base, abstract=True):
    def perform(self):
        prove("run", self.jid)
        raise ConnectionError("no answer")

    @classmethod
    def retries_exhausted(cls, job, error):
        prove("exhausted", job.jid)


"""


class Installation:
    """An installation whose workers are declared by the test."""

    def __init__(self, site, redis):
        self.site = site
        self.redis = redis

    def declare(self, text):
        (self.site.folder / "declared.py").write_text(HEAD + text)

    def push(self, calls):
        """Run ``calls`` in an own process, as an application does; return the words that it prints."""
        done = self.site.run("-c", f"from declared import *\n{calls}")
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def worker(self, *options):
        return self.site.worker("-r", "declared", *options, FRAMEWORK_POLL_INTERVAL="0.1")

    def stored(self, key):
        return [json.loads(member) for member in self.redis.zrange(key, 0, -1)]

    def mark_dead(self):
        """Mark every registered process dead, as a supervisor does; their log lines may not be written yet."""
        for identity in self.redis.zrange(keys.REGISTRY, 0, -1):
            mark_dead(self.redis, identity.decode())

    def due(self, **changed):
        """Make the only retry due now, with these fields changed."""
        (member,) = until(lambda: self.redis.zrange(keys.RETRY, 0, -1), "a retry")
        with self.redis.pipeline() as both:
            both.zrem(keys.RETRY, member)
            both.zadd(keys.RETRY, {json.dumps({**json.loads(member), **changed}): 1})
            both.execute()


@pytest.fixture
def installation(site, redis):
    return Installation(site, redis)


# --- ownership ------------------------------------------------------------------------------------------------------

OWNED = """
class Owned(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    def perform(self):
        prove("ran", self.jid)


class CategoryWorker(Owned):
    feature_category = "search"


class HighWorker(Owned):
    urgency = "high"
    tags = ("a", "b:c")


class LowWorker(Owned):
    pass


class ThrottledWorker(Owned):
    urgency = "throttled"


class CpuWorker(Owned):
    resource_boundary = "cpu"


class MemoryWorker(Owned):
    resource_boundary = "memory"


class ExternalWorker(Owned):
    has_external_dependencies = True


class TaggedWorker(Owned):
    tags = ("other", "nightly")
"""

PLACES = {
    "CategoryWorker": "by_category",
    "HighWorker": "by_urgency",
    "CpuWorker": "by_cpu",
    "MemoryWorker": "by_memory",
    "ExternalWorker": "by_external",
    "TaggedWorker": "by_tags",
    "ThrottledWorker": "by_throttled",
    "LowWorker": "rest",
}
RULES = [
    ["feature_category=search", "by_category"],
    ["urgency=high", "by_urgency"],
    ["urgency=throttled", "by_throttled"],
    ["resource_boundary=cpu", "by_cpu"],
    ["resource_boundary=memory", "by_memory"],
    ["has_external_dependencies=true", "by_external"],
    ["tags=nightly", "by_tags"],
    ["*", "rest"],
]


@pytest.fixture
def owned(installation):
    installation.site.write("routing.yml", {"routing_rules": RULES})
    installation.site.write(
        "feature_categories.yml", {"feature_categories": {"search": {"owner": "s", "description": "d"}}}
    )
    installation.declare(OWNED)
    return installation


def test_ownership_attributes_route_each_job_to_its_queue(owned, redis):
    owned.push("\n".join(f"{name}.perform_async()" for name in PLACES))
    found = {json.loads(redis.lindex(f"queue:{queue}", 0))["class"]: queue for queue in PLACES.values()}
    assert found == PLACES
    assert {redis.llen(f"queue:{queue}") for queue in PLACES.values()} == {1}


def test_routing_uses_tags_of_the_class_not_of_the_push(owned, redis):
    owned.push('LowWorker.set(tags=("nightly",)).perform_async()\nTaggedWorker.set(tags=("quiet",)).perform_async()')
    assert json.loads(redis.lindex("queue:rest", 0))["tags"] == ["nightly"]
    assert json.loads(redis.lindex("queue:by_tags", 0))["tags"] == ["quiet"]


def test_log_lines_have_targets_category_and_tags(owned):
    process = owned.worker(*(part for queue in PLACES.values() for part in ("-q", queue)))
    owned.push("\n".join(f"{name}.perform_async()" for name in PLACES))
    targets = {"HighWorker": (10, 10), "ThrottledWorker": (None, 300)}
    for name in PLACES:
        for status in ("start", "done"):
            line = process.line(**{"class": name, "job_status": status})
            found = (line.get("target_scheduling_latency_s"), line["target_duration_s"])
            assert found == targets.get(name, (60, 300)), name
            assert line["feature_category"] == ("search" if name == "CategoryWorker" else "not_owned")
            assert line.get("tags") == {"HighWorker": ["a", "b:c"], "TaggedWorker": ["other", "nightly"]}.get(name)


# --- retries --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("I6")
def test_job_after_its_last_retry_is_in_the_dead_set(installation, redis, proofs):
    installation.declare(FAILING + "class Twice(Failing):\n    retry = 2\n")
    (jid,) = installation.push("print(Twice.perform_async())")
    process = installation.worker("-q", "default")
    for attempt in (1, 2):
        proofs("run", attempt)
        installation.due()
    assert proofs("run", 3) == [jid] * 3
    (dead_job,) = until(lambda: installation.stored(keys.DEAD), "the dead set")
    assert (dead_job["jid"], dead_job["retry"], dead_job["retry_count"]) == (jid, 2, 2)
    assert proofs("exhausted") == [jid]
    process.line(job_status="fail", dead=True)
    assert [line.get("dead") for line in process.find(job_status="fail")] == [None, None, True]
    assert redis.zcard(keys.RETRY) == 0


@pytest.mark.parametrize(
    ("attributes", "is_kept", "hook_runs"),
    [
        ("retry = 0", True, True),
        ("retry = False", False, False),
        ("retry = 0\n    dead = False", False, True),
        ("retry = False\n    retry_for = 3600", False, False),
    ],
)
def test_job_without_retries_ends_with_its_first_failure(installation, redis, attributes, is_kept, hook_runs):
    installation.declare(f"{FAILING}class Once(Failing):\n    {attributes}\n")
    (jid,) = installation.push("print(Once.perform_async())")
    process = installation.worker("-q", "default").ready()
    process.line(job_status="fail", jid=jid)
    until(lambda: not redis.llen(keys.working(process.identity)) and not redis.llen("queue:default"), "settled")
    assert process.end() == 0
    assert [job["jid"] for job in installation.stored(keys.DEAD)] == ([jid] if is_kept else [])
    assert redis.lrange("proof:exhausted", 0, -1) == ([jid.encode()] if hook_runs else [])
    assert redis.lrange("proof:run", 0, -1) == [jid.encode()]
    assert redis.zcard(keys.RETRY) == 0


def test_retry_for_limits_time_not_failures(installation, redis, proofs):
    installation.declare(FAILING + "class Patient(Failing):\n    retry = 1\n    retry_for = 3600\n")
    (jid,) = installation.push("print(Patient.perform_async())")
    installation.worker("-q", "default")
    for attempt in (1, 2, 3):  # more often than ``retry``
        proofs("run", attempt)
        installation.due()
    proofs("run", 4)
    assert redis.zcard(keys.DEAD) == 0
    (waiting,) = until(lambda: installation.stored(keys.RETRY), "a fourth retry")
    installation.due(failed_at=waiting["failed_at"] - 3700)
    (dead_job,) = until(lambda: installation.stored(keys.DEAD), "the dead set")
    assert (dead_job["jid"], dead_job["retry_count"]) == (jid, 4)


def test_retry_queue_job_waits_for_a_serving_process(installation, redis, proofs):
    installation.declare(FAILING + 'class Aside(Failing):\n    retry_queue = "again"\n')
    (jid,) = installation.push("print(Aside.perform_async())")
    first = installation.worker("-q", "default")
    proofs("run")
    installation.due()
    until(lambda: redis.llen("queue:again") == 1, "moved to its queue")
    assert first.end() == 0
    second = installation.worker("-q", "again")
    assert second.line(job_status="start", jid=jid)["queue"] == "again"
    proofs("run", 2)


@pytest.mark.parametrize(
    ("attribute", "lines"), [("backtrace = 1", 1), ("backtrace = True", None), ("backtrace = False", 0)]
)
def test_backtrace_keeps_the_declared_number_of_lines(installation, attribute, lines):
    installation.declare(f"{FAILING}class Traced(Failing):\n    {attribute}\n")
    installation.push("Traced.perform_async()")
    installation.worker("-q", "default")
    (job,) = until(lambda: installation.stored(keys.RETRY), "a retry")
    if lines == 0:
        assert "error_backtrace" not in job
        return
    kept = json.loads(zlib.decompress(base64.b64decode(job["error_backtrace"])))
    assert "declared.py" in kept[0]
    assert "perform" in kept[0]
    assert len(kept) == lines if lines else len(kept) > 1


@pytest.mark.proves("R24", "I6")
@pytest.mark.parametrize(("limit", "place"), [(0, "interrupted"), (-1, "run again")])
def test_job_is_quarantined_after_its_declared_interruptions(installation, redis, proofs, limit, place):
    installation.declare(
        f"class Killer(Base):\n    max_retries_after_interruption = {limit}\n\n"
        "    def perform(self):\n"
        '        prove("begun", os.getpid())\n'
        '        while os.path.exists("dangerous"):\n'
        "            signal.sigtimedwait([], 0.05)\n"
        '        prove("ended", self.jid)\n'
    )
    (jid,) = installation.push("print(Killer.perform_async())")
    dangerous = installation.site.folder / "dangerous"
    dangerous.touch()
    deaths = 1 if place == "interrupted" else 4  # more than the default of 3
    for death in range(1, deaths + 1):
        process = installation.worker("-q", "default")
        proofs("begun", death)
        process.send(signal.SIGKILL)
        process.wait()
        installation.mark_dead()
    dangerous.unlink()
    last = installation.worker("-q", "default")
    if place == "interrupted":
        assert last.line(job_status="quarantined", jid=jid)["destination"] == "interrupted"
        assert [job["jid"] for job in installation.stored(keys.INTERRUPTED)] == [jid]
        assert redis.llen("proof:ended") == 0
    else:
        assert proofs("ended") == [jid]
        assert last.line(job_status="start", jid=jid)["aw_death_count"] == deaths
        assert redis.zcard(keys.INTERRUPTED) == 0


# --- running --------------------------------------------------------------------------------------------------------

LETTERS = """
class LetterWorker(Base):
    ack = "sync"

    {perform}(self, number):
        prove("printed", number)


class PowerCutWorker(Base):
    def perform(self):
        if not os.path.exists("dark"):
            open("dark", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        prove("light")
"""


@pytest.mark.proves("I4")
@pytest.mark.parametrize("perform", ["def perform", "async def perform"])
def test_sync_job_that_ended_does_not_run_again_after_a_kill(installation, redis, proofs, perform):
    installation.declare(LETTERS.format(perform=perform))
    installation.push("LetterWorker.perform_bulk([(n,) for n in range(20)])\nPowerCutWorker.perform_async()")
    first = installation.worker("-q", "default", "-c", "1")
    assert first.wait() == -signal.SIGKILL
    installation.mark_dead()
    installation.worker("-q", "default", "-c", "1")
    proofs("light")
    assert proofs("printed", 20) == [str(number) for number in range(20)]
