"""Test that the names of other libraries are answered with our words, wherever an application writes them."""

from typing import Any

import pytest

from framework.application_worker import ATTRIBUTES, ApplicationWorker, PushOptions
from framework.declare.misuse import NAMES, SYSTEMS, rows_of
from framework.declare.options import OPTIONS
from framework.errors import ArgumentsError, DeclarationError
from framework.function_jobs import WorkerAttributes
from tests.tables import each_row


class PlainWorker(ApplicationWorker):
    feature_category = "not_owned"

    def perform(self, number: int = 0) -> None: ...


def declare(**body: Any) -> str:
    with pytest.raises(DeclarationError) as caught:
        type("OldWorker", (PlainWorker,), {"__module__": __name__, **body})
    return str(caught.value)


@each_row("name", NAMES["attribute"])
def test_foreign_attribute_names_our_word_and_no_list(name: str) -> None:
    message = declare(**{name: 3})
    assert NAMES["attribute"][name].text() in message
    assert "Attributes: " not in message


@each_row("name", NAMES["hook"])
def test_foreign_hook_names_our_word(name: str) -> None:
    assert NAMES["hook"][name].text() in declare(**{name: lambda self: self})


@each_row("name", NAMES["option"])
def test_foreign_option_names_our_word_and_no_list(name: str) -> None:
    options: Any = {name: 3}
    for push in (PlainWorker.set, PlainWorker.perform_async):
        with pytest.raises(ArgumentsError) as caught:
            push(**options)
        assert NAMES["option"][name].text("PlainWorker" if push == PlainWorker.set else "Worker") in str(caught.value)
        assert "Options: " not in str(caught.value)


def test_unknown_name_lists_all_only_if_none_is_near() -> None:
    assert "did you mean 'urgency'" in declare(urgancy="low")
    assert "Attributes: " not in declare(urgancy="low")
    assert "Attributes: ack, aliases" in declare(zzz=1)
    near: Any = {"prioritty": "low"}
    far: Any = {"zzz": 1}
    with pytest.raises(ArgumentsError, match=r"did you mean 'priority'\?\)\.$"):
        PlainWorker.set(**near)
    with pytest.raises(ArgumentsError, match="Options: queue, shard"):
        PlainWorker.set(**far)


def test_table_has_each_library_and_no_name_of_ours() -> None:
    assert all(len(rows_of(system)) >= 8 for system in SYSTEMS)
    assert not NAMES["attribute"].keys() & (ATTRIBUTES.keys() | WorkerAttributes.__annotations__.keys())
    assert not NAMES["option"].keys() & (PushOptions.__annotations__.keys() | OPTIONS.keys())
    ours = {
        name for owner in ApplicationWorker.__mro__ for name, value in vars(owner).items() if hasattr(value, "__func__")
    }
    assert not NAMES["method"].keys() & ours
