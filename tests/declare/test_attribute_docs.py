"""Test that an editor shows the meaning of every attribute: in the class body, a text stands below it."""

import ast
import inspect
from pathlib import Path

import framework
from framework.application_worker import ATTRIBUTES, PushOptions
from framework.declare import worker

PACKAGE = Path(framework.__file__).parent


def documented(tree: ast.ClassDef) -> dict[str, str]:
    """Return the text below each annotated name of a class body."""
    found: dict[str, str] = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            found[node.target.id] = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
    return found


def body_of(module: object, name: str) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type] # a module
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def test_attribute_has_its_meaning_below() -> None:
    assert not [name for name, one in ATTRIBUTES.items() if not one.meaning]
    assert ATTRIBUTES["time_zone"].meaning == "The time zone of `cron`."
    texts = documented(body_of(worker, worker.CoreWorker.__name__))
    assert all(text for name, text in texts.items() if not name.startswith("_"))


def test_option_of_a_push_has_a_text_below() -> None:
    texts: dict[str, str] = {}
    for path in (PACKAGE / "declare/options.py", *PACKAGE.glob("features/*/attributes.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Options"):
                texts |= documented(node)
    assert texts.keys() == PushOptions.__annotations__.keys()
    assert not [name for name, text in texts.items() if not text]
