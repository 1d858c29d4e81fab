"""Compare the table of shared containers (decision 150) with the code.

The table has each container that changes after its creation, and the reason why threads may share it.
"""

import ast
import re
from pathlib import Path

from tests.harness import ROOT
from tests.syntax import tree_of

PAGE = Path(__file__).with_name("shared_containers.txt")
ONE_THREADED = {"admin", "cli", "declare", "devtools", "migrate", "settings", "terminal"}
REASONS = {"one thread", "lock", "no iteration", "copy", "positions", "in the child"}
KINDS = {
    *("deque", "dict", "set", "list", "WeakSet", "Counter", "defaultdict", "OrderedDict", "bytearray"),
    "NamedExtensions",
}
CHANGES = {
    *(
        "append",
        "appendleft",
        "add",
        "pop",
        "popleft",
        "popitem",
        "update",
        "extend",
        "extendleft",
        "remove",
        "discard",
    ),
    *("register", "clear", "insert", "setdefault", "intersection_update", "difference_update"),
}


def is_container(value):
    """Return whether an expression makes a mutable container."""
    if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)):
        return True
    called = value.func if isinstance(value, ast.Call) else None
    called = called.value if isinstance(called, ast.Subscript) else called
    return isinstance(called, ast.Name) and called.id in KINDS


def name_of(target):
    """Return the name of ``self.name`` or ``name``; ``None`` for any other expression."""
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return target.id if isinstance(target, ast.Name) else None


def made(tree):
    """Return the names to which a module or a class assigns a container."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and is_container(node.value):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Attribute) or node in tree.body:
                found.add(name_of(target))
    return found - {None}


def changed(function):
    """Return the names of the containers that a function changes."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield name_of(node.func.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "append_once":
            yield name_of(node.args[0])
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield name_of(node.value)
        elif isinstance(node, ast.AugAssign):
            yield name_of(node.target)


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def in_code():
    """Return each container of the code under its name on the page."""
    for path in sorted((ROOT / "framework").rglob("*.py")):
        place = path.relative_to(ROOT / "framework")
        if place.parts[0] in ONE_THREADED:
            continue
        module = tree_of(path)
        for holder in [module, *(node for node in module.body if isinstance(node, ast.ClassDef))]:
            prefix = "" if holder is module else f"{holder.name}."
            named = made(holder) if holder is not module else {
                name for name in made(module) if any(name == name_of(target) for target in assigned(module))
            }  # fmt: skip
            if named:  # else its functions need no walk
                later = [one for one in functions(holder) if one.name != "__init__" or holder is module]
                yield from (f"`{place}` {prefix}{name}" for name in named & {one for f in later for one in changed(f)})


def assigned(module):
    """Return the names that a module assigns at its top level."""
    for node in module.body:
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AnnAssign):
            yield node.target


def on_page():
    rows = re.findall(r"^\| (`[^|]+`[^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    return {name.strip(): reason.strip() for name, reason in rows}


def test_shared_containers_all_have_a_row_with_a_reason():
    code, page = set(in_code()), on_page()
    assert len(code) > 60
    assert sorted(code - page.keys()) == [], f"say in {PAGE.name} why threads may share these"
    assert sorted(page.keys() - code) == [], f"these rows of {PAGE.name} name nothing any more"
    assert {reason for reason in page.values() if reason not in REASONS} == set()


def test_shared_container_without_a_row_is_found():
    module = ast.parse(
        "shared = []\nclass One:\n"
        "    def __init__(self):\n        self.a, self.b = {}, 1\n        self.c = set()\n        self.d = {}\n"
        "    def act(self):\n        self.c.add(1)\n        self.d[1] = 2\n        shared.append(1)\n"
    )
    (one,) = [node for node in module.body if isinstance(node, ast.ClassDef)]
    assert made(one) >= {"c", "d"}
    assert {name for function in functions(one) for name in changed(function)} >= {"c", "d", "shared"}
