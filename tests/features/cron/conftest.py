import json

import pytest

from framework.cron_expression import CronExpression
from framework.declare import registry
from framework.features.cron import keys
from framework.features.cron.cron_worker import CronWorker
from framework.features.cron.entries import CronEntry
from framework.features.cron.leadership import Leadership
from framework.features.cron.push import TickJobs
from framework.features.cron.scheduler import CronScheduler
from framework.features.cron.store import CronStates
from framework.features.deduplication.push import Deduplicator
from framework.push.client import Client
from framework.route.router import Router
from tests.harness import opened


class Events:
    """Record what the scheduler reports."""

    def __init__(self):
        self.found = []

    def of(self, kind):
        return [facts for name, *facts in self.found if name == kind]

    def leadership_changed(self, *, leads):
        self.found.append(("leader", leads))

    def pushed(self, entry, tick, jid, late_s):
        self.found.append(("pushed", entry.name, tick, jid))

    def not_pushed(self, entry, tick, outcome, other):
        self.found.append((outcome, entry.name, tick, other))

    def missed(self, entry, due):
        self.found.append(("missed", entry.name, due.skipped, due.more_skipped))

    def failed(self, entry, error):
        self.found.append(("failed", entry.name, error))

    def unusable(self, name, why):
        self.found.append(("unusable", name, why))

    def unreadable_order(self, name):
        self.found.append(("unreadable_order", name))


class Cron:
    """The parts of one process that push the jobs of a schedule to one shard."""

    def __init__(self, url, redis, identity="host:1:a", middleware=()):
        self.redis = redis
        self.shard = opened(url)
        self.client = Client(
            {"main": self.shard}, Router([], ["main"]), locks=Deduplicator(lambda *_: True), middleware=middleware
        )
        self.states = CronStates(self.shard.client, "default")
        self.events = Events()
        self.identity = identity
        self.jobs = TickJobs(self.client)

    def scheduler(self, *entries, added=None):
        return CronScheduler(
            self.states,
            Leadership(self.shard.client, keys.leader("default"), self.identity),
            {one.name: one for one in entries},
            self.jobs,
            self.events,
            added=added,
        )

    def settled(self, entry, seconds_ago, jid="before"):
        """Write the state of an entry whose last tick was so long ago."""
        tick = self.redis.time()[0] - seconds_ago
        self.redis.hset(keys.cron_states("default"), entry.name, f"{tick} {entry.fingerprint} {jid}")
        return tick

    def pushed(self, queue="cronjob:tick"):
        """Return the jobs of a queue, the oldest first."""
        return [json.loads(data) for data in reversed(self.redis.lrange(f"queue:{queue}", 0, -1))]


def worker(**body):
    body = {"feature_category": "not_owned", "perform": lambda self: None, "__module__": "ticks", **body}
    return type("TickWorker", (CronWorker,), body)


def entry(text="* * * * *", name="tick", made=None, **facts):
    return CronEntry(name, (made or worker()).declaration(), CronExpression(text), **facts)


@pytest.fixture(autouse=True)
def _alone():
    with registry.isolated():
        yield


@pytest.fixture
def cron(redis, redis_url):
    made = Cron(redis_url, redis)
    yield made
    made.shard.close()
