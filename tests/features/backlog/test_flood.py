"""Fill a Redis with a class that cannot start: no step of a worker process takes more memory, and all jobs run in the end."""

import shutil
import threading
from pathlib import Path

import pytest
from redis.exceptions import OutOfMemoryError

from framework.features.flags.flag import Flag, pause_flag, run_flag
from framework.features.flags.redis_flags import set_flag, unset_flag
from framework.wire import keys
from tests.features.backlog.test_full_redis import check_valves
from tests.harness import Site, encoded, until, with_all_rights

MAXMEMORY = 20_000_000
_TEXT = "x" * 500
_SMALL = 300


def used(redis):
    return int(redis.info("memory")["used_memory"])


def fill(redis, worker):
    """Push jobs of a class until Redis refuses them, a small class among them; return the number of the large ones."""
    number = 0
    redis.sadd(keys.QUEUES, "flood")
    redis.config_set("maxmemory", MAXMEMORY)
    while True:
        jobs = [encoded(worker, queue="flood", jid=f"f{number + at}", args=[number + at, _TEXT]) for at in range(1_000)]
        try:
            redis.lpush("queue:flood", *jobs)
        except OutOfMemoryError:
            return number
        number += 1_000
        if used(redis) > MAXMEMORY * 0.95 and not redis.exists("small"):
            redis.set("small", 1)
            redis.lpush(
                "queue:flood", *[encoded("SmallWorker", queue="flood", jid=f"s{at}", args=[at]) for at in range(_SMALL)]
            )


class Peak(threading.Thread):
    """Note the most memory that a server used."""

    def __init__(self, redis):
        super().__init__(daemon=True)
        self._redis = redis
        self._over = threading.Event()
        self.bytes = 0
        self.start()

    def run(self):
        while not self._over.wait(0.05):
            self.bytes = max(self.bytes, used(self._redis))

    def stop(self):
        self._over.set()
        self.join()
        return self.bytes


@pytest.fixture
def full_site(short_path, make_server, second_redis_url):
    """Return a site on a server of its own, whose jobs write to another one, and a client of the first."""
    server = make_server("redis-server")
    site = Site(short_path, server.url, warm=True)
    site.proofs_url = with_all_rights(second_redis_url)
    shutil.copy(Path(__file__).with_name("flood_jobs.py"), site.folder / "jobs.py")
    with server.open() as redis:
        yield site, redis
    site.close()


@pytest.mark.campaign
@pytest.mark.timeout(540)
@pytest.mark.parametrize("why", ["limit", "pause", "defer"])
def test_flood_at_maxmemory_takes_no_more_memory(full_site, second_redis, why):
    site, redis = full_site
    worker = "LimitedWorker" if why == "limit" else "StoppedWorker"
    flag = {"pause": Flag(pause_flag(worker), 100, "full", "me"), "defer": Flag(run_flag(worker), 0, "full", "me")}.get(
        why
    )
    if flag is not None:
        set_flag(redis, flag, None)
    jobs = fill(redis, worker)
    before, peak = used(redis), Peak(redis)
    for _ in range(2):
        site.worker("-q", "flood", "-c", "10").ready()
    try:
        until(lambda: second_redis.scard("ran:small") == _SMALL, "the small class gets through", timeout_s=200)
        check_valves(redis)
        # The working lists and the records of processes are what they take, the jobs that wait at a limit for their slots, and those
        # that were held in the seconds before the new processes knew that memory is short.
        assert peak.stop() < before + 6_000_000
        assert redis.scard(keys.ASIDE) == 1
        if flag is not None:
            unset_flag(redis, flag.name)
        second_redis.set("gate", 1)
        until(lambda: second_redis.scard("ran:flood") == jobs, f"{jobs:,} jobs ran", timeout_s=400)
        until(lambda: not redis.exists(keys.ASIDE, keys.MEMORY_PRESSURE), "nothing is aside")
    finally:
        peak.stop()
    assert not redis.exists(keys.DEAD, keys.RETRY, "queue:flood")
