"""Define a lint rule: its code, its texts, and the functions that check."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from framework.devtools.lint.classes import ClassIndex, FindingLocation, SourceClass
from framework.devtools.lint.module import Function, Module
from framework.devtools.lint.workspace import Workspace


class LintFinding(NamedTuple):
    """One fault. Lines and columns count from 1; ``end_line`` is the last line of the faulty code."""

    path: Path
    line: int
    column: int
    end_line: int
    code: str
    message: str
    fix: str


class Match(NamedTuple):
    """A match of a rule, before it has a file and a line. Without ``fix``, the fix of the rule applies."""

    module: Module
    node: ast.expr | ast.stmt | ast.ExceptHandler
    message: str
    fix: str = ""


Matches = Iterator[Match]


@dataclass(frozen=True)
class CallSite:
    """A call somewhere in a file."""

    workspace: Workspace
    classes: ClassIndex
    module: Module
    node: ast.Call

    @cached_property
    def name(self) -> str | None:
        """The dotted name of the called function."""
        return self.module.dotted(self.node.func)

    @property
    def method(self) -> str | None:
        """The name of the called method; None for a plain function."""
        return self.node.func.attr if isinstance(self.node.func, ast.Attribute) else None

    @property
    def receiver(self) -> ast.expr | None:
        """The object of the method call."""
        return self.node.func.value if isinstance(self.node.func, ast.Attribute) else None

    @cached_property
    def worker(self) -> SourceClass | None:
        """The worker whose method, or whose mixin's method, has the call."""
        return self.classes.worker_around(self.module, self.node)

    @property
    def function(self) -> Function | None:
        for outer in self.module.enclosing(self.node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                return outer
        return None

    def enclosing_nodes(self) -> Iterator[ast.AST]:
        """Yield the nodes around the call, up to its function."""
        for outer in self.module.enclosing(self.node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                return
            yield outer

    def context_managers(self) -> Iterator[ast.Call]:
        for outer in self.enclosing_nodes():
            if isinstance(outer, ast.With | ast.AsyncWith):
                for item in outer.items:
                    if isinstance(item.context_expr, ast.Call):
                        yield item.context_expr

    def keyword(self, name: str) -> ast.expr | None:
        return next((word.value for word in self.node.keywords if word.arg == name), None)


@dataclass(frozen=True, slots=True)
class LintRule:
    """One code: ``summary`` is the fault, ``fix`` the remedy, each one sentence; ``why`` is the reason.

    ``bad`` and ``good`` are whole files; the faulty lines of ``bad`` end in ``# here``.
    """

    code: str
    name: str
    summary: str
    fix: str
    why: str
    bad: str
    good: str
    check_worker: Callable[[SourceClass, ClassIndex], Matches] | None = None
    check_call: Callable[[CallSite], Matches] | None = None
    check_module: Callable[[Module, ClassIndex], Matches] | None = None


def match_at(location: FindingLocation | None, message: str, fix: str = "") -> Matches:
    """Yield a match at the location, if there is one; ``{}`` in the message becomes the class name."""
    if location is not None:
        yield Match(location.owner.module, location.node, message.replace("{}", location.owner.name), fix)


def last_line(node: ast.AST) -> int:
    """Return the last line of a node; for a class or function, the last line of its head."""
    line: int = getattr(node, "lineno", 1)
    if isinstance(node, ast.ClassDef):
        parts: list[ast.AST] = [*node.bases, *node.keywords]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = [*ast.iter_child_nodes(node.args), *([node.returns] if node.returns else [])]
    elif isinstance(node, ast.ExceptHandler):
        parts = [node.type] if node.type else []
    else:
        return getattr(node, "end_lineno", None) or line
    return max([line, *(getattr(part, "end_lineno", None) or line for part in parts)])
