"""Test every attribute with wrong values. The error names class, attribute, value, allowed values and the nearest
spelling, and the refused class is not registered."""

import enum
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.application_worker import ATTRIBUTES, CONSTRAINTS, ApplicationWorker
from framework.declare import registry
from framework.declare.attribute import hooks_of
from framework.declare.policy_options import Deduplicate
from framework.errors import ConfigurationError, DeclarationError
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker
from framework.features.health.attributes import DeferOnHealth
from framework.features.iteration.iterable import IterableWorker
from framework.typeguards import short_repr
from tests.tables import each_row

NAN, INF = math.nan, math.inf
MODULE = "workers.sample"
HOOKS = hooks_of(ApplicationWorker)
PLACE = f"{MODULE}.SampleWorker"


class Hostile:
    """Raise an error in every special method."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise TypeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Level(enum.StrEnum):
    HIGH = "high"


class Subclassed(str):
    __slots__ = ()


def takes_one(value: Any) -> Any:
    return value


async def coroutine_resolver(args: tuple[Any, ...]) -> tuple[str, tuple[str, ...]]:
    return "main", args


async def awaited() -> int:
    return 3


def yields() -> Any:
    yield 3


JUNK = (
    NAN, INF, -1.5, 1 + 2j, Decimal("0.5"), b"high", "", " ", "a b", "x\n", "ü", "\ud800", [], ["mode"], [["mode"]], {},
    {"mode": 1}, {"mode"}, frozenset(), (1,), ("a b",), (("mode",),), (None,), ("mode", 1), object(), Hostile(), int,
    Deduplicate, property, takes_one, datetime(2030, 1, 1, tzinfo=UTC), range(3), NotImplemented, ...,
    10**5_000, -(10**5_000), (10**5_000,),
)  # fmt: skip
"""Right for no attribute."""

WORDS = ("global-search", "a:b", Subclassed("search"), 1, True, False)
QUEUES = ("queue name", "queue/name", 'a"b', Subclassed("q"), 1, True, False, ("a",))
SWITCHES = (None, 0, 1, "True", "yes", "false", ())
SPANS = (0, -1, 0.0, timedelta(0), timedelta(seconds=-1), True, False, "1h", "60", 10**400, -(10**400), 1e300, (60,))
COUNTS = (None, True, False, 1.0, "3", (3,), -2, -1.0)
TUPLES = (None, True, 0, "mode", ["mode"], {"mode": 1}, (None,), (True,), ((),), ("mode", "a b"))
LITERALS = (None, True, 0, ("low",))

WRONG: dict[str, tuple[Any, ...]] = {
    "feature_category": WORDS,
    "urgency": (*LITERALS, "High", "hihg", "LOW", "throttle", "normal", Level.HIGH, Subclassed("high"), ("high",)),
    "resource_boundary": (*LITERALS, "CPU", "memroy", "unknwon", "io"),
    "has_external_dependencies": SWITCHES,
    "tags": (*TUPLES, ("a-b",), ("",)),
    "worker_context": (True, 5, "tenant", ("tenant",), {"": 1}, {1: "x"}, {"tenant": {1}}),
    "queue_namespace": WORDS,
    "queue": QUEUES,
    "shard": (*QUEUES, "-shard", "a:b", "a.b"),
    "weight": (0, -1, True, False, 1.0, "3", (3,)),
    "version": (*COUNTS, -1),
    "wire_name": ("a.b", "A::", "::A", "A:B", "1A", "A b", 1, True, ("A",), ApplicationWorker),
    "aliases": (None, True, 0, "OldWorker", ["OldWorker"], ("a.b",), (None,), (("OldWorker",),)),
    "retry": (None, -1, 1.0, 3.5, "3", "true", (3,), timedelta(1)),
    "retry_for": SPANS,
    "retry_delay": (0, -1, True, "5", (), (5, 0), [5], (None,), 1e300),
    "retry_queue": QUEUES,
    "dead": SWITCHES,
    "backtrace": (0, -1, 1.0, "10", (10,)),
    "max_retries_after_interruption": COUNTS[1:],
    "ack": (*LITERALS, "Batch", "snyc", "async", "none"),
    "timeout": SPANS,
    "isolation": (*LITERALS[1:], "Process", "proces", "thread", ("process",)),
    "memory_limit": (0, -1, True, False, 1.0, "1G", (1,)),
    "expires_in": SPANS,
    "loggable_arguments": (*TUPLES, ("mode-name",), (0,)),
    "strict_arguments": (True, False, 0, "Raise", "rasie", "warning", ("off",)),
    "big_payload": SWITCHES,
    "compress": SWITCHES,
    "encrypt": SWITCHES,
    "status_expiration": SPANS,
    "keep_result": (*SPANS, timedelta(days=8)),
    "track": SWITCHES,
    "idempotent": SWITCHES,
    "deduplicate": (True, False, "until_executed", ("until_executed",), 600, DeferOnHealth()),
    "concurrency_limit": (True, False, 3.0, "20", (20,), awaited, yields, lambda worker: 20, print.__class__),
    "max_concurrency_limit_percentage": (True, False, 1.01, -0.01, 25, "0.25", "25%", (0.25,)),
    "max_running_jobs": (True, False, 3.0, "20", (20,), awaited, yields, lambda worker: 20, print.__class__),
    "cron": (True, 5, "", "* * * *", "60 * * * *", "@reboot", ("* * * * *",)),
    "time_zone": (None, True, 0, "", "Europe", "+01:00", ("UTC",)),
    "spread": (True, -1, 86_401, 0.5, "60", (60,), timedelta(milliseconds=1)),
    "flush_interval": (None, *SPANS),
    "max_iteration_runtime": SPANS,
    "lease_timeout": SPANS,
    "minimum_duration": (None, *SPANS),
    "limiter": (True, 5, "api", ("api",), DeferOnHealth()),
    "fair_by": (True, False, 5, "a key", ("user",), DeferOnHealth(), str),
    "priority": ("urgent", "", True, 1, len, ("high",)),
    "concurrency_scope": (True, False, "user", ("user",), DeferOnHealth(), 5),
    "break_after": (True, False, 0, -1, 1_001, 3.0, "3", (3,), DeferOnHealth()),
    "max_waiting": (True, False, 0, -1, 1_000_000_001, 3.0, "3", (3,), DeferOnHealth()),
    "without_meta_shard": (*LITERALS, "Hold", "held", None),
    "on_full": (*LITERALS, "Refuse", "refused", None),
    "defer_on_health": (True, False, "main", ("main",), Deduplicate(), timedelta(1)),
    "pause_control": WORDS,
    "data_consistency": (*LITERALS, "Always", "stikcy", "delay", "eventual"),
    "data_consistency_overrides": (True, "sticky", ("sticky",), {"ci": "stikcy"}, {"c i": "sticky"}, {1: "sticky"}),
}  # fmt: skip

NEAREST = {
    "High": "high", "hihg": "high", "LOW": "low", "throttle": "throttled", "CPU": "cpu", "memroy": "memory",
    "unknwon": "unknown", "Batch": "batch", "snyc": "sync", "async": "sync", "Always": "always", "stikcy": "sticky",
    "delay": "delayed", "Raise": "raise", "rasie": "raise", "warning": "warn",
}  # fmt: skip
"""Misspelt values of closed vocabularies, with the right ones."""


def perform(self: Any, project_id: int, mode: str = "full") -> None: ...


def body(**more: Any) -> dict[str, Any]:
    whole = {"feature_category": "x", "perform": perform, "__module__": MODULE, **more}
    return {key: value for key, value in whole.items() if value is not ...}


def refused(name: str, bases: tuple[type[Any], ...], members: dict[str, Any], **keywords: Any) -> DeclarationError:
    """Return the error of a refused class; check that the registry is unchanged."""
    before = dict(registry._registry.by_name), dict(registry._registry.by_qualified_name)
    with pytest.raises(DeclarationError) as caught:
        type(name, bases, members, **keywords)
    assert (registry._registry.by_name, registry._registry.by_qualified_name) == before
    assert str(caught.value).startswith(f"{caught.value.worker}: ")
    return caught.value


def test_bad_input_table_has_every_attribute():
    assert set(WRONG) == set(ATTRIBUTES)
    assert all(len(values) >= 5 for values in WRONG.values())


CASES = [
    pytest.param(name, value, id=f"{name}-{index}")
    for name, wrong in WRONG.items()
    for index, value in enumerate((*wrong, *JUNK))
    # A function of the arguments is right for the first, a dict for the second, a tuple of seconds for the third.
    if not (
        (name == "fair_by" and value is takes_one)
        or (name == "worker_context" and isinstance(value, dict) and value not in wrong)
        or (name == "retry_delay" and type(value) is tuple and value[:1] == (1,))
    )
]


@each_row(("name", "value"), CASES, around=registry.isolated)
def test_attribute_with_wrong_value_is_refused(name: str, value: Any):
    error = refused("SampleWorker", (ApplicationWorker,), {**body(), name: value})
    message = str(error)
    assert (error.worker, error.attribute) == (PLACE, name)
    assert f"{name} = {short_repr(value)} is not allowed." in message
    assert f"Allowed: {ATTRIBUTES[name].validator.allowed.removesuffix(', or None')}" in message
    if isinstance(value, str) and value in NEAREST and "one of" in message:
        assert f"(did you mean {NEAREST[value]!r}?)" in message


@each_row("name", ATTRIBUTES, around=registry.isolated)
def test_inherited_wrong_value_is_refused_with_its_class(name: str):
    wrong = WRONG[name][-1]
    error = refused("Base", (ApplicationWorker,), {"__module__": MODULE, name: wrong}, abstract=True)
    assert (error.worker, error.attribute) == (f"{MODULE}.Base", name)
    if name in ("wire_name", "aliases"):
        return  # these two attributes are never inherited
    mixin = type("Mixin", (), {"__module__": MODULE, name: wrong})
    members = body(feature_category=...) if name == "feature_category" else body()
    error = refused("SampleWorker", (mixin, ApplicationWorker), members)
    assert (error.worker, error.attribute) == (PLACE, name)
    assert f"{name} = {short_repr(wrong)} (in {MODULE}.Mixin) is not allowed." in str(error)


def misspell(name: str) -> str:
    """Return the name with its last two letters swapped, or its last letter doubled."""
    return name + name[-1] if len(name) <= 4 or name[-1] == name[-2] else name[:-2] + name[-1] + name[-2]


@each_row("name", ATTRIBUTES, around=registry.isolated)
def test_misspelt_attribute_names_the_nearest(name: str):
    misspelt = misspell(name)
    right = ATTRIBUTES[name]
    members = body(**{misspelt: 1})
    for bases, made in (
        ((ApplicationWorker,), members),
        ((type("Mixin", (), {misspelt: 1}), ApplicationWorker), body()),
    ):
        error = refused("SampleWorker", bases, made)
        assert (error.worker, error.attribute) == (PLACE, misspelt)
        assert f"(did you mean {name!r}?)" in str(error), right
        assert f"{misspelt} = 1" in str(error)
    error = refused("Base", (ApplicationWorker,), {"__module__": MODULE, misspelt: 1}, abstract=True)
    assert (error.worker, error.attribute) == (f"{MODULE}.Base", misspelt)
    error = refused("SampleWorker", (ApplicationWorker,), body(**{misspelt: Deduplicate}))
    assert f"(did you mean {name!r}?)" in str(error)


@each_row("name", ATTRIBUTES, around=registry.isolated)
def test_annotation_without_value_is_refused(name: str):
    misspelt = misspell(name)
    for annotated in (name, misspelt):
        members = {key: value for key, value in body(__annotations__={annotated: "high"}).items() if key != name}
        error = refused("SampleWorker", (ApplicationWorker,), members)
        assert (error.worker, error.attribute) == (PLACE, annotated)
        assert f"{annotated}: 'high' is an annotation without a value" in str(error)
        assert f"Write {name} = ...; allowed: {ATTRIBUTES[name].validator.allowed}." in str(error)
        assert ("did you mean" in str(error)) is (annotated == misspelt)


def test_annotated_value_counts_as_value():
    error = refused("SampleWorker", (ApplicationWorker,), body(__annotations__={"urgency": str}, urgency="hihg"))
    assert "(did you mean 'high'?)" in str(error)
    annotations = {"urgency": str, "client": "Elsewhere", "_urgancy": str, "LIMIT": int}
    made: Any = type("SampleWorker", (ApplicationWorker,), body(__annotations__=annotations, urgency="high"))
    assert made.declaration().urgency == "high"


def test_mixin_may_annotate_attributes_of_a_worker():
    mixin = type("Mixin", (), {"__annotations__": {"queue": "str | None", "tag": str}})
    assert type("SampleWorker", (mixin, ApplicationWorker), body()).declaration().queue is None


def values_of(depth: int) -> st.SearchStrategy[Any]:
    plain = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.timedeltas(), st.complex_numbers(),
        st.sampled_from([10**5_000, -(10**5_000)]),
        st.sampled_from(["high", "low", "cpu", "sync", "delayed", (), Hostile(), takes_one, Deduplicate(), DeferOnHealth()]),
    )  # fmt: skip
    return (
        plain if not depth else st.one_of(plain, st.lists(plain), st.tuples(plain), st.dictionaries(st.text(), plain))
    )


@given(st.sampled_from(sorted(ATTRIBUTES)), values_of(1))
def test_any_value_is_accepted_or_refused_by_name(name: str, value: Any):
    with registry.isolated():
        try:
            made: Any = type("SampleWorker", (ApplicationWorker,), body(**{name: value}))
        except DeclarationError as error:
            assert error.worker == PLACE  # noqa: PT017 - both ends are right
            assert error.attribute is not None  # noqa: PT017
            assert registry.find("SampleWorker") is None
        else:
            assert registry.find(made.declaration().wire_name) is made


# --- constraints ----------------------------------------------------------------------------------------------------


def test_memory_limit_needs_a_process_of_its_own():
    limited = {"memory_limit": 1 << 30}
    with registry.isolated():
        error = refused("SampleWorker", (ApplicationWorker,), body(**limited))
        assert (error.attribute, "without isolation" in str(error)) == ("memory_limit", True)
        made: Any = type("SampleWorker", (ApplicationWorker,), body(isolation="process", **limited))
        facts = made.declaration()
        assert (facts.facts["memory_limit"], facts.in_thread, facts.is_async) == (1 << 30, False, False)


def test_isolation_does_not_fit_workers_of_other_kinds():
    for base in (LimitedCapacityWorker, IterableWorker):
        with registry.isolated(), pytest.raises(DeclarationError, match=base.__name__) as raised:
            type("SampleWorker", (base,), {"feature_category": "not_owned", "isolation": "process"})
        assert "isolation" in {error.attribute for error in raised.value.problems}


BROKEN = [(rule, forbidden) for rule in CONSTRAINTS for forbidden in rule.forbidden_values]


def assert_names_the_rule(error: DeclarationError, rule: Any, forbidden: Any) -> None:
    message = str(error)
    assert (error.worker, error.attribute) == (PLACE, rule.attribute)
    assert f"{rule.attribute} = {rule.value!r}" in message
    assert f"{rule.other_attribute} = {forbidden!r}" in message
    assert str(rule) in message
    assert rule.remedy in message


@each_row(("rule", "forbidden"), BROKEN, around=registry.isolated)
def test_constraint_holds_in_one_class_and_over_classes(rule: Any, forbidden: Any):
    one, other = {rule.attribute: rule.value}, {rule.other_attribute: forbidden}
    assert_names_the_rule(refused("SampleWorker", (ApplicationWorker,), body(**one, **other)), rule, forbidden)
    for above, below in ((one, other), (other, one)):
        base = type("Base", (ApplicationWorker,), {"__module__": MODULE, **above}, abstract=True)
        middle = type("Middle", (base,), {}, abstract=True)
        parent = type("ParentWorker", (ApplicationWorker,), body(**above))
        mixin = type("Mixin", (), {"__module__": MODULE, **above})
        for bases in ((base,), (middle,), (parent,), (mixin, ApplicationWorker)):
            error = refused("SampleWorker", bases, body(**below))
            assert_names_the_rule(error, rule, forbidden)
            place = next(owner for owner in bases[0].__mro__ if next(iter(above)) in vars(owner)).__name__
            assert f"{next(iter(above))} = {next(iter(above.values()))!r} (in {MODULE}.{place})" in str(error)
        error = refused("Both", (base,), {"__module__": MODULE, **below}, abstract=True)
        assert error.worker == f"{MODULE}.Both"


@each_row(("rule", "forbidden"), BROKEN, around=registry.isolated)
def test_constraint_broken_by_parent_may_be_mended_by_child(rule: Any, forbidden: Any):
    default = getattr(ApplicationWorker, rule.other_attribute)
    parent = type("ParentWorker", (ApplicationWorker,), body(**{rule.other_attribute: forbidden}))
    child: Any = type("SampleWorker", (parent,), body(**{rule.attribute: rule.value, rule.other_attribute: default}))
    assert getattr(child.declaration(), rule.other_attribute) == default


# --- grouped facts --------------------------------------------------------------------------------------------------


@each_row(
    ("make", "field", "value", "words"),
    [
        (Deduplicate, "strategy", "until_execute", "did you mean 'until_execut"),
        (Deduplicate, "strategy", None, "one of 'until_executing'"),
        (Deduplicate, "ttl", 0, "a positive timedelta"),
        (Deduplicate, "ttl", True, "a positive timedelta"),
        (Deduplicate, "ttl", NAN, "a positive timedelta"),
        (Deduplicate, "if_deduplicated", "reschedule", "did you mean 'reschedule_once'?"),
        (Deduplicate, "if_deduplicated", False, "'reschedule_once', or None"),
        (Deduplicate, "including_scheduled", 1, "True or False"),
        (Deduplicate, "feature_flag", "a flag", "letters, digits and underscores"),
        (Deduplicate, "window", 0, "a positive timedelta"),
        (Deduplicate, "max_window", "30s", "a positive timedelta"),
        (Deduplicate, "max_items", 0, "a whole number >= 1, or None"),
        (Deduplicate, "max_bytes", 1_000_001, "a whole number from 1 to 1,000,000, or None"),
        (DeferOnHealth, "database", None, "letters, digits and underscores"),
        (DeferOnHealth, "database", "", "letters, digits and underscores"),
        (DeferOnHealth, "tables", "projects", "Write ('projects',) with the comma"),
        (DeferOnHealth, "tables", ["projects"], "a tuple, for example ('projects',)"),
        (DeferOnHealth, "tables", (1,), "1 is not"),
        (DeferOnHealth, "delay", -1, "a positive timedelta"),
        (DeferOnHealth, "max_delay", "30m", "a positive timedelta"),
        (DeferOnHealth, "max_deferrals", 0, "a whole number >= 1, or None"),
        (DeferOnHealth, "max_deferrals", True, "a whole number >= 1, or None"),
        (DeferOnHealth, "indicators", "lag", "with the comma"),
        (DeferOnHealth, "indicators", (("lag",),), "is not"),
        (DeferOnHealth, "resolver", "main", "a callable that takes a job's arguments as one tuple"),
        (DeferOnHealth, "resolver", tuple, "a callable that takes a job's arguments as one tuple"),
        (DeferOnHealth, "resolver", lambda: ("main", ()), "takes another number of arguments"),
        (DeferOnHealth, "resolver", lambda one, two: ("main", ()), "takes another number of arguments"),
        (DeferOnHealth, "resolver", coroutine_resolver, "a callable that takes a job's arguments as one tuple"),
    ],
    around=registry.isolated,
)  # fmt: skip
def test_policy_field_with_wrong_value_is_refused(make: Callable[..., Any], field: str, value: Any, words: str):
    with pytest.raises(DeclarationError) as caught:
        make(**{field: value})
    error, kind = caught.value, make.__name__
    assert (error.worker, error.attribute) == (kind, field)
    assert str(error).startswith(f"{kind}: {field} = {short_repr(value)} is not allowed. Allowed: ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("make", "field", "nearest"),
    [(Deduplicate, "strateg", "strategy"), (Deduplicate, "tll", "ttl"), (DeferOnHealth, "table", "tables")],
)
def test_policy_field_unknown_is_refused(make: Callable[..., Any], field: str, nearest: str):
    with pytest.raises(DeclarationError) as caught:
        make(**{field: 1})
    assert (caught.value.worker, caught.value.attribute) == (make.__name__, field)
    assert f"(did you mean {nearest!r}?)" in str(caught.value)
    assert "Allowed: " in str(caught.value)


def test_policy_fields_that_contradict_are_refused():
    with pytest.raises(DeclarationError, match="needs strategy 'until_executed'") as caught:
        Deduplicate("until_executing", if_deduplicated="reschedule_once")
    assert caught.value.attribute == "if_deduplicated"
    window = timedelta(seconds=30)
    for options, attribute, words in (
        ({"strategy": "debounce"}, "window", "'debounce' needs window"),
        ({"strategy": "accumulate"}, "window", "'accumulate' needs window"),
        ({"window": window}, "window", "belongs to strategy 'debounce' or 'accumulate', not to 'until_executing'"),
        ({"strategy": "debounce", "window": window, "max_items": 5}, "max_items", "belongs to strategy 'accumulate'"),
        (
            {"strategy": "accumulate", "window": window, "max_window": window},
            "max_window",
            "belongs to strategy 'debounce'",
        ),
        (
            {"strategy": "debounce", "window": window, "max_window": timedelta(1e-5)},
            "max_window",
            "shorter than window",
        ),
        (
            {"strategy": "debounce", "window": window, "including_scheduled": True},
            "including_scheduled",
            "Leave including",
        ),
    ):
        with pytest.raises(DeclarationError, match=words) as caught:
            Deduplicate(**options)
        assert caught.value.attribute == attribute
    policy = Deduplicate("accumulate", window=window)
    for attributes, words in (
        ({"idempotent": False}, "declare idempotent = True"),
        ({}, r"declare the last parameter of perform as list\[...\], without a default. It is 'mode'"),
        ({"data_consistency": "sticky"}, "does not fit data_consistency = 'sticky'"),
        ({"encrypt": True}, "does not fit encrypt = True"),
    ):
        with registry.isolated(), pytest.raises(DeclarationError, match=words):
            type(
                "SampleWorker", (ApplicationWorker,), body(**{"idempotent": True, "deduplicate": policy, **attributes})
            )
    with pytest.raises(DeclarationError, match="0:00:05 is shorter than delay = 1:00:00") as caught:
        DeferOnHealth(delay=timedelta(hours=1), max_delay=timedelta(seconds=5))
    assert caught.value.attribute == "max_delay"


# --- hooks, perform, keywords ---------------------------------------------------------------------------------------


@each_row("name", HOOKS, around=registry.isolated)
def test_hook_with_wrong_signature_is_refused(name: str):
    wanted = "@classmethod"
    for value in (5, None, "x", (), perform, staticmethod(perform), property(perform), int):
        error = refused("SampleWorker", (ApplicationWorker,), body(**{name: value}))
        assert (error.worker, error.attribute) == (PLACE, name)
        assert f"{name} = {short_repr(value)} is not allowed" in str(error)
        assert wanted in str(error)
    error = refused("SampleWorker", (ApplicationWorker,), body(**{name: classmethod(lambda cls: None)}))
    assert f"{name}() cannot be called with {HOOKS[name]} argument" in str(error)
    assert "must take (" in str(error)
    error = refused("SampleWorker", (ApplicationWorker,), body(**{name: classmethod(lambda cls, *, a: None)}))
    assert error.attribute == name
    mixin = type("Mixin", (), {"__module__": MODULE, name: classmethod(lambda cls: None)})
    assert f"(in {MODULE}.Mixin)" in str(refused("SampleWorker", (mixin, ApplicationWorker), body()))


@each_row(
    ("misspelt", "meant"),
    [
        ("retry_inn", "retry_in"),
        ("retryIn", "retry_in"),
        ("Retries_Exhausted", "retries_exhausted"),
        ("RETRIES_EXHAUSTED", "retries_exhausted"),
        ("retriesExhausted", "retries_exhausted"),
        ("exhausted_retries", "retries_exhausted"),
        ("sidekiq_retry_in", "retry_in"),
        ("sidekiq_retries_exhausted", "retries_exhausted"),
        ("sidekiq_interruptions_exhausted", "interruptions_exhausted"),
        ("idempotency_argument", "idempotency_arguments"),
        ("on_concurrency_limit_defered", "on_concurrency_limit_deferred"),
        ("on_concurrency_limit_resume", "on_concurrency_limit_resumed"),
        ("on_concurrency_limit_xyz", "on_concurrency_limit_resumed"),
    ],
)
@each_row("mixed_in", [False, True], around=registry.isolated)
def test_class_refuses_misspelt_hook_with_nearest(misspelt: str, meant: str, mixed_in: bool):
    hook = classmethod(lambda cls, *args: None)
    mixin = type("Mixin", (), {misspelt: hook})
    bases, members = (
        ((mixin, ApplicationWorker), body()) if mixed_in else ((ApplicationWorker,), body(**{misspelt: hook}))
    )
    with pytest.raises(DeclarationError, match=f"did you mean '{meant}'"):
        type("Slip", bases, members)


@each_row("name", ["retry_later", "on_commit", "sidekiq_logger", "limit_reached", "retried"], around=registry.isolated)
def test_class_keeps_helpers_that_are_near_no_hook(name: str):
    type("Helped", (ApplicationWorker,), body(**{name: classmethod(lambda cls: None)}))


@each_row("name", HOOKS, around=registry.isolated)
def test_hook_misspelt_is_refused(name: str):
    misspelt = misspell(name)
    hook = classmethod(lambda cls, *args: None)
    mixin = type("Mixin", (), {misspelt: hook})
    for bases, members in (((ApplicationWorker,), body(**{misspelt: hook})), ((mixin, ApplicationWorker), body())):
        error = refused("SampleWorker", bases, members)
        assert (error.worker, error.attribute) == (PLACE, misspelt)
        assert f"(did you mean {name!r}?)" in str(error)


@each_row(
    "value", [5, None, "run", staticmethod(perform), classmethod(perform), property(perform)], around=registry.isolated
)
def test_perform_that_is_no_method_is_refused(value: Any):
    error = refused("SampleWorker", (ApplicationWorker,), body(perform=value))
    assert (error.worker, error.attribute) == (PLACE, "perform")
    assert f"perform = {short_repr(value)} is not allowed" in str(error)
    assert "def perform(self, ...)" in str(error)


@each_row(
    ("keywords", "words"),
    [
        ({"abstrct": True}, "(did you mean 'abstract'?). Allowed: abstract."),
        ({"urgency": "high"}, "Write attributes in the class body: urgency = 'high'."),
        ({"urgancy": "high"}, "(did you mean 'urgency'?)"),
        ({"abstract": "yes"}, "abstract = 'yes' is not allowed. Allowed: True or False."),
        ({"abstract": 1}, "abstract = 1 is not allowed."),
        ({"abstract": None}, "abstract = None is not allowed."),
    ],
    around=registry.isolated,
)
def test_class_keywords_unknown_are_refused(keywords: dict[str, Any], words: str):
    error = refused("SampleWorker", (ApplicationWorker,), body(), **keywords)
    assert (error.worker, error.attribute) == (PLACE, next(iter(keywords)))
    assert words in str(error)


def test_abstract_base_refuses_attributes_of_its_own():
    for name, value in (("wire_name", "X"), ("aliases", ("X",))):
        error = refused("Base", (ApplicationWorker,), {"__module__": MODULE, name: value}, abstract=True)
        assert error.attribute == name
        assert f"{name} = {value!r}" in str(error)


def test_loggable_arguments_unknown_to_perform_are_refused():
    error = refused("SampleWorker", (ApplicationWorker,), body(loggable_arguments=("moed",)))
    assert (error.worker, error.attribute) == (PLACE, "loggable_arguments")
    assert "'moed' is not a parameter of perform (did you mean 'mode'?). Allowed: 'project_id', 'mode'." in str(error)
    base = type("Base", (ApplicationWorker,), {"__module__": MODULE, "loggable_arguments": ("file",)}, abstract=True)
    error = refused("SampleWorker", (base,), body())
    assert f"loggable_arguments = ('file',) (in {MODULE}.Base)" in str(error)


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("    urgency = 'hihg'", "bad_jobs.BadWorker: urgency = 'hihg' is not allowed"),
        ("    deduplicate = Deduplicate('until')", "Deduplicate: strategy = 'until' is not allowed"),
        ("    deduplicate = Deduplicate(tll=3)", "(did you mean 'ttl'?)"),
        ("    retry = int('x')", "importing it fails with ValueError"),
    ],
)
def test_load_of_broken_module_names_its_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, line: str, words: str):
    source = "from framework import ApplicationWorker, Deduplicate\n\n\nclass BadWorker(ApplicationWorker):\n{}\n"
    (tmp_path / "bad_jobs.py").write_text(source.format(line))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        registry.load(["bad_jobs"])
    problem = caught.value.problems[0]
    assert problem.file == "bad_jobs"
    assert words in problem.message
    number = 4 if line.startswith("    urgency") else 5
    assert problem.message.endswith(f"bad_jobs.py, line {number})")
    assert registry.workers() == []


# --- all of it at once ----------------------------------------------------------------------------------------------


def test_declaration_error_lists_every_fault_of_a_class():
    """One error has a line for each wrong name, value, constraint, hook, handler, signature and default, and none twice."""

    def perform(self: Any, when: datetime, *, mode: str = "full", size: int = "big", **others: Any) -> None: ...  # type: ignore[assignment]

    members = {
        "__module__": MODULE,
        "feature_categry": "search",
        "urgency": "hihg",
        "retry": 0,
        "data_consistency": "delayed",
        "queue": "a b",
        "tags": 3,
        "retry_in": lambda self: None,
        "perform_v01": lambda self: None,
        "perform_v3": lambda self: None,
        "perform": perform,
    }
    error = refused("SampleWorker", (ApplicationWorker,), members)
    assert [problem.attribute for problem in error.problems] == [
        *("perform_v01", "feature_categry", "urgency", "tags", "queue", "retry_in", "data_consistency"),
        *("perform", "perform", "perform", "perform", "perform_v3"),
    ]
    first, *lines = str(error).splitlines()
    assert first == f"{PLACE}: 12 problems:"
    assert [line.removeprefix("  - ") for line in lines] == [problem.message for problem in error.problems]
    assert (error.worker, error.attribute) == (PLACE, "perform_v01")
    assert all(problem.problems == (problem,) and problem.worker == PLACE for problem in error.problems)
    text = str(error)
    for words in (
        "did you mean 'feature_category'?",
        "did you mean 'high'?",
        "datetime has no JSON form",
        "parameter \"mode: str = 'full'\" is not possible",
        "parameter '**others: Any' is not possible",
        "delayed' forbids retry = False or 0",
    ):
        assert words in text


def test_declaration_error_of_one_fault_is_that_fault():
    """The consequences of a fault are not reported: a wrong version hides handlers, a wrong value hides constraints."""
    for members in (
        body(version="2", perform_v1=lambda self: None),
        body(urgency="hgih", has_external_dependencies=True),
        body(retry="never", data_consistency="delayed"),
        body(feature_category=3),
        body(strict_arguments="wran"),
        {**{name: value for name, value in body().items() if name != "perform"}, "preform": lambda self: None},
    ):
        error = refused("SampleWorker", (ApplicationWorker,), members)
        assert error.problems == (error,)
        assert "problems" not in str(error)


def test_policy_error_lists_every_field():
    with pytest.raises(DeclarationError) as caught:
        Deduplicate("until", ttl=0, if_deduplicated="never")  # type: ignore[arg-type]
    assert [problem.attribute for problem in caught.value.problems] == ["strategy", "ttl", "if_deduplicated"]


def test_load_names_every_fault_of_every_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    source = "from framework import ApplicationWorker\n\n\nclass {}Worker(ApplicationWorker):\n    urgency = 'hihg'\n"
    package = tmp_path / "bad_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(source.format(name.title()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        registry.load(["bad_package"])
    found_problems = [(problem.file, problem.message.split(" (")[0]) for problem in caught.value.problems]
    assert len(found_problems) == 4
    assert found_problems[0] == (
        "bad_package.one",
        "bad_package.one.OneWorker: urgency = 'hihg' is not allowed. Allowed: one of 'high', 'low', 'throttled'",
    )
    assert [file for file, _ in found_problems] == ["bad_package.one"] * 2 + ["bad_package.two"] * 2
