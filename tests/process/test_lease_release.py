"""A process that ends leaves the registry only when it holds no job."""

import pytest

from framework.process.heartbeat import ProcessLease
from framework.recover.reaper import FailureDetector, Reaper
from framework.wire import keys
from framework.wire.keys import SetLimits

ME = "host:1:000000000abc"
JOB = b'{"class":"EchoWorker","args":[],"jid":"j1","queue":"mails"}'


@pytest.fixture
def lease(redis, granted):
    one = ProcessLease(granted, ME, 2, FailureDetector(15.0, 3.0))
    one.renew()
    return one


@pytest.fixture
def recovered():
    return []


@pytest.fixture
def other(redis, granted, recovered):
    """A process that has just started counts only processes marked dead as dead."""
    return Reaper(granted, recovered.append, FailureDetector(15.0, 3.0), SetLimits(10, 60.0))


@pytest.mark.proves("I24")
def test_release_without_jobs_leaves_no_keys(redis, lease):
    lease.release()
    assert set(redis.keys("aw:*")) <= {keys.STEADY_SINCE.encode()}  # that one runs out by itself


@pytest.mark.proves("I1", "I8")
def test_lease_release_unanswered_fetch_keeps_registration(redis, lease, other, recovered):
    redis.lpush(keys.working(ME), JOB)
    lease.release()
    assert other.sweep(own="other") == 1
    assert redis.llen("queue:mails") == 1
    assert recovered[0].job.jid == "j1"


@pytest.mark.proves("I1", "I8")
def test_lease_release_late_blocking_move_keeps_registration(redis, lease, other):
    lease.release(list_is_empty=False)
    assert other.sweep() == 0
    redis.lpush(keys.working(ME), JOB)
    assert other.sweep() == 1
    assert redis.llen("queue:mails") == 1
