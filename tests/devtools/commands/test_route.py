"""Test scripts/route: the table, the explanation, the lint, and the state of the shards."""

import json

import pytest

from framework.wire import keys
from tests.harness import ROOT, encoded, enqueue, hold

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
WIDE = """
from framework import spread


class WideWorker(PlainWorker):
    shard = spread("second", "main")
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


def test_route_table_is_aligned(office):
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


def test_route_explain_shows_each_rule_and_overrides(office):
    assert route(office, "--explain", "PinnedWorker", "FastWorker").stdout.splitlines() == [
        "PinnedWorker: queue mine on shard second (rule *)",
        "  no match  urgency=high  (not urgency=high: urgency is low): queue urgent, shard main",
        "  decides   *  (matches every worker): queue pinned, shard main",
        "  the class has queue = 'mine', which overrides the rules",
        "  the class has shard = 'second', which overrides the rules",
        "  the class has retry_queue = 'later': its retries go there",
        "FastWorker: queue urgent on shard main (rule urgency=high)",
        "  decides   urgency=high  (urgency is high): queue urgent, shard main",
        "  too late  *  (matches every worker): queue fast, shard main",
    ]


def test_route_of_a_spread_class_shows_its_shards(office):
    (office.folder / "office.py").write_text(OFFICE + WIDE)
    assert route(office, "WideWorker").stdout.splitlines() == [
        "WORKER      QUEUE        SHARD         RULE",
        "WideWorker  office:wide  second, main  *  shard by the class",
    ]
    assert route(office, "--explain", "WideWorker").stdout.splitlines()[::3] == [
        "WideWorker: queue office:wide on shard second, main (rule *)",
        "  the class has shard = spread('second', 'main'): the lock key of a job chooses one, else its id",
    ]


def test_route_unknown_worker_suggests_the_nearest(office):
    unknown = route(office, "FastWorkr", "PlainWorker", "--explain")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert unknown.stderr == "there is no worker 'FastWorkr' (did you mean 'FastWorker'?)\n"


def test_route_lint_with_pins_only_status_0(office):
    linted = route(office, "--lint")
    assert (linted.returncode, linted.stderr) == (0, "")
    assert linted.stdout.splitlines() == [
        "office.PinnedWorker: queue: 'mine' overrides 'pinned' of routing_rules[1] (*) [override]",
        "office.PinnedWorker: shard: 'second' overrides 'main' of routing_rules[1] (*) [override]",
        "2 rules, 3 workers: 0 findings",
    ]


def test_route_lint_with_findings_status_1_findings_first(office):
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
        "office.PinnedWorker: queue: 'mine' overrides",
        "office.PinnedWorker: shard: 'second' overrides",
    )
    assert len(lines) == len(starts) + 1
    for line, start in zip(lines, starts, strict=False):
        assert line.startswith(start)


def test_route_lint_without_queues_yml_serves_class_queues(office):
    (office.folder / "config" / "queues.yml").unlink()
    office.write("routing.yml", {"routing_rules": [["*", "default"]]})
    linted = route(office, "--lint")
    unserved = [line for line in linted.stdout.splitlines() if line.endswith("[unserved]")]
    assert not unserved


@pytest.mark.parametrize("arguments", [("--lint", "FastWorker"), ("--lint", "--explain"), ("--live",)])
def test_route_conflicting_options_are_refused(office, arguments):
    assert route(office, *arguments).returncode == 2


def test_route_lint_of_committed_rules_has_no_findings(site):
    linted = site.run(str(ROOT / "scripts" / "route"), "--lint", FRAMEWORK_CONFIG_DIR=str(ROOT / "config"))
    assert (linted.returncode, linted.stderr) == (0, ""), linted.stdout


def live(site):
    linted = route(site, "--lint", "--live")
    return linted.returncode, [line for line in linted.stdout.splitlines() if line.startswith("shard ")]


RUBY, QUIET, ODD = (f"host:{number}:00000000000a" for number in range(5, 8))


def test_route_live_shows_the_served_queues_of_each_shard(office, redis, second_redis):
    enqueue(second_redis, "RubyWorker", queue="ruby")
    enqueue(redis, "FastWorker", queue="old")
    redis.set("queue:odd", "no list")
    redis.sadd(keys.QUEUES, "odd", "empty")
    office.start(str(ROOT / "scripts" / "worker"), "-r", "office", "-q", "urgent", "-q", "office").ready()
    # The processes: one of Ruby, a quiet one, an expired one, and one with an unreadable record.
    second_redis.sadd(keys.PROCESSES, RUBY, QUIET, "host:3:00000000000c", ODD)
    second_redis.hset(RUBY, mapping={"info": json.dumps({"queues": ["mine"]}), "quiet": "false"})
    second_redis.hset(QUIET, mapping={"info": json.dumps({"queues": ["later", "ruby"]}), "quiet": "true"})
    second_redis.hset(ODD, mapping={"info": "{", "quiet": "false"})
    status, lines = live(office)
    assert status == 1
    assert [line.partition(": start one")[0] for line in lines] == [
        "shard main: no running process serves the queue old (waiting jobs: 1)",
        "shard second: no running process serves the queue later, to which jobs of PinnedWorker go (waiting jobs: 0)",
        "shard second: no running process serves the queue ruby (waiting jobs: 1)",
    ]
    second_redis.hset(QUIET, "quiet", "false")
    redis.delete("queue:old")
    assert live(office) == (0, [])


def test_route_live_unreachable_shard_is_named_and_skipped(office, redis):
    office.write("redis.yml", {"shards": {"main": {"url": office.url}, "second": {"url": "redis://127.0.0.1:1/0"}}})
    enqueue(redis, "FastWorker", queue="old")
    status, lines = live(office)
    assert status == 1
    assert [line.split(" (")[0] for line in lines[:1]] == [
        "shard main: no running process serves the queue office:plain, to which jobs of PlainWorker go"
    ]
    assert lines[-1].startswith("shard second: cannot be asked: ")
    assert any("the queue old" in line for line in lines)


LIMITED = """
from framework import ApplicationWorker


