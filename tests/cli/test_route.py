"""scripts/route: the table, the explanation, the lint, and what the shards say."""

import json

import pytest

from framework.wire import keys
from tests.harness import ROOT, enqueue
from tests.process.conftest import site

__all__ = ["site"]

OFFICE = """
from framework import ApplicationWorker


class FastWorker(ApplicationWorker):
    feature_category = "not_owned"
    urgency = "high"

    def perform(self) -> None: ...


class PinnedWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "mine"
    shard = "second"
    retry_queue = "later"

    def perform(self) -> None: ...


class PlainWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue_namespace = "office"

    def perform(self) -> None: ...
"""


@pytest.fixture
def office(site, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    site.write("routing.yml", {"routing_rules": [["urgency=high", "urgent"], ["*", None]]})
    site.write("queues.yml", {"queues": [["urgent", 3], ["mine", 1], ["later", 1], ["office", 1]]})
    (site.folder / "office.py").write_text(OFFICE)
    return site


def route(site, *arguments):
    return site.run(str(ROOT / "scripts" / "route"), "-r", "office", *arguments)


def test_the_table_is_aligned(office):
    shown = route(office)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "WORKER        QUEUE         SHARD   RULE",
        "FastWorker    urgent        main    urgency=high",
        "PinnedWorker  mine          second  *  queue by the class  shard by the class",
        "PlainWorker   office:plain  main    *",
    ]
    assert route(office, "PlainWorker").stdout.splitlines() == [
        "WORKER       QUEUE         SHARD  RULE",
        "PlainWorker  office:plain  main   *",
    ]
    office.write("routing.yml", {"routing_rules": []})
    assert route(office, "PlainWorker").stdout.endswith("(none: the generated name on main)\n")


def test_explain_shows_what_each_rule_says_and_what_stands_over_it(office):
    assert route(office, "--explain", "PinnedWorker", "FastWorker").stdout.splitlines() == [
        "PinnedWorker: queue mine on shard second (rule *)",
        "  no match  urgency=high  (not urgency=high: urgency is low): queue urgent, shard main",
        "  decides   *  (matches every worker): queue pinned, shard main",
        "  the class says queue = 'mine', which stands over the rules",
        "  the class says shard = 'second', which stands over the rules",
        "  the class says retry_queue = 'later': its retries go there",
        "FastWorker: queue urgent on shard main (rule urgency=high)",
        "  decides   urgency=high  (urgency is high): queue urgent, shard main",
        "  too late  *  (matches every worker): queue fast, shard main",
    ]


def test_unknown_workers_are_named_with_the_nearest(office):
    unknown = route(office, "FastWorkr", "PlainWorker", "--explain")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr == "there is no worker 'FastWorkr' (did you mean 'FastWorker'?)\n"


def test_lint_tells_pins_and_ends_with_0_when_that_is_all(office):
    linted = route(office, "--lint")
    assert (linted.returncode, linted.stderr) == (0, "")
    assert linted.stdout.splitlines() == [
        "office.PinnedWorker: queue: 'mine' stands over 'pinned' of routing_rules[1] (*) [override]",
        "office.PinnedWorker: shard: 'second' stands over 'main' of routing_rules[1] (*) [override]",
        "2 rules, 3 workers: 0 findings",
    ]


