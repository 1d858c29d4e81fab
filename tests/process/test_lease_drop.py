"""The end of a process strikes it from the registry only when nothing of it is left."""

from framework.fetch.reaper import Reaper
from framework.process.heartbeat import Lease
from framework.wire import keys

ME = "host:1:abc"
JOB = b'{"class":"EchoWorker","args":[],"jid":"j1","queue":"mails"}'


def test_an_empty_handed_process_leaves_nothing(redis):
    lease = Lease(redis, ME)
    lease.beat()
    lease.drop()
    assert not redis.keys("aw:*")


def test_a_job_whose_fetch_was_never_answered_is_found_by_others(redis):
    lease = Lease(redis, ME)
    lease.beat()
    redis.lpush(keys.working(ME), JOB)
    lease.drop()
    assert redis.zscore(keys.REGISTRY, ME)

    recovered = []
    assert Reaper(redis, recovered.append).sweep(own="other") == 1
    assert redis.llen("queue:mails") == 1
    assert recovered[0].job.jid == "j1"
