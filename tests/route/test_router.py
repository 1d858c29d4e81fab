"""Check routing rules: the first match wins; wrong rules refuse to boot."""

from collections.abc import Iterator
from typing import Any

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.declare.queue_facts import queue_facts
from framework.declare.spread import spread
from framework.errors import ConfigurationError
from framework.route.route_moves import RouteMove, RouteMoves
from framework.route.router import Router
from framework.route.topology import QueueLocations, queues_on, splits_by_rules
from framework.settings.model import RoutingRule


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with registry.isolated():
        yield


def declare(name: str = "SleepWorker", **body: Any) -> Declaration:
    body = {"feature_category": "search", "perform": lambda self: None, "__module__": "workers.chaos.sleep", **body}
    worker: Any = type(name, (ApplicationWorker,), body)
    return worker.declaration()


def router(*rules: tuple[Any, ...]) -> Router:
    return Router([RoutingRule(*rule) for rule in rules], ["main", "queues_shard_a"], ["search"])


def test_class_without_category_is_refused_if_there_are_some():
    declaration = declare(feature_category=None)
    assert declaration.feature_category == "not_owned"
    (problem,) = router().validate(declaration)
    assert (problem.key, problem.message) == (
        "feature_category",
        "is missing, and config/feature_categories.yml has categories; allowed: not_owned, search",
    )
    assert Router([], ["main"], []).validate(declaration) == []
    assert router().validate(declare("OtherWorker", feature_category="not_owned")) == []


def test_route_is_decided_by_the_first_match():
    routes = router(
        ("urgency=high", "urgent"), ("feature_category=search", "search", "queues_shard_a"), ("*", "default")
    )
    assert routes.route(declare()) == ("search", "queues_shard_a", "feature_category=search")
    assert routes.route(declare("FastWorker", urgency="high")) == ("urgent", "main", "urgency=high")
    assert routes.route(declare("OtherWorker", feature_category="not_owned")) == ("default", "main", "*")


def test_route_of_a_null_queue_is_the_generated_name():
    assert router(("*", None, "queues_shard_a")).route(declare()) == ("chaos_sleep", "queues_shard_a", "*")
    assert router().route(declare("AWorker", queue_namespace="ns")) == ("ns:chaos_a", "main", None)


def test_route_of_the_class_overrides_the_rule():
    routes = router(("*", "default"))
    assert routes.route(declare(queue="mine", shard="queues_shard_a")) == ("mine", "queues_shard_a", "*")


def test_spread_class_is_on_several_shards_by_its_keys():
    declaration = declare(shard=spread("main", "queues_shard_a"))
    routes = router()
    assert routes.route(declaration) == ("chaos_sleep", "main", None)
    assert routes.shards_of(declaration) == ("main", "queues_shard_a")
    by_id = {jid: declaration.several_shards.shard_of(jid) for jid in map(str, range(20))}
    assert {jid: routes.shard_of(declaration, {"jid": jid}) for jid in by_id} == by_id
    assert {routes.shard_of(declaration, {"jid": jid, "idempotency_key": "7"}) for jid in by_id} == {by_id["7"]}
    assert set(queues_on(routes, [declaration], "queues_shard_a")) == {"chaos_sleep"}
    entry = queue_facts(declaration, {})
    assert QueueLocations(routes, [entry]).routed == {"chaos_sleep": ("main", "queues_shard_a")}
    with pytest.raises(ConfigurationError, match="is not a list of shards"):
        QueueLocations(routes, [{**entry, "spread": ["main", "gone"]}])
    (split,) = splits_by_rules(routes, [declaration], {"chaos_sleep"}, source="limits")
    assert set(split.shards) == {"main", "queues_shard_a"}


def test_spread_class_needs_known_shards_and_one_limit():
    (problem,) = router().validate(declare(shard=spread("main", "queues_shard_b")))
    assert (problem.key, problem.message[:31]) == ("shard", "unknown shard 'queues_shard_b' ")
    limited = declare("LimitedWorker", shard=spread("main", "queues_shard_a"), concurrency_limit=5)
    (problem,) = router().validate(limited)
    assert "with concurrency_limit needs roles: {meta: NAME} in config/redis.yml" in problem.message
    assert Router([], ["main", "queues_shard_a"], has_fleet_limits=True).validate(limited) == []


