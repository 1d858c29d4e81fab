"""Each cause of trouble leads to a page on which an operator mends it, or sees its facts."""

import re
import time
from pathlib import Path

import framework
from framework.admin.diagnosis.diagnose import AWAY_ALERTS, readers
from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from tests.harness import encoded

FOLDER = Path(framework.__file__).parent
CODE = re.compile(r'\bcode=(?:"(\w+)" if .* else )?"(\w+)"|"(\w+)" if \w+ else "(\w+)",$', re.MULTILINE)


def codes_in_sources():
    """Return the codes that the readers of causes write."""
    files = [*(FOLDER / "admin" / "diagnosis").glob("of_*.py"), *(FOLDER / "features").glob("*/causes.py")]
    return {code for file in files for found in CODE.findall(file.read_text()) for code in found if code}


def test_each_cause_leads_to_a_page():
    codes = set(AWAY_ALERTS) | {code for one in readers() for code in one.alerts}
    pages = {page.name: set(page.mends) for page in all_pages()}
    mended = set().union(*pages.values())
    assert codes_in_sources() >= {"lock_left", "arguments", "failing", "memory_budget", "cron_missed"}
    assert codes_in_sources() - codes == set()
    assert codes - mended == set()
    assert mended - codes == set()
    # A page with a word in its path has no address of its own.
    assert [page.name for page in all_pages() if page.mends and "{" in page.path] == []


def test_cause_of_one_class_leads_to_what_is_of_this_class(browser, shards, redis):
    now = time.time()
    for number in range(20):
        failed = {"error_class": "KeyError", "error_message": "x", "failed_at": now, "retry_count": 1}
        redis.zadd("retry", {encoded("Mail", jid=f"J{number}", **failed): now + 600})
    html = browser(Caller("ann", "admin")).get("/causes").text
    assert "jobs of Mail fail with KeyError" in html
    assert 'href="/retries?class=Mail"' in html
