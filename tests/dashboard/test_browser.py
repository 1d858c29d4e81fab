"""The pages in a real browser: an operator with mouse and keyboard, and axe, which finds nothing on any page, light or dark."""

import json
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn

from framework.dashboard import Caller, app
from framework.devtools.sample_platform import STUCK
from tests.chromium import BrowserPage, browser
from tests.dashboard.sample import addresses, open_whole, sample_dashboard
from tests.harness import encoded, until

__all__ = ["browser"]

ATTACK = "<img src=x onerror=document.title='attacked'>"
AXE = Path(__file__).parent / "axe" / "axe.min.js"
RUN_AXE = """axe.run(document, {runOnly: %s, resultTypes: ['violations']}).then(found => JSON.stringify(
    found.violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))])))"""
FEW_ROWS = "document.querySelectorAll('tbody').forEach(one => [...one.rows].slice(3).forEach(row => row.remove()))"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture
def site(shards, free_tcp_port):
    """Serve the dashboard of two shards from a thread of this process, and return its address."""
    served = app(lambda _: Caller("ann", "admin"))
    server = uvicorn.Server(uvicorn.Config(served, port=free_tcp_port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, name="dashboard")
    thread.start()
    until(lambda: server.started, "the server")
    yield f"http://127.0.0.1:{free_tcp_port}"
    server.should_exit = True
    thread.join()


def violations(page, rules):
    return json.loads(page.awaited(RUN_AXE % json.dumps(rules)))


def set_theme(page, theme):
    # A transition would show colours of both themes for a moment.
    features = {"prefers-color-scheme": theme, "prefers-reduced-motion": "reduce"}
    page.call("Emulation.setEmulatedMedia", features=[{"name": one, "value": features[one]} for one in features])


def set_width(page, width):
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 500)


def overflow(page):
    return page.evaluate("Math.max(0, document.documentElement.scrollWidth - innerWidth)")


@pytest.mark.slow
def test_operator_works_with_mouse_and_keyboard(browser, site, redis, tmp_path):
    redis.sadd("queues", ATTACK)
    redis.lpush(f"queue:{ATTACK}", encoded("Job", args=[ATTACK], queue=ATTACK))
    for jid in ("J0", "J1"):
        redis.zadd("dead", {encoded("Job", jid=jid, queue="default", error_message=ATTACK, retry_count=1): 1.0})
    with closing(BrowserPage(browser, tmp_path)) as page:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=AXE.read_text(encoding="utf-8"))
        # The overview asks for the causes with a second request, by htmx.
        page.open(f"{site}/")
        assert f"no running process serves the queue {ATTACK}" in page.text()
        page.press("g")
        page.call("Input.insertText", text="dea")
        assert page.evaluate("document.querySelector('#palette li').textContent") == "Dead"
        page.press("Enter")
        until(lambda: page.evaluate("location.pathname === '/dead' && document.readyState === 'complete'"), "the page")
        assert violations(page, RULES) == []
        page.press("j")
        page.press("x")
        assert page.evaluate("document.querySelector('.actions').dataset.count") == "1"
        chosen = page.evaluate("document.querySelector('td input:checked').value").split()[-1]
        page.click("button[value=retry]")
        page.click("button.primary")
        until(lambda: "1 job moved" in page.text(), "the result of the action")
        page.click("a.primary")
        until(lambda: page.evaluate("document.title") == "Dead · application-worker", "the page of the dead set")
        # The title stands before the text has arrived.
        (left,) = {"J0", "J1"} - {chosen}
        until(lambda: left in page.text(), "the other job")
        assert chosen not in page.text()
        age = page.evaluate("document.querySelector('td time').textContent")
        page.press("t")
        assert page.evaluate("document.querySelector('td time').textContent") != age
        page.press(".")
        assert page.evaluate("document.getElementById('live').getAttribute('aria-pressed')") == "false"
        page.evaluate(
            "(box => {box.value = 'zh'; box.dispatchEvent(new Event('change'))})(document.querySelector('#language'))"
        )
        until(lambda: page.evaluate("document.documentElement.lang") == "zh", "the page in Chinese")
        assert page.problems == []
    assert redis.llen("queue:default") == 1


@pytest.mark.campaign
@pytest.mark.timeout(2400)
def test_axe_finds_nothing_on_any_page_of_the_sample(browser, free_tcp_port, tmp_path):
    found = {}
    with (
        sample_dashboard(f"127.0.0.1:{free_tcp_port}") as served,
        closing(BrowserPage(browser, tmp_path)) as page,
    ):
        page.call("Page.addScriptToEvaluateOnNewDocument", source=AXE.read_text(encoding="utf-8"))
        paths = [*addresses(served).values(), f"/activity?class={quote(STUCK)}", "/queues?shard=unknown"]
        for one in paths:
            set_theme(page, "light")
            # The job of the stack may have ended.
            path = addresses(served)["stack"] if one.startswith("/running/") else one
            open_whole(page, served + path)
            if path.startswith("/running/"):
                assert "wait_for_storage" in page.text()
            found[path, "wide"] = overflow(page)
            # The rows of a table are alike, and each takes its time.
            page.evaluate(FEW_ROWS)
            found[path, "light"] = violations(page, RULES)
            set_theme(page, "dark")
            found[path, "dark"] = violations(page, ["color-contrast"])
            set_width(page, 390)
            found[path, "phone"] = overflow(page) or violations(page, RULES)
            set_width(page, 1280)
        for key in ("?", "g"):
            page.press(key)
            found["dialog", key] = violations(page, RULES)
            page.press("Escape")
    assert {name: one for name, one in found.items() if one} == {}
