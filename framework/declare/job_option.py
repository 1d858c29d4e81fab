"""Options that travel with a job: an attribute of its class, an option of ``set``, and a field of its payload.

The framework's own options are ``track`` and ``priority``; ``declare_option`` adds those of the application.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from framework.declare import validators
from framework.declare.declaration import Declaration
from framework.declare.validators import InvalidValue, Validator
from framework.typeguards import short_repr
from framework.types import Payload
from framework.wire.job import TRACK
from framework.wire.sub_queues import LEVELS, PRIORITY

V = TypeVar("V")

KINDS: tuple[type[Any], ...] = (bool, int, float, str)
"""The types of values: each is JSON, and arrives in Python and Ruby as it was."""

_MAX_INTEGER = 2**53
_NOT_GIVEN = object()


class JobOption(Generic[V]):
    """One option: its name, the default, and the validator of its values. Middlewares read it with ``of``."""

    __slots__ = ("default", "doc", "field", "name", "place", "validator")

    def __init__(
        self, name: str, validator: Validator, default: V, *, field: str = "", doc: str = "", place: str = ""
    ) -> None:
        self.name = name
        self.validator = validator
        self.default = default
        self.field = field or name
        """The field of the payload."""
        self.doc = doc
        self.place = place
        """The module that declared it."""

    def __repr__(self) -> str:
        return f"<JobOption {self.name}>"

    def of(self, worker: object, job: Mapping[str, Any]) -> V:
        """Return the value of a job: that of its payload, else that of its class, else the default.

        ``worker`` is what a middleware gets: the class, its instance, or the name of a class that this process does not have. A value
        that another program wrote and that is not allowed counts as missing.
        """
        return self.value_in(job, getattr(worker, "_aw_declaration", None))

    def value_in(self, job: Mapping[str, Any], declaration: Declaration | None) -> V:
        """Return the value of a job of the class with this declaration, as ``of``."""
        found = job.get(self.field, _NOT_GIVEN)
        if found is not _NOT_GIVEN:
            try:
                return self.validator(found)  # type: ignore[no-any-return]
            except InvalidValue:
                pass
        return self.default if declaration is None else self.declared(declaration)

    def declared(self, declaration: Declaration) -> V:
        """Return the value of a class."""
        return declaration.options.get(self.name, self.default)  # type: ignore[no-any-return]

    def keyword(self, value: V) -> dict[str, Any]:
        """Return the keyword of ``set`` for type checkers, which do not know the option: ``Worker.set(**OPTION.keyword(True))``."""
        return {self.name: value}


TRACKED: JobOption[bool] = JobOption(
    TRACK, validators.boolean, default=False, doc="Whether the life of each job is recorded in the database of tasks."
)
"""The attribute ``track`` is such an option of the framework."""

PRIORITIES: JobOption[str | None] = JobOption(
    PRIORITY,
    validators.one_of(*LEVELS),
    default=None,
    doc="The level of the class's jobs, unless a push sets another one.",
)
"""The attribute ``priority`` is another one."""

OPTIONS: dict[str, JobOption[Any]] = {one.name: one for one in (TRACKED, PRIORITIES)}
"""Every option by its name."""


_OWN = frozenset(OPTIONS)


def application_fields() -> list[str]:
    """Return the fields of the payload for the options that the application has declared."""
    return [one.field for name, one in OPTIONS.items() if name not in _OWN]


def declared_options(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a class that differ from their defaults, by name."""
    found = {name: attributes.get(name, one.default) for name, one in OPTIONS.items()}
    return {name: value for name, value in found.items() if value != OPTIONS[name].default}


def payload_fields(options: Mapping[str, Any]) -> Payload:
    """Return the fields of the payload for the options of a class."""
    return {OPTIONS[name].field: value for name, value in options.items() if name in OPTIONS}


def field_of(name: str) -> str:
    """Return the field of the payload for an option of ``set``."""
    found = OPTIONS.get(name)
    return name if found is None else found.field


def value_validator(kind: type[V], choices: tuple[V, ...] | None, check: Callable[[V], object] | None) -> Validator:
    """Return the validator of an option: the type, the choices if there are any, and the application's own check."""
    allowed = _ALLOWED[kind] if choices is None else f"one of {', '.join(map(repr, choices))}"

    def validate(value: Any) -> Any:
        # A whole number that no float is stays one, and is refused.
        typed = float(value) if kind is float and type(value) is int and abs(value) <= _MAX_INTEGER else value
        if type(typed) is not kind or not _is_exact(typed) or (choices is not None and typed not in choices):
            raise InvalidValue(allowed)
        if check is not None:
            _call_check(check, typed)
        return typed

    return Validator(allowed, validate, {"enum": list(choices)} if choices is not None else _SCHEMAS[kind])


def _is_exact(value: Any) -> bool:
    """Return whether JSON carries the value unchanged to Python and Ruby, and to a browser."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        # A lone surrogate is no text of UTF-8.
        return value.isascii() or value.encode("utf-8", "ignore").decode() == value
    return abs(value) <= _MAX_INTEGER  # type: ignore[no-any-return]


def _call_check(check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except ValueError as error:
        raise InvalidValue(str(error) or f"not {short_repr(value)}") from None


_ALLOWED: Mapping[type[Any], str] = {
    bool: validators.boolean.allowed,
    int: "a whole number of at most 2**53",
    float: "a finite number, a whole one of at most 2**53",
    str: "a text",
}
_SCHEMAS: Mapping[type[Any], Mapping[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}
