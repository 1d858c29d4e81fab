"""Test reads that go on after the first answer: what a view sees of them, when they end, and what they may cost."""

import asyncio
import threading

import pytest

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.admin.statistics import server_times
from framework.all_settings import load
from framework.dashboard import shared_reads
from framework.dashboard.shared_reads import SharedReads
from framework.pages import view as view_module
from framework.pages.caller import Caller
from framework.pages.long_reads import ReadEndedError, percent_of
from framework.pages.page import Page
from framework.pages.view import ShardReads, View
from tests.admin.conftest import both_shards, silent_second
from tests.dashboard.test_cost import sent

__all__ = ["both_shards", "sent", "silent_second"]


@pytest.fixture
def reads():
    made = ShardReads()
    yield made
    made.long.forget()


@pytest.fixture(autouse=True)
def _part(monkeypatch):
    """Let the first answer come after the first step."""
    monkeypatch.setattr(view_module, "PART_S", 0.0)


def view_of(shards, reads, **query):
    return View(Caller("ann", "admin"), Installation(load({}), KnownClasses({})), shards, reads, query=query)


class Steps:
    """A read of three steps: each but the first one waits until the test says so."""

    def __init__(self):
        self.go_on, self.ended, self.began = threading.Event(), threading.Event(), []

    def __call__(self, shard, read):
        self.began.append(shard)
        try:
            for number in range(3):
                if number:
                    self.go_on.wait(30.0)
                read.found.append((shard, number))
                read.share = (number + 1) / 3
                server_times(shard)
                read.step()
        except ReadEndedError:
            self.ended.set()
            raise


def until_whole(shards, reads, steps, **query):
    """Ask until the read has ended, and return the last view and what it has found."""

    async def ask():
        while True:
            view = view_of(shards, reads, **query)
            found = await view.read_long("page", steps)
            if not view.is_partial:
                return view, {name: list(one.found) for name, one in found.items()}

    return asyncio.run(asyncio.wait_for(ask(), 60.0))


def test_first_answer_has_a_part_and_later_views_more(both_shards, reads):
    steps, view = Steps(), view_of(both_shards, reads)
    found = asyncio.run(view.read_long("page", steps))
    assert view.is_partial
    assert {name: one.found for name, one in found.items()} == {"main": [("main", 0)], "second": [("second", 0)]}
    assert percent_of(found) == 33
    steps.go_on.set()
    view, whole = until_whole(both_shards, reads, steps)
    assert whole == {name: [(name, number) for number in range(3)] for name in ("main", "second")}
    assert sorted(steps.began) == ["main", "second"]
    # Who asks after the whole was shown reads again, and other words are another read.
    until_whole(both_shards, reads, steps)
    until_whole(both_shards, reads, steps, q="x")
    assert len(steps.began) == 6


def test_former_answer_is_kept_until_the_new_one_is_there(both_shards, reads):
    first, second = Steps(), Steps()
    first.go_on.set()
    until_whole(both_shards, reads, first)
    view = view_of(both_shards, reads)
    shown = asyncio.run(view.read_long("page", second, keeps_former=True))
    assert {name: len(one.found) for name, one in shown.items()} == {"main": 3, "second": 3}
    assert (view.is_partial, view.percent, view.read_at is not None) == (True, 33, True)
    # Another page of the same read shows what is new.
    assert len(asyncio.run(view_of(both_shards, reads).read_long("page", second))["main"].found) == 1
    second.go_on.set()
    view, _ = until_whole(both_shards, reads, second)
    assert (view.percent, view.read_at, len(second.began)) == (100, None, 2)
    # What an operator has changed is not shown as it was.
    reads.long.forget()
    third = Steps()
    view = view_of(both_shards, reads)
    asyncio.run(view.read_long("page", third, keeps_former=True))
    assert view.read_at is None
    third.go_on.set()


def test_read_ends_when_something_was_changed(both_shards, reads):
    steps = Steps()
    asyncio.run(view_of(both_shards, reads).read_long("page", steps))
    reads.long.forget()
    steps.go_on.set()
    assert steps.ended.wait(30.0)


def test_long_read_leaves_out_a_silent_shard(silent_second, reads):
    steps = Steps()
    steps.go_on.set()
    _, found = until_whole(silent_second, reads, steps)
    assert list(found) == ["main"]


def test_error_of_a_step_is_that_of_the_view(both_shards, reads):
    def fail(shard, read):
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        asyncio.run(view_of(both_shards, reads).read_long("page", fail))


class LongPage(Page):
    name = title = "long"
    path = "/long"
    is_long = True
    fresh_s = 60.0

    def __init__(self, steps):
        self.steps = steps

    async def read(self, view):
        found = await view.read_long(self.name, self.steps)
        return {"percent": percent_of(found)}


def test_open_page_asks_again_soon_and_then_seldom(both_shards, reads, sent, monkeypatch):
    monkeypatch.setattr(shared_reads, "PARTIAL_S", 0.0)
    counted = []
    monkeypatch.setattr(shared_reads, "period_of", lambda fresh_s, commands, _: counted.append(commands) or fresh_s)
    steps, shared = Steps(), SharedReads()
    page = LongPage(steps)

    async def read():
        return await shared.read(("key",), page, view_of(both_shards, reads), is_live=True)

    async def until_over():
        first = await read()
        assert (first.facts["percent"], first.period_s, first.fresh_s) == (33, 0.0, 0.0)
        steps.go_on.set()
        while (found := await read()).is_partial:
            pass
        return found

    found = asyncio.run(asyncio.wait_for(until_over(), 60.0))
    # Those of the views that have shown a part count, too.
    assert counted == [sum(sent.commands.values())]
    assert found.period_s == page.fresh_s
    # Only its beginning counts for the rate of the caller.
    assert len(shared._expensive["ann"]) == 1
