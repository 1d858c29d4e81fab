"""Names that another program wrote into sets of the framework: a process passes them over, and goes on."""

from framework.wire import keys

HURRIED = """
from framework import timings
timings.use(timings.STANDARD.scaled(0.2))
from framework.cli.worker import main
main()
"""


def test_member_that_is_no_name_ends_no_process(site, redis):
    redis.sadd(keys.PAUSED_CLASSES, b"\xff", "GoneWorker")
    redis.sadd(keys.LIMITS_WAITING, b"\xff", "queue:default")
    worker = site.start("-c", HURRIED, "-r", "jobs", "-q", "default")
    assert worker.line(event_name="pause.blocked")["worker"] == r"\xff"
    found = {
        worker.line(event_name="concurrency_limit.unusable", limit=name)["limit"] for name in (r"\xff", "queue:default")
    }
    assert found == {r"\xff", "queue:default"}
    redis.lpush("queue:default", b'{"class":"NoopWorker","args":[],"jid":"after"}')
    worker.line(jid="after", job_status="done")
    assert worker.end() == 0
