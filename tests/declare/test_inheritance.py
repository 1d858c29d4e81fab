"""Test the inheritance of attributes: Python's order, with falsy values, through mixins and abstract bases."""

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from framework.application_worker import ATTRIBUTES, ApplicationWorker
from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.errors import DeclarationError
from framework.features.backlog.attributes import MaxWaiting
from framework.features.breaker.attributes import BreakAfter
from framework.features.concurrency.attributes import ConcurrencyScope
from framework.features.health.attributes import DeferOnHealth
from framework.limiter import bucket
from tests.harness import examples
from tests.tables import each_row

POOL: dict[str, tuple[Any, ...]] = {
    "feature_category": ("search", "billing"),
    "urgency": ("low", "throttled"),
    "resource_boundary": ("cpu", "memory", "unknown"),
    "has_external_dependencies": (False, True),
    "tags": ((), ("a",), ("b", "c")),
    "worker_context": (None, {"tenant": "a"}, {"user": "b"}),
    "queue_namespace": (None, "search", "mail"),
    "queue": (None, "fast", "slow"),
    "shard": (None, "main", "other"),
    "weight": (None, 1, 5),
    "version": (0, 1, 2),
    "wire_name": (None, "Named"),
    "aliases": ((), ("Old",)),
    "retry": (False, 0, True, 3),
    "retry_for": (None, 60, timedelta(hours=1)),
    "retry_delay": (None, 5, (5, timedelta(minutes=1))),
    "retry_queue": (None, "retries", "later"),
    "dead": (False, True),
    "backtrace": (False, True, 10),
    "max_retries_after_interruption": (0, -1, 3, 7),
    "ack": ("batch", "sync"),
    "timeout": (None, 0.5, timedelta(minutes=1)),
    "isolation": (None, "process"),
    "memory_limit": (None,),  # a number needs isolation
    "expires_in": (None, 5, timedelta(minutes=1)),
    "loggable_arguments": ((), ("mode",), ("project_id", "mode")),
    "strict_arguments": (None, "raise", "warn", "off"),
    "big_payload": (False, True),
    "compress": (True, False),
    "encrypt": (False, True),
    "status_expiration": (None, 60, timedelta(minutes=30)),
    "keep_result": (None,),  # a time does not fit encrypt
    "track": (False, True),
    "idempotent": (False, True),
    "deduplicate": (None, Deduplicate("until_executed"), Deduplicate("none")),
    "concurrency_limit": (None, 0, -1, 20),
    "max_concurrency_limit_percentage": (None, 0, 0.0, 0.25),
    "max_running_jobs": (None,),  # a number belongs to a LimitedCapacityWorker
    "cron": (None,),  # an expression belongs to a CronWorker
    "time_zone": ("UTC", "Europe/Berlin"),
    "spread": (None, 60),
    "flush_interval": (5.0,),  # any other belongs to an IterableWorker
    "max_iteration_runtime": (None,),
    "lease_timeout": (None,),  # a time belongs to a ReenqueuerWorker
    "minimum_duration": (5.0,),
    "limiter": (None, bucket("a", 1, "day"), bucket("a", 1, "day").by("user")),
    "fair_by": (None, "user", len),
    "priority": (None, "low", "critical"),
    "concurrency_scope": (None, ConcurrencyScope("user", limit=2), ConcurrencyScope(len, max_percentage=0.5)),
    "break_after": (None, 3, BreakAfter(failures=0.5)),
    "max_waiting": (None, 3, MaxWaiting(bytes=1_000)),
    "without_meta_shard": ("proceed", "hold"),
    "on_full": ("refuse", "keep", "drop"),
    "defer_on_health": (None, DeferOnHealth(), DeferOnHealth("ci")),
    "pause_control": (None, "zoekt", "other"),
    "data_consistency": ("always", "sticky"),
    "data_consistency_overrides": (None, {"ci": "sticky"}, {"ci": "always", "main": "sticky"}),
}
"""Values that may meet in one class: none of them breaks a cross rule with another."""

