"""Warn about queues of loaded classes without a running process, at the boot of a producer and later in processes."""

import json

import pytest

from tests.harness import ROOT, enqueue, register_process, until

HELLO = """
from framework import ApplicationWorker


class HelloWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self) -> None: ...
"""
FAR = """

class FarWorker(ApplicationWorker):
    feature_category = "not_owned"
    shard = "second"
    retry_queue = "far_retries"

    def perform(self) -> None: ...
"""
BOOT = "import logging; logging.basicConfig(format='%(name)s %(levelname)s %(message)s'); import hello, framework; framework.boot()"
QUICK = """
from dataclasses import replace
from framework import timings
often = dict.fromkeys(
    ("record_period_s", "sweep_period_s", "first_unserved_check_s", "first_unserved_check_in_group_s",
     "unserved_check_period_s", "served_check_period_s"), 0.2)
timings.use(replace(timings.STANDARD, **often))
from framework.cli.worker import main
main()
"""
"""A worker that looks and writes its record five times a second."""

UNSERVED = "boot.unserved"


@pytest.fixture
def site_with_module(site):
    """The installation, with a module `hello`."""
    (site.folder / "hello.py").write_text(HELLO)
    return site


def two_shards(site, redis_url, second_redis_url):
    (site.folder / "hello.py").write_text(HELLO + FAR)
    site.write("redis.yml", {"shards": {"main": {"url": redis_url}, "second": {"url": second_redis_url}}})


def run_boot(site, code=BOOT):
    """Run a program whose user may read the records of processes, which the role ``producer`` may not."""
    return site.run("-c", code, role="worker")


def booted(site):
    ended = run_boot(site)
    assert ended.returncode == 0, ended.stderr
    return [line for line in ended.stderr.splitlines() if UNSERVED in line]


# --- a producer -------------------------------------------------------------------------------------------------------


def test_producer_without_a_process_is_shown_the_command(site_with_module):
    (line,) = booted(site_with_module)
    assert line.startswith(
        "framework WARNING no running process serves the queue hello of the shard main, where jobs of HelloWorker wait: "
        "start a process with `application-worker worker -r hello` "
    )


def test_producer_is_silent_while_a_process_serves(site_with_module):
    process = site_with_module.start(str(ROOT / "scripts" / "worker"), "-r", "hello")
    identity = process.identity
    until(lambda: run_boot(site_with_module).stderr == "", f"the record of {identity}")


def test_producer_counts_the_record_of_a_ruby_process(site_with_module, redis):
    register_process(redis, {"queues": ["default", "hello"]})
    assert not booted(site_with_module)


@pytest.mark.refused("role-producer srandmember")
def test_boot_with_the_role_producer_is_silent(site_with_module, redis):
    redis.config_resetstat()
    ended = site_with_module.run("-c", f"{BOOT}; hello.HelloWorker.perform_async()", role="producer")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert redis.llen("queue:hello") == 1
    assert redis.info("commandstats")["cmdstat_srandmember"]["rejected_calls"] == 1


def test_plain_push_reads_no_process_record(site_with_module, redis):
    redis.config_resetstat()
    ended = site_with_module.run("-c", "import hello; hello.HelloWorker.perform_async()")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not {"cmdstat_srandmember", "cmdstat_smembers", "cmdstat_hget"} & redis.info("commandstats").keys()


def test_producer_is_warned_of_each_shard_in_a_line(site_with_module, redis_url, second_redis_url):
    two_shards(site_with_module, redis_url, second_redis_url)
    main, second = booted(site_with_module)
    assert "`application-worker worker -r hello`" in main
    assert "the queues far, far_retries of the shard second" in second
    assert "`application-worker worker -r hello --shard second`" in second


def test_producer_is_warned_of_jobs_in_queue_of_last_release(site_with_module, redis):
    register_process(redis, {"queues": ["hello"]})
    (site_with_module.folder / "workers").mkdir()
    entry = {"place": "hello.HelloWorker", "queue": "greetings", "shard": "main"}
    (site_with_module.folder / "workers" / "released.yml").write_text(json.dumps({"workers": {"HelloWorker": entry}}))
    assert not booted(site_with_module), "no job is left"
    enqueue(redis, "HelloWorker", queue="greetings")
    (line,) = booted(site_with_module)
    assert line.startswith(
        "framework WARNING jobs of an earlier release wait in the queue greetings of the shard main, and no running process "
        "serves it: start a process with `application-worker worker -r hello`, or move the jobs with "
        "`application-worker migrate-jobs queued --follow-rules` "
    )


