"""Test the command line of a worker process: refused options with their status and message, and the effect of options."""

import signal

import pytest

from tests.harness import ROOT, enqueue, until
from tests.servers.guarded import with_all_rights

WORKER_CLASS = """
from framework import ApplicationWorker
class OddWorker(ApplicationWorker):
    feature_category = "not_owned"
    {}
    def perform(self): ...
"""
WORKER = str(ROOT / "scripts" / "worker")


def run(site, *options, **env):
    return site.run(WORKER, *options, **env)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-q", "a,x"), "'x' in 'a,x' is not a weight"),
        (("-q", "a,0"), "from 1 up"),
        (("-q", "a,-1"), "is not a weight"),
        (("-q", "a,1.5"), "is not a weight"),
        (("-q", ",2"), "is not a queue name"),
        (("-c", "0"), "--concurrency"),
        (("-c", "many"), "--concurrency"),
        (("-t", "-1"), "--timeout"),
        (("-e", "two words"), "for example production or staging"),
        (("-C", "none.yml"), "none.yml"),
        (("--shard", "nowhere", "-r", "jobs"), "no shard is named 'nowhere'"),
        (("--queues", "a"), "--queue"),
        (("extra",), "extra"),
    ],
)
def test_worker_wrong_usage_status_2(site, options, words):
    ended = run(site, *options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("redis.yml", "shards: [", "redis.yml"),
        ("redis.yml", {"shards": {"second": {"url": "redis://x"}}}, "main"),
        ("redis.yml", {"shards": {"main": {"uri": "redis://x"}}}, "url"),
        ("routing.yml", {"routing_rules": [["urgency=hihg", "q"]]}, "high"),
        ("routing.yml", {"routing_rules": [["*", "q", "nowhere"]]}, "nowhere"),
        ("application.yml", {"concurency": 5}, "concurrency"),
        ("application.yml", {"concurrency": 0, "timeout": "x"}, "timeout"),
        ("feature_categories.yml", {"feature_categories": {"search": {}}}, "owner"),
    ],
)
def test_worker_invalid_configuration_status_78(site, file, content, words):
    site.write(file, content)
    ended = run(site, "-r", "jobs", "-q", "default")
    assert (ended.returncode, ended.stdout) == (78, "")
    assert file in ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nothing_of_that_name", "nothing_of_that_name"),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "line 1"),
        ("raise SystemExit(0)", "SystemExit"),
        (WORKER_CLASS.format("urgency = 'hihg'"), "high"),
        (WORKER_CLASS.format("shard = 'nowhere'"), "nowhere"),
    ],
    ids=["missing", "raises", "syntax", "exits", "declaration", "shard"],
)
def test_worker_module_with_import_error_status_78(site, code, words):
    (site.folder / "broken.py").write_text(code)
    ended = run(site, "-r", "broken")
    assert (ended.returncode, ended.stdout) == (78, "")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_worker_unknown_module_status_78(site):
    ended = run(site, "-r", "no_such_module", "-r", "jobs")
    assert ended.returncode == 78
    assert "no_such_module" in ended.stderr
    assert str(site.folder) in ended.stderr


def test_worker_missing_config_folder_status_78(site):
    ended = run(site, "-r", "jobs", FRAMEWORK_CONFIG_DIR="/does/not/exist")
    assert ended.returncode == 78
    assert "FRAMEWORK_CONFIG_DIR" in ended.stderr


@pytest.mark.parametrize("command", [("-m", "framework", "worker"), (WORKER,)], ids=["module", "script"])
def test_worker_help_is_printed(site, command):
    ended = site.run(*command, "--help")
    assert ended.returncode == 0
    for option in ("--queue", "--concurrency", "--shard", "--timeout", "--require", "--environment", "--config"):
        assert option in ended.stdout


def test_worker_module_output_does_not_reach_the_log(site):
    (site.folder / "loud.py").write_text("print('hello from an import')")
    process = site.worker("-r", "loud", "-q", "default").ready()
    assert process.end() == 0
    assert process.lines
    assert "hello from an import" in process.errors.read_text()


# --- where the options come from ------------------------------------------------------------------------------------


def slots(site, *options, **env):
    """Return the slots, the queues and the mode that a process registers."""
    import json

    from redis import Redis

    process = site.worker(*options, **env).ready()
    with Redis.from_url(with_all_rights(site.url)) as client:
        info = json.loads(until(lambda: client.hget(process.identity, "info"), "the process registers"))
    assert process.end(signal.SIGTERM) == 0
    return info["concurrency"], info["queues"], info["capsules"]["default"]["mode"]


def test_worker_option_overrides_environment_file_settings(site):
    site.write("application.yml", {"concurrency": 2})
    file = site.folder / "worker.yml"
    file.write_text(":concurrency: 3\n:queues:\n  - [a, 2]\n  - b\nproduction:\n  concurrency: 4\n")
    assert slots(site) == (2, ["default"], "weighted")  # the queues of the loaded classes, by their weight
    assert slots(site, "-C", str(file)) == (3, ["a", "b"], "weighted")
    assert slots(site, "-C", str(file), "-e", "production")[0] == 4
    assert slots(site, "-C", str(file), FRAMEWORK_CONCURRENCY="5")[0] == 5
    assert slots(site, "-C", str(file), "-c", "6", "-q", "z", FRAMEWORK_CONCURRENCY="5") == (6, ["z"], "strict")


