import threading

import pytest

from framework.fetch.fetcher import Fetcher
from framework.fetch.queues import QueueOrder
from framework.store.script import BEAT
from framework.wire import keys
from tests.harness import IDENTITY, opened, until


class Bench:
    """A fetcher on a real server; dispatched units are kept until the test finishes them."""

    def __init__(self, redis, url, queues=(("default", 0),), slots=2):
        self.redis = redis
        self.shard = opened(url)
        self.units, self.fenced_units, self.lost, self.errors, self.refused = [], [], 0, [], []
        self.fetcher = Fetcher(self.shard, IDENTITY, QueueOrder.of(queues), slots, self._dispatch, self)
        self.thread = threading.Thread(target=self.fetcher.run, daemon=True)
        self.beat()

    def _dispatch(self, unit, held):
        assert held == self.fetcher.custody.held
        self.units.append(unit)

    def fenced(self, unit):
        self.fenced_units.append(unit)

    def queue_refused(self, queue):
        self.refused.append(queue)

    def lease_lost(self):
        self.lost += 1

    def fetch_failed(self, error):
        self.errors.append(error)

    def beat(self):
        BEAT(self.redis, [keys.lease(IDENTITY), keys.REGISTRY, keys.runs(IDENTITY)], [IDENTITY, 60_000, 2])

    def start(self):
        self.thread.start()
        return self

    def got(self, count):
        """Wait for ``count`` units in all and return their bytes."""
        until(lambda: len(self.units) >= count, f"{count} units")
        return [unit.data for unit in self.units]

    def parked(self):
        """The number of calls that wait at the server."""
        return sum(1 for client in self.redis.client_list() if "b" in client["flags"])

    def working(self):
        return self.redis.lrange(keys.working(IDENTITY), 0, -1)

    def stop(self):
        self.fetcher.stop()
        if self.thread.ident is not None:
            self.thread.join(20)
            assert not self.thread.is_alive()
        self.fetcher._parking.close()  # a process ends by exit and needs no close of its own
        self.fetcher._client.close()
        self.shard.close()


@pytest.fixture
def bench(redis, redis_url):
    made = []

    def make(**options):
        made.append(Bench(redis, redis_url, **options))
        return made[-1]

    yield make
    for one in made:
        one.stop()
