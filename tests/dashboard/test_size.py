"""Measure every page on four shards with 1,000 queues, a million jobs in each set, and 200 processes (a campaign).

Long pages are left open, too, until their next read. It writes the tables ``var/campaigns/dashboard_costs.md`` and
``dashboard_open_costs.md``; ``python -m tests.dashboard.test_size`` puts them on the page of the dashboard.
"""

import asyncio
import json
import re
import threading
import time
from pathlib import Path
from statistics import median

import pytest

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, application, shared_reads
from framework.dashboard.application import DashboardSite, all_pages
from framework.execute.job_log import TARGETS
from framework.pages import page as pages
from framework.pages import view
from framework.wire import keys
from framework.wire.urgency_counts import WAITS
from tests.admin.conftest import bound
from tests.dashboard.test_cost import MOST_BYTES_OF_PAGE, MOST_COMMANDS, sent
from tests.harness import opened

__all__ = ["sent"]

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "var" / "campaigns" / "dashboard_costs.md"
PAGE = ROOT / "docs" / "operate" / "dashboard.md"
OPEN_TABLE = TABLE.with_name("dashboard_open_costs.md")
_PLACE = re.compile(r"(<!-- costs of pages -->\n).*?(<!-- /costs of pages -->)", re.DOTALL)
_OPEN_PLACE = re.compile(r"(<!-- costs of open pages -->\n).*?(<!-- /costs of open pages -->)", re.DOTALL)
MOST_MS = 50
"""Of processor time of the dashboard."""

SHARDS = ("main", "one", "two", "three")
JOBS_OF_SET, QUEUES, JOBS_OF_QUEUE, PROCESSES = 250_000, 250, 1_000, 50
"""On each shard."""
_STEP = 5_000
PART_S = view.PART_S
"""The part of a long page's first answer; a fixture lets the other tests wait for the whole."""
QUERIES = {"search": "?q=class%3ANumber7Worker+arg%3A123456"}
"""What a search page is asked for."""

# Redis writes the jobs itself: a client would take a quarter of an hour.
FILL_SET = """
for number = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local job = '{"class":"Shop::Number' .. number % 100 .. 'Worker","jid":"' .. string.format('%s%018x', ARGV[4], number) ..
    '","args":[' .. number .. ',"express"],"queue":"queue_' .. number % 250 .. '","retry":5,' ..
    '"created_at":1700000000.5,"enqueued_at":1700000000.5,"retry_count":2,"failed_at":1700000000.5,' ..
    '"error_class":"TimeoutError","error_message":"no answer after 30 s"}'
  redis.call('ZADD', KEYS[1], tonumber(ARGV[1]) + number, job)
end
"""
FILL_QUEUE = """
local jobs = {}
for number = 1, tonumber(ARGV[1]) do
  jobs[number] = '{"class":"Shop::Number' .. number % 100 .. 'Worker","jid":"' .. string.format('%s%018x', ARGV[3], number) ..
    '","args":[1,"express"],"queue":"' .. ARGV[2] .. '","retry":5,"created_at":1700000000.5,"enqueued_at":1700000000.5}'
end
redis.call('LPUSH', KEYS[1], unpack(jobs))
redis.call('SADD', KEYS[2], ARGV[2])
"""


def fill(client, shard):
    now = int(time.time())
    fill_set, fill_queue = client.register_script(FILL_SET), client.register_script(FILL_QUEUE)
    starts = {
        keys.SCHEDULE: now + 60,
        keys.RETRY: now + 60,
        keys.DEAD: now - 2_000_000,
        keys.INTERRUPTED: now - 2_000_000,
    }
    for place, (key, start) in enumerate(starts.items()):
        for at in range(0, JOBS_OF_SET, _STEP):
            fill_set(keys=[key], args=[start, at, at + _STEP - 1, f"{shard:02x}{place:04x}"])
    names = [f"queue_{number}" for number in range(QUEUES)]
    for place, name in enumerate(names):
        fill_queue(keys=[keys.queue(name), keys.QUEUES], args=[JOBS_OF_QUEUE, name, f"{shard:02x}{16 + place:04x}"])
    fill_runs(client, now)
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


