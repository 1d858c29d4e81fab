"""Answer each use of a worker class in another library's style with the call that is meant.

Type checkers see none of this. Nothing has been pushed when it raises.
"""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Never, Self, cast

from framework.declare import foreign_names
from framework.declare.names import class_name_of
from framework.errors import MisuseError, NoSuchMethodError
from framework.typeguards import qualified_name

_FUNCTION_ATTRIBUTES = ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__")
_PUSH_NOW_CALL = "{0}.perform_async(...)"
_INLINE_CALL = "{0}.perform_inline(...)"


# A descriptor and not a metaclass, which would forbid `class W(ApplicationWorker, SomeProtocol)`.
class ForeignMethod:
    """One name of another library (``foreign_names``): an AttributeError that names the word of ours, so ``hasattr`` stays false.

    A class of the application that has the name, also a mixin behind ``base``, is used as if this descriptor were not there.
    """

    __slots__ = ("_base", "_name")

    def __init__(self, base: type[Any], name: str) -> None:
        self._base = base
        self._name = name

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        if any(self._name in vars(one) for one in owner.__mro__ if one is not self._base):
            asked: Any = owner if instance is None else instance
            return getattr(super(self._base, asked), self._name)  # pyright: ignore[reportUnknownArgumentType]
        # The worker of a Setter.
        worker = getattr(instance, "_worker", owner)
        raise NoSuchMethodError(qualified_name(worker), _advice_for(self._name, worker.__qualname__))


def _advice_for(name: str, worker: str) -> str:
    """Return the reason of the error for a method of another library. A use that may mean a push names the push."""
    found = str(foreign_names.advice(name, "method", "self", worker=worker))
    push = _PUSH_NOW_CALL.format(worker)
    named = name in foreign_names.NAMES["self"] or "perform_" in found
    return f"there is no {name}. {found}" + ("" if named else f"; to push a job, `{push}`")


def add_foreign_methods(base: type[Any], *places: foreign_names.Place) -> None:
    """Put the names of these places on ``base``. Not in its body, where a type checker would see them."""
    for place in places:
        for name in foreign_names.NAMES[place]:
            if not any(name in vars(one) for one in base.__mro__):
                setattr(base, name, ForeignMethod(base, name))


class RetryAttribute:
    """The attribute ``retry`` of a class: its value on the class, and on a job's instance a value that cannot be called.

    In Celery ``self.retry(...)`` asks for another run.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        return self.value if instance is None or type(self.value) not in (int, bool) else _RetryCount(self.value, owner)


class _RetryCount(int):
    """The value of ``retry`` as a job reads it: a call raises an error that names the ways to run the job again."""

    def __new__(cls, value: int, owner: type[Any]) -> Self:
        made = super().__new__(cls, value)
        made._shown, made._owner = repr(value), owner
        return made

    _shown: str
    _owner: type[Any]

    def __repr__(self) -> str:
        return self._shown

    def __call__(self, *given: object, **named: object) -> Never:
        """Raise MisuseError."""
        del given, named
        advice = foreign_names.advice("retry", "self")
        raise MisuseError(
            qualified_name(self._owner), f"self.retry is the attribute of the class, and no method. {advice}"
        )


def install_retry_attribute(cls: type[Any]) -> None:
    """Wrap the class's own ``retry``, so that a call of ``self.retry`` names what to do."""
    value = vars(cls).get("retry")
    if type(value) in (int, bool):
        setattr(cls, "retry", RetryAttribute(value))  # noqa: B010 - to a type checker it stays what it is


class _FunctionProxy:
    """A callable that inspect, Sphinx and unittest.mock take for ``function``, which check its type first."""

    def __init__(self, function: Any) -> None:
        update_wrapper(self, function)
        # No __getattr__: a class that has one is slow in every attribute.
        vars(self).update({name: getattr(function, name) for name in _FUNCTION_ATTRIBUTES if hasattr(function, name)})
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return cast("type[Any]", type(self.function))


class PerformDescriptor(_FunctionProxy):
    """``perform`` of a class: the method itself on an instance, an ``UnboundPerform`` on the class."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._bind: Callable[[object], Any] = function.__get__

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        return UnboundPerform(self.function, owner) if instance is None else self._bind(instance)


class UnboundPerform(_FunctionProxy):
    """``Worker.perform``: a call with an instance goes through (``Base.perform(self)``), a call with a job's arguments is refused."""

    def __init__(self, function: Any, owner: type[Any]) -> None:
        super().__init__(function)
        self._owner = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Raises MisuseError when no instance is given."""
        # A JSON value is an argument of a job. Any other object may stand for an instance, as in a unit test.
        if not args or args[0] is None or isinstance(args[0], str | int | float | list | tuple | dict):
            push, here = _PUSH_NOW_CALL.format(self._owner.__qualname__), _INLINE_CALL.format(self._owner.__qualname__)
            fact = f"{self.function.__name__} is called by the process that runs the job"
            raise MisuseError(
                qualified_name(self._owner), f"{fact}. To push a job, write {push}; to run one here and now, {here}"
            )
        return self.function(*args, **kwargs)


def unwrap(value: Any) -> Any:
    """Return a value as a class body gave it; a descriptor of this module may wrap it now."""
    if type(value) is PerformDescriptor:
        return value.function
    return value.value if type(value) is RetryAttribute else value


def declared_value(owner: type[Any], name: str) -> Any:
    """Return the value that the body of a class gave a name."""
    return unwrap(vars(owner)[name])


def reject_constructor_arguments(cls: type[Any], given: tuple[Any, ...]) -> None:
    """Raise MisuseError for a worker class that was called with arguments: as a decorator, or as a function."""
    name = cls.__qualname__
    if len(given) == 1 and callable(given[0]):
        reason = (
            "it is not a decorator: write @background(feature_category=...) above the function; or "
            f"write class {_suggested_class_name(given[0])}(ApplicationWorker) "
            "with def perform(self, ...), and push it with perform_async(...)"
        )
    else:
        reason = f"an instance takes no arguments: a process makes one per job. To push a job, write {_PUSH_NOW_CALL.format(name)}"
    raise MisuseError(qualified_name(cls), reason)


def _suggested_class_name(task: Any) -> str:
    name = str(getattr(task, "__name__", "Some"))
    return name if isinstance(task, type) else class_name_of(name)


def install_perform_descriptor(cls: type[Any]) -> None:
    """Wrap the class's own ``perform``, so that a call on the class differs from a call on an instance."""
    perform = vars(cls).get("perform")
    if perform is not None:
        setattr(cls, "perform", PerformDescriptor(perform))  # noqa: B010 - to a type checker it stays what it is
