"""Test the tree of errors: it has every error of the framework below its base."""

import ast
import re
from pathlib import Path

import framework
from framework import errors
from framework.errors import Discard, FlowControl, FrameworkError, RetryLater
from tests.syntax import nodes_of

FOLDER = Path(framework.__file__).parent
LINE = re.compile(r"^(?P<indent>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<base>\w+)\))? ", re.MULTILINE)


def drawn() -> dict[str, str]:
    """Return the parent of each class in the picture: its base in brackets, or the class above with less indent."""
    parents, path = {}, []
    _, _, picture = (errors.__doc__ or "").partition("\n\n")
    for line in LINE.finditer(picture.partition("\n\n")[0].replace("FrameworkError\n", "FrameworkError \n", 1)):
        depth = len(line["indent"]) // 4
        parents[line["name"]] = line["base"] or (path[depth - 1] if depth else "Exception")
        path[depth:] = [line["name"]]
    return parents


def test_picture_shows_every_class_below_its_base() -> None:
    classes = {
        name: one
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, BaseException) and one.__module__ == errors.__name__
    }
    assert drawn() == {name: one.__bases__[0].__name__ for name, one in classes.items()}


def test_tree_contains_every_framework_error() -> None:
    names = drawn().keys()
    # Only such files are parsed: to parse all of them takes seconds.
    derived = re.compile(rf"^\s*class \w+\([^)]*\b({'|'.join(names)})\b", re.MULTILINE)
    elsewhere = {
        f"{path.relative_to(FOLDER)}: {node.name}"
        for path in FOLDER.rglob("*.py")
        if (path.name != "errors.py" or path.parent != FOLDER) and derived.search(path.read_text())
        for node in nodes_of(path, ast.ClassDef)
        if {base.id for base in node.bases if isinstance(base, ast.Name)} & names
    }
    assert elsewhere == set()


def test_flow_control_is_no_framework_error() -> None:
    assert not issubclass(FlowControl, FrameworkError)
    assert issubclass(RetryLater, FlowControl)
    assert issubclass(Discard, FlowControl)
