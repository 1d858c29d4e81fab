"""Cancel 10,000 jobs in every place, by a filter, while workers run; kill a worker with SIGKILL meanwhile."""

import json
import signal
import time
from collections import Counter

import pytest

from framework.wire import keys
from tests.harness import ROOT, encoded, until

EACH = 2_500
"""Jobs of each kind: due later, to be retried, in the queue, and behind a full limit, where all but the running ones are held."""
OTHERS = 500
LIMIT = 4

MODULE = '''
"""Jobs that write their starts to a file."""

import os
import time

from framework import ApplicationWorker

FILE = os.open(os.environ["RUNS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class EndlessWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "endless"
    concurrency_limit = 4
    status_expiration = 3600
    max_retries_after_interruption = -1

    def perform(self, number: int) -> None:
        os.write(FILE, f"{self.jid}\\n".encode())
        while not self.cancelled:
            time.sleep(0.01)


class WaitingWorker(EndlessWorker):
    queue = "unserved"


class OtherWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "others"
    status_expiration = 3600

    def perform(self, number: int) -> None:
        os.write(FILE, f"{self.jid}\\n".encode())
'''


def jids(kind, count=EACH):
    return [f"{kind}{number:0{24 - len(kind)}x}" for number in range(count)]


def payload(jid, name, queue, **fields):
    return encoded(name, jid=jid, args=[1], queue=queue, status_expiration=3600, **{"meta.tenant": "acme"}, **fields)


def fill(redis):
    due_at = time.time() + 9_000
    retried = {"retry_count": 1, "error_class": "OSError", "failed_at": time.time() - 60.5}
    redis.zadd(keys.SCHEDULE, {payload(jid, "EndlessWorker", "endless"): due_at for jid in jids("a")})
    redis.zadd(keys.RETRY, {payload(jid, "EndlessWorker", "endless", **retried): due_at for jid in jids("b")})
    redis.lpush(keys.queue("unserved"), *(payload(jid, "WaitingWorker", "unserved") for jid in jids("c")))
    redis.lpush(keys.queue("endless"), *(payload(jid, "EndlessWorker", "endless") for jid in jids("d")))
    redis.sadd(keys.QUEUES, "endless", "unserved", "others")


def held(redis):
    return redis.zcard(keys.limit("EndlessWorker") + ":waiting:")


def cancel(site, name):
    """Cancel the jobs of a class until none has moved meanwhile; return what each call says, and how long it took."""
    found, refused = [], 1
    while refused:
        started = time.monotonic()
        command = ("cancel", "--class", name, "--context", "tenant=acme", "--yes", "--json")
        done = site.run(str(ROOT / "scripts" / "jobs"), *command)
        (result,) = json.loads(done.stdout)["results"]
        assert done.returncode in (0, 1), done.stderr
        found.append({**result, "seconds": round(time.monotonic() - started, 2)})
        refused = result["refused"]
    return found


@pytest.mark.campaign
@pytest.mark.slow
def test_cancelled_jobs_end_wherever_they_are(site, redis, measured):
    (site.folder / "cancelled_jobs.py").write_text(MODULE)
    runs_file = site.folder / "runs"
    fill(redis)
    environment = {"RUNS_FILE": str(runs_file), "FRAMEWORK_LOGGING__JOBS": "false"}
    queues = ("-r", "cancelled_jobs", "-q", "endless", "-q", "others")
    workers = [site.worker(*queues, "-c", "5", **environment).ready() for _ in range(3)]
    until(lambda: runs_file.read_text().count("\n") == LIMIT and held(redis) > 1_000, "running and held jobs", 60)
    others = [
        encoded("OtherWorker", jid=jid, args=[1], queue="others", status_expiration=3600) for jid in jids("e", OTHERS)
    ]
    redis.lpush(keys.queue("others"), *others)
    for name in ("EndlessWorker", "WaitingWorker"):
        measured(f"seconds to cancel {name}", sum(one["seconds"] for one in cancel(site, name)))
    victim = workers.pop()
    victim.send(signal.SIGKILL)
    victim.popen.wait(20)
    # The queue that no process served: its jobs end in their turns, without a run.
    workers.append(
        site.worker("-r", "cancelled_jobs", "-q", "unserved", "-q", "endless", "-c", "5", **environment).ready()
    )
    of_tenant = [jid for kind in "abcd" for jid in jids(kind)]

    def states():
        return Counter(redis.mget([keys.status(jid) for jid in of_tenant]))

    until(lambda: states() == {b"cancelled": len(of_tenant)}, "the end of the cancelled jobs", 120)
    for worker in workers:
        assert worker.end() == 0
    ran = Counter(runs_file.read_text().split())
    assert Counter(redis.mget([keys.status(jid) for jid in jids("e", OTHERS)])) == {b"completed": OTHERS}
    cancelled_after_start = set(ran) & set(of_tenant)
    # A slot that a cancelled job frees may go to another one before its process knows of the cancellation.
    assert len(cancelled_after_start) >= LIMIT
    assert not {jid for jid in cancelled_after_start if jid[0] in "abc"}
    assert not redis.exists(keys.RETRY, keys.SCHEDULE, keys.queue("endless"), keys.queue("unserved"), keys.DEAD)
    assert held(redis) == 0
    until(lambda: redis.zcard(keys.CANCELLED) == 0, "the last mark", 10)
    measured("jobs that had started", len(cancelled_after_start))
