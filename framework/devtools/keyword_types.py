"""Write the keywords of ``background`` for type checkers, which know no dictionary of a class's annotations."""

import ast
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping

from framework.declare.attribute import Attribute

_HEAD = '''"""The attributes of a worker class as keywords of ``background``. Written by ``application-worker attributes --write``."""

{imports}


class WorkerAttributes(TypedDict, total=False):
    """The attributes that a function may have: those that belong to no base class."""

{fields}
'''


def keyword_types(attributes: Mapping[str, Attribute]) -> str:
    """Return the source of the module with the keywords and their types, as the attribute groups annotate them."""
    fields: list[str] = []
    imported: defaultdict[str, set[str]] = defaultdict(set, {"typing": {"TypedDict"}})
    for one in attributes.values():
        if one.kind is None and one.owner is not None:
            tree = ast.parse(inspect.getsource(sys.modules[one.owner.__module__]))
            annotation = _annotation(tree, one)
            fields.append(f"    {one.name}: {ast.unparse(annotation)}")
            names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
            for module, name in _imports(tree):
                if name in names:
                    imported[module].add(name)
    return _HEAD.format(imports=_import_lines(imported), fields="\n".join(fields))


def _annotation(tree: ast.Module, attribute: Attribute) -> ast.expr:
    """Return what stands within the ClassVar of a declaration."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Subscript(slice=inner)) if (
                name == attribute.name
            ):
                return inner
            case _:
                pass
    raise ValueError(f"{attribute.name} has no annotation ClassVar[...]")


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def _import_lines(imported: Mapping[str, set[str]]) -> str:
    """Return the imports as the formatter sorts them: the standard library first."""
    lines = {module: f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(imported.items())}
    ours = [line for module, line in lines.items() if module.startswith("framework.")]
    return "\n".join([line for line in lines.values() if line not in ours] + ["", *ours])
