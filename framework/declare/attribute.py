"""Declare the attributes of worker classes: one statement has the name, the type, the default, the check and the documentation.

A group of attributes is a base of the worker classes that have them. The checks of a class, the catalogue, the linter, the
reference pages and the keywords of ``background`` follow from it.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from framework.declare.signature import JobSignature
from framework.declare.validators import ErrorCollector, Validator
from framework.errors import DeclarationError
from framework.typeguards import qualified_name

T = TypeVar("T")

Group: TypeAlias = Literal[
    "ownership", "queues", "versions", "retries", "running", "payload", "status", "flow_control", "application"
]

GROUPS: Mapping[str, str] = {
    "ownership": "the team that owns the job, and the resources that it needs",
    "queues": "the queue and the shard of the job, and the weight of the queue",
    "versions": "the names of the class, and the version of its arguments",
    "retries": "what happens to a job that fails or is interrupted",
    "running": "when the job is acknowledged, and limits of time",
    "payload": "the checks, size and log output of the arguments",
    "status": "how long the state of the job is kept",
    "flow_control": "the policies that hold, defer, limit or drop the job",
}
"""The groups of attributes; each has a page of its name under docs/reference/attributes. ``application`` is none of them."""

_GROUP = "_aw_group"
_NAMES: set[str] = set()


class WorkerKind(NamedTuple):
    """The base class to whose workers an attribute belongs."""

    flag: str
    """A name that only its classes have, or have with a true value."""
    name: str
    """The base class, for messages."""
    otherwise: str = "leave it out"
    """What to do about the attribute in any other class."""
    refused: bool = True
    """Whether any other class is refused. If not, the attribute has no effect there."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """``attribute`` = ``value`` excludes ``forbidden_values`` of ``other_attribute``, for ``reason``; ``remedy`` helps."""

    attribute: str
    value: Any
    other_attribute: str
    forbidden_values: tuple[Any, ...]
    reason: str
    remedy: str

    def __str__(self) -> str:
        """Return the rule in one sentence: "urgency = 'high' forbids resource_boundary = 'memory'"."""
        forbidden = " or ".join(map(repr, self.forbidden_values))
        return f"{self.attribute} = {self.value!r} forbids {self.other_attribute} = {forbidden}"

    def attribute_names(self) -> tuple[str, str]:
        return self.attribute, self.other_attribute


@dataclass(frozen=True, slots=True)
class ClassValues:
    """The checked values of the attributes of a class that is being created. A group may complete its own."""

    cls: type[Any]
    values: dict[str, Any]
    owners: Mapping[str, type[Any]]
    """The class that gives an attribute its value; attributes with their default are left out."""
    wrong: AbstractSet[str]
    """The attributes whose value is not allowed. They have their default here."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: the default, the validator of its values, and a few sentences of documentation.

    ``effect`` describes what it does today, ``trap`` names a frequent mistake and its remedy. The allowed values come from the
    validator.
    """

    name: str
    default: Any
    validator: Validator
    group: Group
    effect: str
    trap: str
    kind: WorkerKind | None = None
    inherited: bool = True
    """Whether a class has the value of its parent. Each child would claim the name of its parent otherwise."""
    text: str = ""
    """The meaning of an attribute that is declared while the program runs."""
    owner: type[Any] | None = None
    """The attribute group that declares it."""

    @property
    def allowed(self) -> str:
        """The allowed values as the validator describes them."""
        return self.validator.allowed

    @property
    def meaning(self) -> str:
        """What the attribute is, in a sentence or two: the text below its declaration, which editors show."""
        return self.text if self.owner is None else _texts_below(cast("Hashable", self.owner)).get(self.name, "")


def attribute(
    default: T,
    *,
    validator: Validator,
    group: Group,
    effect: str,
    trap: str,
    kind: WorkerKind | None = None,
    inherited: bool = True,
) -> T:
    """Declare an attribute in the body of an attribute group. Write its meaning below, as a text of its own.

    The annotation is a ClassVar with the type of the values that a class may have, so that type checkers know the attribute.
    """
    made = partial(
        Attribute,
        default=default,
        validator=validator,
        group=group,
        effect=effect,
        trap=trap,
        kind=kind,
        inherited=inherited,
    )
    return cast("T", made)


class AttributeGroup(NamedTuple):
    """The attributes of a group, and the checks of a class that has them."""

    attributes: Mapping[str, Attribute]
    hooks: Mapping[str, int]
    """The class methods that an application may override, and the number of arguments that each is called with."""
    constraints: tuple[Constraint, ...] = ()
    check: Callable[[ErrorCollector, ClassValues], None] | None = None
    """Notes combinations of values that a class may not have."""
    check_perform: Callable[[ErrorCollector, Mapping[str, Any], JobSignature], None] | None = None
    """Notes values that do not fit the parameters of ``perform``."""


def attribute_group(
    *,
    constraints: tuple[Constraint, ...] = (),
    check: Callable[[ErrorCollector, ClassValues], None] | None = None,
    check_perform: Callable[[ErrorCollector, Mapping[str, Any], JobSignature], None] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Make a class of ``attribute(...)`` statements a base of worker classes. Each attribute gets its default as its value.

    Its class methods are hooks: an application may override them, and the framework calls them.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: dict[str, Attribute] = {
            name: value(name=name, owner=cls) for name, value in vars(cls).items() if isinstance(value, partial)
        }
        for name, one in made.items():
            setattr(cls, name, one.default)
        hooks = {
            name: value.__func__.__code__.co_argcount - 1
            for name, value in vars(cls).items()
            if isinstance(value, classmethod)
        }
        setattr(cls, _GROUP, AttributeGroup(made, hooks, constraints, check, check_perform))
        _NAMES.update(made)
        return cls

    return decorate


def own_groups_of(cls: type[Any]) -> list[type[Any]]:
    """Return the groups of a worker class that its base does not have: those of the application."""
    return [owner for owner in cls.__mro__ if owner not in cls._aw_parts and is_group(owner)]


def groups_of(cls: type[Any]) -> list[AttributeGroup]:
    """Return the groups of a worker class, the core's last."""
    own = [vars(owner)[_GROUP] for owner in own_groups_of(cls)]
    return [*own, *_groups_of_base(cls._aw_base)]