OF_KINDS = {"flush_interval", "max_iteration_runtime", "lease_timeout", "minimum_duration"}
IDENTITY_ATTRIBUTES = {name for name, one in ATTRIBUTES.items() if not one.inherited}
NOT_HERE = IDENTITY_ATTRIBUTES | OF_KINDS | {"max_running_jobs", "cron", "memory_limit", "keep_result"}
FALSY = [(name, value) for name, values in POOL.items() for value in values if not value and name not in NOT_HERE]


def perform(self: Any, project_id: int, mode: str = "full") -> None: ...


def truthy(name: str) -> Any:
    return next(value for value in reversed(POOL[name]) if value)


def fact(worker: Any, name: str) -> Any:
    declaration = worker.declaration()
    return declaration.facts[name] if name in declaration.facts else getattr(declaration, name)


def same(found: Any, wanted: Any) -> bool:
    """Compare values and types: False is not 0, and 0 is not 0.0."""
    return type(found) is type(wanted) and found == wanted


def worker(name: str, *bases: type[Any], **body: Any) -> Any:
    return type(name, bases, {"feature_category": "x", "perform": perform, "__module__": "workers.tree", **body})


def abstract(name: str, *bases: type[Any], **body: Any) -> Any:
    return type(name, bases, {"__module__": "workers.tree", **body}, abstract=True)


def test_inheritance_table_has_every_attribute():
    assert set(POOL) == set(ATTRIBUTES)
    falsy_by_default = {name for name in ATTRIBUTES if not getattr(ApplicationWorker, name)}
    assert {name for name, _ in FALSY} >= falsy_by_default - NOT_HERE - {"feature_category"}


@each_row(("name", "falsy"), FALSY, around=registry.isolated)
def test_inherited_truthy_value_is_overridden_by_falsy(name: str, falsy: Any):
    high, wanted = {name: truthy(name)}, ATTRIBUTES[name].validator(falsy)
    parent = worker("ParentWorker", ApplicationWorker, **high)
    base = abstract("Base", ApplicationWorker, **high)
    mixin = type("Mixin", (), {name: falsy})
    grand = abstract("Grand", ApplicationWorker, **high)
    trees = {
        "child": worker("AWorker", parent, **{name: falsy}),
        "child of an abstract base": worker("BWorker", base, **{name: falsy}),
        "two levels": worker("CWorker", worker("DWorker", parent, **{name: falsy})),
        "two abstract levels": worker("EWorker", abstract("Middle", grand, **{name: falsy})),
        "mixin before the base": worker("FWorker", mixin, base),
        "mixin above": worker("GWorker", abstract("Mixed", mixin, base)),
    }
    for what, made in trees.items():
        assert same(fact(made, name), wanted), what
    assert same(fact(worker("HWorker", parent), name), ATTRIBUTES[name].validator(truthy(name)))
    behind = worker("IWorker", base, mixin)  # in Python's order the base precedes the mixin
    assert same(fact(behind, name), ATTRIBUTES[name].validator(truthy(name)))


@each_row(("name", "falsy"), FALSY, around=registry.isolated)
def test_inherited_falsy_value_is_overridden_by_truthy(name: str, falsy: Any):
    base = abstract("Base", ApplicationWorker, **{name: falsy})
    child = worker("ChildWorker", base, **{name: truthy(name)})
    assert same(fact(child, name), ATTRIBUTES[name].validator(truthy(name)))


@pytest.mark.parametrize("name", sorted(IDENTITY_ATTRIBUTES))
def test_identity_is_inherited_from_no_class(name: str):
    value = {"wire_name": "Named", "aliases": ("Old",)}[name]
    parent = worker("ParentWorker", ApplicationWorker, **{name: value})
    mixin = type("Mixin", (), {name: value})
    for child in (worker("ChildWorker", parent), worker("MixedWorker", mixin, ApplicationWorker)):
        declaration = child.declaration()
        assert (declaration.wire_name, declaration.aliases) == (child.__name__, ())


def test_idempotent_default_gives_way_to_declared_deduplicate():
    usual = Deduplicate("until_executing", ttl=timedelta(minutes=10))
    base = abstract("Base", ApplicationWorker, idempotent=True)
    off = type("Off", (), {"deduplicate": None})
    assert fact(worker("AWorker", base), "deduplicate") == usual
    assert fact(worker("BWorker", off, base), "deduplicate") is None
    assert fact(worker("CWorker", base, deduplicate=Deduplicate("none")), "deduplicate") == Deduplicate("none")
    assert fact(worker("DWorker", base, idempotent=False), "deduplicate") is None


