"""What pages show of data on real servers, and to whom."""

import copy
import json
import time
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from framework import ApplicationWorker
from framework.admin import Queue
from framework.admin.audit import acting_as
from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.admin.running_jobs import JobStack
from framework.all_settings import load
from framework.dashboard import Caller, application
from framework.dashboard.application import DashboardSite, all_pages
from framework.dashboard.pages import process_pages
from framework.features.batches import keys as batch_keys
from framework.features.breaker.store import open_breaker
from framework.features.concurrency.limit_state import LimitOverride, set_override
from framework.features.cron.admin import ScheduledEntry
from framework.features.flags.flag import Flag
from framework.features.flags.redis_flags import set_flag
from framework.features.history.marks import mark_deploy
from framework.features.leases import keys as lease_keys
from framework.features.limiters import keys as limiter_keys
from framework.features.limiters.store import resize_limiter
from framework.features.profiling.store import JobProfile, keep_profile
from framework.features.workflows import keys as workflow_keys
from framework.route.router import open_router
from framework.telemetry.stacks import StackCall
from framework.wire import keys
from tests.dashboard.test_routes import WORDS, add_groups, address
from tests.harness import encoded, register_process

HOST = "h:1:aaaaaaaaaaaa"
ADMIN, READER = Caller("ann", "admin"), Caller("bob", "read")

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)//",
    "</textarea></title><svg/onload=alert(1)>",
)


HOSTILE = quote(ATTACKS[0], safe="")
HOSTILE_WORDS = {**WORDS, **{word: HOSTILE for word in WORDS if word.startswith(("{class", "{queue", "{jid"))}}
HOSTILE_QUERY = {"search": f"?q={HOSTILE}", "activity": f"?class={HOSTILE}", "limits": f"?class={HOSTILE}"}
EMPTY = {
    # Names of loaded classes, which are Python's.
    "routing": {"classes"},
    "search": {"classes"},
    # The leaves of the tree.
    "batch": {"tree.nested[].nested"},
    # Points of lines.
    "workflow": {"graph.lines"},
    # The tests of these pages attack what they show.
    "pushes": {"files"},
    "settings": {"unknown"},
    "task": {"failures"},
    "tasks": {"tasks"},
}
"""The lists of pages that show nothing in the test of all texts."""
TEXTS = {("causes", "notes"), ("job", "places[].holds"), ("job", "problems"), ("stack", "silent")}
"""Lists of texts, which get the attack if they are empty."""


ATTACK = " ".join(ATTACKS)


class Elements(HTMLParser):
    """Collect what would run in a page: elements and attributes that no template writes."""

    def __init__(self):
        super().__init__()
        self.scripts, self.handlers, self.links, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name in ("style", "srcdoc")]
        self.links += [value or "" for name, value in attrs if name in ("href", "action", "hx-get", "src")]
        if tag in ("script", "img", "iframe", "object", "embed"):
            self.scripts.append((tag, dict(attrs).get("src", "")))

    def handle_data(self, data):
        self.text += data


def check_inert(html, where):
    """Check that nothing in the page runs but the scripts of the dashboard; return the parsed page."""
    found = Elements()
    found.feed(html)
    assert all(tag == "script" and source.startswith("/static/") for tag, source in found.scripts), where
    assert not found.handlers, where
    assert not [one for one in found.links if one.lower().startswith("javascript:")], where
    return found


def fill_hostile_jobs(redis):
    """Write jobs whose fields are attacks into each place."""
    for number, attack in enumerate(ATTACKS):
        job = {
            "jid": attack,
            "queue": attack,
            "args": [attack],
            "tags": [attack],
            "meta.user": attack,
            f"meta.{attack}": 1,
        }
        error = {"error_class": attack, "error_message": attack, "error_backtrace": [attack], "retry_count": 1}
        data = encoded(attack, **job, **error)
        redis.sadd("queues", attack)
        redis.lpush(f"queue:{attack}", data)
        redis.zadd(("schedule", "retry", "dead", "interrupted")[number % 4], {data: 1.0})