def fill_runs(client, now):
    """Write the runs of eight hours: of each minute of 100 classes and all urgencies, and of each ten minutes."""
    counts = {f"Shop::Number{number}Worker|{word}": 7 for number in range(100) for word in ("p", "f", "ms")}
    of_urgencies = {f"{urgency}|{word}": 7 for urgency in TARGETS for word in ("p", "ms", *WAITS)}
    pipeline = client.pipeline(transaction=False)
    for minute in range(480):
        for names in keys.metrics(8, time.gmtime(now - 60 * minute)):
            pipeline.hset(names[0], mapping=counts)
        for names in keys.urgencies(time.gmtime(now - 60 * minute)):
            pipeline.hset(names[0], mapping=of_urgencies)
    pipeline.execute()


class Costs:
    """Ask for pages, and measure what they cost."""

    def __init__(self, site, clients, sent):
        self._site, self._clients, self._sent = site, clients, sent
        self._served = site.application(loopback_only=False)

    async def measure(self, page, path):
        """Return what the first answer of the page costs: the median of some reads."""
        # Connections are made, and scripts are loaded, once. A search ends with its time, also on a busy machine.
        whole = not is_search(page)
        await self._get(path, whole=whole)
        found = [await self._read(path, whole=whole) for _ in range(5)]
        return {name: median(one[name] for one in found) for name in found[0]}

    async def _read(self, path, *, whole):
        self._site.forget()
        before = self._redis_ms()
        self._sent.clear()
        began = time.process_time()
        body = await self._get(path, whole=whole)
        used = time.process_time() - began
        sent = [max(one.values(), default=0) for one in (self._sent.round_trips, self._sent.commands)]
        redis_ms = max(now - then for now, then in zip(self._redis_ms(), before, strict=True))
        return {
            "server ms": round(1_000 * used, 1),
            "Redis ms": round(redis_ms, 1),
            "round trips": sent[0],
            "commands": sent[1],
            "kB": round(len(body) / 1_000, 1),
        }

    async def leave_open(self, path):
        """Return what a page costs that is left open: from its first answer to its next read, once it has shown the whole."""
        self._site.forget()
        # Reads that pages have begun before would count.
        for one in threading.enumerate():
            if one.name.startswith("long read"):
                await asyncio.to_thread(one.join)
        self._sent.clear()
        loop = asyncio.get_running_loop()
        began, began_cpu = loop.time(), time.process_time()
        # As a browser does.
        while (again_s := self._again_s(await self._get(path, whole=True, part=True))) == shared_reads.PARTIAL_S:  # noqa: ASYNC110
            await asyncio.sleep(again_s)
        read_s, used_s = loop.time() - began, time.process_time() - began_cpu
        commands = sum(self._sent.commands.values())
        return {
            "whole after s": round(read_s, 1),
            "again after s": round(again_s),
            "commands": commands,
            "server s": round(used_s, 2),
            "commands a second": round(commands / (read_s + again_s), 2),
            "% of a core": round(100 * used_s / (read_s + again_s), 2),
        }

    @staticmethod
    def _again_s(body):
        return int(re.search(rb'id="again" hidden data-ms="(\d+)"', body)[1]) / 1_000

    async def _get(self, path, *, whole, part=False):
        """Ask the application itself: a client in this process would count."""
        body, statuses = bytearray(), []

        async def receive():
            return {"type": "http.request", "body": b""}

        async def send(message):
            statuses.append(message.get("status"))
            body.extend(message.get("body", b""))

        path, _, query = path.partition("?")
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": query.encode()}
        headers = [(b"host", b"localhost"), *([(b"hx-request", b"true")] if part else [])]
        scope |= {"headers": headers, "scheme": "http", "server": ("localhost", 80), "client": None}
        await self._served({**scope, "http_version": "1.1", "root_path": ""}, receive, send)
        assert statuses[0] == 200, path
        assert not whole or b"does not answer" not in body, path
        return bytes(body)

    def _redis_ms(self):
        found = [client.info("cpu") for client in self._clients]
        return [1_000 * (one["used_cpu_user"] + one["used_cpu_sys"]) for one in found]


def is_search(page):
    """Return whether it searches all places, or looks at everything."""
    return page.is_long or page.within_s != pages.Page.within_s or page.name == "causes"


def table_of(costs):
    """Return the costs as a table, those beyond the goal in bold."""
    rows = []
    for title, one in costs.items():
        shown = dict(one)
        if one.get("server ms", 0) > MOST_MS:
            shown["server ms"] = f"**{one['server ms']} !**"
        rows.append(f"| {title} | {' | '.join(map(str, shown.values()))} |")
    names = ("Page", *next(iter(costs.values())))
    return "\n".join([f"| {' | '.join(names)} |", "|---" * len(names) + "|", *rows, ""])


