"""Test attributes and options without an effect: one warning per class, at the application's line."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework import ApplicationWorker, DeclarationError
from framework.declare import registry
from framework.declare.no_effect import ATTRIBUTES_WITHOUT_EFFECT
from framework.errors import NoEffectWarning

VALUES = {"track": True}


@pytest.fixture
def caught() -> Iterator[list[warnings.WarningMessage]]:
    """Record every warning of the test, also repeated ones of one line."""
    with registry.isolated(), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def declared(bases: tuple[type[Any], ...] = (ApplicationWorker,), **attributes: Any) -> type[Any]:
    body = {"feature_category": "not_owned", "perform": lambda self: None, **attributes}
    return type("PosterWorker", bases, {"__module__": "posters", **body})


def test_every_attribute_without_effect_is_known():
    assert ATTRIBUTES_WITHOUT_EFFECT.keys() == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_class_with_an_attribute_warns_at_its_line(caught, name):
    declared(**{name: VALUES[name]})

    (warning,) = caught
    assert warning.category is NoEffectWarning
    assert f"posters.PosterWorker: {name} = " in str(warning.message)
    assert ATTRIBUTES_WITHOUT_EFFECT[name] in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "attributes", [{"timeout": 60}, {"track": False}, {"expires_in": 60}, {"status_expiration": 5}]
)
def test_class_without_ineffective_attributes_is_silent(caught, attributes):
    declared(**attributes)
    assert not caught


def test_inherited_value_warns_at_its_class(caught):
    class TeamWorker(ApplicationWorker, abstract=True):
        feature_category = "not_owned"
        track = True

    assert [str(one.message).partition(":")[0].rpartition(".")[2] for one in caught] == ["TeamWorker"]

    class OneWorker(TeamWorker):
        def perform(self) -> None: ...

    class OtherWorker(OneWorker):
        track = False

    assert len(caught) == 1


def test_mixin_warns_with_the_first_class_that_has_it(caught):
    class Patient:
        track = True

    first = declared((Patient, ApplicationWorker))
    assert len(caught) == 1
    declared((first,))
    assert len(caught) == 1


def test_warning_of_a_metaclass_names_the_applications_line(caught):
    class Meta(type):
        def __new__(cls, *args: Any, **others: Any) -> Any:
            return super().__new__(cls, *args, **others)

    class Base(ApplicationWorker, abstract=True, metaclass=Meta):
        feature_category = "not_owned"

        def __init_subclass__(cls, **others: Any) -> None:
            super().__init_subclass__(**others)

    line = sys._getframe().f_lineno + 2

    class MadeWorker(Base):
        track = True

        def perform(self) -> None: ...

    assert [(one.filename, one.lineno) for one in caught] == [(__file__, line)]


def test_set_warns_once_for_each_option_of_a_class(caught):
    worker, other = declared(), declared(wire_name="Other")
    for _ in range(3):
        worker.set(track=True, retry=0).set(tags=("a",))
    line = sys._getframe().f_lineno + 1
    other.set(track=True)
    assert [str(one.message).partition(" has")[0] for one in caught] == ["posters.PosterWorker: set(track=...)"] * 2
    assert (caught[-1].filename, caught[-1].lineno) == (__file__, line)


def test_set_of_a_child_warns_in_addition_to_its_parent(caught):
    parent = declared()
    child = declared((parent,), wire_name="Child")
    parent.set(track=True)
    child.set(track=True)
    assert len(caught) == 2


def test_error_filter_refuses_ineffective_attribute_each_time():
    with registry.isolated(), warnings.catch_warnings():
        warnings.simplefilter("error", NoEffectWarning)
        with pytest.raises(NoEffectWarning):
            declared(track=True)
        assert registry.find("PosterWorker") is None
        worker = declared()
        for _ in range(2):
            with pytest.raises(NoEffectWarning):
                worker.set(track=True)


def test_invalid_value_is_an_error_and_no_warning(caught):
    with pytest.raises(DeclarationError, match="track"):
        declared(track=-1)
    assert not caught


def test_warning_can_be_filtered_by_the_applications_line(tmp_path: Path):
    (tmp_path / "posters.py").write_text(
        "from framework import ApplicationWorker\n\n\n"
        "class PosterWorker(ApplicationWorker):\n"
        '    feature_category = "not_owned"\n'
        "    track = True\n\n"
        "    def perform(self) -> None: ...\n"
    )
    program = "import posters"
    plain = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert plain.stderr.startswith(f"{tmp_path}/posters.py:4: NoEffectWarning: posters.PosterWorker: track = True")
    filtered = (
        "import warnings\nfrom framework.errors import NoEffectWarning\n"
        "warnings.simplefilter('ignore', NoEffectWarning)\nimport posters"
    )
    silent = subprocess.run([sys.executable, "-c", filtered], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not silent.stderr
