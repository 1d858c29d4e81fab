"""Show the parameters of ``perform`` on the push methods of a class, to ``help()``, IPython and ``inspect.signature``.

To Python ``perform_async`` takes ``*args, **kwargs``, and a class method has one function for all classes. So each class gets a
copy of the function, with its own signature. The copy has the same code, and a call costs the same.
"""

import inspect
from collections.abc import Hashable, Iterator
from functools import cache
from inspect import Parameter, Signature
from types import FunctionType
from typing import Any, NamedTuple, cast

from framework.declare.misuse import unwrap

_PERFORM_ARGUMENTS = "P.args"
_OURS = "framework."


class _PushMethod(NamedTuple):
    """A push method of a base class: its function, the parameters before those of ``perform``, and what it returns."""

    function: Any
    leading: tuple[Parameter, ...]
    returns: Any


def show_signatures(cls: type[Any], method: str) -> None:
    """Give each push method of ``cls`` the parameters of ``method``, unless the application has overridden it."""
    signature = inspect.signature(unwrap(inspect.getattr_static(cls, method)))
    _, *parameters = signature.parameters.values()
    for name, push in _push_methods(cls.__mro__[1:]):
        overridden = _override(cls, name, push)
        if overridden is None:
            setattr(cls, name, classmethod(_copy(push, parameters)))
        elif name not in vars(cls):
            # The copy of another base class would hide the application's own method.
            setattr(cls, name, overridden)


def _push_methods(bases: tuple[type[Any], ...]) -> Iterator[tuple[str, _PushMethod]]:
    for base in bases:
        if base.__module__.startswith(_OURS):
            yield from _own_push_methods(cast("Hashable", base))


@cache
def _own_push_methods(base: Hashable) -> tuple[tuple[str, _PushMethod], ...]:
    found: dict[str, Any] = {name: value.__func__ for name, value in vars(base).items() if type(value) is classmethod}
    return tuple(
        (name, _PushMethod(function, tuple(leading), inspect.signature(function).return_annotation))
        for name, function in found.items()
        if (leading := _leading_parameters(function)) is not None
    )


def _leading_parameters(function: Any) -> list[Parameter] | None:
    """Return the parameters before ``*args: P.args``; ``None`` for a method without it."""
    leading: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL and str(parameter.annotation) == _PERFORM_ARGUMENTS:
            return leading
        leading.append(parameter)
    return None


def _override(cls: type[Any], name: str, push: _PushMethod) -> Any:
    """Return the object that the application has in place of a push method, or ``None``."""
    for one in cls.__mro__:
        found = vars(one).get(name)
        if found is not None and not _is_copy(found, push):
            return found
        if found is not None and one.__module__.startswith(_OURS):
            return None
    return None


def _is_copy(found: Any, push: _PushMethod) -> bool:
    function = getattr(found, "__func__", None)
    return getattr(function, "__code__", None) is push.function.__code__


def _copy(push: _PushMethod, parameters: list[Parameter]) -> Any:
    function = push.function
    copied: Any = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__doc__, copied.__module__, copied.__qualname__ = (
        function.__doc__,
        function.__module__,
        function.__qualname__,
    )
    copied.__annotations__ = function.__annotations__
    taken = {parameter.name for parameter in parameters}
    leading = [one.replace(name=_free_name(one.name, taken)) if one.name in taken else one for one in push.leading]
    copied.__signature__ = Signature([*leading, *parameters], return_annotation=push.returns)
    return copied


def _free_name(name: str, taken: set[str]) -> str:
    """Return the name of a parameter that ``perform`` may have too: it is given by position, so it may be another."""
    while name in taken:
        name = f"{name}_"
    return name