async def costs_of_pages(clients, sent, words):
    """Return the costs by page. What goes on after a page was shown would count for the next one: such pages come last."""
    site = DashboardSite(lambda _: Caller("ann", "admin"))
    measured, costs = Costs(site, clients, sent), {}
    for page in sorted(site.pages, key=is_search):
        path = page.path
        for word, value in words.items():
            path = path.replace(word, value)
        if "{" not in path:
            costs[page] = await measured.measure(page, path + QUERIES.get(page.name, ""))
    site.forget()
    return costs


async def costs_of_open_pages(clients, sent):
    """Return what the long pages cost that are left open, by title."""
    site = DashboardSite(lambda _: Caller("ann", "admin"))
    measured = Costs(site, clients, sent)
    # A job that is nowhere is searched twice.
    paths = {"job": "/job/nowhere0000000000000000", "memory": "/memory", "causes": "/causes"}
    paths["search"] = f"/search{QUERIES['search']}"
    return {page.title: await measured.leave_open(paths[page.name]) for page in site.pages if page.name in paths}


@pytest.mark.campaign
@pytest.mark.timeout(3_600)
def test_pages_at_size(make_server, sent, record_property, monkeypatch):
    servers = {name: make_server() for name in SHARDS}
    clients = [server.open(read_timeout_s=60.0) for server in servers.values()]
    for shard, client in enumerate(clients):
        fill(client, shard)
    installation = Installation(load({}), KnownClasses({}))
    monkeypatch.setattr(application, "read_installation", lambda: installation)
    monkeypatch.setattr(shared_reads, "EXPENSIVE_A_MINUTE", 10_000)
    # On a busy machine a page would leave out a shard, and cost less.
    for page in all_pages():
        if page.within_s > pages.Page.within_s:
            monkeypatch.setattr(type(page), "within_s", 60.0 + page.within_s)
    for module, name in ((view, "ANSWER_WITHIN_S"), (pages, "ANSWER_WITHIN_S"), (pages.Page, "within_s")):
        monkeypatch.setattr(module, name, 60.0)
    monkeypatch.setattr(view, "PART_S", PART_S)
    words = {"{queue:path}": "queue_1", "{class:path}": "Shop::Number1Worker", "{jid:path}": f"{0:06x}{5:018x}"}
    for _ in bound({name: opened(server.url, name) for name, server in servers.items()}):
        costs = asyncio.run(costs_of_pages(clients, sent, words))
        left_open = asyncio.run(costs_of_open_pages(clients, sent))
    for page, found in costs.items():
        record_property(page.name, found)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(table_of({page.title: found for page, found in costs.items()}))
    OPEN_TABLE.write_text(table_of(left_open))
    record_property("open pages", left_open)
    too_often = [one for one in left_open.values() if one["commands a second"] > shared_reads.COMMANDS_A_SECOND]
    assert (len(left_open), too_often) == (4, [])
    assert [one for one in left_open.values() if one["% of a core"] > 100 * shared_reads.PROCESSOR_SHARE] == []
    quick = {page: found for page, found in costs.items() if not is_search(page)}
    assert {page.name: found for page, found in quick.items() if found["round trips"] > 10} == {}
    assert {page.name: found for page, found in quick.items() if found["commands"] > MOST_COMMANDS} == {}
    assert {page.name: found for page, found in costs.items() if 1_000 * found["kB"] > MOST_BYTES_OF_PAGE} == {}


def test_page_of_the_dashboard_has_the_costs_of_each_page():
    (found,) = _PLACE.finditer(PAGE.read_text())
    titles = re.findall(r"^\| ([^|]+) \| ", found[0], re.MULTILINE)
    assert set(titles[1:]) == {
        one.title for one in all_pages() if "{" not in one.path or one.name in ("queue", "class", "job", "stack")
    }


if __name__ == "__main__":
    for place, table in ((_PLACE, TABLE), (_OPEN_PLACE, OPEN_TABLE)):
        PAGE.write_text(
            place.sub(lambda found, table=table: f"{found[1]}{table.read_text()}{found[2]}", PAGE.read_text())
        )
