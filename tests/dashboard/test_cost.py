"""What pages cost: round trips on each shard, what viewers share, what a caller may ask for, the bytes of the first load."""

import asyncio
import json
import re
from collections import Counter

import pytest
import redis.connection
from starlette.exceptions import HTTPException

from framework import ApplicationWorker
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.admin.port import current
from framework.all_settings import load
from framework.dashboard import Caller, shared_reads
from framework.dashboard.application import all_pages
from framework.dashboard.pages.causes import CausesPage
from framework.dashboard.shared_reads import SharedReads, period_of
from framework.pages.page import Page
from framework.pages.view import ShardReads, View
from tests.dashboard.test_routes import add_groups, address
from tests.harness import encoded, register_process

ADMIN = Caller("ann", "admin")

MOST_BYTES_OF_PAGE = 76_000
"""With the files of the first load, which are compressed, at most 100 kB."""

MOST_COMMANDS = 16
"""To each shard, of a page that searches nothing."""


class Sent:
    """What was sent to each server, by its address."""

    def __init__(self):
        self.round_trips, self.commands = Counter(), Counter()

    def clear(self):
        self.round_trips.clear()
        self.commands.clear()


@pytest.fixture
def sent(monkeypatch):
    """Count the round trips and the commands to each server; a pipeline is one round trip and many commands."""
    counted, connections = Sent(), redis.connection.AbstractConnection
    send, pack, one = connections.send_packed_command, connections.pack_commands, connections.send_command

    def address(connection):
        return getattr(connection, "path", None) or connection.port

    def sending(connection, *words, **named):
        counted.round_trips[address(connection)] += 1
        return send(connection, *words, **named)

    def packing(connection, commands):
        commands = list(commands)
        counted.commands[address(connection)] += len(commands)
        return pack(connection, commands)

    def sending_one(connection, *words, **named):
        counted.commands[address(connection)] += 1
        return one(connection, *words, **named)

    monkeypatch.setattr(connections, "send_packed_command", sending)
    monkeypatch.setattr(connections, "pack_commands", packing)
    monkeypatch.setattr(connections, "send_command", sending_one)
    return counted


def test_each_page_has_few_round_trips(
    browser, shards, redis, second_redis, own_classes, declarations, sent, monkeypatch
):
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
    # Those that search all places are bounded by their time, and that of a batch by the batches around it.
    pages = [
        page
        for page in all_pages()
        if page.within_s <= 1.0 and not page.is_long and page.name not in ("causes", "batch")
    ]
    counted = []
    monkeypatch.setattr(shared_reads, "period_of", lambda fresh_s, commands, _: counted.append(commands) or fresh_s)
    for page in pages:
        sent.clear()
        counted.clear()
        assert client.get(f"{address(page.path)}?live=1").status_code == 200
        found[page.name] = [max(one.values(), default=0) for one in (sent.round_trips, sent.commands)]
        assert counted == [sum(sent.commands.values())], page.name
    assert {name: one for name, one in found.items() if one[0] > 10 or one[1] > MOST_COMMANDS} == {}
    assert len(found) >= len(all_pages()) - 7


class CountedPage(Page):
    name = title = "counted"
    path = "/counted"
    fresh_s = 0.0

    def __init__(self, commands=0):
        self.reads, self._commands = 0, commands

    async def read(self, view):
        self.reads += 1
        view.commands = self._commands
        return {"reads": self.reads}


def view_of(caller=ADMIN, **query):
    return View(caller, None, {"main": None, "second": None}, ShardReads(), query=query)


def test_open_page_is_read_once_for_all_viewers():
    page = CountedPage(commands=20_000)

    async def viewers():
        shared = SharedReads()
        for _ in range(50):
            await asyncio.gather(*(shared.read(("key",), page, view_of(), is_live=True) for _ in range(10)))
        return await shared.read(("key",), page, view_of(), is_live=True)

    found = asyncio.run(viewers())
    assert (page.reads, found.period_s) == (1, 4_000.0)
    assert json.loads(found.text) == {"reads": 1, "unanswered": {}}