def fill_hostile_records(redis, monkeypatch):
    """Write processes, limits and other records whose names and reasons are attacks."""
    entries = []
    for number, attack in enumerate(ATTACKS):
        identity = f"h:1:aaaaaaaaaaa{number}"
        info = {"hostname": attack, "pid": 1, "tag": attack, "labels": [attack], "queues": [attack], "version": attack}
        register_process(redis, {**info, "identity": identity, "concurrency": 5, "started_at": 1.0}, identity)
        job = {"queue": attack, "payload": encoded(attack, args=[attack], tags=[attack]).decode(), "run_at": 1}
        redis.hset(f"{identity}:work", attack, json.dumps(job))
        set_override(redis, attack, LimitOverride(1, time.time() + 60, attack, attack))
        redis.zadd(batch_keys.BATCHES, {attack: time.time() + 60})
        redis.hset(batch_keys.batch(attack), mapping={"pending": 1, "total": 1, "description": attack})
        redis.hset(lease_keys.exclusive_lease(attack), mapping={"token": attack, "holder": attack, "since": "1"})
        redis.expire(lease_keys.exclusive_lease(attack), 600)
        redis.zadd(lease_keys.EXCLUSIVE_LEASES, {attack: time.time() + 600})
        redis.hset(f"{keys.LOCKS}{attack}", mapping={"class": attack, "jid": attack, "since": "1"})
        rule = json.dumps({"kind": attack, "limit": 5, "interval_s": 60})
        redis.zadd(limiter_keys.NAMES, {attack: 1})
        redis.hset(limiter_keys.limiter(attack), mapping={"rule": rule})
        resize_limiter(redis, attack, 3, 600, attack, attack)
        open_breaker(redis, attack, attack, 60)
        set_flag(redis, Flag(f"pause_jobs_{attack}", 100, attack, attack), 600)
        with acting_as(attack, "dashboard", attack):
            Queue(attack, "main").pause(reason=attack)
        keep_profile(redis, JobProfile(attack, attack, 1.0, attack, 1, b"x"))
        ended_at = time.time() - 60 * (number + 2)
        mark_deploy(redis, attack, ended_at)
        for key, _ in keys.metrics(8, time.gmtime(ended_at)):
            redis.hset(key, mapping={f"{attack}|p": 2, f"{attack}|ms": 9})
        redis.lpush(f"queue:{attack}", encoded(attack, jid=attack))
        times = {"next_tick": 1, "last_tick": 1, "last_jid": attack, "waits": True, "reason": attack}
        state = {"origin": "added", "enabled": True, "missed": "once", "overlap": "run", "offset_s": 0}
        entries.append(ScheduledEntry(attack, "main", attack, attack, attack, (attack,), **state, **times))
    # An entry whose class and expression are hostile is not usable, and is not listed.
    monkeypatch.setattr("framework.features.cron.page.cron_entries", lambda shard: entries if shard == "main" else [])


