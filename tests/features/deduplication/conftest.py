import json

import pytest

from framework.declare import port, registry
from framework.features.deduplication.admission import DedupLock, DedupPositions
from framework.wire import keys
from framework.wiring.client import bind_default
from tests.execute.test_processor import ProcessorBench
from tests.harness import opened
from tests.push.conftest import Pusher, worker


class DedupBench:
    """A producer and the slots of one process on one server."""

    def __init__(self, redis, url, pusher):
        self.redis, self.url, self.at_admission = redis, url, pusher
        self.slots = []

    def start(self, count=2, *, before=(), consistency=None):
        """Slots of a process with the deduplication policies, last in the order."""
        client = self.at_admission.shards["main"].client
        looks = () if consistency is None else (DedupPositions(client, consistency), consistency)
        made = ProcessorBench(self.redis, self.url, count, (), (*before, *looks, DedupLock(client, consistency)))
        self.slots.append(made)
        return made.start()

    def worker(self, perform, policy=None, **attributes):
        chosen = {} if policy is None else {"deduplicate": policy}
        return worker(**{"perform": perform, "queue": "default", "idempotent": True, **chosen, **attributes})

    def locks(self):
        """Return the key of each lock by the jid of its owner."""
        return {self.redis.hget(key, "jid").decode(): key.decode() for key in self.redis.keys("aw:lock:*")}

    def lock(self, jid):
        fields = self.redis.hgetall(self.locks()[jid])
        return {name.decode(): value.decode() for name, value in fields.items()}

    def waiting(self, queue="default"):
        return [json.loads(data) for data in reversed(self.redis.lrange(keys.queue(queue), 0, -1))]

    def close(self):
        for one in self.slots:
            one.stop()


@pytest.fixture
def bench(redis, redis_url):
    shard = opened(redis_url)
    with registry.isolated():
        made = DedupBench(redis, redis_url, Pusher({"main": shard}))
        yield made
        made.close()
    port.unbind()
    bind_default()
    shard.close()
