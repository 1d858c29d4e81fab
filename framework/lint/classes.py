"""Worker classes as the source shows them: bases across files, what each attribute says and where it is said."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from framework.declare.attributes import ATTRIBUTES, OWN_ATTRIBUTES
from framework.declare.names import wire_name
from framework.declare.worker import ApplicationWorker
from framework.lint.source import Function, Module
from framework.lint.tree import FRAMEWORK, UNKNOWN, Tree

CRON_NAMESPACE = "cronjob"
"""The namespace of workers that a schedule pushes (GitLab's CronjobQueue)."""

_HARMLESS = frozenset({"object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol"})


@dataclass(frozen=True, slots=True)
class Said:
    """What a class body says about one attribute. ``value`` is UNKNOWN where only running it would tell."""

    owner: "Class"
    node: ast.stmt
    expression: ast.expr | None
    value: object


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding stands: the statement that decides, or the head of the class when there is none."""

    owner: "Class"
    node: ast.stmt
    of_value: bool


class Class:
    """A class and its bases. ``complete`` is false when a base is not to be found: it may say anything."""

    def __init__(self, tree: Tree, module: Module, node: ast.ClassDef) -> None:
        self.tree = tree
        self.module = module
        self.node = node
        self.name = node.name
        self.mro: list[Class] = [self]
        self.complete = True
        self.is_worker = False
        self.abstract = any(word.arg == "abstract" and _is_true(word.value) for word in node.keywords)
        self.methods: dict[str, Function] = {}
        self.own: dict[str, Said] = {}
        self.announced: list[tuple[str, ast.stmt]] = []
        """Annotations without a value."""
        for statement in node.body:
            self._note(statement, certain=True)

    def __repr__(self) -> str:
        return f"{self.module.name}.{self.name}"

    def said(self, name: str) -> Said | None:
        """What the first class along the MRO says that says anything; None when none of those that are known does."""
        owners = self.mro[:1] if name in OWN_ATTRIBUTES else self.mro
        return next((owner.own[name] for owner in owners if name in owner.own), None)

    def value(self, name: str) -> Any:
        """The value of an attribute, as far as reading tells: said, else the framework's default, else UNKNOWN."""
        said = self.said(name)
        if said is not None:
            return said.value
        return vars(ApplicationWorker)[name] if self.complete else UNKNOWN

    def place(self, name: str) -> Place | None:
        """Where to point when the value of an attribute is at fault; None in an abstract class that says nothing of it."""
        said = self.said(name)
        if said is not None and said.owner.module.linted:
            return Place(said.owner, said.node, of_value=True)
        return None if self.abstract else Place(self, self.node, of_value=False)

    def handlers(self) -> Iterator[tuple["Class", Function]]:
        """``perform``, and what runs the jobs of older versions; each with the class that has it."""
        seen: set[str] = set()
        for owner in self.mro:
            for name, function in owner.methods.items():
                if name not in seen and is_handler(name):
                    seen.add(name)
                    yield owner, function

    @cached_property
    def wire_names(self) -> tuple[str, ...]:
        """The name of its jobs: the declared one, else one for each name that its module may have; none when it is UNKNOWN."""
        said = self.own.get("wire_name")
        if said is not None and said.value:
            return (said.value,) if isinstance(said.value, str) else ()
        name = self._name_in_module()
        return tuple(dict.fromkeys(wire_name(module, name) for module in self.tree.names_of(self.module)))

    @property
    def aliases(self) -> tuple[str, ...] | None:
        """The former names that it declares; None when only running it would tell."""
        said = self.own.get("aliases")
        if said is None:
            return ()
        listed = isinstance(said.value, tuple | list)
        return tuple(map(str, cast("Sequence[object]", said.value))) if listed else None

    @property
    def is_cron(self) -> bool:
        """A schedule pushes its jobs."""
        return bool(self.value("queue_namespace") == CRON_NAMESPACE)

    def _name_in_module(self) -> str:
        """Its name behind those of the classes around it, up to a function (as ``__qualname__`` behind ``<locals>.``)."""
        names = [self.name]
        for outer in self.module.around(self.node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                break
            names += [outer.name] if isinstance(outer, ast.ClassDef) else []
        return ".".join(reversed(names))

    def _note(self, statement: ast.stmt, *, certain: bool) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._note_value(name, statement, value, certain=certain)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._note_value(name, statement, value, certain=certain)
            case ast.AnnAssign(target=ast.Name(id=name)):
                self.announced.append((name, statement))
            case ast.Assign(targets=targets):
                names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
                self.own |= {name: Said(self, statement, None, UNKNOWN) for name in names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.methods[name] = statement
                if name in ATTRIBUTES:
                    self.own[name] = Said(self, statement, None, UNKNOWN)
            case ast.ClassDef():
                pass
            case _:
                for inner in _statements_within(statement):
                    self._note(inner, certain=False)

    def _note_value(self, name: str, statement: ast.stmt, expression: ast.expr, *, certain: bool) -> None:
        value = self.tree.value(self.module, expression) if certain else UNKNOWN
        self.own[name] = Said(self, statement, expression if certain else None, value)


class Classes:
    """Every class of a tree, resolved on demand."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._made: dict[ast.ClassDef, Class] = {}
        self._open: set[ast.ClassDef] = set()
        self.workers = [
            one for module in tree.modules for node in module.every_class if (one := self.make(module, node)).is_worker
        ]
        """Those that are linted, abstract ones too, in the order of the files."""
        self._users: dict[ast.ClassDef, Class] = {}
        for worker in self.workers:
            for owner in worker.mro:
                self._users.setdefault(owner.node, worker)

    def worker_around(self, module: Module, node: ast.AST) -> Class | None:
        """The worker in whose class, or in whose mixin, a node stands."""
        for outer in module.around(node):
            if isinstance(outer, ast.ClassDef):
                own = self._made.get(outer)
                return own if own is not None and own.is_worker else self._users.get(outer)
        return None

    def make(self, module: Module, node: ast.ClassDef) -> Class:
        """The class of a node."""
        if node in self._made:
            return self._made[node]
        made = self._made[node] = Class(self._tree, module, node)
        self._open.add(node)
        bases: list[Class] = []
        for expression in node.bases:
            base = self._base(made, expression)
            if base is not None:
                bases.append(base)
                made.is_worker = made.is_worker or base.is_worker
                made.complete = made.complete and base.complete
        made.mro = _merged(made, bases)
        self._open.discard(node)
        return made

    def may_run(self, name: str) -> bool:
        """Some class of these files has the wire name, or lists it, or may do so."""
        names, uncertain = self._held
        return name in names or name.rpartition("::")[2] in uncertain or self._stands(name)

    def _stands(self, name: str) -> bool:
        """The class that was released under a wire name is found where it was, in a package that is not among these files."""
        found = self.named(self._tree.known.released.get(name, ""))
        return found is not None and not found.abstract and name in (*found.wire_names, *(found.aliases or ()))

    @cached_property
    def _held(self) -> tuple[frozenset[str], frozenset[str]]:
        """The wire names and aliases of every class, and the names of classes of which only running them would tell these."""
        names: set[str] = set()
        uncertain: set[str] = set()
        for module in (*self._tree.modules, *self._tree.beside):
            # Also a class whose base is not to be found: it may be a worker.
            for one in (self.make(module, node) for node in module.every_class):
                if one.abstract:
                    continue
                names.update(one.wire_names, one.aliases or ())
                if not one.wire_names or one.aliases is None:
                    uncertain.add(one.name)
        return frozenset(names), frozenset(uncertain)

    def meaning(self, module: Module, expression: ast.expr) -> str | None:
        """The dotted name of an expression, as ``Tree.meaning``."""
        return self._tree.meaning(module, expression)

    def named(self, name: str) -> Class | None:
        """The class of a dotted name; None when these files do not have it."""
        found = self._tree.class_of(name)
        return self.make(*found) if found is not None else None

    def _base(self, made: Class, expression: ast.expr) -> Class | None:
        if isinstance(expression, ast.Subscript):
            expression = expression.value
        name = self._tree.meaning(made.module, expression)
        if name is not None and is_application_worker(name):
            made.is_worker = True
            return None
        found = self._tree.class_of(name) if name is not None else None
        if found is not None and found[1] not in self._open:
            return self.make(*found)
        made.complete = made.complete and name in _HARMLESS
        return None


def is_application_worker(name: str) -> bool:
    """The dotted name is that of one of the framework's bases."""
    return name.startswith(f"{FRAMEWORK}.") and name.endswith((".ApplicationWorker", ".LimitedCapacityWorker"))


def is_handler(name: str) -> bool:
    """A method of this name runs jobs."""
    return name in ("perform", "perform_work") or (
        name.startswith("perform_v") and name[len("perform_v") :].isdecimal()
    )


def _statements_within(outer: ast.stmt) -> Iterator[ast.stmt]:
    """The plain statements inside of an ``if``, a ``try`` and the like, at any depth; functions and classes whole."""
    todo = list(ast.iter_child_nodes(outer))
    for node in todo:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif not isinstance(node, ast.expr | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))


def _is_true(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is True


def _merged(first: Class, bases: list[Class]) -> list[Class]:
    """Python's own order of bases (C3); where there is none, which Python would refuse, the order in which they are found."""
    lists = [*(list(base.mro) for base in bases), list(bases)]
    order = [first]
    while lists := [one for one in lists if one]:
        heads = (one[0] for one in lists)
        head = next((head for head in heads if not any(head in one[1:] for one in lists)), lists[0][0])
        order.append(head)
        lists = [[one for one in names if one is not head] for names in lists]
    return order