def fill_hostile_groups(redis, monkeypatch):
    """Write held jobs, slots, runs, and batches with attacks; let the process of a running job answer with a stack of attacks."""
    add_groups(redis)
    attack, now = ATTACKS[0], time.time()
    limit = keys.limit(attack)
    redis.sadd(keys.LIMITS, limit)
    redis.sadd(keys.LIMITS_WAITING, limit)
    redis.zadd(f"{limit}:turns", {"": 0})
    redis.zadd(f"{limit}:waiting:", {b'{"at": 1}\n' + encoded(attack, jid=attack, args=[attack], tags=[attack]): 1.0})
    redis.zadd(f"{limit}:running", {f"{attack} {attack}": now + 60})
    for key, bits in (
        (keys.histogram(8, attack, time.gmtime(now)), 16),
        (keys.class_waits(attack, time.gmtime(now)), 32),
    ):
        redis.execute_command("BITFIELD", key, "SET", f"u{bits}", "#1", 3)
    for key, _ in keys.metrics(8, time.gmtime(now)):
        redis.hset(key, mapping={f"{attack}|p": 3})
    redis.zadd(workflow_keys.WORKFLOWS, {"wf-1": now + 60})
    redis.hset(workflow_keys.workflow("wf-1"), mapping={"description": attack})
    callbacks = json.dumps([[attack, encoded(attack).decode()]])
    times = {"pending": 1, "total": 2, "created_at": 1, "ttl_s": 600}
    for bid, parent, more in (("aw-0", "", {}), ("aw-1", "aw-0", {"on_success": callbacks}), ("aw-2", "aw-1", {})):
        redis.hset(
            batch_keys.batch(bid), mapping={**times, "parent": parent, "description": attack, "children": 1, **more}
        )
    for bid, nested in (("aw-0", "aw-1"), ("aw-1", "aw-2")):
        redis.sadd(f"{batch_keys.batch(bid)}:children", nested)
    for place in ("dead", "failed"):
        redis.sadd(f"{batch_keys.batch('aw-1')}:{place}", attack)
    identity = "h:1:bbbbbbbbbbbb"
    register_process(redis, {"identity": identity, "hostname": "h", "pid": 1, "queues": [], "concurrency": 5}, identity)
    run = {"queue": attack, "payload": encoded(attack, jid=attack, args=[attack], tags=[attack]).decode(), "run_at": 1}
    redis.hset(f"{identity}:work", "t", json.dumps(run))
    calls = (StackCall(attack, attack, 1),)
    stack = JobStack("main", attack, attack, attack, attack, 1.0, True, attack, 1, calls)
    monkeypatch.setattr(process_pages, "read_stacks", lambda *_: SimpleNamespace(stacks=[stack], silent=[]))


def hostile(page, facts, path=""):
    """Return the facts of a page with the attacks in place of each text."""
    match facts:
        case str():
            return ATTACK
        case dict():
            return {name: hostile(page, one, f"{path}.{name}" if path else name) for name, one in facts.items()}
        case list():
            return [hostile(page, one, f"{path}[]") for one in facts] or [ATTACK] * ((page, path) in TEXTS)
        case _:
            return facts


def lists_of(facts, path=""):
    """Yield the path of each list, and whether it shows something."""
    if isinstance(facts, dict):
        for name, one in facts.items():
            yield from lists_of(one, f"{path}.{name}" if path else name)
    elif isinstance(facts, list):
        yield path, bool(facts)
        for one in facts:
            yield from lists_of(one, f"{path}[]")


CHECKED_LINKS = {"trace_url", "log_url"}
"""Addresses of settings, which are checked at the load: other tests attack the values in them."""


@pytest.fixture
def hostile_facts(monkeypatch):
    """Let each page show the attacks in each of its texts, whatever was read; return the facts by the name of the page."""
    real, shown = DashboardSite.read, {}

    async def read(site, page, view, *, is_live=False):
        shared = copy.copy(await real(site, page, view, is_live=is_live))
        links = {name: shared.facts[name] for name in CHECKED_LINKS & shared.facts.keys()}
        # A long read that goes on shows how far it is.
        partial = {"percent": 50} if "percent" in shared.facts else {}
        shared.facts, shared.parts = {**hostile(page.name, shared.facts), **links, **partial}, {}
        shown[page.name] = shared.facts
        return shared

    monkeypatch.setattr(DashboardSite, "read", read)
    return shown


def test_each_text_of_each_page_is_escaped(browser, shards, redis, monkeypatch, hostile_facts):
    """A new page, and a new text on a page, is attacked here without a further line."""
    fill_hostile_jobs(redis)
    fill_hostile_records(redis, monkeypatch)
    fill_hostile_groups(redis, monkeypatch)
    redis.zadd("dead", {encoded(ATTACK, jid="D1", error_message=ATTACK): 1.0})
    client = browser(ADMIN)
    client.get("/dead")
    form = {"token": client.cookies["aw_token"], "action": "delete", "job": "main D1", "confirmed": "yes"}
    assert "1 job" in client.post("/dead", data=form).text
    for page in all_pages():
        answer = client.get(f"{address(page.path, HOSTILE_WORDS)}{HOSTILE_QUERY.get(page.name, '')}")
        assert answer.status_code == 200, (page.name, answer.text)
        check_inert(answer.text, page.name)
    shown = {name: list(lists_of(facts)) for name, facts in hostile_facts.items()}
    empty = {
        name: {path for path, _ in one} - {path for path, is_filled in one if is_filled} for name, one in shown.items()
    }
    assert {name: paths for name, paths in empty.items() if paths} == EMPTY


