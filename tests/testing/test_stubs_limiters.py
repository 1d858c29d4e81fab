"""Rate limiters in a fake: they admit every call unless the test says otherwise."""

import pytest

from framework import limiter
from framework.declare import registry
from framework.errors import OverLimit
from tests.execute.processor_bench import worker

API = limiter.bucket("api", 1, "day")


def test_fake_limiter_admits_unless_exhausted(application_worker):
    for _ in range(3):
        with API.within("ada"):
            pass
    assert application_worker.limiters.taken == [("api", "ada", 1)] * 3
    application_worker.limiters.exhaust(API, "ada")
    with pytest.raises(OverLimit), API.within("ada"):
        pass
    with API.within("bob"):
        pass
    assert (API.used("ada"), API.used("bob")) == (1, 0)
    application_worker.limiters.clear()
    with API.within("ada"):
        pass


def test_fake_job_over_the_limit_waits_for_its_next_run(application_worker):
    runs = []
    with registry.isolated():
        made = worker(lambda self: runs.append(self.jid), limiter=API)
        jid = made.perform_async()
        application_worker.limiters.exhaust(API)
        application_worker.perform_one(made)
        (job,) = application_worker.enqueued(made)
        assert (job.jid, runs) == (jid, [])
        assert application_worker.retries() == []
        application_worker.limiters.clear()
        application_worker.drain()
    assert runs == [jid]
