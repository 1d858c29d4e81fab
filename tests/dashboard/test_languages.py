"""No English sentence is on any page, preview or refusal in Chinese: the pages of the sample platform, as a viewer gets them."""

import re
from html import unescape

import pytest

from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from framework.devtools import sample_platform
from framework.devtools.sample_platform import BATCH, FLOOD, STUCK, WORKFLOW, SamplePlatform
from framework.wire import keys
from framework.wire.json import loads_object

_SHOWN_AS_IT_IS = re.compile(r"<(script|style|code|pre|option)\b.*?</\1>", re.DOTALL)
_ENGLISH = re.compile(r"\b[a-z]{2,}(?: [a-z]{2,}){2,}\b")
"""Three English words in a row."""
_DATA = (
    *("the process was killed while it ran the job", "no answer after", "nightly export", "orders of the last day"),
    *("nightly mails", "application-worker", "for the test", "their endpoint answers 503", "the warehouse is busy"),
    *("roll out slowly", "all tenants since Monday", "the image host is slow"),
    *("the payment provider has closed the connection", "invalid literal for int() with base N", "deadlock detected"),
    *("invalid literal for int() with base 10",),
)
"""Texts of the sample and of the forms: what users write is not translated."""
_FORM = {"minutes": "60", "percent": "50", "reason": "for the test", "value": "7", "rate": "9", "name": "some_flag"}
_FORM |= {"fate": "requeue", "cron": "0 3 * * *"}


def english(html):
    """Return the English sentences among the texts of a page."""
    text = unescape(re.sub("<[^>]*>", "\n", _SHOWN_AS_IT_IS.sub("", html)))
    # A command that can be pasted is no sentence.
    text = re.sub(r"`[^`]*`|\bapplication-worker [^\n]*|\bpy-spy [^\n]*", "", text)
    for one in _DATA:
        text = text.replace(one, "")
    return [line.strip() for line in text.splitlines() if _ENGLISH.search(line)]


def forms(page, html):
    """Yield a form for each action of a page, with its first rows."""
    rows = re.findall(r'name="(job|row|process)" value="([^"]*)"', html)[:2]
    token = re.search(r'name="token" value="([^"]*)"', html)
    for number, action in enumerate(page.actions):
        chosen = {name: [unescape(value) for each, value in rows if each == name] for name, _ in rows}
        yield {**_FORM, **chosen, "action": action.name, "token": token[1] if token else ""}
        # The actions of a page share what they say of an empty form.
        if not number:
            yield {"action": action.name, "token": token[1] if token else ""}


@pytest.fixture
def platform(redis, second_redis, shards, monkeypatch):
    """Write the sample platform, with a small flood, and return the words of the paths."""
    monkeypatch.setattr(sample_platform, "_FLOOD_JOBS", 60)
    monkeypatch.setattr(sample_platform, "_HOURS", 1)
    SamplePlatform({"main": redis, "shop": second_redis, "media": second_redis}).write()
    (dead,) = second_redis.zrange(keys.DEAD, 0, 0)
    words = {"queue": "search_index", "class": FLOOD, "batch": BATCH, "workflow": WORKFLOW, "task": "t1"}
    return words | {"jid": loads_object(dead)["jid"]}


@pytest.mark.slow
def test_no_english_sentence_on_any_page_in_chinese(browser, platform):
    client = browser(Caller("ann", "admin"))
    client.headers["accept-language"] = "zh"
    found = {}
    for page in all_pages():
        path = re.sub(r"{(\w+)(:path)?}", lambda word: platform[word[1]], page.path)
        html = client.get(path).text
        found[path] = english(html)
        for form in forms(page, html):
            found[path, form["action"], len(form)] = english(client.post(path, data=form).text)
    for rule in (
        "query=urgency~high&queue=a%20b",
        "query=(%26queue=x",
        "query=urgency=hihg%20&to=none",
        "query=name&queue=q",
    ):
        found[rule] = english(client.get(f"/routing?{rule}").text)
    for path in (f"/classes/{STUCK}", "/queues/none", "/queues?sort=x", "/causes?class=" + STUCK):
        found[path] = english(client.get(path).text)
    left = {name: one for name, one in found.items() if one}
    assert left == {}
    assert english("<p>no process runs on this shard</p>") != []
