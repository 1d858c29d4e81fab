"""Test profiles of jobs: real worker processes write pages to Redis, and the command and the data API read them."""

import gzip
import json
import shutil
import subprocess
import threading
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from framework import admin
from framework.all_settings import load
from framework.errors import ArgumentsError
from framework.features.profiling.store import (
    MAX_PROFILES,
    PROFILE_TTL_S,
    JobProfile,
    keep_profile,
    read_profile,
    read_profiles,
)
from framework.wire import keys
from framework.wiring.client import ProcessClient, override
from tests import profiled_jobs as jobs
from tests.chromium import browser, browser_command
from tests.harness import Site, until

__all__ = ["browser"]


@pytest.fixture
def site(short_path, redis, redis_url, monkeypatch):
    made = Site(short_path, redis_url, warm=True)
    shutil.copy(Path(jobs.__file__), short_path / "jobs.py")
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(short_path / "config"))
    client = ProcessClient(load({"FRAMEWORK_CONFIG_DIR": str(short_path / "config")}, short_path))
    with override(client):
        yield made
    client.shards.close()
    made.close()


def test_pages_of_profiled_jobs_are_written_by_the_command(site, redis):
    worker = site.worker("-q", "default").ready()
    kinds = [jobs.SlowWorker, jobs.AsyncSlowWorker, jobs.TimedSlowWorker, jobs.IsolatedSlowWorker]
    kinds.append(jobs.AsyncIsolatedSlowWorker)
    jids = {kind: kind.set(profile=True).perform_async("a secret") for kind in kinds}
    for kind, jid in jids.items():
        size = worker.line(jid=jid, job_status="done")["profile_bytes"]
        done = site.run("-m", "framework", "jobs", "profile", jid)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{jid}.html: {kind.__name__} {jid} on main, 0."), done.stdout
        page = (site.folder / f"{jid}.html").read_text()
        assert (site.folder / f"{jid}.html").stat().st_mode & 0o777 == 0o600
        page = unescape(page)
        assert "<script>" in page
        assert "add_numbers_slowly" in page
        assert ("wait_for_a_page" in page) == issubclass(kind, jobs.AsyncSlowWorker)
        assert f"{kind.__name__} {jid}" in page
        assert "a secret" not in page
        kept = admin.profile(jid)
        assert (kept.cls, kept.shard, kept.error, kept.page_bytes, unescape(kept.html)) == (
            kind.__name__,
            "main",
            "",
            size,
            page,
        )
        assert PROFILE_TTL_S - 60 < redis.ttl(keys.profile(jid)) <= PROFILE_TTL_S
    assert jids[jobs.SlowWorker] in site.run("-m", "framework", "jobs", "profile").stdout
    listed = json.loads(site.run("-m", "framework", "jobs", "profile", "--json").stdout)["profiles"]
    assert {one["jid"] for one in listed} == set(jids.values()) == {one.jid for one in admin.profiles()}
    # Each run is profiled; the page of the last stays.
    failed = jobs.SlowWorker.set(profile=True).perform_async("fail")
    assert worker.line(jid=failed, job_status="fail")["profile_bytes"] > 10_000
    assert admin.profile(failed).error == "LookupError"
    until(lambda: admin.retries().where(cls="SlowWorker").retry().done, "the failed job in the retry set")
    worker.line(jid=failed, job_status="done")
    assert admin.profile(failed).error == ""


def test_jobs_without_a_profile_store_nothing_and_run(site, redis):
    with pytest.raises(ArgumentsError, match="profile='yes'"):
        jobs.SlowWorker.set(profile="yes")
    off = jobs.SlowWorker.set(profile=False).perform_async("x")
    plain = jobs.SlowWorker.perform_async("x")
    assert b"profile" not in b"".join(redis.lrange("queue:default", 0, -1))
    worker = site.worker("-q", "default", WITHOUT_PYINSTRUMENT="1").ready()
    wanted = [kind.set(profile=True).perform_async("x") for kind in (jobs.SlowWorker, jobs.AsyncSlowWorker)]
    # A field of Sidekiq, for its own profiler.
    redis.lpush("queue:default", json.dumps({"class": "SlowWorker", "args": ["x"], "jid": "r", "profile": "token"}))
    for jid in (off, plain, *wanted, "r"):
        assert "profile_bytes" not in worker.line(jid=jid, job_status="done")
    (line,) = worker.find(event_name="profile.not_kept")
    assert line["jid"] in wanted
    assert "PATH[profile]" in line["reason"]
    assert not redis.keys("aw:profile*")
    absent = site.run("-m", "framework", "jobs", "profile", plain)
    assert (absent.returncode, "No profile of" in absent.stderr) == (1, True)
    assert site.run("-m", "framework", "jobs", "profile").stdout == "No profile is kept.\n"
    assert site.run("-m", "framework", "jobs", "profile", "--output", "x").returncode == 2
    assert admin.profile(plain) is admin.profile("\ud800") is None


def test_a_shard_keeps_the_newest_profiles(redis):
    for number in range(MAX_PROFILES + 3):
        keep_profile(redis, JobProfile(f"j{number}", "C", 1.0, "", 4, b"page"))
    keep_profile(redis, JobProfile("j5", "C", 2.0, "KeyError", 4, b"page"))
    newest = [one.jid for one in read_profiles(redis, "main")]
    assert newest == ["j5", *(f"j{number}" for number in range(MAX_PROFILES + 2, 5, -1)), "j4", "j3"]
    assert sorted(redis.keys("aw:profile:*")) == sorted(keys.profile(jid).encode() for jid in newest)
    (empty,) = [one for one in read_profiles(redis, "main") if one.jid == "j5"]
    assert empty.html == ""
    for stored in (b"page", gzip.compress(b"page")[:-9], gzip.compress(b"\xff"), gzip.compress(bytes(65 << 20))):
        redis.hset(keys.profile("j5"), "page", stored)
        with pytest.raises(ValueError, match=r"gzip|too large|decode"):
            _ = read_profile(redis, "main", "j5").html
    # A profile expires before its name.
    redis.delete(keys.profile("j5"))
    assert [one.jid for one in read_profiles(redis, "main")] == newest[1:]


FORGED = """<html><body><script>
top.document.title = "changed"
</script><script>
fetch("ADDRESS/fetch")
</script><img src="ADDRESS/image"><link rel="stylesheet" href="ADDRESS/style"><iframe src="ADDRESS/frame"></iframe><script>
window.open("ADDRESS/window"); new Worker("ADDRESS/worker"); location = "ADDRESS/top"
</script></body></html>"""
"""A page that a client with write access to Redis put in place of a profile."""


@pytest.fixture
def requests():
    """An HTTP server, and the list of the paths that were asked for."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()
        thread.join()


def test_forged_page_of_a_profile_reaches_nothing(browser, short_path, requests):
    address, paths = requests

    def dom(text):
        paths.clear()
        (short_path / "page.html").write_text(text)
        flags = ("--dump-dom", (short_path / "page.html").as_uri())
        command = browser_command(browser, short_path, *flags)
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    forged = FORGED.replace("ADDRESS", address)
    dom(forged)
    assert {"/fetch", "/image"} <= set(paths)
    profile = JobProfile("j1", "<C>", 1.0, "", 4, gzip.compress(forged.encode()))
    assert "<title>&lt;C&gt; j1</title>" in dom(profile.html)
    assert not paths