@cache
def _groups_of_base(base: Hashable) -> list[AttributeGroup]:
    return [vars(owner)[_GROUP] for owner in cast("type[Any]", base).__mro__ if is_group(owner)]


def hooks_of(cls: type[Any]) -> dict[str, int]:
    """Return the hooks of a worker class, and the number of arguments that each is called with."""
    return {name: count for group in reversed(groups_of(cls)) for name, count in group.hooks.items()}


def constraints_of(cls: type[Any]) -> tuple[Constraint, ...]:
    """Return the constraints between the attributes of a worker class, the core's first."""
    return tuple(rule for group in reversed(groups_of(cls)) for rule in group.constraints)


def is_group(cls: type[Any]) -> bool:
    return _GROUP in vars(cls)


def merged(groups: Iterable[type[Any]], known: Mapping[str, Attribute] = MappingProxyType({})) -> dict[str, Attribute]:
    """Return the known attributes by their names, and behind them those of the groups, in order.

    Raises:
        DeclarationError: two groups declare an attribute of one name.
    """
    found = dict(known)
    for group in groups:
        declared: Mapping[str, Attribute] = vars(group)[_GROUP].attributes
        for name in found.keys() & declared.keys():
            other = found[name].owner
            message = (
                f"{name} is an attribute of {'another group' if other is None else qualified_name(other)} already."
            )
            raise DeclarationError(qualified_name(group), message, attribute=name)
        found |= declared
    return found


def is_attribute(name: str) -> bool:
    return name in _NAMES


@cache
def _texts_below(owner: Hashable) -> Mapping[str, str]:
    """Return the text below each annotated name in the body of a class, in one line and in the words of a Markdown page."""
    cls = cast("type[Any]", owner)
    try:
        source = inspect.getsource(sys.modules[cls.__module__])
    except OSError:
        return {}
    tree = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    texts: dict[str, str] = {}
    for node, below in pairwise(tree.body):
        match node, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.replace("``", "`").split())
            case _:
                pass
    return texts