class ReportWorker(ApplicationWorker):
    feature_category = "not_owned"
    tags = ("heavy",)
    concurrency_limit = 2
    idempotent = True
    aliases = ("OldReportWorker",)

    def perform(self, year: int = 0) -> None: ...


class MailWorker(ApplicationWorker):
    feature_category = "not_owned"
    deduplicate = None
    queue = "mail"

    def perform(self) -> None: ...


class FreeWorker(ApplicationWorker):
    feature_category = "not_owned"
    tags = ("heavy",)

    def perform(self) -> None: ...


class LetterWorker(ApplicationWorker):
    feature_category = "not_owned"
    queue = "mail"
    shard = "second"

    def perform(self) -> None: ...
"""


@pytest.fixture
def limited(site, second_redis_url):
    """Create a site whose heavy jobs go to the second shard, with no limit on two shards."""
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    site.write("routing.yml", {"routing_rules": [["tags=heavy", "heavy", "second"], ["*", "default"]]})
    site.write("queues.yml", {"queues": ["heavy", "mail", "default", "old"]})
    (site.folder / "limited.py").write_text(LIMITED)
    return site


def splits(site, *options):
    shown = site.run(str(ROOT / "scripts" / "route"), "-r", "limited", "--lint", *options)
    assert "Traceback" not in shown.stderr
    return shown.returncode, [line for line in shown.stdout.splitlines() if line.endswith("[split]")]


def test_route_lint_of_one_shard_per_class_has_no_findings(limited):
    assert splits(limited) == (0, [])


def test_route_lint_alias_on_another_shard_names_the_split(limited):
    rules = [["worker_name=OldReportWorker", "old", "main"], ["tags=heavy", "heavy", "second"], ["*", "default"]]
    limited.write("routing.yml", {"routing_rules": rules})
    status, (line,) = splits(limited)
    assert status == 1
    assert line.startswith(
        "limited.ReportWorker: aliases: ReportWorker (concurrency_limit = 2 and idempotent) has jobs on shards second and main "
        "(second: its route; main: the route of its former name OldReportWorker), and each shard keeps its limits and "
        "locks by itself."
    )
    assert "scripts/jobs limits set ReportWorker N --shard second" in line
    assert "equal jobs run at the same time, one on each shard" in line


def test_route_lint_limited_queue_on_two_shards_names_it(limited):
    limited.write("application.yml", {"limits": {"mail": 3, "heavy": 2}})
    status, (line,) = splits(limited)
    assert status == 1
    assert line.startswith(
        "config/application.yml: limits.mail: queue/mail (limits of the queue mail) has jobs on shards second and main "
        "(second: jobs of LetterWorker go there; main: jobs of MailWorker go there)"
    )


def test_route_lint_changed_rules_names_the_last_release(limited):
    limited.run(str(ROOT / "scripts" / "check_compat"), "-r", "limited", "--release", "7")
    assert splits(limited) == (0, [])
    limited.write("routing.yml", {"routing_rules": [["*", "default"]]})
    status, (line,) = splits(limited)
    assert status == 1
    assert line.startswith("released.yml: the rules have changed: ReportWorker (")
    assert "(main: its route; second: its route in release 7)" in line


def test_route_lint_live_finds_limited_jobs_elsewhere(limited, redis, second_redis):
    """Jobs in queues, schedule, retry, working lists and held sets count. Dead jobs and classes without limits do not."""
    enqueue(second_redis, "ReportWorker", queue="heavy")  # the shard of the current rules
    enqueue(redis, "FreeWorker", queue="old")
    redis.zadd(keys.DEAD, {encoded("ReportWorker", jid="dead"): 1})
    assert splits(limited, "--live")[1] == []
    enqueue(redis, "ReportWorker", queue="old", args=["\u00e9"])
    enqueue(redis, "OldReportWorker", queue="old")
    redis.zadd(keys.SCHEDULE, {encoded("ReportWorker", jid="s"): 2_000_000_000})
    redis.zadd(keys.RETRY, {encoded("ReportWorker", jid="r"): 2_000_000_000})
    redis.zadd(f"{keys.limit('ReportWorker')}:waiting:", {b"t\n" + encoded("ReportWorker", jid="w"): 1})
    hold(redis, encoded("ReportWorker", jid="h"), "host:1:00000000000e")
    redis.zadd(keys.REGISTRY, {"host:1:00000000000e": 1})
    status, (line,) = splits(limited, "--live")
    assert status == 1
    assert line.startswith(
        "shard main: ReportWorker (concurrency_limit = 2 and idempotent) has jobs on shards second and main "
    )
    assert "main: held by a limit 1, in flight 1, queue old 2, retry 1, schedule 1)" in line


@pytest.mark.refused("role-producer srandmember")  # a producer has no right to read the registered processes
def test_worker_boot_warns_of_a_limit_on_two_shards(limited, redis, second_redis):
    limited.write("application.yml", {"limits": {"mail": 3}})
    process = limited.worker("-q", "default", "-c", "1", "-r", "limited").ready()
    (line,) = process.find(event_name="boot.split")
    assert (line["severity"], line["name"], line["shards"]) == ("WARN", "queue/mail", ["second", "main"])
    assert "each shard keeps its limits and locks by itself" in line["message"]
    started = limited.run("-c", "import limited, framework; framework.boot()")
    assert "queue/mail (limits of the queue mail) has jobs on shards second and main" in started.stderr
