"""A value of unknown making: is it a list or a mapping (narrowed for type checkers), and how does a message show it?"""

import reprlib
from typing import Any, TypeGuard, TypeVar, cast

E = TypeVar("E", bound=BaseException)


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


def has_type(error: BaseException, *kinds: type[E]) -> TypeGuard[E]:
    """Tell whether an error is of one of these kinds by its type alone: ``isinstance`` also asks the error, which may raise."""
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
"""A value as a message shows it: cut to a line, and said whatever its own ``__repr__`` does."""