def test_lint_ends_with_1_when_there_are_findings_and_puts_them_first(office):
    rules = [["urgency=high", "urgent"], ["urgency=high&tags=a", "x"], ["worker_name=PlainWorkr", "y"], ["*", None]]
    office.write("routing.yml", {"routing_rules": rules})
    office.write("queues.yml", {"queues": [["urgent", 3], ["mine", 1], ["office", 1]]})
    office.write("application.yml", {"namespace_weights": {"ofice": 3}})
    linted = route(office, "--lint")
    lines = linted.stdout.splitlines()
    assert linted.returncode == 1
    assert lines[-1] == "4 rules, 3 workers: 6 findings"
    starts = (
        "config/routing.yml: routing_rules[1]: no worker has tags a: ",
        "config/routing.yml: routing_rules[1]: can never decide, as routing_rules[0] (urgency=high) takes",
        "config/routing.yml: routing_rules[2]: no worker has worker_name PlainWorkr (did you mean 'PlainWorker'?)",
        "config/routing.yml: routing_rules[2]: no worker matches worker_name=PlainWorkr",
        "config/application.yml: namespace_weights.ofice: no worker has the queue_namespace ofice (did you mean 'office'?)",
        "office.PinnedWorker: retry_queue: no line of config/queues.yml serves the queue later",
        "office.PinnedWorker: queue: 'mine' stands over",
        "office.PinnedWorker: shard: 'second' stands over",
    )
    assert len(lines) == len(starts) + 1
    for line, start in zip(lines, starts, strict=False):
        assert line.startswith(start)


def test_without_queues_yml_only_default_is_served(office):
    (office.folder / "config" / "queues.yml").unlink()
    office.write("routing.yml", {"routing_rules": [["*", "default"]]})
    linted = route(office, "--lint")
    unserved = [line for line in linted.stdout.splitlines() if line.endswith("[unserved]")]
    assert [line.split(" ")[1] for line in unserved] == ["queue:", "retry_queue:"]


@pytest.mark.parametrize("arguments", [("--lint", "FastWorker"), ("--lint", "--explain"), ("--live",)])
def test_what_does_not_go_together_is_usage(office, arguments):
    assert route(office, *arguments).returncode == 2


def test_the_committed_rules_have_no_findings(site):
    linted = site.run(str(ROOT / "scripts" / "route"), "--lint", FRAMEWORK_CONFIG_DIR=str(ROOT / "config"))
    assert (linted.returncode, linted.stderr) == (0, ""), linted.stdout


def live(site):
    linted = route(site, "--lint", "--live")
    return linted.returncode, [line for line in linted.stdout.splitlines() if line.startswith("shard ")]


def test_live_asks_each_shard_what_its_processes_serve(office, redis, second_redis):
    enqueue(second_redis, "RubyWorker", queue="ruby")
    enqueue(redis, "FastWorker", queue="old")
    redis.set("queue:odd", "no list")
    redis.sadd(keys.QUEUES, "odd", "empty")
    office.start(str(ROOT / "scripts" / "worker"), "-r", "office", "-q", "urgent", "-q", "office").ready()
    # Ruby's record, one that is quiet, one that has run out, and one that nobody can read.
    second_redis.sadd(keys.PROCESSES, "ruby", "quiet", "gone", "odd")
    second_redis.hset("ruby", mapping={"info": json.dumps({"queues": ["mine"]}), "quiet": "false"})
    second_redis.hset("quiet", mapping={"info": json.dumps({"queues": ["later", "ruby"]}), "quiet": "true"})
    second_redis.hset("odd", mapping={"info": "{", "quiet": "false"})
    status, lines = live(office)
    assert status == 1
    assert [line.partition(": start one")[0] for line in lines] == [
        "shard main: no running process serves the queue old (waiting jobs: 1)",
        "shard second: no running process serves the queue later, to which jobs of PinnedWorker go (waiting jobs: 0)",
        "shard second: no running process serves the queue ruby (waiting jobs: 1)",
    ]
    second_redis.hset("quiet", "quiet", "false")
    redis.delete("queue:old")
    assert live(office) == (0, [])


def test_live_names_a_shard_that_cannot_be_asked_and_goes_on(office, redis):
    office.write("redis.yml", {"shards": {"main": {"url": office.url}, "second": {"url": "redis://127.0.0.1:1/0"}}})
    enqueue(redis, "FastWorker", queue="old")
    status, lines = live(office)
    assert status == 1
    assert [line.split(" (")[0] for line in lines[:1]] == [
        "shard main: no running process serves the queue office:plain, to which jobs of PlainWorker go"
    ]
    assert lines[-1].startswith("shard second: cannot be asked: ")
    assert any("the queue old" in line for line in lines)
