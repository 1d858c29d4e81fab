"""Every page answers while the Redis of a shard is frozen: it says so, and shows the other shards."""

import json
import os
import signal

from starlette.testclient import TestClient

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, app, application
from framework.dashboard.application import all_pages
from tests.admin.conftest import bound
from tests.dashboard.test_routes import address
from tests.harness import encoded, opened


def test_frozen_shard_is_away_on_each_page_and_the_other_is_shown(redis, redis_url, make_server, monkeypatch):
    server = make_server()
    settings = load({"FRAMEWORK_SHARDS": json.dumps({"second": {"url": server.url}})})
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, KnownClasses({})))
    redis.sadd("queues", "default")
    redis.lpush("queue:default", encoded("Job", jid="J1"))
    for shards in bound({"main": opened(redis_url), "second": opened(server.url, "second")}):
        # One of its own: it remembers for some seconds that the shard is away.
        client = TestClient(app(lambda _: Caller("ann", "admin")), base_url="http://localhost")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            unanswered = {
                page.name: answer.json().get("unanswered")
                for page in all_pages()
                if (
                    answer := client.get("/api" + (address(page.path) if page.path != "/" else "/overview"))
                ).status_code
                == 200
            }
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert set(shards) == {"main", "second"}
    # Pages about what is wrong name it among the causes; some pages do not ask Redis.
    silent = {name for name, found in unanswered.items() if not found}
    assert silent <= {"causes", "routing", "search", "settings"}
    assert len(unanswered) >= len(all_pages()) - 2
