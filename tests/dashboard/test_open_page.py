"""What a page that is left open costs Redis: as much for ten viewers as for one."""

import asyncio
import os
import re
import selectors
from pathlib import Path

import httpx
import pytest

from framework.dashboard import Caller
from framework.dashboard.application import DashboardSite
from framework.dashboard.shared_reads import COMMANDS_A_SECOND, PROCESSOR_SHARE
from framework.pages.view import ShardReads
from tests.dashboard.test_cost import sent
from tests.harness import encoded, until

__all__ = ["sent"]

OPEN_S = 120.0
"""Of the clock of the loop, which does not wait. A page that costs half a second on a slow machine is read twice."""


class SkippingSelector(selectors.DefaultSelector):
    """Skip the time in which nothing happens: no shard is read, and no callback is ready."""

    def __init__(self):
        super().__init__()
        self.skipped_s, self.reads = 0.0, 0

    def select(self, timeout=None):
        if self.reads or not timeout:
            return super().select(timeout)
        # A thread may be about to answer.
        found = super().select(min(timeout, 0.002))
        if not found:
            self.skipped_s += timeout
        return found


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.skipping = SkippingSelector()
        super().__init__(self.skipping)

    def time(self):
        return super().time() + self.skipping.skipped_s


class Viewer:
    """A browser with an open page: it keeps a stream, or asks from time to time."""

    def __init__(self, served, path, begins_s):
        self._served, self._path, self._begins_s = served, path, begins_s
        self.shown = 0

    async def watch(self, way):
        """Open the page, later than the viewers before: each asks at times of its own."""
        await asyncio.sleep(self._begins_s)
        await getattr(self, way)()

    async def stream(self):
        """Load the page again at each event."""
        loads = []

        async def send(message):
            if b"event: changed" in message.get("body", b""):
                loads.append(asyncio.create_task(self._load()))

        await self._ask(f"/live{self._path}", send)
        await asyncio.gather(*loads)

    async def poll(self):
        """Load the page as often as it says."""
        while True:
            text = await self._load()
            wait_ms = max(5_000, int(re.search(rb'id="again" hidden data-ms="(\d+)"', text)[1]))
            await asyncio.sleep(wait_ms / 1_000)

    async def _load(self):
        body = bytearray()

        async def send(message):
            body.extend(message.get("body", b""))

        await self._ask(self._path, send, (b"hx-request", b"true"))
        self.shown += 1
        return bytes(body)

    async def _ask(self, path, send, *headers):
        async def receive():
            await asyncio.get_running_loop().create_future()

        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
        scope |= {"headers": [(b"host", b"localhost"), *headers], "scheme": "http", "server": ("localhost", 80)}
        await self._served({**scope, "client": None, "http_version": "1.1", "root_path": ""}, receive, send)


def open_page(count, way):
    """Leave a page open for ``OPEN_S``, and return how often a viewer has seen it anew."""
    served = DashboardSite(lambda _: Caller("ann", "admin")).application(loopback_only=False)
    viewers = [Viewer(served, "/queues", 0.37 * number) for number in range(count)]

    async def watch():
        tasks = [asyncio.create_task(one.watch(way)) for one in viewers]
        ends = asyncio.get_running_loop().time() + OPEN_S
        while asyncio.get_running_loop().time() < ends:
            await asyncio.sleep(1.0)
            assert not any(one.done() for one in tasks)
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(watch())
    return min(one.shown for one in viewers)


@pytest.mark.parametrize("way", ["stream", "poll"])
def test_open_page_costs_redis_few_commands_for_any_number_of_viewers(
    shards, redis, second_redis, sent, monkeypatch, way
):
    read = ShardReads.read

    async def noted(*words):
        skipping = asyncio.get_running_loop().skipping
        skipping.reads += 1
        try:
            return await read(*words)
        finally:
            skipping.reads -= 1

    monkeypatch.setattr(ShardReads, "read", noted)
    for client in (redis, second_redis):
        for number in range(3):
            client.sadd("queues", f"queue{number}")
            client.lpush(f"queue:queue{number}", encoded("Job"))
    # A single viewer is one of ten: were these to read on their own, there would be three times too many commands.
    assert open_page(10, way) >= 2
    assert sum(sent.commands.values()) <= COMMANDS_A_SECOND * OPEN_S


async def watch_until(ended, port, opened):
    """Be a browser with an open page of a real server: load the page again at each event. Return how often."""
    loads = 0
    # The server closes a connection that was idle for some seconds: each load has its own.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits) as client:
        (await client.get("/queues")).raise_for_status()
        async with client.stream("GET", "/live/queues") as stream:
            opened.append(1)
            async for line in stream.aiter_lines():
                if line == "event: changed":
                    (await client.get("/queues", headers={"hx-request": "true"})).raise_for_status()
                    loads += 1
                if ended.is_set():
                    break
    return loads


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_hundred_viewers_take_a_hundredth_of_a_core(site, redis, free_tcp_port, record_property):
    """Of a real server, once all have opened the page, which shows something else at each read."""
    for number in range(30):
        redis.sadd("queues", f"queue{number}")
        redis.lpush(f"queue:queue{number}", encoded("Job"))
    process = site.start("-m", "framework", "dashboard", "--listen", f"127.0.0.1:{free_tcp_port}")
    until(lambda: "The dashboard is at" in process.output or process.popen.poll(), "the address")
    opened, measured_s = [], 150.0
    # Its user and system time, in ticks.
    times = Path(f"/proc/{process.popen.pid}/stat")

    def used_s():
        return sum(map(int, times.read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    async def push_until(is_enough):
        while not is_enough():
            await asyncio.sleep(1.0)
            redis.lpush("queue:queue0", encoded("Job"))

    async def watch():
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        viewers = [asyncio.create_task(watch_until(ended, free_tcp_port, opened)) for _ in range(100)]
        await push_until(lambda: len(opened) == len(viewers))
        # The first period after the last viewer counts the opening of the pages.
        began = loop.time()
        await push_until(lambda: loop.time() > began + 60.0)
        before, began = used_s(), loop.time()
        await push_until(lambda: loop.time() > began + measured_s)
        taken_s = used_s() - before
        ended.set()
        # Each ends at its next line.
        return taken_s, await asyncio.gather(*viewers)

    taken_s, loads = asyncio.run(watch())
    record_property("% of a core", round(100 * taken_s / measured_s, 2))
    record_property("loads of each viewer", (min(loads), max(loads)))
    assert min(loads) >= 1
    assert taken_s <= PROCESSOR_SHARE * measured_s