def test_worker_without_queues_serves_the_generated_ones(site):
    site.write("queues.yml", {"queues": [["a", 1], ["b", 1]]})
    assert slots(site)[1:] == (["a", "b"], "random")


def test_worker_namespace_serves_its_queues(site):
    (site.folder / "named.py").write_text(
        "from framework import ApplicationWorker\n"
        "class OneWorker(ApplicationWorker):\n    feature_category = 'not_owned'\n    queue_namespace = 'ns'\n"
        "    def perform(self): ...\n"
        "class TwoWorker(OneWorker): ...\n"
    )
    assert slots(site, "-r", "named", "-q", "ns", "-q", "plain")[1] == ["ns", "ns:one", "ns:two", "plain"]


def test_worker_modules_setting_names_the_loaded_modules(site, redis, proofs):
    enqueue(redis, "NoopWorker")
    process = site.start(WORKER, "-q", "default", FRAMEWORK_WORKERS_MODULE="jobs")
    proofs("noop")
    assert process.end() == 0


def test_worker_environment_overrides_the_file(site, redis, proofs, release):
    file = site.folder / "worker.yml"
    file.write_text("queues: [a]\nrequire: no_such_module\ntimeout: 600\n")
    enqueue(redis, "LongWorker", args=["one"], queue="b")
    env = {"FRAMEWORK_QUEUES": '["b"]', "FRAMEWORK_WORKERS_MODULE": "jobs", "FRAMEWORK_TIMEOUT": "0"}
    process = site.start(WORKER, "-C", str(file), **env)
    proofs("begun:one")
    assert process.line(event_name="process.ready")["queues"] == ["b"]
    assert process.end() == 0  # the process ends at once and returns the job to its queue
    assert redis.llen("queue:b") == 1
    process = site.worker("-C", str(file), "-q", "c", "-t", "0", FRAMEWORK_QUEUES='["b"]', FRAMEWORK_TIMEOUT="600")
    assert process.ready().line(event_name="process.ready")["queues"] == ["c"]
    assert process.end() == 0


def test_worker_options_override_shard_and_environment(site, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    file = site.folder / "worker.yml"
    file.write_text("shard: second\nproduction: {queues: [p]}\ntest: {queues: [t]}\n")

    def ready(*options, **env):
        process = site.worker("-C", str(file), *options, **env)
        line = process.line(event_name="process.ready")
        assert process.end() == 0
        return line["shard"], line["queues"]

    assert ready() == ("second", ["default"])
    assert ready("--shard", "main", FRAMEWORK_ENV="test") == ("main", ["t"])
    assert ready("-e", "production", FRAMEWORK_ENV="test") == ("second", ["p"])


# --- processes that would serve no job and give no warning --------------------------------------------------------------------


def test_worker_misspelt_queue_is_served_with_a_warning(site):
    site.write("application.yml", {"limits": {"defautl": 2, "else": 2, "default": 9}, "process_limits": {"nop": 1}})
    process = site.worker("-q", "defualt", "-q", "else", "-q", "noop").ready()
    assert process.end() == 0
    warned = process.find(event_name="boot.unknown_queue")
    assert [(line["severity"], line["queue"], line["nearest"]) for line in warned] == [
        ("WARN", "defualt", "default"),
        ("WARN", "defautl", "default"),
        ("WARN", "nop", "noop"),
    ]
    assert "'nop' of the setting process_limits (did you mean 'noop'?)" in warned[2]["message"]
    assert "no worker is routed to the queue 'defualt' (did you mean 'default'?)" in warned[0]["message"]
    assert process.line(event_name="process.ready")["queues"] == ["defualt", "else", "noop"]


def test_worker_known_queue_or_namespace_gives_no_warning(site):
    (site.folder / "named.py").write_text(
        WORKER_CLASS.format("queue_namespace = 'cronjob'") + WORKER_CLASS.replace("Odd", "Even").format("")
    )
    site.write("queues.yml", {"queues": ["evenn"]})
    process = site.worker("-r", "named", "-q", "cronjob", "-q", "evenn").ready()
    assert process.end() == 0
    assert process.find(event_name="boot.unknown_queue") == []


def test_worker_without_worker_classes_warns(site):
    (site.folder / "empty.py").write_text("")
    process = site.start(WORKER, "-r", "empty", "-q", "default").ready()
    assert process.end() == 0
    assert process.line(event_name="boot.no_workers")["severity"] == "WARN"


def test_worker_file_keys_without_effect_warn_on_stderr(site):
    file = site.folder / "worker.yml"
    file.write_text(":strict: true\n:max_retries: 3\n")
    process = site.worker("-C", str(file)).ready()
    assert process.end() == 0
    assert process.lines
    logged = process.errors.read_text().splitlines()
    assert logged == [
        f"{file}: strict has no effect here",
        f"{file}: max_retries has no effect here: set max_retries in config/application.yml",
    ]


def test_worker_unknown_shard_in_the_file_status_78(site):
    file = site.folder / "worker.yml"
    file.write_text("shard: mian")
    ended = run(site, "-C", str(file), "-r", "jobs")
    assert (ended.returncode, ended.stdout) == (78, "")
    assert f"{file}: shard: no shard is named 'mian' (did you mean 'main'?)" in ended.stderr
