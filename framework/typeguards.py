"""Type guards for values of unknown origin, and their text in messages."""

import reprlib
from typing import Any, TypeGuard, TypeVar, cast

E = TypeVar("E", bound=BaseException)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether the value is a list."""
    return isinstance(value, list)


def is_mapping(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether the value is a dict."""
    return isinstance(value, dict)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether the value is a tuple."""
    return isinstance(value, tuple)


def is_text(value: object) -> TypeGuard[str]:
    """Whether the value is a text that UTF-8 can encode: no half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def class_of(value: object) -> type[Any]:
    """Return the class of a value, without type arguments, which a value does not know."""
    return cast("type[Any]", type(value))


def is_class(value: object) -> TypeGuard[type[Any]]:
    """Whether the value is a class."""
    return isinstance(value, type)


def qualified_name(cls: type[Any]) -> str:
    """Return the name of a class in messages: its module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def has_type(error: BaseException, *kinds: type[E]) -> TypeGuard[E]:
    """Whether an error is of one of these types. Not by ``isinstance``, which also asks the error, and the error may raise."""
    return issubclass(type(error), kinds)


class _ShortRepr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python prints 4,300 digits at most. From 3.14 on the method of the base class has its own text for more.
        try:
            repr(x)
        except ValueError:
            return "<a very long number>"
        return super().repr_int(x, level)


short_repr = _ShortRepr().repr
"""Return a value as text for a message: cut to one line, and safe whatever its own ``__repr__`` does."""
