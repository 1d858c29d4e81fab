import pytest

from framework.declare import registry
from framework.declare.worker import ApplicationWorker
from framework.errors import ConfigurationError, PayloadError
from framework.route.router import Router
from framework.schedule.destination import DestinationResolver
from framework.settings.model import RoutingRule
from tests.harness import payload

RULES = [
    RoutingRule("urgency=high", "urgent", "fast"),
    RoutingRule("feature_category=not_owned", "common", "fast"),
    RoutingRule("*", None, "main"),
]


@pytest.fixture(autouse=True)
def alone():
    with registry.isolated():
        yield


def worker(**body):
    head = {"feature_category": "not_owned", "wire_name": "Job", "perform": lambda self: None}
    return type("JobWorker", (ApplicationWorker,), {**head, **body})


def where(job, rules=RULES):
    return DestinationResolver(Router(rules, ["main", "fast"]), "here").resolve(job)


@pytest.mark.parametrize("queue", ["job", "urgent", "common"])
def test_a_queue_that_routing_could_have_given_follows_the_rules_of_today(queue):
    worker(urgency="high")
    assert where(payload(queue=queue)) == ("urgent", "fast")


def test_the_queue_of_a_rule_that_does_not_match_was_chosen():
    worker(urgency="low")
    assert where(payload(queue="urgent")) == ("urgent", "here")
    assert where(payload(queue="common")) == ("common", "fast")


def test_a_declared_queue_and_shard_stand_over_the_rules():
    worker(queue="own", shard="main")
    assert where(payload(queue="own")) == ("own", "main")
    assert where(payload(queue="job")) == ("own", "main")


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "chosen"},
        {"queue": "common", "retry_queue": "common"},
        {"queue": "common", "aw_queue": "common"},
        {"queue": "slow", "aw_queue": "common", "retry_queue": "slow"},
    ],
)
def test_a_queue_of_somebodys_choice_stays_where_it_is(fields):
    worker()
    assert where(payload(**fields)) == (fields["queue"], "here")


def test_a_queue_that_the_push_named_is_kept_though_a_rule_could_have_given_it():
    worker(urgency="high")
    assert where(payload(queue="common", aw_queue="common")) == ("common", "here")
    assert where(payload(queue="common", aw_queue="common", aw_shard="fast")) == ("common", "fast")
    assert where(payload(queue="common", aw_queue="other")) == ("urgent", "fast")  # a middleware sent it elsewhere


def test_a_class_that_is_not_known_keeps_queue_and_shard():
    assert where(payload(queue="common")) == ("common", "here")


@pytest.mark.parametrize("queue", [None, "", 5])
def test_a_payload_without_a_queue_goes_where_its_class_does(queue):
    job = payload(queue=queue)
    with pytest.raises(PayloadError, match="queue"):
        where(job)
    worker()
    assert where(job) == ("common", "fast")


def test_a_class_that_was_reloaded_is_asked_anew():
    worker(queue="one")
    destinations = DestinationResolver(Router([], ["main"]), "here")
    assert destinations.resolve(payload(queue="one")) == ("one", "main")
    worker(queue="two")
    assert destinations.resolve(payload(queue="one")) == ("one", "here")
    assert destinations.resolve(payload(queue="two")) == ("two", "main")


def test_a_shard_that_does_not_exist_is_an_error_of_the_class():
    worker(shard="nowhere")
    with pytest.raises(ConfigurationError, match="nowhere"):
        where(payload(queue="common"))


def test_a_job_under_an_alias_follows_the_route_of_its_class_today():
    """Nobody may serve the queue that routing gave to the former name."""
    old_rule = RoutingRule("worker_name=Old::JobWorker", "olden", "fast")
    rules = [old_rule, RoutingRule("*", None, "main")]
    worker(wire_name="JobWorker", aliases=("Old::JobWorker", "Older"), queue_namespace="ns")
    for queue in ("ns:old_job", "ns:older", "olden", "ns:job"):
        assert where(payload("Old::JobWorker", queue=queue), rules) == ("ns:job", "main")
    assert where(payload("Old::JobWorker", queue="chosen"), rules) == ("chosen", "here")


# --- a shard of the push's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["job", "common"])
def test_a_shard_that_the_push_named_stands_over_the_rules(queue):
    worker()
    assert where(payload(queue=queue, aw_shard="main")) == ("common", "main")
    assert where(payload(queue="chosen", aw_shard="main")) == ("chosen", "main")
    assert where(payload(queue="common", retry_queue="common", aw_shard="main")) == ("common", "main")


def test_it_stands_for_classes_that_are_not_known_too():
    assert where(payload(queue="common", aw_shard="fast")) == ("common", "fast")


@pytest.mark.parametrize("shard", ["gone", "", None, 7, ["main"], {"main": 1}, True])
def test_a_shard_that_does_not_exist_any_more_names_nothing(shard):
    job = payload(queue="common", aw_shard=shard)
    assert where(job) == ("common", "here")
    worker()
    assert where(job) == ("common", "fast")
