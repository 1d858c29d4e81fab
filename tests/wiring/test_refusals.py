"""Refuse an invalid configuration: each command and each process ends with one clear error and writes nothing."""

import subprocess

import pytest

from framework import ConfigurationError
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest
from framework.features.deduplication.push import Deduplicator
from framework.push.client import Client
from framework.route.router import Router
from framework.settings.model import RoutingRule
from framework.shard.shards import Shards
from tests.harness import ROOT, opened

COMMANDS = {
    "worker": ("worker", "-r", "jobs", "-q", "default"),
    "cluster": ("cluster", "-r", "jobs", "default"),
    "generate_queues": ("generate_queues", "-r", "jobs"),
    "generate_queues --check": ("generate_queues", "-r", "jobs", "--check"),
    "route": ("route", "-r", "jobs"),
    "route --lint": ("route", "-r", "jobs", "--lint"),
    "check_compat": ("check_compat", "-r", "jobs"),
    "check_compat --release": ("check_compat", "-r", "jobs", "--release", "1"),
}
PROGRAMS = {
    "boot": "import framework, jobs; framework.boot()",
    "first push": "import jobs; jobs.NoopWorker.perform_async()",
    "first bulk push": "import jobs; jobs.NoopWorker.perform_bulk([()])",
    "first scheduled push": "import jobs; jobs.NoopWorker.perform_in(60)",
    "first set": "import jobs; jobs.NoopWorker.set(queue='mine').perform_async()",
    "route": "import jobs; jobs.NoopWorker.route()",
}


def command(site, name) -> "subprocess.CompletedProcess[str]":
    script, *options = COMMANDS[name]
    return site.run(str(ROOT / "scripts" / script), *options)


RULES = {"routing_rules": [["*", "default"], ["tags=a|urgency=hihg", "urgent"], ["tags= a", "x", "secnd"]]}
RULE_ERRORS = """\
config/routing.yml: routing_rules[1]: unknown urgency 'hihg' (did you mean 'high'?); allowed: high, low, throttled
      tags=a|urgency=hihg
                     ^ character 16
  - config/routing.yml: routing_rules[2]: a query has no spaces
      tags= a
           ^ character 6
  - config/routing.yml: routing_rules[2]: unknown shard 'secnd' (did you mean 'second'?); config/redis.yml has: main, second
"""


@pytest.fixture
def wrong_rules(site, second_redis, second_redis_url):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": second_redis_url}}})
    site.write("routing.yml", RULES)
    return site


@pytest.mark.parametrize("name", COMMANDS)
def test_invalid_rule_refuses_to_boot(wrong_rules, redis, second_redis, name):
    ended = command(wrong_rules, name)
    assert (ended.returncode, ended.stdout) == (78, "")
    assert ended.stderr == f"3 problems in the configuration:\n  - {RULE_ERRORS}"
    assert (redis.dbsize(), second_redis.dbsize()) == (0, 0)
    assert not (wrong_rules.folder / "workers").exists()


@pytest.mark.parametrize("name", PROGRAMS)
def test_invalid_rule_fails_a_producers_boot_or_first_push(wrong_rules, redis, second_redis, name):
    ended = wrong_rules.run("-c", PROGRAMS[name])
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        f"framework.errors.ConfigurationError: 3 problems in the configuration:\n  - {RULE_ERRORS}"
    )
    assert (redis.dbsize(), second_redis.dbsize()) == (0, 0)


def test_rules_of_the_environment_are_named_as_such(site):
    ended = site.run(str(ROOT / "scripts" / "route"), "-r", "jobs", FRAMEWORK_ROUTING_RULES='[["urgncy=high", "x"]]')
    assert ended.returncode == 78
    assert "environment: FRAMEWORK_ROUTING_RULES: routing_rules[0]: unknown attribute 'urgncy'" in ended.stderr


