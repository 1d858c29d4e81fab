"""Check once, when a class is created, that JSON can carry the parameters of ``perform``; make the validators of its arguments."""

import enum
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import JsonValue, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import SchemaError, SchemaValidator
from typing_extensions import ReadOnly, TypeAliasType, is_typeddict

from framework.declare.validators import InvalidValue
from framework.errors import DeclarationError
from framework.typeguards import is_class, is_list, is_mapping

_PLAIN: tuple[Any, ...] = (int, float, str, bool, None, types.NoneType, Any, object, list, dict, JsonValue)
_LISTS: tuple[Any, ...] = (list, Sequence, MutableSequence)
_OBJECTS: tuple[Any, ...] = (dict, Mapping, MutableMapping)
_WRAPPERS: tuple[Any, ...] = (Required, NotRequired, ReadOnly)
JSON_SUBSTITUTES = {
    "datetime": "a float of epoch seconds, or a str in ISO 8601",
    "date": "a str in ISO 8601",
    "time": "a str in ISO 8601",
    "timedelta": "a float of seconds",
    "Decimal": "a str",
    "UUID": "a str",
    "tuple": "a list",
    "set": "a list",
    "frozenset": "a list",
    "bytes": "a str, for example base64",
    "bytearray": "a str, for example base64",
    "Iterable": "a list",
    "Collection": "a list",
    "Path": "a str",
}


def resolve_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, resolved. Raises InvalidValue when a name in them is not known at run time."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise InvalidValue(
            f"its annotations cannot be read at run time ({error}); import the names outside of TYPE_CHECKING, at module level"
        ) from None


def check_json_annotation(annotation: Any, seen: frozenset[int] = frozenset()) -> None:
    """Raise InvalidValue unless JSON can carry every value of ``annotation``; the error says what to use instead."""
    if id(annotation) in seen or any(annotation is plain for plain in _PLAIN):
        return
    for part in _inner_annotations(annotation):
        check_json_annotation(part, seen | {id(annotation)})


def _inner_annotations(annotation: Any) -> Iterable[Any]:
    """Return the annotations inside one that JSON can carry as a whole. Raises InvalidValue for one that it cannot."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, TypeAliasType):
        return (annotation.__value__,)
    if isinstance(annotation, NewType):
        return (annotation.__supertype__,)
    if origin is Annotated or origin in _WRAPPERS:
        return arguments[:1]
    if origin is Literal:
        return _check_literals(arguments)
    if origin in _OBJECTS or annotation in _OBJECTS:
        return _mapping_values(arguments)
    if is_typeddict(annotation):
        return _typed_dict_fields(annotation)
    if origin in (Union, types.UnionType, *_LISTS) or annotation in _LISTS or isinstance(annotation, ForwardRef):
        return arguments
    raise InvalidValue(_rejection_message(annotation, origin))


def _check_literals(members: tuple[Any, ...]) -> Iterable[Any]:
    for member in members:
        if type(member) not in (str, int, bool, types.NoneType):
            raise InvalidValue(f"Literal[{member!r}] has no JSON form; use Literal of str or int values")
    return ()


def _mapping_values(arguments: tuple[Any, ...]) -> Iterable[Any]:
    if not arguments:
        return ()
    key, member = arguments
    while get_origin(key) is Annotated or isinstance(key, NewType):
        key = key.__supertype__ if isinstance(key, NewType) else get_args(key)[0]
    literal_keys = get_origin(key) is Literal and all(type(word) is str for word in get_args(key))
    if key is not str and key is not Any and not literal_keys:
        raise InvalidValue("the keys of a JSON object are str; use dict[str, ...]")
    return (member,)


def _typed_dict_fields(typed_dict: Any) -> Iterable[Any]:
    try:
        return get_type_hints(typed_dict, include_extras=True).values()
    except NameError as error:
        raise InvalidValue(f"the fields of {typed_dict.__name__} cannot be read at run time ({error})") from None


def _rejection_message(annotation: Any, origin: Any) -> str:
    kind: Any = annotation if isinstance(annotation, type) and origin is None else origin
    name = getattr(kind, "__name__", None) or str(annotation)
    if is_class(kind):
        if issubclass(kind, enum.Enum):
            return f"{name} has no JSON form; use Literal[...] of its values and pass its .value"
        for ancestor in kind.__mro__:
            if ancestor.__name__ in JSON_SUBSTITUTES and "_fields" not in vars(kind):
                return f"{name} has no JSON form; use {JSON_SUBSTITUTES[ancestor.__name__]}"
    return f"{name} has no JSON form; pass an id, or use a dict[str, ...] (a TypedDict, or Json) of plain values"


Validate: TypeAlias = Callable[[Any], object]
"""Raises pydantic's ValidationError for a value that does not fit."""


