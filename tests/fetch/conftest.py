import sys
from collections import deque
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from framework.execute.threads import WorkerThreads
from framework.fetch.fetcher import Fetcher
from framework.fetch.queues import QueueOrder
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.script import FETCH
from framework.timings import STANDARD
from framework.wire import keys
from framework.wire.keys import SetLimits
from tests.harness import IDENTITY, opened, until

LIMITS = SetLimits(10_000, 3600.0)


class FetcherBench:
    """A fetcher on a real server with the threads that it starts; a job lasts until the test ends it.

    ``job`` replaces the run of a unit; it returns whether the unit is finished.
    """

    def __init__(
        self, redis, url, queues=(("default", 0),), slots=2, job=None, limits=None, timings=STANDARD, fair=frozenset()
    ):
        self.redis = redis
        self.shard = opened(url)
        self.slots = slots
        self.units, self.fenced_units, self.lost, self.errors, self.refused, self.died = [], [], 0, [], [], []
        client = self.shard.open_client("fetch", read_timeout_s=COMMAND_TIMEOUT_S)
        self.recovered_jobs, self.faults = [], []
        order = QueueOrder.of(queues)
        self.fetcher = Fetcher(
            client, IDENTITY, order, slots, self, LIMITS, process_limits=limits or {}, timings=timings, fair_queues=fair
        )
        self.state, self.reconciler = self.fetcher._state, self.fetcher._reconciler
        self.in_flight = self.fetcher.in_flight
        self.pool = WorkerThreads(self.fetcher)
        self.threads = self.pool._threads
        self.pipeline = self.fetcher._pipeline
        self.leader = self.fetcher._leader
        self.blocking = self.leader._blocking
        self.answered = 0
        self.most_at_once = 0
        self._at_once = deque()
        self._job = job or self._last
        self._ends = {}
        redis.config_resetstat()
        self.beat()

    # --- the events of fetching

    def fenced(self, unit):
        self.fenced_units.append(unit)

    def queue_wrong_type(self, queue):
        self.refused.append(queue)

    def release_failed(self, error):
        self.errors.append(error)

    def lease_lost(self):
        self.lost += 1

    def fetch_failed(self, error):
        self.errors.append(error)

    def pipeline_failed(self, error, count):
        self.faults.append((error, count))

    def redis_answered(self, *facts):
        self.answered += 1

    def recovered(self, job):
        self.recovered_jobs.append(job)

    # --- the threads

    def _work(self):
        try:
            while (unit := self.pool.next()) is not None:
                self._at_once.append(unit)
                self.most_at_once = max(self.most_at_once, len(self._at_once))
                self._ends[unit] = SimpleQueue()
                self.units.append(unit)
                self.pool.ensure_fetching()
                settled = self._job(unit)
                self._at_once.pop()
                if settled is not None:
                    self.fetcher.finish(unit, settled=settled)
        except BaseException as error:
            self.died.append(error)

    def _last(self, unit):
        return self._ends[unit].get()

    # --- actions of a test

    def start(self):
        self.pool.start(self._work)
        return self

    def beat(self):
        """Renew the lease, the only part of a heartbeat that fetching sees."""
        self.redis.set(keys.lease(IDENTITY), 1, px=60_000)

    def got(self, count):
        """Wait for ``count`` units in all and return their bytes, in the order of their starts."""
        until(lambda: len(self.units) >= count, f"{count} units")
        return [unit.data for unit in self.units]

    def unit(self, data):
        return next(unit for unit in self.units if unit.data == data)

    def end(self, *units, settled=False):
        for unit in units:
            self._ends[unit].put(settled)

    def blocked_calls(self):
        """Return the number of blocking calls in Redis."""
        return sum(1 for client in self.redis.client_list() if "b" in client["flags"])

    def idle(self):
        """Return whether each of up to 16 queues has a blocking call, and no job is in flight."""
        return self.blocked_calls() == min(16, len(self.pipeline.queues)) and not self.in_flight.payloads()

    def calls(self, command="evalsha"):
        """Return how many commands of this name the server has run or refused since the start of the test."""
        stats = self.redis.info("commandstats").get(f"cmdstat_{command}", {})
        return stats.get("calls", 0) + stats.get("rejected_calls", 0)

    def working(self):
        return self.redis.lrange(keys.working(IDENTITY), 0, -1)

    @contextmanager
    def mute(self):
        """Within the block the server answers no script and no blocking call."""
        self.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            yield
        finally:
            self.redis.execute_command("CLIENT", "UNPAUSE")

    def join(self):
        for thread in self.threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in self.threads)

    def stop(self):
        self.pool.stop()
        for end in list(self._ends.values()):
            end.put(None)  # the fetcher sees a job that hangs for ever
        self.join()
        self.blocking.close()  # a process ends by exit and needs no close of its own
        self.state.wake_up.close()
        self.pipeline._call.close()
        self.leader._client.close()
        self.shard.close()
        assert self.died == []


@pytest.fixture
def bench(redis, redis_url):
    redis.script_load(FETCH.source)  # a test that sends the first call itself does not send it again
    made = []

    def make(*, url=redis_url, **options):
        made.append(FetcherBench(redis, url, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def tiny_switches():
    """Switch threads at nearly every step, so that a step that is not atomic fails."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
