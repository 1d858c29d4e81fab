"""Serve Sidekiq's own page and the dashboard on one Redis: each shows what the other side made, and what was done on the other."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from html import unescape
from typing import Any

import httpx
import pytest
from redis import Redis
from starlette.testclient import TestClient

from framework.admin.diagnosis.facts import Installation
from framework.admin.explain import KnownClasses
from framework.all_settings import load
from framework.dashboard import Caller, app, application
from tests.admin.conftest import bound
from tests.harness import RUBY, encoded, enqueue, opened, register_process
from tests.interop.conftest import Gems, Ruby, poll_until

_TOKEN = re.compile(r'name=.authenticity_token. value=.([^\'"]+)')
SETS = {"/scheduled": ("schedule", "/scheduled"), "/retries": ("retry", "/retries"), "/morgue": ("dead", "/dead")}
"""The key of each page of Sidekiq, and the page of the dashboard."""


class SidekiqWeb:
    """The page of Sidekiq, used as a browser does it: a form is sent with the token of its page."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def text(self, path: str) -> str:
        answer = self._client.get(path)
        assert answer.status_code == 200, answer.text
        return unescape(answer.text)

    def send(self, page: str, path: str = "", **fields: Any) -> None:
        text = self.text(page)
        # Sidekiq 8 has no token, and looks at Sec-Fetch-Site.
        token = _TOKEN.search(text)
        given = {"authenticity_token": token[1]} if token else {}
        answer = self._client.post(path or page, data={**given, **fields})
        assert answer.status_code == 200, answer.text

    def act(self, redis: Redis, page: str, action: str, jid: str) -> None:
        """Do it with the selected job of a page."""
        key = SETS[page][0]
        (score,) = (score for data, score in redis.zrange(key, 0, -1, withscores=True) if jid.encode() in data)
        self.send(page, **{"key[]": f"{score}-{jid}", action: "1"})


class Dashboard:
    """The dashboard of the same Redis. Each read has an address of its own: those with one address are shared for two seconds."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self._number = itertools.count()

    def read(self, path: str) -> Any:
        answer = self._client.get(f"/api{path}", params={"n": str(next(self._number))})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def jids(self, page: str) -> set[str]:
        return {one["jid"] for one in self.read(page)["jobs"]}

    def send(self, path: str, **fields: Any) -> str:
        data = {"token": self._client.cookies.get("aw_token") or self._token(), "confirmed": "yes", **fields}
        answer = self._client.post(path, data=data)
        assert answer.status_code == 200, answer.text
        return answer.text

    def _token(self) -> str:
        self._client.get("/")
        return str(self._client.cookies["aw_token"])


@pytest.fixture(scope="session")
def rack(ruby_console: Ruby, server: Any, sidekiq: Gems, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve Sidekiq's page for the whole session, and return its address."""
    with sidekiq.web(server.url, tmp_path_factory.mktemp("rack") / "web.log") as url:
        yield url


