"""Check the queues that a process serves, and its first log line, which names them and their source."""

import json

import pytest

from tests.harness import ROOT, until

ONE = """
from framework import ApplicationWorker


class HelloWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self) -> None:
        print("hello")
"""
MORE = """

class FastWorker(ApplicationWorker):
    feature_category = "not_owned"
    urgency = "high"
    retry_queue = "again"
    aliases = ("OldWorker",)

    def perform(self) -> None:
        print("fast")
"""
FAR = """

class FarWorker(ApplicationWorker):
    feature_category = "not_owned"
    shard = "second"

    def perform(self) -> None: ...
"""


@pytest.fixture
def boot(site):
    """Start a worker on the module `hello` with this text, and return its first line; no config folder but redis.yml's."""

    def start(text, *options, **env):
        (site.folder / "hello.py").write_text(text)
        process = site.start(str(ROOT / "scripts" / "worker"), "-r", "hello", *options, **env)
        return process, process.line(event_name="process.ready")

    return start


def served(line):
    return line["queues"], line["queues_from"]


def weights(redis, line):
    return json.loads(redis.hget(line["identity"], "info"))["weights"][0]


def test_worker_without_files_serves_its_classes(boot, site, redis):
    process, line = boot(ONE)
    assert served(line) == (["hello"], "the loaded classes")
    site.run("-c", "import hello; hello.HelloWorker.perform_async()")
    process.line(job_status="done")
    assert process.end() == 0
    assert not process.find(severity="WARN")


def test_worker_restarted_serves_a_second_class(boot, site):
    first, _ = boot(ONE)
    first.end()
    process, line = boot(ONE + MORE)
    assert served(line) == (["again", "fast", "hello", "old"], "the loaded classes")
    site.run("-c", "import hello; hello.FastWorker.perform_async()")
    assert process.line(job_status="done")["class"] == "FastWorker"


def test_worker_without_files_serves_queues_of_the_last_release(boot, site, redis):
    """A rule has moved the class since. Queues of classes that are not loaded here are not served, and of unknown ones neither."""
    (site.folder / "workers").mkdir()
    entries = {
        name: {"place": f"a.{name}", "queue": queue, "shard": "main"}
        for name, queue in (("HelloWorker", "greetings"), ("FarWorker", "far"))
    }
    manifest = site.folder / "workers" / "released.yml"
    manifest.write_text(json.dumps({"workers": entries, "former_queues": {"older": {"main": "2026-01-01"}}}))
    process, line = boot(ONE)
    assert served(line) == (["greetings", "hello"], "the loaded classes")
    process.end()
    del entries["FarWorker"]
    manifest.write_text(
        json.dumps({"workers": entries, "former_queues": {"older": {"main": "2026-01-01", "second": "2026-01-01"}}})
    )
    _, line = boot(ONE)
    assert served(line) == (["greetings", "hello", "older"], "the loaded classes")


def test_queues_of_classes_are_weighted_like_generated_ones(boot, redis):
    _, line = boot(ONE + MORE)
    until(lambda: redis.exists(line["identity"]), "the record")
    assert weights(redis, line) == {"again": 3, "fast": 3, "hello": 1, "old": 3}


def test_queues_of_classes_follow_the_rules(boot, site):
    site.write("routing.yml", {"routing_rules": [["urgency=high", "urgent"]]})
    _, line = boot(ONE + MORE)
    assert served(line)[0] == ["again", "hello", "urgent"]


def test_queues_of_classes_are_those_of_the_shard(short_path, redis_url, second_redis_url, boot, site):
    site.write("redis.yml", {"shards": {"main": {"url": redis_url}, "second": {"url": second_redis_url}}})
    assert served(boot(ONE + FAR)[1])[0] == ["hello"]
    assert served(boot(ONE + FAR, "--shard", "second")[1])[0] == ["far"]


def test_own_queues_shard_without_classes_is_warned(boot, site, redis_url, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": redis_url}, "second": {"url": second_redis_url}}})
    process, line = boot(ONE, "--shard", "second")
    assert served(line) == (["default"], "the loaded classes")
    assert "--shard" in process.line(event_name="boot.no_queues")["message"]


def test_own_queues_options_and_files_override_the_classes(boot, site):
    assert served(boot(ONE, "-q", "a")[1]) == (["a"], "-q")
    site.write("sidekiq.yml", {"queues": ["b"]})
    file = str(site.folder / "config" / "sidekiq.yml")
    assert served(boot(ONE, "-C", file)[1]) == (["b"], f"-C {file}")
    assert served(boot(ONE, "-C", file, FRAMEWORK_QUEUES='["c"]')[1]) == (["c"], "FRAMEWORK_QUEUES")
    site.write("queues.yml", {"queues": [["d", 1]]})
    assert served(boot(ONE)[1]) == (["d"], "config/queues.yml")


def generate(site):
    done = site.run(str(ROOT / "scripts" / "generate_queues"), "-r", "hello")
    assert done.returncode == 0, done.stderr


def test_own_queues_newer_class_is_served_with_warning(boot, site):
    (site.folder / "hello.py").write_text(ONE)
    generate(site)
    fresh, line = boot(ONE)
    assert served(line) == (["hello"], "config/queues.yml")
    assert not fresh.find(event_name="queues.stale")
    process, line = boot(ONE + MORE)
    assert served(line) == (["hello", "again", "fast"], "config/queues.yml")
    (warning,) = process.find(event_name="queues.stale")
    assert warning["queues"] == ["again", "fast"]
    assert "Run `scripts/generate_queues`" in warning["message"]  # the form of the command that started the process
    site.run("-c", "import hello; hello.FastWorker.perform_async()")
    assert process.line(job_status="done")["class"] == "FastWorker"


def test_own_queues_queue_of_a_newer_rule_is_served(boot, site):
    (site.folder / "hello.py").write_text(ONE)
    generate(site)
    site.write("routing.yml", {"routing_rules": [["*", "all"]]})
    process, line = boot(ONE)
    assert served(line)[0] == ["hello", "all"]
    assert process.find(event_name="queues.stale")


def test_own_queues_class_removed_from_the_file_is_unserved(boot, site):
    (site.folder / "hello.py").write_text(ONE + MORE)
    generate(site)
    site.write("queues.yml", {"queues": [["hello", 1]]})
    process, line = boot(ONE + MORE)
    assert served(line)[0] == ["hello"]
    assert not process.find(event_name="queues.stale")


def test_own_queues_file_written_by_hand_is_used(boot, site):
    site.write("queues.yml", {"queues": [["hello", 1]]})
    _, line = boot(ONE + MORE)
    assert served(line)[0] == ["hello"]


def test_own_queues_unreadable_generated_file_is_ignored(boot, site):
    (site.folder / "hello.py").write_text(ONE)
    generate(site)
    (site.folder / "workers" / "all_queues.yml").write_text("{")
    _, line = boot(ONE + MORE)
    assert served(line)[0] == ["hello"]
