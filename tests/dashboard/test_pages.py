"""What pages show of data on real servers, and to whom."""

from html.parser import HTMLParser
from urllib.parse import quote

from framework import ApplicationWorker
from framework.dashboard import Caller
from framework.dashboard.application import all_pages
from tests.dashboard.test_routes import address
from tests.harness import encoded

ADMIN, READER = Caller("ann", "admin"), Caller("bob", "read")

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)//",
    "</textarea></title><svg/onload=alert(1)>",
)


class Elements(HTMLParser):
    """Collect what would run in a page: elements and attributes that no template writes."""

    def __init__(self):
        super().__init__()
        self.scripts, self.handlers, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name in ("style", "srcdoc")]
        self.links += [value or "" for name, value in attrs if name in ("href", "action", "hx-get", "src")]
        if tag in ("script", "img", "iframe", "object", "embed"):
            self.scripts.append((tag, dict(attrs).get("src", "")))


def test_displayed_fields_are_escaped(browser, shards, redis):
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
    client = browser(ADMIN)
    assert {one["queue"] for one in client.get("/api/queues").json()["queues"]} == set(ATTACKS)
    own = [path.format(quote(one, safe="")) for one in ATTACKS for path in ("/queues/{}", "/job/{}", "/classes/{}")]
    words = [
        path + quote(ATTACKS[number]) for number, path in enumerate(("/search?q=", "/dead?class=", "/queues?shard="))
    ]
    for path in (*(address(page.path) for page in all_pages()), *own, *words):
        found = Elements()
        found.feed(client.get(path).text)
        assert all(tag == "script" and source.startswith("/static/") for tag, source in found.scripts), path
        assert not found.handlers, path
        assert not [one for one in found.links if one.lower().startswith("javascript:")], path


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