LOST = """
from framework import ApplicationWorker


class LostWorker(ApplicationWorker):
    feature_category = "{category}"
    shard = {shard!r}

    def perform(self) -> None: ...


class FineWorker(ApplicationWorker):
    feature_category = "search"

    def perform(self) -> None: ...
"""
CATEGORY = (
    "lost.LostWorker: feature_category: 'serach' is not in config/feature_categories.yml (did you mean 'search'?); "
    "allowed: not_owned, billing, search"
)
SHARD = "lost.LostWorker: shard: unknown shard 'mian' (did you mean 'main'?); config/redis.yml has: main"


def lost(site, category="search", shard=None):
    (site.folder / "lost.py").write_text(LOST.format(category=category, shard=shard))
    categories = {"search": {"owner": "team"}, "billing": {"owner": "team"}}
    site.write("feature_categories.yml", {"feature_categories": categories})


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "cluster"])
def test_workers_against_the_configuration_refuse_to_boot(site, redis, name):
    lost(site, "serach", "mian")
    script, _, _, *options = COMMANDS[name]
    ended = site.run(str(ROOT / "scripts" / script), "-r", "lost", *options)
    assert (ended.returncode, ended.stdout) == (78, "")
    assert ended.stderr == f"2 problems in the configuration:\n  - {CATEGORY}\n  - {SHARD}\n"
    assert redis.dbsize() == 0


def test_refusal_names_rules_and_workers_together(site):
    lost(site, "serach")
    site.write("routing.yml", {"routing_rules": [["", "x"]]})
    ended = site.run("-c", "import framework, lost; framework.boot()")
    assert "2 problems in the configuration" in ended.stderr
    assert "routing_rules[0]: an attribute is missing here" in ended.stderr
    assert CATEGORY in ended.stderr


WRONG_CATEGORY, WRONG_SHARD = ({"category": "serach"}, CATEGORY), ({"shard": "mian"}, SHARD)


@pytest.mark.parametrize(
    ("push", "facts", "message"),
    [
        ("perform_async()", *WRONG_CATEGORY),
        ("perform_in(60)", *WRONG_SHARD),
        ("perform_bulk([()] * 3)", *WRONG_CATEGORY),
        ("set(queue='mine').perform_async()", *WRONG_SHARD),
        ("perform_inline()", *WRONG_CATEGORY),
        ("route()", *WRONG_SHARD),
    ],
)
def test_push_class_against_configuration_writes_nothing(site, redis, push, facts, message):
    lost(site, **facts)
    ended = site.run("-c", f"import lost; lost.LostWorker.{push}")
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"ConfigurationError: 1 problem in the configuration:\n  - {message}\n")
    assert redis.dbsize() == 0


def test_invalid_class_does_not_block_other_classes(site, redis):
    lost(site, "serach")
    code = (
        "import framework, lost\n"
        "try:\n    lost.LostWorker.perform_async()\n"
        "except framework.ConfigurationError:\n    lost.FineWorker.perform_async()\n"
    )
    assert site.run("-c", code).returncode == 0
    assert redis.llen("queue:fine") == 1


class CountingRouter(Router):
    """A router that counts its decisions."""

    decided = 0

    def validate(self, declaration):
        self.decided += 1
        return super().validate(declaration)


def test_class_is_checked_once_not_with_each_push(redis, redis_url):
    with registry.isolated():

        class FineWorker(ApplicationWorker):
            feature_category = "search"

            def perform(self) -> None: ...

        router = CountingRouter([RoutingRule("*", "default")], ["main"], ["search"])
        client = Client(Shards({"main": opened(redis_url)}), router, locks=Deduplicator())
        declaration: Declaration = FineWorker.declaration()
        for _ in range(10):
            client.push_bulk(BulkRequest(declaration, [[]] * 5, None, {}))
        assert (router.decided, redis.llen("queue:default")) == (1, 50)


def test_categories_file_absent_allows_every_name(site, redis):
    lost(site, "anything")
    (site.folder / "config" / "feature_categories.yml").unlink()
    assert site.run("-c", "import lost; lost.LostWorker.perform_async()").returncode == 0
    with pytest.raises(ConfigurationError):
        Router([], ["main"], ["search"]).route(fake("anything"))


def fake(category):
    with registry.isolated():
        body = {"feature_category": category, "perform": lambda self: None}
        made = type("AWorker", (ApplicationWorker,), body)
        return made.declaration()
