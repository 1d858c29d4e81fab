"""Measure every page on four shards with 1,000 queues, a million jobs in each set, and 200 processes (a campaign)."""

import json
import time

import pytest
from starlette.testclient import TestClient

from framework.dashboard import Caller
from framework.dashboard.application import DashboardSite
from framework.wire import keys
from tests.admin.conftest import bound
from tests.dashboard.test_cost import round_trips
from tests.harness import opened

__all__ = ["round_trips"]

SHARDS = ("main", "one", "two", "three")
JOBS_OF_SET, QUEUES, JOBS_OF_QUEUE, PROCESSES = 250_000, 250, 1_000, 50
"""On each shard."""
_STEP = 5_000

# Redis writes the jobs itself: a client would take a quarter of an hour.
FILL_SET = """
for number = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local job = '{"class":"Shop::Number' .. number % 100 .. 'Worker","jid":"' .. string.format('%024x', number) ..
    '","args":[' .. number .. ',"express"],"queue":"queue_' .. number % 250 .. '","retry":5,' ..
    '"created_at":1700000000.5,"enqueued_at":1700000000.5,"retry_count":2,"failed_at":1700000000.5,' ..
    '"error_class":"TimeoutError","error_message":"no answer after 30 s"}'
  redis.call('ZADD', KEYS[1], tonumber(ARGV[1]) + number, job)
end
"""
FILL_QUEUE = """
local jobs = {}
for number = 1, tonumber(ARGV[1]) do
  jobs[number] = '{"class":"Shop::Number' .. number % 100 .. 'Worker","jid":"' .. string.format('%024x', number) ..
    '","args":[1,"express"],"queue":"' .. ARGV[2] .. '","retry":5,"created_at":1700000000.5,"enqueued_at":1700000000.5}'
end
redis.call('LPUSH', KEYS[1], unpack(jobs))
redis.call('SADD', KEYS[2], ARGV[2])
"""


def fill(client):
    now = int(time.time())
    fill_set, fill_queue = client.register_script(FILL_SET), client.register_script(FILL_QUEUE)
    starts = {
        keys.SCHEDULE: now + 60,
        keys.RETRY: now + 60,
        keys.DEAD: now - 2_000_000,
        keys.INTERRUPTED: now - 2_000_000,
    }
    for key, start in starts.items():
        for at in range(0, JOBS_OF_SET, _STEP):
            fill_set(keys=[key], args=[start, at, at + _STEP - 1])
    names = [f"queue_{number}" for number in range(QUEUES)]
    for name in names:
        fill_queue(keys=[keys.queue(name), keys.QUEUES], args=[JOBS_OF_QUEUE, name])
    pipeline = client.pipeline(transaction=False)
    for number in range(PROCESSES):
        identity = f"host{number}:{number + 1}:{number:012x}"
        served = names[number * 5 :][:20]
        info = {
            "hostname": f"host{number}",
            "pid": number + 1,
            "identity": identity,
            "concurrency": 10,
            "queues": served,
        }
        pipeline.sadd(keys.PROCESSES, identity)
        pipeline.hset(identity, mapping={"info": json.dumps(info), "busy": 5, "beat": now, "quiet": "false"})
        for thread in range(5):
            job = {"class": "Shop::Number1Worker", "jid": f"{number:020x}{thread:04x}", "args": [1], "queue": served[0]}
            run = {"queue": served[0], "payload": json.dumps(job), "run_at": now}
            pipeline.hset(keys.work(identity)[0], f"t{thread}", json.dumps(run))
    pipeline.execute()


@pytest.mark.campaign
@pytest.mark.timeout(3_600)
def test_pages_at_size(make_server, round_trips, record_property):
    servers = {name: make_server() for name in SHARDS}
    for server in servers.values():
        client = server.open(read_timeout_s=60.0)
        fill(client)
        client.close()
    words = {"{queue:path}": "queue_1", "{class:path}": "Shop::Number1Worker", "{jid:path}": f"{5:024x}"}
    for _ in bound({name: opened(server.url, name) for name, server in servers.items()}):
        site = DashboardSite(lambda _: Caller("ann", "admin"))
        with TestClient(site.application(loopback_only=False), base_url="http://localhost") as browser:
            many = {}
            # What goes on after its page was shown would count for the next one: such pages come last.
            for page in sorted(site.pages, key=lambda one: (one.within_s > 1.0, one.round_trips > 10)):
                path = page.path
                for word, value in words.items():
                    path = path.replace(word, value)
                if "{" in path:
                    continue
                # Connections are made once.
                browser.get(path)
                site.forget()
                round_trips.clear()
                began, used = time.perf_counter(), time.process_time()
                answer = browser.get(path)
                figures = {
                    "seconds": round(time.perf_counter() - began, 3),
                    "processor_seconds": round(time.process_time() - used, 3),
                    "round_trips": max(round_trips.values(), default=0),
                    "bytes": len(answer.content),
                }
                record_property(page.name, figures)
                assert answer.status_code in (200, 404), path
                if page.within_s <= 1.0 and figures["round_trips"] > page.round_trips:
                    many[page.name] = figures["round_trips"]
            assert not many