def test_period_follows_commands_and_processor_time():
    assert period_of(2.0, 5, 0.01) == 2.0
    assert period_of(2.0, 1_000, 0.01) == 200.0
    assert period_of(2.0, 5, 0.5) == 50.0


def test_page_that_takes_long_is_read_seldom_while_it_is_open():
    async def read():
        view = view_of()
        view.processor_s = 0.3
        return (await SharedReads().read(("key",), CountedPage(), view)).period_s

    assert asyncio.run(read()) >= 30.0


LONG_PAGES = {
    "job": ({"jid": "Q1"}, {}),
    "memory": ({}, {}),
    "search": ({}, {"q": "class:Job arg:77"}),
    "causes": ({}, {}),
}


def test_long_page_that_is_left_open_sends_few_commands(shards, redis, second_redis, sent):
    for client in (redis, second_redis):
        for number in range(10):
            client.sadd("queues", f"queue{number}")
            client.lpush(f"queue:queue{number}", *(encoded("Job", jid=f"Q{number}-{each}") for each in range(3)))
        for key in ("schedule", "retry", "dead", "interrupted"):
            client.zadd(key, {encoded("Job", jid=f"{key}{number}"): 2e9 + number for number in range(20)})
        for number in range(10):
            client.hset(f"aw:lock:{number:064x}", mapping={"jid": f"L{number}", "class": "Job"})
    rates = {}
    for page in all_pages():
        if page.name in LONG_PAGES:
            parameters, query = LONG_PAGES[page.name]
            installation = Installation(load({}), KnownClasses())
            sent.clear()
            view = View(ADMIN, installation, current().shards, ShardReads(), parameters, query, page.within_s)
            read = asyncio.run(SharedReads().read((page.name,), page, view, is_live=True))
            assert not read.is_partial
            assert view.commands == sum(sent.commands.values()), page.name
            rates[page.name] = sum(sent.commands.values()) / read.period_s
    assert rates.keys() == LONG_PAGES.keys()
    assert {name: rate for name, rate in rates.items() if rate > shared_reads.COMMANDS_A_SECOND} == {}


def test_causes_are_read_seldom_while_they_are_open(shards):
    """Their threads are not those of the view."""

    async def read():
        view = View(ADMIN, Installation(load({}), KnownClasses()), current().shards, ShardReads())
        await CausesPage().read(view)
        return view.processor_s

    assert asyncio.run(read()) > 0.0


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
    # The files are compressed, the page is not.
    answers = {path: client.get(path, headers={"accept-encoding": "gzip"}) for path in files}
    assert "content-encoding" not in page.headers
    loaded = {path: int(answer.headers["content-length"]) for path, answer in answers.items()}
    assert sum(loaded.values()) <= 100_000 - MOST_BYTES_OF_PAGE, loaded
    assert len(page.content) <= MOST_BYTES_OF_PAGE


def test_long_lists_have_parts(browser, shards, redis):
    for number in range(150):
        redis.sadd("queues", f"queue{number:03}")
        redis.lpush(f"queue:queue{number:03}", *(encoded("Job") for _ in range(1 + number % 7)))
    client = browser(ADMIN)
    first, second = (client.get(f"/api/queues?sort=name&page={page}").json() for page in (1, 2))
    assert [one["queue"] for one in first["queues"] + second["queues"]] == [
        f"queue{number:03}" for number in range(150)
    ]
    assert (first["total"], first["pages"], second["page"]) == (150, 2, 2)
    fullest = client.get("/api/queues").json()["queues"]
    assert [one["size"] for one in fullest] == sorted((one["size"] for one in fullest), reverse=True)
    assert client.get("/api/queues?name=E14&page=9").json()["total"] == 10
    assert {client.get(f"/queues?{words}").status_code for words in ("page=x", "page=-1", "sort=x")} == {400}
    assert 'href="?sort=name&amp;page=2"' in client.get("/queues?sort=name").text