def test_displayed_fields_are_escaped(browser, shards, redis):
    fill_hostile_jobs(redis)
    client = browser(ADMIN)
    assert {one["queue"] for one in client.get("/api/queues").json()["queues"]} == set(ATTACKS)
    own = [path.format(quote(one, safe="")) for one in ATTACKS for path in ("/queues/{}", "/job/{}", "/classes/{}")]
    words = [
        path + quote(ATTACKS[number]) for number, path in enumerate(("/search?q=", "/dead?class=", "/queues?shard="))
    ]
    for path in (*own, *words):
        check_inert(client.get(path).text, path)


def test_fields_of_processes_limits_and_records_are_escaped(browser, shards, redis, monkeypatch):
    fill_hostile_records(redis, monkeypatch)
    client = browser(ADMIN)
    tables = ("/locks", "/leases", "/limiters", "/breakers", "/flags")
    pages = (
        "/processes",
        "/groups",
        "/running",
        "/limits",
        "/batches",
        "/audit",
        "/cron",
        "/profiles",
        "/memory",
        "/queues",
    )
    for path in (*pages, "/activity", *tables):
        answer = client.get(path)
        found = check_inert(answer.text, path)
        # The page has shown them, as text.
        assert [attack for attack in ATTACKS if attack not in found.text] == [], path


def test_previews_and_results_of_hostile_things_are_escaped(browser, shards, redis):
    for attack in ATTACKS:
        redis.zadd("dead", {encoded(attack, jid=attack, bid=attack): 1.0})
        redis.hset(f"{keys.LOCKS}{attack}", mapping={"class": attack, "jid": attack, "since": "1"})
        set_override(redis, attack, LimitOverride(1, time.time() + 60, attack, attack))
        set_flag(redis, Flag(f"pause_jobs_{attack}", 100, attack, attack), 600)
    client = browser(ADMIN)
    client.get("/dead")

    def act(path, action, **fields):
        form = {"token": client.cookies["aw_token"], "action": action, **fields}
        answer = client.post(path, data=form)
        assert answer.status_code in (200, 400, 409), answer.text
        return check_inert(answer.text, (path, action, fields)).text

    for path, action in (("/dead", "retry"), ("/locks", "delete"), ("/limits", "clear"), ("/flags", "clear")):
        text = act(path, action, all="yes")
        assert [attack for attack in ATTACKS if attack not in text] == [], path
    act("/dead", "delete", all="yes", confirmed="yes")
    found = check_inert(client.get("/deleted").text, "/deleted")
    assert [attack for attack in ATTACKS if attack not in found.text] == []
    for attack in ATTACKS:
        act(f"/queues/{quote(attack, safe='')}", "pause", reason=attack)
        act(f"/classes/{quote(attack, safe='')}", "pause", reason=attack, minutes="5", confirmed="yes")
        act("/deleted", "undo", row=f"main {attack}", confirmed="yes")
        act("/dead", attack, job=attack)


def test_shard_that_is_away_is_shown_and_others_too(browser, silent_shards, redis):
    redis.sadd("queues", "default")
    redis.lpush("queue:default", encoded("Job"))
    found = browser(ADMIN).get("/api/queues").json()
    assert [one["queue"] for one in found["queues"]] == ["default"]
    assert list(found["unanswered"]) == ["second"]
    page = browser(ADMIN).get("/").text
    assert "does not answer" in page
    assert ">main</a>" in page


