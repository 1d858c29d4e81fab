"""Incidents, each solved in the browser only: an operator goes from the overview to the cause, and mends it. Clicks are counted.

The report of the campaigns has the clicks and seconds of each. The seconds are those of the pages: the operator does not read.
"""

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import pytest

from framework.devtools import sample_platform
from framework.devtools.sample_platform import BAD_DEPLOY, STUCK, WRONG_QUEUE, SamplePlatform
from framework.wire import keys
from tests.chromium import BrowserPage, browser
from tests.dashboard.test_browser import site
from tests.harness import until

__all__ = ["browser", "site"]

IN_CAUSE = "[...document.querySelectorAll('#causes li')].find(one => one.textContent.includes(%s))"
"""The element of a cause in the overview."""
IN_PAGE = "document.querySelector('main')"


class Operator:
    """Someone with a mouse who reads the page."""

    def __init__(self, page: BrowserPage, site: str) -> None:
        self.page, self.clicks, self.begun = page, 0, time.monotonic()
        page.open(f"{site}/")

    def click(self, text: str, place: str = IN_PAGE) -> None:
        """Click a link, button or box whose text or value has these words."""
        found = (
            f"[...({place})?.querySelectorAll('a, button, input[type=checkbox], summary') ?? []]"
            f".find(one => (one.textContent + (one.value ?? '')).includes({json.dumps(text)}))"
        )
        until(lambda: self.page.evaluate(f"!!{found}"), f"{text} in the page: {self.page.text()}")
        self.page.evaluate(f"window.left = false; {found}.click()")
        self.clicks += 1

    def go(self, text: str, place: str = IN_PAGE) -> None:
        """Click what leads to another page, and wait for this page."""
        self.click(text, place)
        until(lambda: self.page.evaluate("window.left === undefined && document.readyState === 'complete'"), text)

    def fill(self, name: str, value: str) -> None:
        """Write into a field."""
        self.page.evaluate(f"document.querySelector('[name={name}]').value = {json.dumps(value)}")
        self.clicks += 1

    def confirm(self, label: str) -> None:
        """Read the preview, and go on."""
        self.go(label, "document.querySelector('main form')")


def mend_stuck_limit(operator):
    operator.go("Limits", IN_CAUSE % json.dumps(f"the limit {STUCK}"))
    operator.click(STUCK)
    operator.fill("value", "6")
    operator.fill("reason", "jobs wait")
    operator.go("Set limit")
    operator.confirm("Set limit")


def mend_flood(operator):
    operator.go("search_index", IN_CAUSE % json.dumps("search_index"))
    operator.fill("reason", "flood")
    operator.go("Pause queue")
    operator.confirm("Pause queue")


def mend_bad_deploy(operator):
    operator.go("Dead", IN_CAUSE % json.dumps(f"jobs of {BAD_DEPLOY} fail"))
    operator.page.evaluate("document.querySelector('select[name=all]').value = 'yes'")
    operator.clicks += 1
    operator.go("Retry", "document.querySelector('.actions')")
    operator.confirm("Retry")


def mend_poison(operator):
    operator.go("interrupted")
    operator.page.evaluate("document.querySelector('select[name=all]').value = 'yes'")
    operator.clicks += 1
    operator.go("Kill", "document.querySelector('.actions')")
    operator.confirm("Kill")


def mend_wrong_rule(operator):
    operator.go(WRONG_QUEUE, IN_CAUSE % json.dumps(WRONG_QUEUE))
    operator.go("Drop all jobs")
    operator.confirm("Drop all jobs")


class Incident(NamedTuple):
    mend: Callable[[Operator], None]
    mended: Callable[..., bool]
    """Called with the clients of both shards."""


INCIDENTS = {
    "stuck limit": Incident(mend_stuck_limit, lambda _main, shop: shop.hexists(keys.limit(STUCK), "override")),
    "flood": Incident(mend_flood, lambda main, _shop: b"search_index" in main.smembers(keys.PAUSED)),
    "bad deploy": Incident(mend_bad_deploy, lambda _main, shop: shop.zcard(keys.DEAD) == 0),
    "poison class": Incident(mend_poison, lambda _main, shop: shop.zcard(keys.INTERRUPTED) == 0),
    "wrong rule": Incident(mend_wrong_rule, lambda main, _shop: main.llen(keys.queue(WRONG_QUEUE)) == 0),
}


@pytest.mark.campaign
def test_incidents_are_solved_in_the_browser(
    browser, site, redis, second_redis, tmp_path, monkeypatch, record_property
):
    monkeypatch.setattr(sample_platform, "_FLOOD_JOBS", 500)
    monkeypatch.setattr(sample_platform, "_HOURS", 1)
    SamplePlatform({"main": redis, "shop": second_redis, "media": second_redis}).write()
    with closing(BrowserPage(browser, tmp_path)) as page:
        for name, incident in INCIDENTS.items():
            assert not incident.mended(redis, second_redis), name
            operator = Operator(page, site)
            incident.mend(operator)
            assert incident.mended(redis, second_redis), f"{name}: {page.text()}"
            record_property(name, f"{operator.clicks} clicks, {time.monotonic() - operator.begun:.1f} s")
        assert page.problems == []