def test_producer_is_not_warned_of_foreign_classes(site_with_module):
    site_with_module.write("application.yml", {"foreign_classes": ["Hello*"]})
    assert not booted(site_with_module)


def test_producer_with_a_stopped_shard_continues(site_with_module, redis_url):
    (site_with_module.folder / "hello.py").write_text(HELLO + FAR)
    site_with_module.write(
        "redis.yml", {"shards": {"main": {"url": redis_url}, "second": {"url": "redis://127.0.0.1:1/0"}}}
    )
    (line,) = booted(site_with_module)
    assert "of the shard main" in line


def test_producer_leaves_no_connection_open(site_with_module):
    # The client of this test is the one that is left.
    count = "import redis, os; print(len(redis.Redis.from_url(os.environ['PROOF_URL']).client_list()))"
    assert run_boot(site_with_module, count).stdout == run_boot(site_with_module, f"{BOOT}; {count}").stdout


def test_command_leaves_out_the_module_of_the_setting(site_with_module):
    site_with_module.write("application.yml", {"workers_module": "hello"})
    (line,) = booted(site_with_module)
    assert "`application-worker worker`" in line


def test_command_names_the_queue_that_the_file_lacks(site_with_module):
    site_with_module.write("queues.yml", {"queues": [["other", 1]]})
    (line,) = booted(site_with_module)
    assert "`application-worker worker -r hello -q hello`" in line
    assert "or update config/queues.yml with `application-worker generate-queues`" in line


def test_command_of_a_program_names_its_file(site_with_module):
    (site_with_module.folder / "program.py").write_text(f"import framework\n{HELLO}\nframework.boot()\n")
    ended = site_with_module.run("program.py")
    assert "`application-worker worker -r program`" in ended.stderr


# --- a process --------------------------------------------------------------------------------------------------------


def quick(site, *options, **env):
    return site.start("-c", QUICK, "-r", "hello", *options, **env)


def test_process_warns_of_unserved_queue_until_served(site_with_module):
    process = quick(site_with_module, "-q", "default")
    line = process.line(event_name=UNSERVED)
    assert (line["severity"], line["shard"], line["queues"], line["classes"]) == (
        *("WARN", "main", ["hello"]),
        ["HelloWorker"],
    )
    assert line["command"].split("worker ")[-1] == "-r hello"
    other = quick(site_with_module)
    assert process.line(event_name="boot.served")["queues"] == ["hello"]
    assert other.end() == 0
    assert process.end() == 0
    assert not other.find(event_name=UNSERVED)
    assert len(process.find(event_name=UNSERVED)) == 1


def test_process_that_serves_all_asks_nothing(site_with_module, redis):
    quick(site_with_module).ready()
    redis.config_resetstat()
    quick(site_with_module).ready()
    assert "cmdstat_srandmember" not in redis.info("commandstats")


def test_process_warns_of_unserved_queue_on_other_shard(site_with_module, redis_url, second_redis, second_redis_url):
    two_shards(site_with_module, redis_url, second_redis_url)
    process = quick(site_with_module)
    line = process.line(event_name=UNSERVED)
    assert (line["shard"], line["queues"]) == ("second", ["far", "far_retries"])
    register_process(second_redis, {"queues": ["far", "far_retries"]})
    assert process.line(event_name="boot.served")["shard"] == "second"


def test_process_with_another_shard_stopped_continues(site_with_module, redis_url, make_server):
    second = make_server()
    two_shards(site_with_module, redis_url, second.url)
    second.stop()
    process = quick(site_with_module).ready()
    site_with_module.run("-c", "import hello; hello.HelloWorker.perform_async()")
    process.line(job_status="done")
    second.start()
    assert process.line(event_name=UNSERVED)["shard"] == "second"
    assert process.end() == 0


def test_process_whose_sibling_serves_the_others_is_silent(site_with_module, redis):
    (site_with_module.folder / "hello.py").write_text(HELLO + HELLO.replace("Hello", "Other"))
    sibling = quick(site_with_module, "-q", "other")
    until(lambda: redis.exists(sibling.identity), "its record")
    process = quick(site_with_module, "-q", "hello").ready()
    redis.config_resetstat()
    until(lambda: redis.info("commandstats").get("cmdstat_srandmember", {"calls": 0})["calls"] >= 10, "some looks")
    assert not process.find(event_name=UNSERVED)
