"""Is a value of unknown making a list or a mapping? Narrowed for type checkers without saying what is inside."""

from typing import Any, TypeGuard, cast


def is_list(value: object) -> TypeGuard[list[Any]]:
    """It is a list."""
    return isinstance(value, list)


def is_mapping(value: object) -> TypeGuard[dict[Any, Any]]:
    """It is a dict."""
    return isinstance(value, dict)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """It is a tuple."""
    return isinstance(value, tuple)


def class_of(value: object) -> type[Any]:
    """The class of a value, without its type arguments, which no value knows."""
    return cast("type[Any]", type(value))


def is_class(value: object) -> TypeGuard[type[Any]]:
    """It is a class."""
    return isinstance(value, type)
