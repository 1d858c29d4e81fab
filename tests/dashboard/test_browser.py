"""The pages in a real browser: an operator goes from the overview to a dead job, and retries it."""

from contextlib import closing

import pytest

from tests.chromium import BrowserPage, browser
from tests.harness import encoded, until

__all__ = ["browser"]

ATTACK = "<img src=x onerror=document.title='attacked'>"


@pytest.mark.slow
def test_operator_retries_a_dead_job_in_a_browser(browser, site, redis, tmp_path, free_tcp_port):
    redis.sadd("queues", ATTACK)
    redis.lpush(f"queue:{ATTACK}", encoded("Job", args=[ATTACK], queue=ATTACK))
    for jid in ("J0", "J1"):
        redis.zadd("dead", {encoded("Job", jid=jid, queue="default", error_message=ATTACK, retry_count=1): 1.0})
    process = site.start("-m", "framework", "dashboard", "--listen", f"127.0.0.1:{free_tcp_port}", "--role", "operate")
    until(lambda: "The dashboard is at" in process.output or process.popen.poll(), "the address of the dashboard")
    with closing(BrowserPage(browser, tmp_path)) as page:
        page.call("Page.navigate", url=f"http://127.0.0.1:{free_tcp_port}/")
        # The overview asks for the causes with a second request, by htmx.
        until(lambda: f"no running process serves the queue {ATTACK}" in page.text(), "the causes in the overview")
        page.click("nav.menu a[href='/dead']")
        page.click("input[value='main J0']")
        page.click("button[value=retry]")
        page.click("button.primary")
        until(lambda: "1 job moved" in page.text(), "the result of the action")
        page.click("a.primary")
        until(lambda: "J1" in page.text(), "the page of the dead set")
        assert "J0" not in page.text()
        assert page.evaluate("document.title") == "Dead · application-worker"
        assert page.problems == []
    assert redis.llen("queue:default") == 1
    assert process.end() == 0
    assert "ERROR" not in process.output