@pytest.fixture
def web(rack: str, ruby: Ruby) -> Iterator[SidekiqWeb]:
    headers = {"Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=rack, headers=headers, follow_redirects=True, timeout=30) as client:
        yield SidekiqWeb(client)


@pytest.fixture
def site(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    monkeypatch.setattr(application, "read_installation", lambda: Installation(load({}), KnownClasses({})))
    for _ in bound({"main": opened(redis_url)}):
        yield Dashboard(TestClient(app(lambda _: Caller("ann", "admin")), base_url="http://localhost"))


def fill(redis: Redis) -> None:
    """Write four jobs of Ruby into each set."""
    for key, _ in SETS.values():
        for number in range(4):
            more = {} if key == "schedule" else {"retry_count": 1, "error_class": "ArgumentError", "failed_at": 1.5}
            data = encoded("Ruby::OnlyWorker", jid=f"{key}{number}", queue="mail", error_message="é😀", **more)
            redis.zadd(key, {data: time.time() + 3600 + number})


def queued(redis: Redis) -> set[str]:
    return {json.loads(data)["jid"] for data in redis.lrange("queue:mail", 0, -1)}


def test_action_on_jobs_is_seen_on_both_pages(web, site, redis):
    fill(redis)
    for page, (key, own) in SETS.items():
        assert site.jids(own) == {f"{key}{number}" for number in range(4)}
        assert all(f"{key}{number}" in web.text(page) for number in range(4))
    # On Sidekiq's page: the dashboard shows what is left, and where the job is now.
    for page, action, jid in (
        ("/scheduled", "delete", "schedule0"),
        ("/scheduled", "add_to_queue", "schedule1"),
        ("/retries", "delete", "retry0"),
        ("/retries", "retry", "retry1"),
        ("/retries", "kill", "retry2"),
        ("/morgue", "delete", "dead0"),
        ("/morgue", "retry", "dead1"),
    ):
        web.act(redis, page, action, jid)
        assert jid not in site.jids(SETS[page][1])
    assert site.jids("/dead") == {"dead2", "dead3", "retry2"}
    assert site.jids("/queues/mail") == queued(redis) == {"schedule1", "retry1", "dead1"}
    # On the dashboard: Sidekiq's page shows it.
    for own, action, jid, page in (
        ("/scheduled", "delete", "schedule2", "/scheduled"),
        ("/scheduled", "enqueue_now", "schedule3", "/scheduled"),
        ("/retries", "kill", "retry3", "/retries"),
        ("/dead", "delete", "dead2", "/morgue"),
        ("/dead", "retry", "dead3", "/morgue"),
    ):
        assert "1 job" in site.send(own, action=action, job=f"main {jid}")
        assert jid not in web.text(page)
    assert all(jid in web.text("/morgue") for jid in ("retry2", "retry3"))
    assert all(jid in web.text("/queues/mail") for jid in ("schedule3", "dead3"))
    # All at once, and the whole queue.
    fill(redis)
    web.send("/retries", "/retries/all/kill", kill="1")
    assert site.jids("/retries") == set()
    assert {f"retry{number}" for number in range(4)} <= site.jids("/dead")
    site.send("/dead", action="delete", all="yes")
    assert redis.zcard("dead") == 0
    assert "retry0" not in web.text("/morgue")
    assert site.send("/deleted", action="undo", all="yes")
    assert "retry0" in web.text("/morgue")
    web.send("/queues", "/queues/mail", delete="1")
    assert not queued(redis)
    assert site.read("/queues")["queues"] == []


def test_queue_is_cleared_and_its_jobs_deleted_on_both_pages(web, site, redis):
    for number in range(3):
        enqueue(redis, "Ruby::OnlyWorker", jid=f"j{number}", queue="mail")
    web.send("/queues/mail", "/queues/mail/delete", key_val=redis.lindex("queue:mail", 1).decode())
    assert site.jids("/queues/mail") == {"j0", "j2"}
    assert "2 jobs dropped" in site.send("/queues/mail", action="clear", shard="main")
    assert "mail" not in web.text("/queues").partition("<h3>Queues")[2]


def test_signal_to_a_process_is_the_same_from_both_pages(web, site, redis):
    facts = {
        "hostname": "ruby",
        "pid": 1,
        "identity": RUBY,
        "tag": "",
        "labels": [],
        "queues": ["mail"],
        "concurrency": 3,
    }
    register_process(redis, {**facts, "started_at": 1}, busy=1, beat=time.time())
    assert [one["identity"] for one in site.read("/processes")["processes"]] == [RUBY]
    for signal, name in (("quiet", "TSTP"), ("stop", "TERM")):
        site.send("/processes", action=signal, process=f"main {RUBY}")
        web.send("/busy", identity=RUBY, **{signal: "1"})
        assert redis.lrange(f"{RUBY}-signals", 0, -1) == [name.encode()] * 2
        redis.delete(f"{RUBY}-signals")


@pytest.mark.campaign
def test_processes_of_both_languages_are_steered_from_both_pages(
    jobs, web, site, ruby, environment, ruby_server, python_server, noted, redis
):
    """Both serve one queue. Ruby reads its signals each five seconds."""
    environment["FRAMEWORK_FOREIGN_CLASSES"] = "HeldWorker"

    def running() -> dict[str, str]:
        return {one["jid"]: one["process"] for one in site.read("/running")["jobs"]}

    def label(identity: str) -> str:
        """Return what Sidekiq's page shows of a process."""
        host_and_pid = identity.rpartition(":")[0]
        (row,) = (row for row in web.text("/busy").split("<tr>") if f"{host_and_pid}\n" in row)
        return row

    with ruby_server() as in_ruby:
        held = ruby("perform_async", **{"class": "HeldWorker", "args": ["interop:gate"]})
        poll_until(lambda: redis.llen("queue:default") == 0, "Ruby takes its job")
        with python_server() as in_python:
            waiting = jobs.WaitingWorker.perform_async("interop:wait")
            found = poll_until(lambda: len(one := running()) == 2 and one, "both run a job")
            by_language = {"ruby": found[held], "python": found[waiting]}
            (queue,) = site.read("/queues")["queues"]
            assert (queue["queue"], queue["processes"], queue["slots"]) == ("default", 2, 3)
            assert {one["identity"]: one["busy"] for one in site.read("/processes")["processes"]} == dict.fromkeys(
                by_language.values(), 1
            )
            assert all(text in web.text("/busy") for text in (held, waiting, *by_language.values()))

            # Each is quieted from the page of the other side.
            site.send("/processes", action="quiet", process=f"main {by_language['ruby']}")
            web.send("/busy", identity=by_language["python"], quiet="1")
            for identity in by_language.values():
                poll_until(lambda one=identity: ">quiet<" in label(one), "quiet on Sidekiq's page")
            poll_until(
                lambda: all(one["is_quiet"] for one in site.read("/processes")["processes"]), "quiet on the dashboard"
            )

            # And stopped: the running jobs end before.
            redis.set("interop:gate", 1)
            redis.rpush("interop:wait", 1)
            web.send("/busy", identity=by_language["python"], stop="1")
            assert in_python.ended() == 0
            assert noted("python", 1) == [["WaitingWorker", "interop:wait"]]
        site.send("/processes", action="stop", process=f"main {by_language['ruby']}")
        assert in_ruby.ended() == 0
    assert site.read("/processes")["processes"] == []
    assert by_language["ruby"] not in web.text("/busy")
    assert (redis.get("stat:processed"), redis.llen("queue:default")) == (b"2", 0)


@pytest.mark.campaign
def test_job_that_failed_in_ruby_is_killed_and_runs_in_python(
    jobs, web, site, ruby_server, ruby, python_server, noted, redis
):
    with ruby_server():
        jid = ruby("perform_async", **{"class": "HandoverWorker", "args": [1]})
        (job,) = poll_until(lambda: site.read("/retries")["jobs"], "the failure of Ruby")
    assert (job["jid"], job["error_class"], job["error_message"]) == (jid, "ArgumentError", "not for Ruby: é😀")
    assert "not for Ruby: é😀" in web.text("/retries")
    site.send("/retries", action="kill", job=f"main {jid}")
    web.act(redis, "/morgue", "retry", jid)
    with python_server():
        assert noted("python", 1) == [["HandoverWorker", 1]]
    assert jid not in web.text("/morgue")
    assert site.jids("/dead") == site.jids("/retries") == set()
