"""A producer needs no ceremony: real programs that import a worker and push."""

import json

import pytest

from framework.wire import keys


def test_the_first_push_reads_the_configuration_and_connects(site, redis):
    code = "import jobs; print(jobs.NoopWorker.perform_async(1)); print(jobs.NoopWorker.route())"
    ended = site.run("-c", code)
    jid, route = ended.stdout.splitlines()  # stdout is the application's alone
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(redis.lindex("queue:default", 0))["jid"] == jid
    assert "queue='default', shard='main'" in route


def test_redis_url_sets_main(site, second_redis, second_redis_url, redis):
    assert site.run("-c", "import jobs; jobs.NoopWorker.perform_async()", REDIS_URL=second_redis_url).returncode == 0
    assert (second_redis.llen("queue:default"), redis.dbsize()) == (1, 0)


def test_routing_rules_reach_another_shard(site, redis, second_redis, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    site.write("routing.yml", {"routing_rules": [["worker_name=PlainWorker", "routed", "second"]]})
    code = (
        "from framework import ApplicationWorker\n"
        "class PlainWorker(ApplicationWorker):\n"
        "    feature_category = 'not_owned'\n"
        "    def perform(self): ...\n"
        "PlainWorker.perform_async()"
    )
    ended = site.run("-c", code)
    assert ended.returncode == 0, ended.stderr
    assert second_redis.llen("queue:routed") == 1
    assert redis.dbsize() == 0


def test_importing_opens_nothing(site, short_path):
    """Neither a broken configuration nor an absent Redis matter before the first push."""
    site.write("redis.yml", "shards: [")
    code = (
        "import framework\nfrom pathlib import Path\n"
        "print([fd.name for fd in Path('/proc/self/fd').iterdir() if int(fd.name) > 2 and fd.is_socket()])"
    )
    ended = site.run("-c", code)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


@pytest.mark.parametrize("url", ["embedded", "unix:///nobody/here.sock", "redis://127.0.0.1:1/0"])
def test_when_nobody_listens_the_way_out_is_named(site, url):
    site.write("redis.yml", {"shards": {"main": {"url": url}}})
    ended = site.run("-c", "import jobs; jobs.NoopWorker.perform_async()")
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("framework.errors.ShardUnavailableError: shard 'main' is unavailable")
    for word in ("scripts/store start", "REDIS_URL", "config/redis.yml"):
        assert word in last


def test_configuration_errors_come_with_boot_or_the_first_push(site):
    site.write("redis.yml", {"shards": {"other": {"url": "redis://x"}}})
    for call in ("framework.boot()", "jobs.NoopWorker.perform_async()"):
        ended = site.run("-c", f"import framework, jobs; {call}")
        assert "ConfigurationError" in ended.stderr
        assert "redis.yml" in ended.stderr
    assert site.run("-c", "import framework, jobs; print('fine')").stdout == "fine\n"


def test_inline_runs_through_both_chains_and_touches_no_queue(site, redis):
    code = """
import jobs
from framework.wiring import chains

def middleware(name):
    class Middleware:
        def call(self, worker, job, queue, pool=None):
            print(name, job["args"])
            yield
    return Middleware

chains.client.add(middleware("client"))
chains.server.add(middleware("server"))
jobs.StrictWorker.perform_inline(7)
try:
    jobs.FailWorker.perform_inline("boom")
except ValueError as error:
    print("raised", error)
"""
    ended = site.run("-c", code)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == [
        "client [7]",
        "server [7]",
        "client ['boom']",
        "server ['boom']",
        "raised boom",
    ]
    assert redis.lrange("proof:strict", 0, -1) == [b"7"]
    assert not redis.exists("queue:default", keys.QUEUES, keys.RETRY)


def test_middleware_of_the_application_runs_in_its_worker_process(site, redis, proofs):
    (site.folder / "chained.py").write_text(
        "from framework.wiring import chains\n"
        "from jobs import NoopWorker, prove\n"
        "class Server:\n"
        "    def call(self, worker, job, queue):\n"
        "        prove('server', queue)\n"
        "        yield\n"
        "chains.server.add(Server)\n"
    )
    site.worker("-r", "chained", "-q", "default").ready()
    assert site.run("-c", "import jobs; jobs.NoopWorker.perform_async()").returncode == 0
    assert proofs("server") == ["default"]
    proofs("noop")
