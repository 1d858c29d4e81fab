"""A rolling restart of a real group under load: nothing is lost, nothing is cut off, and capacity is there all the time."""

import signal
import threading
from collections import Counter

from framework.wire import keys
from tests.cluster.conftest import ask, children, gone
from tests.harness import encoded, until

PROCESSES = 3


class Load:
    """Jobs pushed all the while, each with a jid of its own."""

    def __init__(self, redis):
        self.pushed = 0
        self._redis = redis
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._push)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _push(self):
        while not self._over.wait(0.01):
            jobs = [encoded("NoopWorker", jid=f"noop-{self.pushed + number}") for number in range(5)]
            self._redis.lpush(keys.queue("default"), *jobs)
            self.pushed += len(jobs)


class Samples:
    """How many processes were ready, as the supervisor said over HTTP, again and again."""

    def __init__(self, process):
        self.ready = []
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _ask(self):
        while not self._over.wait(0.02):
            status, shown = ask(self._process, "/readiness")
            self.ready.append(sum(child["fetches"] for child in shown["children"]) if status == 200 else 0)


def states(process):
    return Counter(child["state"] for child in ask(process, "/readiness")[1]["children"])


def test_a_rolling_restart_under_load_loses_nothing_cuts_nothing_off_and_keeps_capacity(
    cluster, redis, proofs, release
):
    process = cluster(
        "default", "--processes", str(PROCESSES), "--max-concurrency", "2", "--timeout", "0.1", "--health-port", "0"
    )
    until(lambda: states(process) == {"ready": PROCESSES}, "every process is ready")
    before = children(process)
    redis.lpush(keys.queue("default"), encoded("LongWorker", args=["long"], jid="long"))
    (holder,) = proofs("begun:long")
    with Load(redis) as load, Samples(process) as samples:
        process.send(signal.SIGUSR2)
        # Its turn has come: it drains, and as long as it does no other is replaced.
        until(lambda: int(holder) in children(process, "replaced"), "the holder of the long job is replaced")
        replaced, so_far = children(process, "replaced"), load.pushed
        until(lambda: redis.llen("proof:noop") > so_far + 500, "the others go on, for longer than the deadline")
        assert children(process, "replaced") == replaced
        assert states(process) == {"ready": PROCESSES, "draining": 1}
        release("long")
        process.line(event_name="cluster.rolled")
    assert proofs("ended:long") == [holder]
    until(lambda: redis.llen("proof:noop") >= load.pushed, "every job has run")
    assert Counter(proofs("noop")) == {f"noop-{number}": 1 for number in range(load.pushed)}
    assert min(samples.ready) >= PROCESSES
    assert children(process, "drained") == children(process, "replaced")
    assert sorted(children(process, "drained")) == sorted(before)
    assert {line.get("status") for line in process.find(event_name="child.drained")} == {0}
    assert not [line for line in process.lines if line.get("interrupted_count")]
    assert process.line(event_name="process.draining", pid=int(holder))["running_jobs"] == [
        {"jid": "long", "class": "LongWorker"}
    ]
    assert process.end() == 0
    assert all(gone(pid) for pid in children(process))