@dataclass(frozen=True, slots=True)
class ArgumentValidators:
    """Make the validators of one method, which their errors name. Each raises DeclarationError for an annotation without a schema."""

    worker: str
    method: str

    def for_positions(self, annotations: Sequence[Any]) -> Validate | None:
        """Return a validator for one value per annotation, None when every value fits."""
        if _accepts_anything(annotations):
            return None
        return self._compile(tuple.__class_getitem__(tuple(annotations)))

    def for_bulk(self, annotations: Sequence[Any]) -> Validate | None:
        """Return a validator for a list of such tuples, made at its first use; None when every value fits."""
        if _accepts_anything(annotations):
            return None
        made: list[Validate] = []

        def validate(value: Any) -> object:
            if not made:
                made.append(self._compile(list.__class_getitem__(tuple.__class_getitem__(tuple(annotations)))))
            return made[0](value)

        return validate

    def for_varargs(self, annotation: Any) -> Validate | None:
        """Return a validator for the values of ``*args``, None when every value fits.

        Apart from the positions: pydantic builds a wrong schema for ``tuple[int, *tuple[str, ...]]`` (2.14).
        """
        if annotation is Any or annotation is object:
            return None
        return self._compile(list.__class_getitem__(annotation))

    def _compile(self, shape: Any) -> Validate:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(shape)
            schema: Any = adapter.core_schema
            validator = (
                SchemaValidator(_with_typed_literals(schema)) if _has_non_text_literal(schema) else adapter.validator
            )
        except (PydanticSchemaGenerationError, PydanticUserError, SchemaError, TypeError) as error:
            reason = str(error).splitlines()[0]
            message = f"{self.method}'s annotations cannot be checked: {reason}"
            raise DeclarationError(self.worker, message, attribute=self.method) from error
        return partial(validator.validate_python, strict=True)


def _accepts_anything(annotations: Sequence[Any]) -> bool:
    return all(annotation is Any or annotation is object for annotation in annotations)


def _has_non_text_literal(schema: Any) -> bool:
    """Whether a Literal in the schema holds anything but text."""
    if is_list(schema):
        return any(map(_has_non_text_literal, schema))
    if not is_mapping(schema):
        return False
    if schema.get("type") == "literal":
        return not all(type(member) is str for member in schema["expected"])
    return any(map(_has_non_text_literal, schema.values()))


def _with_typed_literals(schema: Any) -> Any:
    """Return the schema with Literals that compare types too: pydantic takes True and 1.0 for ``Literal[1]`` even when strict."""
    if is_list(schema):
        return [_with_typed_literals(part) for part in schema]
    if not is_mapping(schema):
        return schema
    if schema.get("type") != "literal":
        return {key: _with_typed_literals(part) for key, part in schema.items()}
    expected: list[Any] = schema["expected"]

    def compare(value: Any) -> Any:
        if any(type(value) is type(member) and value == member for member in expected):
            return value
        raise ValueError(f"input should be {' or '.join(map(repr, expected))}")

    return {"type": "function-plain", "function": {"type": "no-info", "function": compare}}
