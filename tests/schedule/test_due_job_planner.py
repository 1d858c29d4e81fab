import pytest

from framework import IterableWorker
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.declare.spread import spread
from framework.errors import ConfigurationError, PayloadError
from framework.route.route_moves import RouteMove, RouteMoves
from framework.route.router import Router
from framework.schedule.due_job_planner import DestinationResolver
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
def test_destination_of_a_routed_queue_follows_the_rules(queue):
    worker(urgency="high")
    assert where(payload(queue=queue)) == ("urgent", "fast")


def test_destination_keeps_the_queue_of_an_unmatched_rule():
    worker(urgency="low")
    assert where(payload(queue="urgent")) == ("urgent", "here")
    assert where(payload(queue="common")) == ("common", "fast")


def test_destination_of_a_pinned_class_is_its_own():
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
def test_destination_keeps_a_chosen_queue(fields):
    worker()
    assert where(payload(**fields)) == (fields["queue"], "here")


def test_destination_keeps_a_queue_chosen_by_the_push():
    worker(urgency="high")
    assert where(payload(queue="common", aw_queue="common")) == ("common", "here")
    assert where(payload(queue="common", aw_queue="common", aw_shard="fast")) == ("common", "fast")
    assert where(payload(queue="common", aw_queue="other")) == ("urgent", "fast")  # a middleware sent it elsewhere


def test_destination_of_a_spread_class_is_chosen_by_the_key():
    several = spread("main", "fast")
    worker(shard=several)
    for jid in map(str, range(9)):
        job = payload(queue="common", jid=jid)
        assert where(job) == ("common", several.shard_of(jid))
        assert where({**job, "idempotency_key": "k"}).shard == several.shard_of("k")
        # A chosen queue has the same shards, and a chosen shard is the one.
        assert where({**job, "aw_queue": "mine", "queue": "mine"}) == ("mine", several.shard_of(jid))
        assert where({**job, "aw_shard": "main"}).shard == "main"


def test_destination_of_a_moved_iteration_is_here_for_its_mover():
    router = Router(RULES, ["main", "fast"])
    router.use_moves(RouteMoves([RouteMove("1", "class", "Job", "here", "main")]))
    resolver, job = DestinationResolver(router, "here"), payload(queue="chosen")
    worker()
    assert resolver.resolve(job) == ("chosen", "main")
    head = {"feature_category": "not_owned", "wire_name": "Job", "__module__": __name__}
    steps = {"build_enumerator": lambda self, *, cursor: iter(()), "each_iteration": lambda self, item: None}
    type("JobWorker", (IterableWorker,), {**head, **steps})
    assert resolver.resolve(job) == ("chosen", "here")
    # Another shard has no cursor of it.
    assert DestinationResolver(router, "fast").resolve(job) == ("chosen", "fast")


def test_destination_of_an_unknown_class_stays():
    assert where(payload(queue="common")) == ("common", "here")


@pytest.mark.parametrize("queue", [None, "", 5])
def test_destination_without_a_queue_follows_the_class(queue):
    job = payload(queue=queue)
    with pytest.raises(PayloadError, match="queue"):
        where(job)
    worker()
    assert where(job) == ("common", "fast")


def test_destination_of_a_reloaded_class_is_computed_again():
    worker(queue="one")
    destinations = DestinationResolver(Router([], ["main"]), "here")
    assert destinations.resolve(payload(queue="one")) == ("one", "main")
    worker(queue="two")
    assert destinations.resolve(payload(queue="one")) == ("one", "here")
    assert destinations.resolve(payload(queue="two")) == ("two", "main")


def test_destination_on_an_unknown_shard_is_an_error():
    worker(shard="nowhere")
    with pytest.raises(ConfigurationError, match="nowhere"):
        where(payload(queue="common"))


def test_destination_of_an_alias_follows_the_class():
    """The queue that routing gave to the former name may no longer be served."""
    old_rule = RoutingRule("worker_name=Old::JobWorker", "olden", "fast")
    rules = [old_rule, RoutingRule("*", None, "main")]
    worker(wire_name="JobWorker", aliases=("Old::JobWorker", "Older"), queue_namespace="ns")
    for queue in ("ns:old_job", "ns:older", "olden", "ns:job"):
        assert where(payload("Old::JobWorker", queue=queue), rules) == ("ns:job", "main")
    assert where(payload("Old::JobWorker", queue="chosen"), rules) == ("chosen", "here")


# --- a shard of the push's own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["job", "common"])
def test_destination_on_a_chosen_shard_overrides_the_rules(queue):
    worker()
    assert where(payload(queue=queue, aw_shard="main")) == ("common", "main")
    assert where(payload(queue="chosen", aw_shard="main")) == ("chosen", "main")
    assert where(payload(queue="common", retry_queue="common", aw_shard="main")) == ("common", "main")


def test_destination_on_a_chosen_shard_for_unknown_classes():
    assert where(payload(queue="common", aw_shard="fast")) == ("common", "fast")


@pytest.mark.parametrize("shard", ["gone", "", None, 7, ["main"], {"main": 1}, True])
def test_destination_on_a_removed_shard_is_ignored(shard):
    job = payload(queue="common", aw_shard=shard)
    assert where(job) == ("common", "here")
    worker()
    assert where(job) == ("common", "fast")
