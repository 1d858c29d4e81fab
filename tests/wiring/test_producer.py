"""Run real producer programs that import a worker and push, without any setup code."""

import json

import pytest

from framework.wire import keys
from tests.harness import encoded


def test_producer_first_push_loads_configuration(site, redis):
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


@pytest.mark.parametrize("call", ["perform_async(1)", "perform_bulk([(1,)])", "perform_in(60, 1)"])
def test_producer_push_of_a_retired_class_is_refused(site, redis, call):
    """A process without its module would drop the job: no other process would know the class."""
    ended = site.run("-c", f"import jobs; jobs.NoopWorker.{call}", FRAMEWORK_RETIRED_WORKERS='{"NoopWorker": "gone"}')
    assert ended.returncode == 1
    assert "jobs.NoopWorker: wire_name: 'NoopWorker' is also in the setting retired_workers" in ended.stderr
    assert redis.dbsize() == 0


def test_producer_import_opens_no_connection(cold_site, short_path):
    """An import reads no configuration and opens no connection; the first push does."""
    cold_site.write("redis.yml", "shards: [")
    code = (
        "import framework\nfrom pathlib import Path\n"
        "print([fd.name for fd in Path('/proc/self/fd').iterdir() if int(fd.name) > 2 and fd.is_socket()])"
    )
    ended = cold_site.run("-c", code)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


@pytest.mark.parametrize("url", ["embedded", "unix:///absent/redis.sock", "redis://127.0.0.1:1/0"])
def test_producer_without_redis_gets_the_remedy(site, url):
    site.write("redis.yml", {"shards": {"main": {"url": url}}})
    ended = site.run("-c", "import jobs; jobs.NoopWorker.perform_async()")
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("framework.errors.ShardUnavailableError: shard 'main' is unavailable")
    for word in ("application-worker store start", "REDIS_URL", "config/redis.yml"):
        assert word in last


def test_configuration_errors_come_with_boot_or_the_first_push(site):
    site.write("redis.yml", {"shards": {"other": {"url": "redis://x"}}})
    for call in ("framework.boot()", "jobs.NoopWorker.perform_async()"):
        ended = site.run("-c", f"import framework, jobs; {call}")
        assert "ConfigurationError" in ended.stderr
        assert "redis.yml" in ended.stderr
    assert site.run("-c", "import framework, jobs; print('fine')").stdout == "fine\n"


def test_inline_run_uses_both_chains_and_no_queue(site, redis):
    code = """
import jobs
from framework import middleware

def noting(name):
    class Middleware:
        def call(self, worker, job, queue, pool=None):
            print(name, job["args"])
            yield
    return Middleware

middleware.client.add(noting("client"))
middleware.server.add(noting("server"))
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


def test_worker_runs_the_applications_middleware(site, redis, proofs):
    (site.folder / "chained.py").write_text(
        "from framework import middleware\n"
        "from jobs import NoopWorker, prove\n"
        "class Server:\n"
        "    def call(self, worker, job, queue):\n"
        "        prove('server', queue)\n"
        "        yield\n"
        "middleware.server.add(Server)\n"
    )
    site.worker("-r", "chained", "-q", "default").ready()
    assert site.run("-c", "import jobs; jobs.NoopWorker.perform_async()").returncode == 0
    assert proofs("server") == ["default"]
    proofs("noop")


def test_strict_arguments_setting_applies_to_every_push_method(site, redis):
    code = """
import jobs
jobs.StrictWorker.perform_inline("7")
jobs.StrictWorker.perform_async("8")
jobs.StrictWorker.perform_bulk([("9",)])
"""
    ended = site.run("-c", code)
    assert "ArgumentsError: jobs.StrictWorker: argument 'number' does not fit" in ended.stderr
    assert redis.dbsize() == 0
    ended = site.run("-c", code, FRAMEWORK_STRICT_ARGUMENTS="warn")
    assert (ended.returncode, ended.stderr.count("arguments.not_strict")) == (0, 1)  # one line per class and minute
    assert [json.loads(data)["args"] for data in redis.lrange("queue:default", 0, -1)] == [["9"], ["8"]]
    assert redis.lrange("proof:strict", 0, -1) == [b"7"]
    assert site.run("-c", code, FRAMEWORK_STRICT_ARGUMENTS="off").stderr == ""


def test_size_settings_apply_to_every_push_method(site, redis):
    code = "import jobs; jobs.NoopWorker.perform_bulk([(1,), ('x' * 500,)])"
    sizes = {"compression_threshold": 100, "limit": 200, "decompressed_limit": 300}
    site.write("application.yml", {"size_limit": sizes})
    assert "(job 1 of the bulk)" in site.run("-c", code).stderr
    assert redis.dbsize() == 0
    site.write("application.yml", {"size_limit": {**sizes, "decompressed_limit": 3_000}})
    assert site.run("-c", code).stderr == ""
    site.write("application.yml", {"size_limit": {**sizes, "mode": "track"}})
    assert "event_name='payload.oversize'" in site.run("-c", code).stderr
    assert [json.loads(data).get("size_limiter") for data in redis.lrange("queue:default", 0, -1)] == [
        "tracked",
        None,
        "validated",
        None,
    ]


def test_poller_applies_size_settings_to_changed_jobs(site, redis, proofs):
    site.write(
        "application.yml", {"size_limit": {"compression_threshold": 100, "limit": 200, "decompressed_limit": 3_000}}
    )
    (site.folder / "chained.py").write_text(
        "from framework import middleware\n"
        "from jobs import NoopWorker\n"
        "class Grow:\n"
        "    def call(self, worker, job, queue, pool):\n"
        "        job['args'].append('x' * 500)\n"
        "        yield\n"
        "middleware.client.add(Grow)\n"
    )
    redis.zadd(keys.SCHEDULE, {encoded("NoopWorker", args=["small"], jid="due"): 1})
    process = site.worker("-r", "chained", "-q", "default").ready()
    assert proofs("noop") == ["due"]
    assert process.line(job_status="done", jid="due")["original_job_size_bytes"] == 512
