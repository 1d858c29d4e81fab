"""Compare arguments as JSON does: by type and value. Matchers stand for any value of a type."""

from typing import Any, Literal, TypeAlias, get_args

from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.errors import PayloadError
from framework.messages import did_you_mean, join_names
from framework.typeguards import is_list, is_mapping
from framework.wire.json import dumps_exact

JsonTypeName: TypeAlias = Literal["string", "integer", "number", "boolean", "null", "array", "object"]
_NAMES: tuple[str, ...] = get_args(JsonTypeName)


class JsonType:
    """Equal every value of these JSON types: ``json_type("string")``. Without names, every value that JSON can carry."""

    __slots__ = ("names",)

    def __init__(self, *names: JsonTypeName) -> None:
        for name in names:
            if name not in _NAMES:
                hint = did_you_mean(name, _NAMES)
                raise ValueError(f"json_type({name!r}): there is no such JSON type{hint}. Types: {join_names(_NAMES)}.")
        self.names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        return is_json(other) and not (self.names and self.names.isdisjoint(json_types_of(other)))

    def __hash__(self) -> int:
        return hash(self.names)

    def __repr__(self) -> str:
        return f"json_type({', '.join(map(repr, sorted(self.names)))})"


def json_type(*names: JsonTypeName) -> Any:
    """Return a matcher that equals every value of these JSON types; without names, every value that JSON can carry.

    Raises:
        ValueError: there is no type of this name.
    """
    return JsonType(*names)


def json_types_of(value: object) -> frozenset[str]:
    """Return the names of a value's JSON type: an integer is a number too. Empty for a value that is no native JSON type."""
    if value is None:
        return frozenset({"null"})
    kinds: dict[type[Any], set[str]] = {
        bool: {"boolean"},
        int: {"integer", "number"},
        float: {"number"},
        str: {"string"},
        list: {"array"},
        dict: {"object"},
    }
    return frozenset(kinds.get(type(value), set()))


def is_json(value: object) -> bool:
    """Return whether a push takes the value as an argument: native JSON types only, and no number or text that JSON cannot carry."""
    try:
        check_strict_json(value)
        # The nesting counts from the payload on.
        dumps_exact([value], outer_levels=1)
    except (NotJsonError, PayloadError):
        return False
    return True


def same_json(expected: object, found: object) -> bool:
    """Return whether two values are equal in JSON: ``True`` is not 1. An expected matcher decides by its own equality."""
    if is_list(expected) and is_list(found):
        return len(expected) == len(found) and all(map(same_json, expected, found))
    if is_mapping(expected) and is_mapping(found):
        return expected.keys() == found.keys() and all(same_json(expected[key], found[key]) for key in expected)
    if isinstance(expected, bool) or isinstance(found, bool):
        # A matcher of another kind is asked; a number is not.
        return type(expected) is type(found) and expected == found if json_types_of(expected) else expected == found
    return bool(expected == found)
