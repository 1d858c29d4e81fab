"""Test the start of processes: before their Redis, and while another with the same name runs."""

import signal
import time

import pytest

from framework.timings import STANDARD
from framework.wire import keys
from tests.chaos.test_signals import SLACK_S, at


@pytest.mark.proves("F23")
def test_process_started_before_redis_works_soon_after(scene, measured):
    scene.server.stop()
    process = scene.worker("-c", "2")
    group = scene.cluster("grouped", "--max-concurrency", "1")
    for one in (process, group):
        assert one.line(event_name="boot.waiting")["exception.class"] == "redis.exceptions.ConnectionError"
    assert STANDARD.redis_patience_s == 60
    waiting = scene.worker()
    waiting.line(event_name="boot.waiting")
    assert waiting.end(signal.SIGQUIT) == 0
    scene.server.start()
    there_at = time.time()
    for one in (process, group):
        late_s = at(one.line(event_name="process.ready")) - there_at
        measured("ready_s", late_s)
        assert late_s <= 5 + SLACK_S
    scene.enqueue("NoteWorker", "bare")
    scene.enqueue("NoteWorker", "grouped", queue="grouped")
    scene.wait_for("note", "bare", "grouped")
    for one in (process, group):
        assert len(one.find(event_name="boot.waiting")) == 1
        assert one.end() == 0


CLONE = "import os, random; random.seed(7); os.getpid = lambda: 1; from framework.cli.worker import main; main()"
"""As in a container, and as in a copy of a machine: process 1, and the same random numbers."""


@pytest.mark.proves("F41", "R65")
def test_second_process_with_same_identity_ends(scene):
    def clone(queue, **env):
        return scene.site.start("-c", CLONE, "-r", "jobs", "-q", queue, "-c", "1", REDIS_URL=scene.url, **env)

    clones = {name: clone(name, DYNO="web") for name in ("first", "second")}
    identities = {name: process.identity for name, process in clones.items()}
    assert {identity.rpartition(":")[0] for identity in identities.values()} == {"web:1"}
    assert len(set(identities.values())) == 2
    for name in clones:
        scene.enqueue("LongWorker", name, queue=name, jid=name)
    scene.wait_for("begun", *clones)

    copy = clone("first", DYNO="web", FRAMEWORK_PROCESS_NONCE=identities["first"].rpartition(":")[2])
    assert copy.wait() == 1
    copy.line(event_name="identity.collision")
    clones["second"].kill()
    assert [scene.client.llen(keys.working(identity)) for identity in identities.values()] == [1, 1]
    successor = clone("second", DYNO="web").ready()
    assert successor.identity not in identities.values()  # the jobs of its predecessor are not its own by name
    assert scene.client.llen(keys.working(successor.identity)) == 0
    scene.let_end("first")
    scene.wait_for("ended", "first")
    scene.settled(clones["first"])
    scene.once("begun")
    assert [process.end() for process in (clones["first"], successor)] == [0, 0]


PATCHES = {
    "lease": "import framework.process.heartbeat as m; calls = []; renew = m.ProcessLease.renew\n"
    "def broken(self):\n    calls.append(1)\n    if len(calls) > 1: raise LookupError('a planted bug')\n    return renew(self)\n"
    "m.ProcessLease.renew = broken",
    "record": "import framework.process.record as m\nm.ProcessRecord.heartbeat = broken",
    "poller": "import framework.schedule.poller as m\nm.Poller.step = broken",
    "reaper": "import framework.recover.reaper as m\nm.Reaper.sweep = broken",
    "processor-0": "import framework.fetch.pipeline as m\nm.FetchPipeline.fetch_and_wait = broken",
    "event-loop": "import framework.execute.execution as m\nm.Executor._await_job = broken; m.Executor._outcome = broken",
}
"""One bug for each thread of the framework."""


@pytest.mark.proves("R4")
def test_framework_thread_death_ends_process_and_is_logged(scene):
    """The process logs the dead thread and ends with status 1 within five seconds; its lease is released."""
    broken = "def broken(self, *_, **__): raise LookupError('a planted bug')\n"
    ends = "\nfrom framework.cli.worker import main; main()"
    started = {}
    for name, patch in PATCHES.items():
        scene.enqueue("AsyncNoteWorker", name, queue=name)
        scene.enqueue("LongWorker", name, queue=name)  # the thread does not keep the process
        code = f"{broken}{patch}{ends}"
        started[name] = scene.site.start("-c", code, "-r", "jobs", "-q", name, REDIS_URL=scene.url)
    for name, process in started.items():
        assert process.wait() == 1
        died = process.line(event_name="component.died")
        assert (died["component"], died["exception.message"]) == (name, "a planted bug")
        assert at(process.lines[-1]) - at(died) <= 5 + SLACK_S
        if ready := process.find(event_name="process.ready"):
            assert not scene.client.exists(keys.lease(ready[0]["identity"]))
        assert name in [job["args"][0] for job in scene.jobs_of(name)]
