"""Test handlers of older versions: found and refused methods, and loggable arguments per version."""

from typing import Any

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ArgumentsError, DeclarationError
from tests.tables import each_row


def perform(self: Any, project_id: int, mode: str = "full") -> None: ...


def old(self: Any, path: str) -> None: ...


def make(*bases: type[Any], name: str = "SampleWorker", **body: Any) -> Any:
    facts = {"__module__": "workers.sample", **body}
    if not bases:
        facts = {"feature_category": "x", "perform": perform, **facts}
    return type(name, bases or (ApplicationWorker,), facts)


def handlers(worker: Any) -> dict[int, str]:
    return {number: handler.method for number, handler in worker.declaration().version_handlers.items()}


def test_handlers_of_plain_class_are_empty():
    assert handlers(make()) == handlers(make(version=3)) == {}


def test_handler_has_its_own_signature():
    worker = make(version=11, perform_v0=old, perform_v10=lambda self, *rest: None)
    assert handlers(worker) == {0: "perform_v0", 10: "perform_v10"}
    first, tenth = worker.declaration().version_handlers.values()
    first.signature.check(["a"])
    tenth.signature.check([1, 2, 3])
    with pytest.raises(ArgumentsError, match=r"'path' does not fit: .* valid string, got int"):
        first.signature.check([1])
    with pytest.raises(ArgumentsError, match="perform_v0 takes 1 argument, 2 were given"):
        first.signature.check(["a", "b"])
    worker.declaration().signature.check([1])


def test_handlers_are_inherited_by_a_newer_child():
    def newer(self: Any, path: str, deep: bool) -> None: ...

    parent = make(version=1, perform_v0=old)
    child = make(parent, name="ChildWorker", version=2, perform_v1=perform)
    grandchild = make(child, name="GrandWorker", perform_v0=newer)
    assert handlers(parent) == {0: "perform_v0"}
    assert handlers(child) == {1: "perform_v1", 0: "perform_v0"}
    assert child.declaration().version_handlers[0].signature.names == ("path",)
    assert grandchild.declaration().version_handlers[0].signature.names == ("path", "deep")


def test_handlers_are_inherited_from_mixins_and_abstract_classes():
    mixin = type("Mixin", (), {"perform_v0": old})
    base = type("Base", (ApplicationWorker,), {"perform_v1": old}, abstract=True)  # its children declare their version
    worker = make(mixin, base, feature_category="x", perform=perform, version=2)
    assert handlers(worker) == {0: "perform_v0", 1: "perform_v1"}


async def waits(self: Any) -> None: ...


@each_row(
    ("now", "before", "is_async"),
    [(perform, old, False), (waits, old, False), (perform, waits, False), (waits, waits, True)],
    around=registry.isolated,
)
def test_is_async_needs_every_handler_async(now, before, is_async):
    assert make(perform=now, version=1, perform_v0=before).declaration().is_async is is_async


def test_job_version_outside_of_a_job_is_that_of_the_class():
    base = make(version=2)
    assert base().job_version == 2
    assert make(base, name="ChildWorker").job_version == 2
    assert make(base, name="OtherWorker", version=0)().job_version == 0


# --- loggable arguments ------------------------------------------------------------------------------------------------


def test_loggable_positions_follow_the_handlers_parameters():
    def before(self: Any, token: str, project_id: int, mode: str) -> None: ...

    facts = make(version=3, perform_v1=before, loggable_arguments=("mode",)).declaration()
    assert facts.loggable_positions_for(3) == {1}
    assert facts.loggable_positions_for(1) == {2}
    assert (
        facts.loggable_positions_for(0) == facts.loggable_positions_for(2) == {1}
    )  # perform runs jobs of both versions
    assert facts.loggable_positions_for(4) == set()  # the positions of a newer version are unknown


def test_loggable_argument_of_a_handler_is_accepted():
    facts = make(version=1, perform_v0=old, loggable_arguments=("path",)).declaration()
    assert (facts.loggable_positions_for(1), facts.loggable_positions_for(0)) == (set(), {0})


def test_loggable_argument_of_no_method_is_refused():
    with pytest.raises(
        DeclarationError,
        match=r"'paht' is not a parameter of perform \(did you mean 'path'\?\). Allowed: 'project_id', 'mode', 'path'",
    ):
        make(version=1, perform_v0=old, loggable_arguments=("paht",))


# --- refused handlers -------------------------------------------------------------------------------------------------


def generator(self: Any) -> Any:
    yield


async def async_generator(self: Any) -> Any:
    yield


def keyword_only(self: Any, *, mode: str) -> None: ...


def wrong_default(self: Any, number: int = "1") -> None: ...  # type: ignore[assignment]


def bytes_parameter(self: Any, data: bytes) -> None: ...


