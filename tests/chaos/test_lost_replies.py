"""Test lost replies: fetched jobs are found again, pushed ones are never pushed twice."""

import re

import pytest

from tests.harness import until

FETCH = rb"EVAL(SHA)?\r\n.*queue:"
BLOCK = rb"BLMOVE\r\n\$\d+\r\nqueue:"
"""The call of a queue: at its boot a process also checks its right to the command, with another key."""
PUSH = rb"LPUSH\r\n"
TAKEN_AGAIN_S = 5.0
"""Promised are 2 s, in which the circuit breaker protects other pushes; the rest is for a loaded machine.
"""

FOUND_S = 25.0
"""Promised are 15 s without a restart; the rest is for a loaded machine."""


class LossyQueue:
    """A queue, and its only process, whose replies a proxy can lose."""

    def __init__(self, scene, name):
        self._scene, self._name = scene, name
        self.values = []
        self.proxy = scene.proxy()
        self.process = scene.worker("-q", name, "-c", "2", url=self.proxy.url)

    def push(self):
        for number in range(len(self.values), len(self.values) + 30):
            self.values.append(f"{self._name} {number}")
            self._scene.enqueue("NoteWorker", self.values[-1], queue=self._name, jid=f"{self._name}{number}")

    @property
    def lost_jobs(self):
        return [reply for reply in self.proxy.lost if b"NoteWorker" in reply]

    def wait_for_losses(self):
        """Push until three replies are lost, one with jobs: on a loaded machine a process fetches 30 jobs with fewer calls."""
        for _ in range(20):
            if len(self.proxy.lost) >= 3 and self.lost_jobs:
                return
            self.wait_for_jobs()
            self.push()
        raise AssertionError(f"too few replies are lost: {self.proxy.lost}")

    def wait_for_jobs(self):
        self._scene.wait_for("note", *self.values, timeout_s=FOUND_S)


def test_fetch_with_lost_reply_runs_each_job_once(scene):
    """Three processes at once: one loses every odd reply for a while, one every even one, one that of a blocking call."""
    odd, even, blocked = queues = [LossyQueue(scene, name) for name in ("odd", "even", "blocked")]
    for queue in queues:
        queue.process.ready()
    odd.proxy.lose_replies(FETCH, range(1, 20, 2))
    even.proxy.lose_replies(FETCH, range(2, 20, 2))
    # Its call is under way already: the next reply on that connection is lost.
    until(lambda: any(re.search(BLOCK, link.last) for link in blocked.proxy.open), "blocked")
    blocked.proxy.lose_under_way(BLOCK)
    for queue in queues:
        queue.push()
    for queue in (odd, even):
        queue.wait_for_losses()
    for queue in queues:
        queue.wait_for_jobs()
    for queue in queues:
        scene.settled(queue.process)
    scene.once()
    for queue in queues:
        assert queue.lost_jobs
        assert queue.process.end() == 0
    assert not scene.client.exists("retry", "dead", "interrupted")


@pytest.mark.parametrize("count", [0, 1, 3, pytest.param("hang", marks=pytest.mark.campaign)])
def test_push_with_lost_reply_is_in_doubt_and_written_once(scene, count):
    proxy = scene.proxy()
    producer = scene.producer(url=proxy.url)
    assert producer.push("NoteWorker", "before")["jid"]
    if count == "hang":
        proxy.lose_replies(PUSH, {1}, hang=True)
    else:
        proxy.cut_after(count)
    answer = producer.push("NoteWorker", "doubtful")
    assert (answer["error"], answer["maybe_written"], answer["shard"]) == ("ShardUnavailableError", True, "main")
    assert "may have been applied" in answer["text"]
    assert len(proxy.lost) == 1
    assert scene.client.llen("queue:default") == 2
    until(
        lambda: "jid" in producer.push("NoteWorker", "after"),
        "after a silence one push in two seconds is sent",
        TAKEN_AGAIN_S,
    )
    assert scene.client.llen("queue:default") == 3


def test_push_that_was_never_sent_is_not_in_doubt(scene):
    proxy = scene.proxy()
    producer = scene.producer(url=proxy.url)
    scene.server.stop()
    answer = producer.push("NoteWorker", "nowhere")
    assert (answer["error"], answer["maybe_written"]) == ("ShardUnavailableError", False)
    scene.server.start()
    assert producer.push("NoteWorker", "after")["jid"]
    assert scene.client.llen("queue:default") == 1


def test_slow_replies_repeat_and_lose_no_job(scene):
    proxy = scene.proxy()
    process = scene.worker("-c", "2", url=proxy.url).ready()
    proxy.delay_s = 0.05
    values = [str(number) for number in range(20)]
    for value in values:
        scene.enqueue("NoteWorker", value)
    scene.wait_for("note", *values)
    scene.settled(process)
    scene.once()
    assert not process.find(event_name="redis.failed")
    assert process.end() == 0
