"""Run jobs of other programs whose arguments are nested deeper than this framework pushes: Ruby writes up to 100 levels."""

import json

from framework.recover.reaper import _disposition
from framework.recover.suspects import RunEvidence
from framework.wire import keys
from tests.harness import encoded, enqueue, until

JOBS = """
from framework import ApplicationWorker
from jobs import prove

seen = set()

class DeepWorker(ApplicationWorker):
    feature_category = "not_owned"

    @classmethod
    def retry_in(cls, count, error, job):
        return 0.01

    def perform(self, value):
        levels = 0
        while value:
            (value,), levels = value, levels + 1
        prove("deep", f"{type(self).__name__} {levels}")
        if self.isolation is None and self.jid not in seen:
            seen.add(self.jid)
            raise RuntimeError("once")

class IsolatedDeepWorker(DeepWorker):
    isolation = "process"
"""


def nested(levels):
    return json.loads("[" * levels + "]" * levels)


def test_job_of_ruby_with_deep_arguments_runs_and_is_retried(site, redis, proofs):
    (site.folder / "deep_jobs.py").write_text(JOBS)
    site.write("application.yml", {"poll_interval": 0.1})
    enqueue(redis, "DeepWorker", args=[nested(98)], retry=3)
    process = site.worker("-r", "deep_jobs", "-q", "default")
    until(lambda: proofs("deep") == ["DeepWorker 97"] * 2, "it fails once, and is retried with its arguments")
    enqueue(redis, "IsolatedDeepWorker", args=[nested(98)])
    until(lambda: proofs("deep")[2:] == ["IsolatedDeepWorker 97"], "a process of its own gets them too")
    assert process.end() == 0
    assert not redis.exists(keys.DEAD, keys.RETRY)


def test_deep_job_of_a_killed_process_is_no_malformed_one():
    data = encoded("DeepWorker", args=[nested(98)])
    found = _disposition(data, RunEvidence(2, frozenset()), 0)
    assert found.destination == keys.queue("default")
    assert json.loads(found.data)["args"] == [nested(98)]
