"""Incidents, each solved in the browser only: an operator goes from the overview to the cause, and mends it. Clicks are counted.

Five are written as they look in Redis, and five are caused by faults of real processes and servers. The report of the campaigns has
the clicks of each, and the seconds until its cause was seen, and until it was mended. They are those of the pages: the operator does
not read.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import pytest
from redis import Redis

from framework.devtools import sample_platform
from framework.devtools.sample_platform import BAD_DEPLOY, STUCK, WRONG_QUEUE, SamplePlatform
from framework.shard.memory_report import read_report
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer, store_dir
from framework.wire import keys
from tests.admin.diagnosis.test_faults import QUICK, Lab, cron_disabled, lock_left
from tests.chromium import BrowserPage, browser
from tests.dashboard.test_browser import site
from tests.harness import encoded, until

__all__ = ["browser", "site"]

IN_CAUSE = "[...document.querySelectorAll('#causes li')].find(one => one.textContent.includes(%s))"
"""The element of a cause in the overview."""
IN_PAGE = "document.querySelector('main')"


class Operator:
    """Someone with a mouse who reads the page."""

    def __init__(self, page: BrowserPage, site: str) -> None:
        self.page, self.clicks, self.begun = page, 0, time.monotonic()
        self.seen_s = 0.0
        """The seconds until the first click: the page that names the cause is there."""
        page.open(f"{site}/")

    @property
    def report(self) -> str:
        """The clicks and seconds."""
        return f"{self.clicks} clicks, seen in {self.seen_s:.1f} s, mended in {time.monotonic() - self.begun:.1f} s"

    def click(self, text: str, place: str = IN_PAGE) -> None:
        """Click a link, button or box whose text or value has these words."""
        found = (
            f"[...({place})?.querySelectorAll('a, button, input[type=checkbox], summary') ?? []]"
            f".find(one => (one.textContent + (one.value ?? '')).includes({json.dumps(text)}))"
        )
        until(lambda: self.page.evaluate(f"!!{found}"), f"{text} in the page: {self.page.text()}")
        self.seen_s = self.seen_s or time.monotonic() - self.begun
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
            record_property(name, operator.report)
        assert page.problems == []


# --- faults of real processes and servers


ROW = "document.querySelector('tbody')"


def dead_shard(lab):
    lab.worker(*QUICK)
    os.kill(lab.server.pid, signal.SIGKILL)
    until(lambda: not lab.server.running, "the end of the server")


def mend_dead_shard(operator):
    operator.go("Shards", IN_CAUSE % json.dumps("the shard main does not answer"))
    operator.click("main", ROW)
    operator.go("Start store")
    operator.confirm("Start store")


def runs_jobs_again(lab):
    lab.push("QuickWorker", count=5)
    until(lambda: not lab.client.llen("queue:quick"), "the worker runs jobs again")


def cron_missed(lab):
    """Disable an entry, and wait for a tick that it misses."""
    cron_disabled(lab)
    disabled_at = time.time()
    until(lambda: time.time() // 60 > disabled_at // 60, "the next minute", timeout_s=90)


def mend_cron(operator):
    operator.go("Cron", IN_CAUSE % json.dumps("the cron entry TickWorker is disabled"))
    operator.click("TickWorker", ROW)
    operator.go("Enable")
    operator.confirm("Enable")
    # For the tick that it has missed.
    operator.go("Back to the page")
    operator.click("TickWorker", ROW)
    operator.go("Run now")
    operator.confirm("Run now")


def ticked(lab):
    until(lambda: any(key.startswith(b"j|") for key in lab.client.keys("j|*")), "a run of the entry")


def mend_lock(operator):
    operator.go("Locks", IN_CAUSE % json.dumps("a lock of UniqueWorker is left"))
    operator.click(keys.LOCKS, ROW)
    operator.go("Release")
    operator.confirm("Release")


def accepts_equal_pushes(lab):
    assert lab.site.run("-c", "import jobs; assert jobs.UniqueWorker.perform_async(7)").returncode == 0
    assert lab.client.llen("queue:quick") == 1


BUDGET = 12_000_000


def memory_near_budget(lab):
    lab.site.write("redis.yml", {"shards": {"main": {"url": "embedded", "memory_budget": BUDGET}}})
    old = {
        "queue": "quick",
        "error_class": "KeyError",
        "error_message": "x" * 1_500,
        "failed_at": 1.0,
        "retry_count": 9,
    }
    number = 0
    while lab.client.info("memory")["used_memory"] < BUDGET * 0.95:
        lab.client.zadd("dead", {encoded("ReportWorker", jid=f"{number + at:024x}", **old): 1.0 for at in range(1_000)})
        number += 1_000
    lab.worker(*QUICK)

    def is_measured():
        report = read_report(lab.client.get(keys.MEMORY))
        return report is not None and report.parts

    until(is_measured, "the report of the memory")


def mend_memory(operator):
    operator.go("Memory", IN_CAUSE % json.dumps("the memory budget of the shard"))
    operator.click("ReportWorker in dead", ROW)
    operator.go("Delete for good")
    operator.confirm("Delete for good")


def has_memory(lab):
    until(lambda: lab.client.info("memory")["used_memory"] < BUDGET * 0.9, "free memory")


def slow_class(lab):
    lab.usual("SlowWorker", 120, 0.2)
    lab.usual("QuickWorker", 300, 0.01)
    lab.worker(*QUICK, "-c", "4")
    lab.push("SlowWorker", 40, count=40)
    lab.push("QuickWorker", count=40)
    lab.wait_late(16)


def mend_slow_class(operator):
    operator.go("SlowWorker", IN_CAUSE % json.dumps("SlowWorker is slow"))
    operator.fill("value", "1")
    operator.fill("reason", "its runs are slow")
    operator.go("Set limit")
    operator.confirm("Set limit")


def quick_jobs_run(lab):
    def waiting():
        return sum(b"QuickWorker" in job for job in lab.client.lrange("queue:quick", 0, -1))

    until(lambda: not waiting(), "the other jobs", timeout_s=120)
    assert lab.client.zcard(f"{keys.limit('SlowWorker')}:waiting:")


class Fault(NamedTuple):
    cause: Callable[[Lab], None]
    code: str
    mend: Callable[[Operator], None]
    check: Callable[[Lab], None]
    """Waits until it is mended."""


FAULTS = {
    "dead shard": Fault(dead_shard, "shard_away", mend_dead_shard, runs_jobs_again),
    "cron missed": Fault(cron_missed, "cron_disabled", mend_cron, ticked),
    "lock left": Fault(lock_left, "lock_left", mend_lock, accepts_equal_pushes),
    "memory near budget": Fault(memory_near_budget, "memory_budget", mend_memory, has_memory),
    "slow class": Fault(slow_class, "slow_class", mend_slow_class, quick_jobs_run),
}


class Store(EmbeddedServer):
    """A development store, to which tests speak too."""

    def open(self, name: str = "tests") -> Redis:
        return open_client(Endpoint(self.url), name=name)


@pytest.fixture
def lab(short_path, monkeypatch):
    """Return an installation on a development store, which the dashboard can start."""
    monkeypatch.setenv("FRAMEWORK_VAR_DIR", str(short_path / "var"))
    monkeypatch.setenv("FRAMEWORK_WORKERS_MODULE", "jobs")
    store = Store(store_dir(short_path / "var", "main"), detached=True)
    store.start()
    try:
        with closing(Lab(short_path, store, url="embedded")) as made:
            yield made
    finally:
        store.stop()


@pytest.mark.campaign
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_mended_in_the_browser(browser, lab, free_tcp_port, name, record_property):
    fault = FAULTS[name]
    fault.cause(lab)
    address = f"http://127.0.0.1:{free_tcp_port}"
    served = lab.site.start("-m", "framework", "dashboard", "--listen", address.removeprefix("http://"))
    until(lambda: address in served.output, "the address")
    folder = lab.site.folder / "browser"
    folder.mkdir()
    with closing(BrowserPage(browser, folder)) as page:
        operator = Operator(page, address)
        fault.mend(operator)
        report = operator.report
        fault.check(lab)
        record_property(name, report)
        assert page.problems == []
    done = lab.site.run("-m", "framework", "diagnose", "-r", "jobs", "--json", role="read-only")
    assert fault.code not in [one["code"] for one in json.loads(done.stdout)]
    (record,) = {
        one["actor"] for one in json.loads(lab.command("audit", "--json"))["actions"] if one["source"] == "dashboard"
    }
    assert record
