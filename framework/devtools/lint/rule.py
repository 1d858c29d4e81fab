"""What a rule is: a code, what people need to know of it, and the function that looks."""

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
    """One thing to mend. Lines and columns count from 1; ``end_line`` is the last line of what it is about."""

    path: Path
    line: int
    column: int
    end_line: int
    code: str
    message: str
    fix: str


class Match(NamedTuple):
    """What a rule has found, before it has a file and a line. Without a ``fix``, the rule's own."""

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
        """What is called, dotted."""
        return self.module.dotted(self.node.func)

    @property
    def method(self) -> str | None:
        """The last name of what is called, where it is an attribute."""
        return self.node.func.attr if isinstance(self.node.func, ast.Attribute) else None

    @property
    def receiver(self) -> ast.expr | None:
        """What the method is called on."""
        return self.node.func.value if isinstance(self.node.func, ast.Attribute) else None

    @cached_property
    def worker(self) -> SourceClass | None:
        """The worker whose method, or whose mixin's method, calls."""
        return self.classes.worker_around(self.module, self.node)

    @property
    def function(self) -> Function | None:
        """The function that calls."""
        for outer in self.module.enclosing(self.node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                return outer
        return None

    def enclosing_nodes(self) -> Iterator[ast.AST]:
        """What encloses the call up to its own function: what is in force when it runs."""
        for outer in self.module.enclosing(self.node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                return
            yield outer

    def context_managers(self) -> Iterator[ast.Call]:
        """The calls whose ``with`` encloses it."""
        for outer in self.enclosing_nodes():
            if isinstance(outer, ast.With | ast.AsyncWith):
                for item in outer.items:
                    if isinstance(item.context_expr, ast.Call):
                        yield item.context_expr

    def keyword(self, name: str) -> ast.expr | None:
        """The value of a keyword of the call."""
        return next((word.value for word in self.node.keywords if word.arg == name), None)


@dataclass(frozen=True, slots=True)
class LintRule:
    """One code. ``summary`` is what is found and ``fix`` what to do, a sentence each; ``why`` the story behind.

    ``bad`` and ``good`` are whole files: the lines of ``bad`` that are found end in ``# here``.
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
    """A finding at that place, if there is one; ``{}`` in the message is the class."""
    if location is not None:
        yield Match(location.owner.module, location.node, message.replace("{}", location.owner.name), fix)


def last_line(node: ast.AST) -> int:
    """The last line of what is pointed at: of a class or function only its head."""
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