def test_child_class_has_its_own_queue():
    parent = worker("ParentWorker", ApplicationWorker, queue_namespace="search")
    assert fact(worker("ChildWorker", parent), "generated_queue") == "search:child"
    assert fact(worker("LooseWorker", parent, queue_namespace=None), "generated_queue") == "loose"


def test_declaration_ignores_later_changes_of_the_class():
    parent = worker("ParentWorker", ApplicationWorker, retry=3)
    child = worker("ChildWorker", parent)
    parent.retry = 7
    assert (fact(parent, "retry"), fact(child, "retry")) == (3, 3)
    with pytest.raises(AttributeError):
        child.declaration().retry = 7


# --- against Python's own look-up -----------------------------------------------------------------------------------


class Node(NamedTuple):
    kind: str
    bases: tuple[int, ...]
    body: dict[str, Any]


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """Draw classes in an order in which the bases of each class precede it."""
    nodes: list[Node] = []
    for index in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["worker", "abstract", "mixin"]))
        earlier = [number for number, node in enumerate(nodes) if kind != "mixin" or node.kind == "mixin"]
        bases = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        names = [name for name in sorted(POOL) if kind == "worker" or name not in IDENTITY_ATTRIBUTES]
        body = {name: draw(st.sampled_from(POOL[name])) for name in draw(st.sets(st.sampled_from(names), max_size=8))}
        if body.get("wire_name"):
            body["wire_name"] = f"Named{index}"
        if body.get("aliases"):
            body["aliases"] = (f"Old{index}",)
        nodes.append(Node(kind, tuple(bases), body))
    return nodes


class Defaults:
    """Stand for ``ApplicationWorker`` among plain Python classes."""


for _name in ATTRIBUTES:
    setattr(Defaults, _name, getattr(ApplicationWorker, _name))


def bases_of(node: Node, made: list[type[Any]], root: type[Any]) -> tuple[type[Any], ...]:
    bases = tuple(made[index] for index in node.bases)
    return bases if node.kind == "mixin" or any(issubclass(base, root) for base in bases) else (*bases, root)


def plain(nodes: list[Node]) -> list[type[Any]]:
    made: list[type[Any]] = []
    for index, node in enumerate(nodes):
        try:
            made.append(type(f"Node{index}Worker", bases_of(node, made, Defaults), dict(node.body)))
        except TypeError:  # the bases have no consistent order
            assume(False)
        if node.kind == "worker" and made[-1].feature_category is None:
            node.body["feature_category"] = made[-1].feature_category = "x"
    return made


def expected(model: type[Any], name: str) -> Any:
    if name in IDENTITY_ATTRIBUTES:
        return vars(model).get(name) or {"wire_name": model.__name__, "aliases": ()}[name]
    if name == "deduplicate" and model.idempotent:
        declared = any(name in vars(owner) for owner in model.__mro__ if owner is not Defaults)
        return model.deduplicate if declared else Deduplicate("until_executing")
    return ATTRIBUTES[name].validator(getattr(model, name))


@settings(max_examples=examples(120), deadline=None)
@given(trees())
def test_attribute_lookup_agrees_with_plain_python_classes(nodes: list[Node]):
    models = plain(nodes)
    with registry.isolated():
        made: list[type[Any]] = []
        for index, node in enumerate(nodes):
            body = {"__module__": "workers.tree", **node.body}
            keywords = {"abstract": True} if node.kind == "abstract" else {}
            if node.kind == "worker":
                body["perform"] = perform
            made.append(type(f"Node{index}Worker", bases_of(node, made, ApplicationWorker), body, **keywords))
        for node, model, one in zip(nodes, models, made, strict=True):
            if node.kind == "worker":
                for name in ATTRIBUTES:
                    assert same(fact(one, name), expected(model, name)), name
            elif node.kind == "abstract":
                with pytest.raises(DeclarationError, match="is abstract"):
                    one.declaration()  # type: ignore[attr-defined]