def test_reader_sees_loggable_arguments_only(browser, shards, redis, own_classes, declarations):
    class Charge(ApplicationWorker):
        feature_category = "billing"
        loggable_arguments = ("mode",)

        def perform(self, card: str, mode: str) -> None: ...

    declarations["Charge"] = Charge.declaration()
    redis.zadd("dead", {encoded("Charge", args=["4242", "fast"], jid="J1"): 1.0})
    redis.zadd("dead", {encoded("Unknown", args=["4242", 7], jid="J2"): 2.0})

    def arguments(caller):
        jobs = browser(caller).get("/api/dead").json()["jobs"]
        return {one["jid"]: one["arguments"] for one in jobs}

    assert arguments(READER) == {"J1": ["[FILTERED]", "fast"], "J2": ["[FILTERED]", 7]}
    assert arguments(Caller("ann", "operate"))["J1"] == ["4242", "fast"]
    # Of its own category it sees all, of others nothing.
    assert arguments(Caller("eve", feature_categories={"billing": "operate"})) == {"J1": ["4242", "fast"]}
    for path in ("/dead", "/api/dead", "/job/J1", "/api/job/J1"):
        assert "4242" not in browser(READER).get(path).text


def test_caller_of_one_shard_sees_nothing_of_the_other(browser, shards, redis, second_redis):
    for client, queue in ((redis, "ours"), (second_redis, "theirs")):
        client.sadd("queues", queue)
        client.zadd("dead", {encoded("Job", jid=queue): 1.0})
    client = browser(Caller("eve", shards={"main": "read"}))
    for path in ("/queues", "/dead", "/", "/api/overview"):
        assert "second" not in client.get(path).text
    assert [one["queue"] for one in client.get("/api/queues").json()["queues"]] == ["ours"]
    assert client.get("/queues?shard=second").status_code == 404


def test_job_page_explains_and_filters_choose(browser, shards, redis):
    redis.zadd("dead", {encoded("Job", jid="J1", error_class="KeyError", error_message="x"): 1.0})
    redis.zadd("dead", {encoded("Other", jid="J2"): 2.0})
    client = browser(ADMIN)
    (place,) = client.get("/api/job/J1").json()["places"]
    assert place["place"] == "dead"
    assert place["reasons"][0]["code"] == "dead"
    assert "KeyError" in client.get("/job/J1").text
    assert [one["jid"] for one in client.get("/api/dead?class=Other").json()["jobs"]] == ["J2"]
    assert [one["jid"] for one in client.get("/api/dead?error=KeyError").json()["jobs"]] == ["J1"]


def test_job_page_has_runs_events_and_links(browser, shards, redis, monkeypatch):
    error = {"error_class": "KeyError", "error_message": "x", "retry_count": 2, "failed_at": 20.0, "retried_at": 40.0}
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    redis.zadd("retry", {encoded("Shop::Job", jid="J/1", created_at=10.0, enqueued_at=30.0, **error, **trace): 2e9})
    redis.zadd("dead", {encoded("Job", jid="J2"): 50.0})
    links = {"TRACE_URL": "https://t.example/{trace_id}", "LOG_URL": "https://l.example/?q={jid}&c={class}"}
    settings = load({f"FRAMEWORK_DASHBOARD__{name}": url for name, url in links.items()})
    monkeypatch.setattr(application, "read_installation", lambda: Installation(settings, KnownClasses({})))
    client = browser(ADMIN)
    found = client.get("/api/job/J%2F1").json()
    assert [(one["at"], one["what"]) for one in found["timeline"]] == [
        (10.0, "pushed"),
        (20.0, "failed for the first time"),
        (30.0, "entered the queue default"),
        (40.0, "failed: KeyError: x"),
        (2e9, "runs again"),
    ]
    assert [(one["failed_at"], one["error_class"]) for one in found["attempts"]] == [
        (20.0, None),
        (None, None),
        (40.0, "KeyError"),
    ]
    assert found["trace_url"] == f"https://t.example/{'a' * 32}"
    assert 'href="https://l.example/?q=J%2F1&amp;c=Shop%3A%3AJob"' in client.get("/job/J%2F1").text
    # A job without a trace has no link to it.
    assert client.get("/api/job/J2").json()["trace_url"] is None
    # Of a job that has ended, its id alone is known: the other template names its class.
    assert client.get("/api/job/J3").json()["log_url"] is None


