"""What pages cost: round trips on each shard, what viewers share, what a caller may ask for, the bytes of the first load."""

import asyncio
import json
import re
from collections import Counter

import pytest
import redis.connection
from starlette.exceptions import HTTPException

from framework import ApplicationWorker
from framework.dashboard import Caller, shared_reads
from framework.dashboard.application import all_pages
from framework.dashboard.shared_reads import SharedReads
from framework.pages.page import Page
from framework.pages.view import ShardReads, View
from tests.dashboard.test_routes import add_groups, address
from tests.harness import encoded, register_process

ADMIN = Caller("ann", "admin")


@pytest.fixture
def round_trips(monkeypatch):
    """Count the requests to each server, by its address; a pipeline is one request."""
    counted, send = Counter(), redis.connection.AbstractConnection.send_packed_command

    def counting(connection, *words, **named):
        counted[getattr(connection, "path", None) or connection.port] += 1
        return send(connection, *words, **named)

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", counting)
    return counted


def test_each_page_has_few_round_trips(browser, shards, redis, second_redis, own_classes, declarations, round_trips):
    class Job(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self) -> None: ...

    declarations["Job"] = Job.declaration()
    for client in (redis, second_redis):
        for number in range(20):
            client.sadd("queues", f"queue{number}", "default")
            client.lpush(f"queue:queue{number}", encoded("Job", jid=f"Q{number}"))
            for key in ("schedule", "retry", "dead", "interrupted"):
                client.zadd(
                    key, {encoded("Job", jid=f"{key}{number}", error_class="E", error_message="x"): 2e9 + number}
                )
            identity = f"h:1:aaaaaaaaaa{number:02}"
            facts = {"identity": identity, "hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 5}
            register_process(client, facts, identity)
            entry = {"queue": "default", "payload": encoded("Job", jid=f"R{number}").decode(), "run_at": 1}
            client.hset(f"{identity}:work", "t", json.dumps(entry))
        client.lpush("queue:default", encoded("Job", jid="J1"))
        add_groups(client)
    client, found = browser(ADMIN), {}
    client.get("/")  # connections and scripts are made once
    # A search of all places, of locks and of memory too, and what is wrong, are bounded by their time, and asked for less often.
    pages = [page for page in all_pages() if page.within_s <= 1.0 and page.round_trips <= 10]
    for page in pages:
        round_trips.clear()
        assert client.get(f"{address(page.path)}?live=1").status_code == 200
        found[page.name] = max(round_trips.values(), default=0)
    assert {name: trips for name, trips in found.items() if trips > 10} == {}
    assert len(found) >= len(all_pages()) - 5


class CountedPage(Page):
    name = title = "counted"
    path = "/counted"
    fresh_s = 0.0

    def __init__(self):
        self.reads = 0

    async def read(self, view):
        self.reads += 1
        return {"reads": self.reads}


def view_of(caller=ADMIN, **query):
    return View(caller, None, {"main": None, "second": None}, ShardReads(), query=query)


def test_open_page_is_read_once_for_all_viewers():
    page = CountedPage()

    async def viewers():
        shared = SharedReads()
        for _ in range(50):
            await asyncio.gather(*(shared.read(("key",), page, view_of(), is_live=True) for _ in range(10)))
        return await shared.read(("key",), page, view_of(), is_live=True)

    found = asyncio.run(viewers())
    assert page.reads == 1
    # Ten round trips on each of two shards, at five requests a second.
    assert found.period_s == 4.0
    assert json.loads(found.text) == {"reads": 1, "unanswered": {}}


def test_page_that_takes_long_is_read_seldom_while_it_is_open():
    async def read():
        view = view_of()
        view.processor_s = 0.3
        return (await SharedReads().read(("key",), CountedPage(), view)).period_s

    assert asyncio.run(read()) >= 30.0


def test_expensive_reads_of_a_caller_are_limited(monkeypatch):
    monkeypatch.setattr(shared_reads, "EXPENSIVE_A_MINUTE", 2)

    class Searching(CountedPage):
        searched_by = ("class",)

    async def reads():
        shared = SharedReads()
        for number in range(2):
            await shared.read((number,), Searching(), view_of(**{"class": "x"}))
        # Others, and pages that search nothing, are not limited.
        await shared.read((2,), Searching(), view_of())
        await shared.read((3,), Searching(), view_of(Caller("bob", "read"), **{"class": "x"}))
        with pytest.raises(HTTPException) as refused:
            await shared.read((4,), Searching(), view_of(**{"class": "x"}))
        return refused.value

    refused = asyncio.run(reads())
    assert refused.status_code == 429
    assert 0 < int(refused.headers["Retry-After"]) <= 61


def test_refused_read_says_when_to_ask_again(browser, shards, monkeypatch):
    def refuse(*_):
        raise HTTPException(429, "x", {"Retry-After": "7"})

    monkeypatch.setattr(SharedReads, "_check_rate", refuse)
    client = browser(ADMIN)
    for path in ("/dead?class=Other", "/api/dead?class=Other"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


def test_viewers_share_the_html_but_not_the_token(dashboard, browser, shards, redis):
    redis.sadd("queues", "default")
    redis.lpush("queue:default", encoded("Job"))
    tokens = set()
    for number in range(2):
        client = browser(ADMIN)
        client.cookies.set("aw_token", f"{number}<&" + "x" * 40)
        part = client.get("/queues/default", headers={"hx-request": "true"}).text
        assert "<html" not in part
        found = re.findall(r'name="token" value="([^"]+)"', part)
        assert found
        tokens |= set(found)
    # Each has its own, escaped.
    assert tokens == {f"{number}&lt;&amp;" + "x" * 40 for number in range(2)}


def test_first_load_has_at_most_100_kilobytes(browser, shards):
    client = browser(ADMIN)
    page = client.get("/")
    files = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text))
    assert len(files) >= 5
    loaded = {path: len(client.get(path).content) for path in files} | {"/": len(page.content)}
    assert sum(loaded.values()) <= 100_000, loaded
