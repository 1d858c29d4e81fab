import json

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import port, registry
from framework.errors import BulkPushError
from framework.features.deduplication.push import Deduplicator
from framework.middleware.chain import CLIENT, Chain
from framework.push.argument_checks import OversizeReporter, SizeLimiter, SizeLimits
from framework.push.client import Client
from framework.route.router import Router
from framework.settings.model import RoutingRule
from framework.shard import connection as shard_connection
from framework.shard.shards import Shards
from framework.wire import keys
from framework.wiring.client import bind_default
from tests.harness import opened


def worker(name="Job", perform=None, **attributes):
    def accept_any(self, *args):
        """Accept any arguments."""

    body = {"feature_category": "not_owned", "wire_name": name, "perform": perform or accept_any, **attributes}
    return type(name, (ApplicationWorker,), body)


class Pusher:
    """Push worker classes through a client to real servers."""

    def __init__(self, shards):
        self.shards = Shards(shards)
        self.open()

    def open(self, *middleware, rules=(), limits=None, reporter=None, **options):
        limiter = SizeLimiter(limits or SizeLimits(), OversizeReporter() if reporter is None else reporter)
        chain = Chain(CLIENT)
        for one in middleware:
            chain.add(one)
        router = Router([RoutingRule(*rule) for rule in rules], list(self.shards))
        locks = options.pop("locks", None) or Deduplicator()
        if positions := options.pop("positions", None):
            options["steps"] = [lambda plan, _client: plan._replace(extra_fields=positions(plan.declaration))]
        self.client = Client(self.shards, router, locks=locks, middleware=chain.compile(), limiter=limiter, **options)
        port.bind(self.client)
        return self


@pytest.fixture(autouse=True)
def closed_circuit(monkeypatch):
    """A lost reply that a loaded machine notices late opens no circuit, which would fail the next push."""
    monkeypatch.setattr(shard_connection, "SLOW_FAILURE_S", 60.0)


@pytest.fixture
def pusher(redis, redis_url):
    shard = opened(redis_url)
    with registry.isolated():
        yield Pusher({"main": shard})
    port.unbind()
    bind_default()
    shard.close()


@pytest.fixture
def jobs(redis):
    """Return the payloads of a queue, oldest first."""
    return lambda name="default": [json.loads(data) for data in reversed(redis.lrange(keys.queue(name), 0, -1))]


@pytest.fixture
def calls(redis):
    """Return a function that counts the runs of a command since its last call."""
    seen = {}

    def look(command):
        total = redis.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)
        found, seen[command] = total - seen.get(command, 0), total
        return found

    return look


class LetPass:
    def call(self, cls, job, queue, pool):
        yield


@pytest.fixture(params=[(), (LetPass,)], ids=("quick", "middleware"))
def push_mode(request, pusher):
    """Push both without a client middleware and with one."""
    return pusher.open(*request.param)


def failed(push):
    """Return the error of a bulk push that must fail."""
    with pytest.raises(BulkPushError) as caught:
        push()
    return caught.value


@pytest.fixture
def room(redis):
    """Restore the server's memory limit after a test."""
    yield
    redis.config_set("maxmemory", 0)
