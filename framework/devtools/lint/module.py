"""Parse one file for the rules: syntax tree, enclosing nodes, meaning of names. Nothing is imported or run.

Functions that ``background`` registers appear to the rules as the worker classes that stand for them.
"""

import ast
import copy
import io
import tokenize
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from framework.declare.names import class_name_of

SUFFIX = ".py"
_SKIPPED = frozenset({"__pycache__", "node_modules", "build", "dist"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


class UnreadableError(Exception):
    """A file is no Python source; ``line`` and ``column`` count from 1."""

    def __init__(self, reason: str, line: int = 1, column: int = 1) -> None:
        self.reason = reason
        self.line = line
        self.column = column
        super().__init__(reason)


class Module:
    """A parsed file. ``name`` is its dotted import name. A file that is not ``linted`` only resolves names of other files."""

    def __init__(self, path: Path, name: str, text: str, tree: ast.Module) -> None:
        self.path = path
        self.name = name
        self.text = text
        self.tree = tree
        self.linted = False
        self.imports: dict[str, str] = {}
        """A name in this file -> its dotted meaning; star imports are in ``star_imports``."""
        self.star_imports: list[str] = []
        self.imported: list[tuple[ast.stmt, str]] = []
        """Every import, with the dotted module or name."""
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, Function] = {}
        self.values: dict[str, ast.expr] = {}
        """Classes, functions and values at the top level; a value only when it is assigned once."""
        self.all_classes: list[ast.ClassDef] = []
        self.calls: list[ast.Call] = []
        self.tries: list[ast.Try] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self._index_nodes()
        self._index_top_level(tree.body)
        self._index_registered_functions()

    @cached_property
    def declared_options(self) -> frozenset[str]:
        """The options of the application that calls of ``declare_option`` in this file declare."""
        calls = [
            one for one in self.calls if one.args and self.dotted(one.func) == "framework.job_options.declare_option"
        ]
        names = (one.args[0].value for one in calls if isinstance(one.args[0], ast.Constant))
        return frozenset(name for name in names if isinstance(name, str))

    def dotted(self, expression: ast.expr) -> str | None:
        """Return the dotted meaning of a name or attribute chain through the imports; None for other expressions."""
        steps: list[str] = []
        while isinstance(expression, ast.Attribute):
            steps.append(expression.attr)
            expression = expression.value
        if not isinstance(expression, ast.Name):
            return None
        name = expression.id
        if name in self.imports:
            head = self.imports[name]
        elif name in self.classes or name in self.values:
            head = f"{self.name}.{name}"
        else:
            head = name
        return ".".join([head, *reversed(steps)])

    def enclosing(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the enclosing nodes, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def column(self, node: ast.expr | ast.stmt | ast.ExceptHandler) -> int:
        """Return the column of a node in characters, from 1 (the parser counts bytes)."""
        lines = self.text.split("\n") if not self.text.isascii() else []
        if not 0 < node.lineno <= len(lines):
            return node.col_offset + 1
        return len(lines[node.lineno - 1].encode()[: node.col_offset].decode(errors="replace")) + 1

    def _index_nodes(self) -> None:
        todo: list[ast.AST] = [self.tree]
        for node in todo:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr_context | ast.operator):
                    continue
                self.parents[child] = node
                todo.append(child)
            match node:
                case ast.Call():
                    self.calls.append(node)
                case ast.ClassDef():
                    self.all_classes.append(node)
                case ast.Try():
                    self.tries.append(node)
                case ast.Import():
                    self._index_import(node)
                case ast.ImportFrom():
                    self._index_import_from(node)
                case _:
                    pass

    def _index_import(self, node: ast.Import) -> None:
        for one in node.names:
            self.imported.append((node, one.name))
            name = one.asname or one.name.partition(".")[0]
            self.imports[name] = one.name if one.asname else name

    def _index_import_from(self, node: ast.ImportFrom) -> None:
        base = self._import_base(node)
        for one in node.names:
            if one.name == "*":
                self.star_imports.append(base)
                self.imported.append((node, base))
            else:
                self.imported.append((node, f"{base}.{one.name}"))
                self.imports[one.asname or one.name] = f"{base}.{one.name}"

    def _import_base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        steps = self.name.split(".")
        up = node.level - (self.path.name == "__init__.py")
        package = steps[: len(steps) - up] if up < len(steps) else []
        return ".".join([*package, *([node.module] if node.module else [])])

    def _index_top_level(self, body: list[ast.stmt]) -> None:
        todo = list(body)
        assigned: Counter[str] = Counter()
        for node in todo:
            match node:
                case ast.ClassDef():
                    self.classes[node.name] = node
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.functions[node.name] = node
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    assigned[name] += 1
                    self.values[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    assigned[name] += 1
                    self.values[name] = value
                case ast.If() | ast.Try():
                    todo += [*node.body, *node.orelse]
                case _:
                    pass
        for name, count in assigned.items():
            if count > 1:
                del self.values[name]

    def _index_registered_functions(self) -> None:
        """Add the class that stands for each function that is registered as a job."""
        for made, function, owner in list(
            registered_functions(self.tree.body, self.functions, self.classes, self.dotted)
        ):
            self.all_classes.append(made)
            self.parents[made] = owner or self.tree
            self.parents.update(dict.fromkeys(made.body, made))
            if function is not None:
                # The body of the function is then inside of the class, for rules about code in workers.
                self.parents[function] = made
                if owner is None:
                    self.classes.setdefault(function.name, made)


def read_module(path: Path, name: str) -> Module:
    """Parse the file. Raises UnreadableError if it is no Python source."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from None
    return parse(data, path, name)


def parse(data: bytes, path: Path, name: str) -> Module:
    """Parse the bytes of a file. Raises UnreadableError."""
    try:
        text = _decoded(data)
        with warnings.catch_warnings():
            # Ruff reports what the parser warns of, for example "\d" in a string.
            warnings.simplefilter("ignore")
            return Module(path, name, text, ast.parse(text))
    except SyntaxError as error:
        raise UnreadableError(f"is no Python source: {error.msg}", error.lineno or 1, error.offset or 1) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableError(f"is no Python source: byte {error.start} is not {error.encoding}", line) from None
    except (RecursionError, MemoryError):
        raise UnreadableError("is nested too deeply") from None
    except ValueError as error:
        raise UnreadableError(f"is no Python source: {error}") from None


def _decoded(data: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    try:
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except LookupError:
        raise SyntaxError(f"{encoding} is no encoding of text") from None


def python_files(folder: Path) -> list[Path]:
    """Return every Python file below a folder, sorted, without hidden and generated folders."""
    found: list[Path] = []
    for path in folder.rglob(f"*{SUFFIX}"):
        steps = path.relative_to(folder).parts[:-1]
        if not any(step in _SKIPPED or step.startswith(".") for step in steps) and path.is_file():
            found.append(path)
    return sorted(found)


def package_root(path: Path) -> Path:
    """Return the outermost package around a file or folder; without one, the folder itself or that of the file."""
    folder = path if path.is_dir() else path.parent
    while (folder.parent / "__init__.py").exists() and (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def module_name(path: Path) -> str:
    """Return the import name of a file, seen from the folder of its outermost package."""
    root = package_root(path)
    base = root.parent if (root / "__init__.py").exists() else root
    steps = list(path.relative_to(base).with_suffix("").parts)
    if len(steps) > 1 and steps[-1] == "__init__":
        steps.pop()
    return ".".join(steps)


_Function = ast.FunctionDef | ast.AsyncFunctionDef

BACKGROUND = "framework.background"
_NO_ATTRIBUTES = ("base", "loader")


class RegisteredFunction(NamedTuple):
    """A function, and the class that stands for it: keywords as attributes, the function as ``perform``.

    ``function`` is None for a function of another module, ``owner`` the class of a method.
    """

    node: ast.ClassDef
    function: _Function | None
    owner: ast.ClassDef | None


def registered_functions(
    body: list[ast.stmt],
    functions: Mapping[str, _Function],
    classes: Mapping[str, ast.ClassDef],
    dotted: Callable[[ast.expr], str | None],
) -> Iterator[RegisteredFunction]:
    """Yield the registered functions of a module: those with the decorator, and those in calls at the top level."""
    for function in functions.values():
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and dotted(decorator.func) == BACKGROUND:
                yield RegisteredFunction(_class_of(function, decorator, function), function, None)
    for statement in body:
        call = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr) else None
        if isinstance(call, ast.Call) and call.args and dotted(call.func) == BACKGROUND:
            named, owner = _find(call.args[0], functions, classes)
            yield RegisteredFunction(_class_of(statement, call, named), named, owner)


def _find(
    expression: ast.expr, functions: Mapping[str, _Function], classes: Mapping[str, ast.ClassDef]
) -> tuple[_Function | None, ast.ClassDef | None]:
    match expression:
        case ast.Name(id=name) if name in functions:
            return functions[name], None
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in classes:
            found = [one for one in classes[owner].body if isinstance(one, _Function) and one.name == name]
            return (found[-1], classes[owner]) if found else (None, None)
        case _:
            return None, None


def _class_of(place: ast.stmt, call: ast.Call, function: _Function | None) -> ast.ClassDef:
    name = class_name_of(function.name) if function is not None else _last_name(call.args[0])
    base: ast.expr = ast.Attribute(ast.Name("framework", ast.Load()), "ApplicationWorker", ast.Load())
    body: list[ast.stmt] = []
    for word in call.keywords:
        if word.arg == "base":
            base = word.value
        elif word.arg is not None and word.arg not in _NO_ATTRIBUTES:
            body.append(ast.copy_location(ast.Assign([ast.Name(word.arg, ast.Store())], word.value), word))
    if function is not None:
        perform = copy.copy(function)
        perform.name = "perform"
        body.append(perform)
    else:
        # The name is made from the module of the function, which is not known here.
        unknown = ast.Name("__unknown__", ast.Load())
        body.insert(0, ast.copy_location(ast.Assign([ast.Name("wire_name", ast.Store())], unknown), call))
    made = ast.ClassDef(name=name, bases=[base], keywords=[], body=body, decorator_list=[])
    return ast.fix_missing_locations(ast.copy_location(made, place))


def _last_name(expression: ast.expr) -> str:
    name = expression.attr if isinstance(expression, ast.Attribute) else ""
    return class_name_of(expression.id if isinstance(expression, ast.Name) else name)