def unreadable(self: Any, data: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def without_self() -> None: ...


@each_row(
    ("version", "name", "value", "words"),
    [
        (
            2,
            "perform_v2",
            old,
            "version = 2: jobs of its own version run perform. Raise version (to 3 or more)",
        ),
        (1, "perform_v2", old, "version = 1"),
        (
            ...,
            "perform_v0",
            old,
            "version = 0: jobs of its own version run perform. Raise version (to 1 or",
        ),
        (9, "perform_v01", old, "'perform_v01' runs no jobs (did you mean 'perform_v1'?)"),
        (9, "perform_v00", old, "did you mean 'perform_v0'?"),
        (
            9,
            "perform_v",
            old,
            "called perform_v<N>, such as perform_v0 or perform_v1. A helper of your own: _perform_v.",
        ),
        (9, "perform_v_", old, "'perform_v_' runs no jobs."),
        (9, "perform_version", old, "'perform_version' runs no jobs."),
        (9, "perform_version_1", old, "did you mean 'perform_v1'?"),
        (9, "perform_ver2", old, "did you mean 'perform_v2'?"),
        (9, "perform_1", old, "did you mean 'perform_v1'?"),
        (9, "perform1", old, "did you mean 'perform_v1'?"),
        (9, "perform_v_1", old, "did you mean 'perform_v1'?"),
        (9, "perform_v1_", old, "did you mean 'perform_v1'?"),
        (9, "performv1", old, "did you mean 'perform_v1'?"),
        (9, "perform_V1", old, "did you mean 'perform_v1'?"),
        (9, "PERFORM_V1", old, "did you mean 'perform_v1'?"),
        (9, "preform_v1", old, "did you mean 'perform_v1'?"),
        (9, "perfrom_v12", old, "did you mean 'perform_v12'?"),
        (9, "perform_v१", old, "did you mean 'perform_v1'?"),
        (9, "perform_v1", staticmethod(old), "is not allowed. Allowed: an ordinary method, def perform_v1(self, ...)."),
        (9, "perform_v1", classmethod(old), "Allowed: an ordinary method"),
        (9, "perform_v1", property(old), "Allowed: an ordinary method"),
        (9, "perform_v1", int, "Allowed: an ordinary method"),
        (9, "perform_v1", 3, "Allowed: an ordinary method"),
        (9, "perform_v1", None, "Allowed: an ordinary method"),
        (9, "perform_v1", generator, "perform_v1 holds a yield"),
        (9, "perform_v1", async_generator, "perform_v1 holds a yield"),
        (9, "perform_v1", keyword_only, "perform_v1's parameter 'mode: str' is not possible"),
        (9, "perform_v1", bytes_parameter, "perform_v1's parameter 'data': bytes has no JSON form; use a str"),
        (9, "perform_v1", unreadable, "perform_v1: its annotations cannot be read at run time"),
        (9, "perform_v1", wrong_default, "the default of perform_v1's parameter 'number' does not fit int"),
        (9, "perform_v1", without_self, "perform_v1 needs self: it would be called with"),
    ],
    around=registry.isolated,
)
def test_handler_misspelt_is_refused(version: Any, name: str, value: Any, words: str):
    body = {} if version is ... else {"version": version}
    with pytest.raises(DeclarationError) as caught:
        make(**body, **{name: value})
    assert str(caught.value).startswith("workers.sample.SampleWorker: ")
    assert words in str(caught.value)
    assert caught.value.attribute == name
    mixin = type("Mixin", (), {name: value})
    with pytest.raises(DeclarationError) as caught:
        make(mixin, ApplicationWorker, feature_category="x", perform=perform, **body)
    assert name in str(caught.value)


def test_inherited_handler_newer_than_child_is_refused():
    base = type("Base", (ApplicationWorker,), {"perform_v1": old}, abstract=True)
    with pytest.raises(
        DeclarationError, match=r"perform_v1 \(of Base\) is for jobs older than the class, .* version = 1"
    ):
        make(base, feature_category="x", perform=perform, version=1)
    parent = make(version=3, perform_v2=old)
    with pytest.raises(DeclarationError, match=r"perform_v2 \(of SampleWorker\) .* version = 0"):
        make(parent, name="ChildWorker", version=0)


@each_row(
    "name",
    ["_perform_v01", "perform_validation", "perform_verify", "perform_one", "perform_v1_step", "deliver2", "improve"],
    around=registry.isolated,
)
def test_method_unlike_a_handler_is_no_handler(name: str):
    assert handlers(make(version=2, **{name: old})) == {}


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [{"aliases": ("Old", "SampleWorker")}, {"wire_name": "A::B", "aliases": ("A::B",)}])
def test_alias_equal_to_the_own_name_is_refused(facts):
    with pytest.raises(DeclarationError, match="which is its wire name now; aliases are the former ones") as caught:
        make(**facts)
    assert caught.value.attribute == "aliases"


@pytest.mark.parametrize(
    ("first", "second", "attribute"),
    [
        ({"wire_name": "A"}, {"wire_name": "B", "aliases": ("A",)}, "aliases"),
        ({"wire_name": "A", "aliases": ("Old",)}, {"wire_name": "B", "aliases": ("Old",)}, "aliases"),
        ({"wire_name": "A", "aliases": ("Old",)}, {"wire_name": "Old"}, "wire_name"),
    ],
)
def test_wire_name_of_two_classes_is_refused(first, second, attribute):
    make(name="FirstWorker", **first)
    with pytest.raises(DeclarationError, match=r"is already the name of workers.sample.FirstWorker") as caught:
        make(name="SecondWorker", **second)
    assert caught.value.attribute == attribute
