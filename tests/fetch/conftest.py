import sys
import threading
from collections import deque
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from framework.fetch.custody import Custody
from framework.fetch.fetcher import Fetcher
from framework.fetch.queues import QueueOrder
from framework.fetch.reaper import Keep, Reconciler
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.wire import keys
from tests.harness import IDENTITY, opened, until


class Bench:
    """A fetcher on a real server and the threads it calls for; a job lasts until the test ends it.

    ``job`` is what a thread does with a unit instead; it returns whether the unit is finished.
    """

    def __init__(self, redis, url, queues=(("default", 0),), slots=2, job=None, limits=None):
        self.redis = redis
        self.shard = opened(url)
        self.slots = slots
        self.units, self.fenced_units, self.lost, self.errors, self.refused, self.died = [], [], 0, [], [], []
        self.custody = Custody(slots)
        client = self.shard.open_client("fetch", read_timeout_s=COMMAND_TIMEOUT_S)
        self.recovered, self.faults = [], []
        self.reconciler = Reconciler(client, IDENTITY, self.custody, self.recovered.append, Keep(100, 3600.0))
        order = QueueOrder.of(queues)
        self.fetcher = Fetcher(client, IDENTITY, order, self.custody, self, self.reconciler, limits or {})
        self.exchange = self.fetcher._exchange
        self.post = self.fetcher._post
        self.parking = self.post._parking
        self.answered = 0
        self.threads = []
        self.most_at_once = 0
        self._at_once = deque()
        self._job = job or self._last
        self._ends = {}
        redis.config_resetstat()
        self.beat()

    # --- what fetching tells

    def fenced(self, unit):
        self.fenced_units.append(unit)

    def queue_refused(self, queue):
        self.refused.append(queue)

    def lease_lost(self):
        self.lost += 1

    def fetch_failed(self, error):
        self.errors.append(error)

    def exchange_failed(self, error, count):
        self.faults.append((error, count))

    def redis_answered(self, *facts):
        self.answered += 1

    # --- the threads

    def hire(self):
        thread = threading.Thread(target=self._work, daemon=True)
        self.threads.append(thread)
        thread.start()

    def _work(self):
        try:
            self.fetcher.crew.look_around()
            while (unit := self.fetcher.next()) is not None:
                self._at_once.append(unit)
                self.most_at_once = max(self.most_at_once, len(self._at_once))
                self._ends[unit] = SimpleQueue()
                self.units.append(unit)
                self.fetcher.relay()
                settled = self._job(unit)
                self._at_once.pop()
                if settled is not None:
                    self.fetcher.finish(unit, settled=settled)
        except BaseException as error:
            self.died.append(error)

    def _last(self, unit):
        return self._ends[unit].get()

    # --- what a test does

    def start(self):
        self.fetcher.start(self.hire)
        return self

    def beat(self):
        """The lease is all of a beat that fetching sees."""
        self.redis.set(keys.lease(IDENTITY), 1, px=60_000)

    def got(self, count):
        """Wait for ``count`` units in all and return their bytes, in the order in which they began."""
        until(lambda: len(self.units) >= count, f"{count} units")
        return [unit.data for unit in self.units]

    def unit(self, data):
        return next(unit for unit in self.units if unit.data == data)

    def end(self, *units, settled=False):
        for unit in units:
            self._ends[unit].put(settled)

    def parked(self):
        """The number of calls that wait at the server."""
        return sum(1 for client in self.redis.client_list() if "b" in client["flags"])

    def idle(self):
        """Whether a parked call waits at each of up to 16 queues, and nothing is under way."""
        return self.parked() == min(16, len(self.exchange.queues)) and not self.custody.known()

    def calls(self, command="evalsha"):
        """How many commands of this name the server has run or refused since we began."""
        stats = self.redis.info("commandstats").get(f"cmdstat_{command}", {})
        return stats.get("calls", 0) + stats.get("rejected_calls", 0)

    def working(self):
        return self.redis.lrange(keys.working(IDENTITY), 0, -1)

    @contextmanager
    def mute(self):
        """Within the block the server answers no script and no parked call."""
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
        self.fetcher.stop()
        for end in list(self._ends.values()):
            end.put(None)  # the job hangs for ever, as far as the fetcher can tell
        self.join()
        self.parking.close()  # a process ends by exit and needs no close of its own
        self.exchange._call.close()
        self.post._client.close()
        self.shard.close()
        assert self.died == []


@pytest.fixture
def bench(redis, redis_url):
    made = []

    def make(*, url=redis_url, **options):
        made.append(Bench(redis, url, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def tiny_switches():
    """Threads take turns at nearly every step, so that what is not one step shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
