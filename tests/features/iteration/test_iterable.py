"""Check the base class of iterable workers: its methods, its signature, its attributes."""

import inspect
from collections.abc import Iterator

import pytest

from framework.application_worker import ATTRIBUTES, ApplicationWorker
from framework.errors import ArgumentsError, DeclarationError
from framework.features.cron.cron_worker import CronWorker
from framework.features.iteration.iterable import IterableWorker
from tests.tables import each_row


def declared(*bases, **body):
    body = {"feature_category": "not_owned", "__module__": "pruning", **body}
    return type("PruneWorker", bases or (IterableWorker,), body)


def build_enumerator(self, days: int, dry: bool = False, *, cursor: int | None) -> Iterator[tuple[str, int]]:
    yield "a", 0


def each_iteration(self, item: str, days: int, dry: bool = False) -> None:
    pass


GOOD = {"build_enumerator": build_enumerator, "each_iteration": each_iteration}


def test_iterable_worker_takes_the_arguments_of_its_enumerator():
    worker = declared(**GOOD)
    signature = worker.declaration().signature
    assert (signature.names, signature.required) == (("days", "dry"), 1)
    assert worker.arguments(3, dry=True).args == [3, True]
    with pytest.raises(ArgumentsError, match="cursor"):
        worker.arguments(3, cursor=7)
    with pytest.raises(ArgumentsError, match="valid integer"):
        signature.check(["3"])
    assert str(inspect.signature(worker.perform_async)) == "(days: int, dry: bool = False) -> str | None"


def test_iterable_worker_is_async_by_its_iterations():
    async def each(self, item, days, dry=False):
        pass

    assert not declared(**GOOD).declaration().is_async
    worker = declared(**GOOD | {"each_iteration": each})
    assert worker.declaration().is_async
    assert inspect.iscoroutinefunction(worker().perform)


def test_child_of_an_iterable_worker_may_build_its_own_items():
    parent = declared(**GOOD)

    def build(self, name: str, *, cursor):
        return []

    def each(self, item, name):
        pass

    child = declared(parent, build_enumerator=build, each_iteration=each)
    assert child.declaration().signature.names == ("name",)
    assert declared(parent).declaration().signature.names == ("days", "dry")


@pytest.mark.parametrize("bases", [(CronWorker, IterableWorker), (IterableWorker, CronWorker)])
def test_cron_worker_may_iterate(bases):
    body = {"build_enumerator": lambda self, *, cursor: [], "each_iteration": lambda self, item: None}
    declaration = declared(*bases, cron="@daily", **body).declaration()
    assert (declaration.is_cron, declaration.is_iterable, declaration.generated_queue) == (True, True, "cronjob:prune")
    with pytest.raises(DeclarationError, match="perform needs days"):
        declared(*bases, cron="@daily", **GOOD)


async def coroutine(self, *, cursor):
    return []


async def hook(self):
    pass


NO_ARGUMENTS = {"build_enumerator": lambda self, *, cursor: [], "each_iteration": lambda self, item: None}
WRONG = [
    ({"perform": lambda self: None, **NO_ARGUMENTS}, "perform", "perform belongs to the framework here"),
    ({"each_iteration": each_iteration}, "build_enumerator", "build_enumerator is missing: write def"),
    ({"build_enumerator": build_enumerator}, "each_iteration", "each_iteration is missing: write def"),
    (NO_ARGUMENTS | {"build_enumerator": lambda self: []}, "build_enumerator", r"needs the parameter cursor"),
    (NO_ARGUMENTS | {"build_enumerator": lambda self, **kw: []}, "build_enumerator", r"needs the parameter cursor"),
    (NO_ARGUMENTS | {"each_iteration": lambda self: None}, "each_iteration", "has no parameter for the item"),
    (NO_ARGUMENTS | {"each_iteration": lambda self, item, x: None}, "each_iteration", "must take an item and the arg"),
    (NO_ARGUMENTS | {"build_enumerator": coroutine}, "build_enumerator", "is async, and each_iteration is not"),
    (NO_ARGUMENTS | {"each_iteration": staticmethod(print)}, "each_iteration", "Allowed: an ordinary method"),
    (NO_ARGUMENTS | {"on_stop": hook}, "on_stop", "on_stop is async, and each_iteration is not"),
    (NO_ARGUMENTS | {"on_stop": lambda self, days: None}, "on_stop", "must take the arguments of build_enumerator"),
    (NO_ARGUMENTS | {"on_stop": classmethod(hook)}, "on_stop", "Allowed: an ordinary method"),
    (NO_ARGUMENTS | {"on_completed": lambda self: None}, "on_completed", "did you mean 'on_complete'"),
    (NO_ARGUMENTS | {"flush_interval": 0}, "flush_interval", "a positive timedelta, or a positive number"),
    (GOOD | {"each_iteration": lambda self, item, days: None}, "each_iteration", "must take an item and the arg"),
]


@each_row(("body", "attribute", "words"), WRONG)
def test_wrong_iterable_worker_is_refused(body, attribute, words):
    with pytest.raises(DeclarationError, match=words) as caught:
        declared(**body)
    assert caught.value.attribute == attribute


@each_row(
    "name, kind",
    [(name, one.kind.name) for name, one in ATTRIBUTES.items() if one.kind is not None and one.kind.refused],
)
def test_attribute_of_one_kind_is_refused_elsewhere(name, kind):
    with pytest.raises(DeclarationError, match=f"{name} belongs to {kind}"):
        declared(ApplicationWorker, perform=lambda self: None, **{name: {"cron": "@daily"}.get(name, 7)})


def test_perform_of_a_mixin_is_refused():
    mixin = type("Mixin", (), {"perform": lambda self: None})
    with pytest.raises(DeclarationError, match="perform belongs to the framework"):
        declared(mixin, IterableWorker, **NO_ARGUMENTS)