def test_moves_change_the_route_and_not_the_home():
    routes, declaration = router(), declare()
    assert (routes.route(declaration).shard, routes.home(declaration)) == ("main", "main")
    routes.use_moves(RouteMoves([RouteMove("1", "shard", "main", "main", "queues_shard_a")]))
    assert (routes.route(declaration).shard, routes.home(declaration)) == ("queues_shard_a", "main")
    routes.use_moves(RouteMoves())
    assert routes.route(declaration).shard == "main"


def test_route_of_a_reloaded_class_is_computed_again():
    routes = router(("urgency=high", "urgent"), ("*", "default"))
    assert routes.route(declare()).queue == "default"
    assert routes.route(declare(urgency="high")).queue == "urgent"


def test_router_lists_every_wrong_rule():
    with pytest.raises(ConfigurationError) as caught:
        router(("urgency=hihg", "a"), ("*", "a b"), ("*", "a", "queues_shard_b"), ("*", "fine"))
    problems = caught.value.problems
    assert [problem.key for problem in problems] == ["routing_rules[0]", "routing_rules[1]", "routing_rules[2]"]
    assert {problem.file for problem in problems} == {"config/routing.yml"}
    assert "did you mean 'high'" in problems[0].message
    assert "        ^ character 9" in problems[0].message
    assert "'a b' is not allowed" in problems[1].message
    assert "did you mean 'queues_shard_a'" in problems[2].message


def test_router_lists_every_fault_of_every_rule():
    rules = [
        RoutingRule("urgncy=hihg|urgency=hihg ", "a b", "queues_shrad_a"),
        RoutingRule("tags=a", "fine"),
        RoutingRule("tags", "default"),
    ]
    with pytest.raises(ConfigurationError) as caught:
        Router(rules, ["queues_shard_a"])
    found = [(problem.key, problem.message.split("(")[0].split(";")[0]) for problem in caught.value.problems]
    assert found == [
        ("routing_rules[0]", "unknown attribute 'urgncy' "),
        ("routing_rules[0]", "unknown urgency 'hihg' "),
        (
            "routing_rules[0]",
            "a query has no spaces: remove the one at its end\n      urgncy=hihg|urgency=hihg \n"
            + " " * 30
            + "^ character 25",
        ),
        (
            "routing_rules[0]",
            "queue 'a b' is not allowed: a queue name is made of letters, digits and _ . : -, without a - in front",
        ),
        ("routing_rules[0]", "unknown shard 'queues_shrad_a' "),
        ("routing_rules[2]", "'=' or '!=' is missing after tags\n      tags\n          ^ character 5"),
    ]


def test_route_to_an_unknown_shard_is_refused():
    with pytest.raises(ConfigurationError, match="unknown shard 'queues_shard_z'"):
        router().route(declare(shard="queues_shard_z"))


def test_explain_gives_the_reason_of_each_rule():
    results = router(("urgency=high&tags=a|tags=b", "x"), ("feature_category=search", "y"), ("*", "z")).explain(
        declare()
    )
    assert [(result.matches, result.decides) for result in results] == [(False, False), (True, True), (True, False)]
    assert results[0].reason == "not urgency=high: urgency is low; not tags=b: tags is not set"
    assert results[1].reason == "feature_category is search"


def test_queues_of_a_class_include_its_former_names():
    routes = router(("worker_name=Old::NapWorker", "naps"), ("*", "default"))
    declaration = declare(aliases=("Old::NapWorker", "DozeWorker"), queue_namespace="ns", retry_queue="slow")
    assert routes.queues_of(declaration) == [
        *("default", "ns:chaos_sleep", "slow"),
        *("naps", "ns:old_nap", "ns:doze"),
    ]
    assert routes.route(declaration).queue == "default"  # the former names decide nothing
    assert routes.queues_of(declare("PlainWorker")) == ["default", "chaos_plain"]