def test_running_job_has_its_process(browser, shards, redis):
    identity = "h:1:aaaaaaaaaaaa"
    facts = {"identity": identity, "hostname": "h", "pid": 1, "queues": ["default"], "concurrency": 5}
    register_process(redis, facts, identity)
    run = {"queue": "default", "payload": encoded("Job", jid="J1", retry_count=0, failed_at=5.0).decode(), "run_at": 70}
    redis.hset(f"{identity}:work", "t1", json.dumps(run))
    found = browser(ADMIN).get("/api/job/J1").json()
    assert [(one["number"], one["started_at"], one["process"]) for one in found["attempts"]] == [
        (1, None, ""),
        (2, 70.0, identity),
    ]
    assert [one["at"] for one in found["timeline"] if one["what"] == f"started in {identity}"] == [70.0]


def test_class_page_leads_to_the_errors_of_its_jobs(browser, shards, redis, own_classes, declarations):
    class Charge(ApplicationWorker):
        feature_category = "billing"

        def perform(self) -> None: ...

    declarations["Charge"] = Charge.declaration()
    for number, error in enumerate(["KeyError", "KeyError", "OSError"]):
        fields = {"jid": f"J{number}", "error_class": error, "error_message": f"no {number}"}
        redis.zadd("dead", {encoded("Charge", **fields): 1.0 + number})
        redis.zadd("dead", {encoded("Other", **{**fields, "jid": f"O{number}"}): 1.0 + number})
    page = browser(ADMIN).get("/classes/Charge").text
    for part, path in (("dead-errors", "/dead"), ("retries-errors", "/retries"), ("histograms", "/activity")):
        assert f'hx-get="{path}?class=Charge"' in page
        assert part in page
    for caller in (ADMIN, Caller("eve", feature_categories={"billing": "read"})):
        client = browser(caller)
        groups = client.get("/api/dead?class=Charge").json()["groups"]
        assert [(one["name"], one["jobs"], one["error"]) for one in groups] == [
            ("KeyError: no N", 2, "KeyError"),
            ("OSError: no N", 1, "OSError"),
        ]
        shown = client.get("/dead?class=Charge").text
        assert 'id="dead-errors"' in shown
        assert 'href="/dead?class=Charge&amp;error=KeyError"' in shown
    slots = {f"{HOST} J7": time.time() + 60, " J8": time.time() + 90}
    redis.zadd(f"{keys.limit('Charge')}:running", slots)
    found = client.get("/api/limits?class=Charge").json()["holders"]
    assert [(one["jid"], one["process"]) for one in found] == [("J7", HOST), ("J8", "")]
    assert 'href="/job/J7"' in client.get("/limits?class=Charge").text
    # Those of all classes are for a role on the shard.
    assert client.get("/api/dead").json()["groups"] == []


def test_assumed_rule_shows_what_would_move(browser, shards, own_classes, declarations, monkeypatch):
    class Job1(ApplicationWorker):
        feature_category = "not_owned"
        urgency = "high"

        def perform(self) -> None: ...

    class Job2(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self) -> None: ...

    for worker in (Job1, Job2):
        declarations[worker.declaration().wire_name] = worker.declaration()
    settings = load({})
    found = Installation(settings, KnownClasses(declarations), open_router(settings))
    monkeypatch.setattr(application, "read_installation", lambda: found)
    client = browser(READER)
    before = client.get("/api/routing").json()
    assert [one["then"] for one in before["classes"]] == [None, None]
    after = client.get("/api/routing?query=urgency%3Dhigh&queue=fast").json()
    assert [(one["class"], one["then"] and one["then"]["queue"]) for one in after["classes"]] == [
        (Job1.declaration().wire_name, "fast"),
        (Job2.declaration().wire_name, None),
    ]
    assert client.get("/api/routing?query=urgency%3D%3D").status_code == 400
    assert "would move 1 classes" in client.get("/routing?query=urgency%3Dhigh&queue=fast").text
