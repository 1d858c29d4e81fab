"""Model worker classes from their source: bases across files, and the value and place of each attribute."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from framework.application_worker import ATTRIBUTES, ApplicationWorker
from framework.declare.names import wire_name
from framework.devtools.lint.module import Function, Module
from framework.devtools.lint.workspace import FRAMEWORK, UNKNOWN, Workspace
from framework.feature import Late

CRON_NAMESPACE = "cronjob"
"""The namespace of workers that a schedule pushes (GitLab's CronjobQueue)."""

# At its first use: the linter works without the room of cron.
_CRON_WORKER: Late[Any] = Late("framework.features.cron.cron_worker:CronWorker")
_CRON_BASE = ".CronWorker"
_ITERABLE_BASE = ".IterableWorker"
_WORKER_BASES = (".ApplicationWorker", ".LimitedCapacityWorker", _CRON_BASE, _ITERABLE_BASE)
ENUMERATOR, ITERATION, CURSOR = "build_enumerator", "each_iteration", "cursor"
"""The methods of an iterable worker, and the parameter of the first that is no argument of the job."""

_PLAIN_BASES = frozenset({"object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol"})


@dataclass(frozen=True, slots=True)
class AttributeValue:
    """The declaration of one attribute in a class body. ``value`` is UNKNOWN if only running code shows it."""

    owner: "SourceClass"
    node: ast.stmt
    expression: ast.expr | None
    value: object


@dataclass(frozen=True, slots=True)
class FindingLocation:
    """The place of a finding: the deciding statement, or without one the head of the class."""

    owner: "SourceClass"
    node: ast.stmt
    of_value: bool


class SourceClass:
    """A class and its bases. ``complete`` is false if a base is not found, which may declare any attribute."""

    def __init__(self, tree: Workspace, module: Module, node: ast.ClassDef) -> None:
        self.workspace = tree
        self.module = module
        self.node = node
        self.name = node.name
        self.mro: list[SourceClass] = [self]
        self.complete = True
        self.is_worker = False
        self.is_iterable = False
        """Whether it is an ``IterableWorker``."""
        self.framework_base: type[ApplicationWorker] = ApplicationWorker
        """The base of the framework among the class's own bases, whose values are the defaults."""
        self.abstract = any(word.arg == "abstract" and _is_true(word.value) for word in node.keywords)
        self.methods: dict[str, Function] = {}
        self.own_attributes: dict[str, AttributeValue] = {}
        self.bare_annotations: list[tuple[str, ast.stmt]] = []
        """Annotations without a value."""
        for statement in node.body:
            self._record(statement, certain=True)

    def __repr__(self) -> str:
        return f"{self.module.name}.{self.name}"

    def attribute(self, name: str) -> AttributeValue | None:
        """Return the first declaration along the MRO; None if no known class declares the attribute."""
        owners = self.mro if ATTRIBUTES[name].inherited else self.mro[:1]
        return next((owner.own_attributes[name] for owner in owners if name in owner.own_attributes), None)

    def value(self, name: str) -> Any:
        """Return the value of an attribute: declared, else the framework's default, else UNKNOWN."""
        attribute = self.attribute(name)
        if attribute is not None:
            return attribute.value
        bases = (owner.framework_base for owner in self.mro)
        base = next((one for one in bases if one is not ApplicationWorker), ApplicationWorker)
        return getattr(base, name) if self.complete else UNKNOWN

    def location_of(self, name: str) -> FindingLocation | None:
        """Return the place of a finding about an attribute; None for an abstract class that does not declare it."""
        attribute = self.attribute(name)
        if attribute is not None and attribute.owner.module.linted:
            return FindingLocation(attribute.owner, attribute.node, of_value=True)
        return None if self.abstract else FindingLocation(self, self.node, of_value=False)

    def handlers(self) -> Iterator[tuple["SourceClass", Function]]:
        """Yield ``perform`` and the methods for older versions, each with its class."""
        seen: set[str] = set()
        for owner in self.mro:
            for name, function in owner.methods.items():
                if name not in seen and is_handler(name):
                    seen.add(name)
                    yield owner, function

    @cached_property
    def wire_names(self) -> tuple[str, ...]:
        """The declared wire name, else one for each possible name of the module; empty if it is UNKNOWN."""
        attribute = self.own_attributes.get("wire_name")
        if attribute is not None and attribute.value:
            return (attribute.value,) if isinstance(attribute.value, str) else ()
        name = self._name_in_module()
        return tuple(dict.fromkeys(wire_name(module, name) for module in self.workspace.import_names(self.module)))

    @property
    def aliases(self) -> tuple[str, ...] | None:
        """The declared former names; None if only running code shows them."""
        attribute = self.own_attributes.get("aliases")
        if attribute is None:
            return ()
        listed = isinstance(attribute.value, tuple | list)
        return tuple(map(str, cast("Sequence[object]", attribute.value))) if listed else None

    @property
    def is_cron(self) -> bool:
        """Whether a schedule pushes the jobs."""
        return bool(self.value("queue_namespace") == CRON_NAMESPACE)

    def _name_in_module(self) -> str:
        """Return the name after those of its outer classes, up to a function (as ``__qualname__`` after ``<locals>.``)."""
        names = [self.name]
        for outer in self.module.enclosing(self.node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                break
            names += [outer.name] if isinstance(outer, ast.ClassDef) else []
        return ".".join(reversed(names))

    def _record(self, statement: ast.stmt, *, certain: bool) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._record_value(name, statement, value, certain=certain)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._record_value(name, statement, value, certain=certain)
            case ast.AnnAssign(target=ast.Name(id=name)):
                self.bare_annotations.append((name, statement))
            case ast.Assign(targets=targets):
                names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
                self.own_attributes |= {name: AttributeValue(self, statement, None, UNKNOWN) for name in names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self.methods[name] = statement
                if name in ATTRIBUTES:
                    self.own_attributes[name] = AttributeValue(self, statement, None, UNKNOWN)
            case ast.ClassDef():
                pass
            case _:
                for inner in _statements_within(statement):
                    self._record(inner, certain=False)

    def _record_value(self, name: str, statement: ast.stmt, expression: ast.expr, *, certain: bool) -> None:
        value = self.workspace.evaluate(self.module, expression) if certain else UNKNOWN
        self.own_attributes[name] = AttributeValue(self, statement, expression if certain else None, value)


class ClassIndex:
    """Every class of a workspace, resolved on demand."""

    def __init__(self, tree: Workspace) -> None:
        self._workspace = tree
        self._by_node: dict[ast.ClassDef, SourceClass] = {}
        self._in_progress: set[ast.ClassDef] = set()
        self.workers = [
            one for module in tree.modules for node in module.all_classes if (one := self.get(module, node)).is_worker
        ]
        """The linted workers, also abstract ones, in the order of the files."""
        self._workers_by_base: dict[ast.ClassDef, SourceClass] = {}
        for worker in self.workers:
            for owner in worker.mro:
                self._workers_by_base.setdefault(owner.node, worker)

    def worker_around(self, module: Module, node: ast.AST) -> SourceClass | None:
        """Return the worker whose class, or whose mixin, contains the node."""
        for outer in module.enclosing(node):
            if isinstance(outer, ast.ClassDef):
                own = self._by_node.get(outer)
                return own if own is not None and own.is_worker else self._workers_by_base.get(outer)
        return None

    def get(self, module: Module, node: ast.ClassDef) -> SourceClass:
        if node in self._by_node:
            return self._by_node[node]
        made = self._by_node[node] = SourceClass(self._workspace, module, node)
        self._in_progress.add(node)
        bases: list[SourceClass] = []
        for expression in node.bases:
            base = self._base(made, expression)
            if base is not None:
                bases.append(base)
                made.is_worker = made.is_worker or base.is_worker
                made.is_iterable = made.is_iterable or base.is_iterable
                made.complete = made.complete and base.complete
        made.mro = _linearize(made, bases)
        self._in_progress.discard(node)
        return made

    def may_have_wire_name(self, name: str) -> bool:
        """Return whether a class of these files has the wire name or lists it as an alias, or may do so."""
        names, uncertain = self._wire_names
        return name in names or name.rpartition("::")[2] in uncertain or self._still_at_released_place(name)

    def _still_at_released_place(self, name: str) -> bool:
        """Return whether the released class of a wire name is still at its place, in a package that is not linted."""
        found = self.find(self._workspace.facts.released.get(name, ""))
        return found is not None and not found.abstract and name in (*found.wire_names, *(found.aliases or ()))

    @cached_property
    def _wire_names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The wire names and aliases of all classes, and the names of classes whose wire names only running code shows."""
        names: set[str] = set()
        uncertain: set[str] = set()
        for module in (*self._workspace.modules, *self._workspace.unlinted):
            # A class with an unknown base may be a worker too.
            for one in (self.get(module, node) for node in module.all_classes):
                if one.abstract:
                    continue
                names.update(one.wire_names, one.aliases or ())
                if not one.wire_names or one.aliases is None:
                    uncertain.add(one.name)
        return frozenset(names), frozenset(uncertain)

    def resolve_name(self, module: Module, expression: ast.expr) -> str | None:
        """Return the dotted name of an expression, as ``Workspace.resolve_name``."""
        return self._workspace.resolve_name(module, expression)

    def find(self, name: str) -> SourceClass | None:
        """Return the class of a dotted name; None if these files do not have it."""
        found = self._workspace.class_of(name)
        return self.get(*found) if found is not None else None

    def _base(self, made: SourceClass, expression: ast.expr) -> SourceClass | None:
        if isinstance(expression, ast.Subscript):
            expression = expression.value
        name = self._workspace.resolve_name(made.module, expression)
        if name is not None and is_application_worker(name):
            made.is_worker = True
            if name.endswith(_CRON_BASE):
                made.framework_base = _CRON_WORKER.load()
            made.is_iterable = made.is_iterable or name.endswith(_ITERABLE_BASE)
            return None
        found = self._workspace.class_of(name) if name is not None else None
        if found is not None and found[1] not in self._in_progress:
            return self.get(*found)
        made.complete = made.complete and name in _PLAIN_BASES
        return None


def is_application_worker(name: str) -> bool:
    """Return whether the dotted name is a worker base of the framework."""
    return name.startswith(f"{FRAMEWORK}.") and name.endswith(_WORKER_BASES)


def is_handler(name: str) -> bool:
    """Return whether a method of this name runs jobs."""
    return name in ("perform", "perform_work", ENUMERATOR) or (
        name.startswith("perform_v") and name[len("perform_v") :].isdecimal()
    )


def _statements_within(outer: ast.stmt) -> Iterator[ast.stmt]:
    """Yield assignments and functions inside of compound statements such as ``if`` and ``try``, at any depth."""
    todo = list(ast.iter_child_nodes(outer))
    for node in todo:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif not isinstance(node, ast.expr | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))


def _is_true(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is True


def _linearize(first: SourceClass, bases: list[SourceClass]) -> list[SourceClass]:
    """Return the bases in Python's order (C3). Without a valid order, which Python refuses, they are in the order of the source."""
    lists = [*(list(base.mro) for base in bases), list(bases)]
    order = [first]
    while lists := [one for one in lists if one]:
        heads = (one[0] for one in lists)
        head = next((head for head in heads if not any(head in one[1:] for one in lists)), lists[0][0])
        order.append(head)
        lists = [[one for one in names if one is not head] for names in lists]
    return order
