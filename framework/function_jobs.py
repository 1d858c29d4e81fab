"""Register a function as a job: ``background`` makes a worker class of it, which calls the function."""

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial, update_wrapper
from types import FunctionType, MethodType, new_class
from typing import Any, Concatenate, Generic, TypeVar, Unpack, cast, overload

from framework.application_worker import ApplicationWorker, PushOptions, Setter
from framework.declare.annotations import resolve_annotations
from framework.declare.names import class_name_of
from framework.declare.options import check_options
from framework.declare.request import NO_OPTIONS, JobRequest, P, Route
from framework.declare.validators import InvalidValue
from framework.errors import DeclarationError, Discard
from framework.features.results.calls import FunctionCalls
from framework.text import with_article
from framework.typeguards import class_of, is_class, short_repr
from framework.worker_attributes import WorkerAttributes

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

K = TypeVar("K")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class FunctionSetter(FunctionCalls[P, R_co], Setter[P], Generic[P, R_co]):
    """The push methods of a registered function."""

    def set(self, **options: Unpack[PushOptions]) -> "FunctionSetter[P, R_co]":
        """Return an object with the same push methods and these options in addition.

        Raises:
            ArgumentsError: an option is unknown or invalid.
        """
        checked = check_options(self._declaration.qualified_name, options)
        return FunctionSetter(self._worker, self._declaration, {**self._options, **checked})


class BackgroundFunction(FunctionSetter[P, R_co]):
    """A registered function. A call runs it here; ``perform_async`` and the other push methods of a worker class push a job.

    ``set`` takes options of one push. ``worker`` is the class that runs the jobs.
    """

    def __init__(self, function: Callable[P, R_co], worker: type[ApplicationWorker]) -> None:
        super().__init__(worker, worker.declaration(), NO_OPTIONS)
        self._function = function
        self.worker = worker

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function here and now, without a job."""
        return self._function(*args, **kwargs)

    def arguments(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[P]:
        """Return one job for ``perform_bulk_for``, checked like a push.

        Raises:
            ArgumentsError: the arguments do not fit the function or are not JSON.
        """
        return JobRequest(self._declaration, self._declaration.signature.bind(args, kwargs))

    def route(self) -> Route:
        """Return the queue and the shard of the function's jobs, and the rule that matched."""
        return self.worker.route()


@overload
def background(
    function: Callable[Concatenate[T, P], R],
    /,
    *,
    loader: Callable[[K], T | None] | Callable[[K], Awaitable[T | None]],
    base: type[ApplicationWorker] = ...,
    **attributes: Unpack[WorkerAttributes],
) -> BackgroundFunction[Concatenate[K, P], R]: ...


@overload
def background(
    function: Callable[P, R], /, *, base: type[ApplicationWorker] = ..., **attributes: Unpack[WorkerAttributes]
) -> BackgroundFunction[P, R]: ...


@overload
def background(
    *, base: type[ApplicationWorker] = ..., **attributes: Unpack[WorkerAttributes]
) -> Callable[[Callable[P, R]], BackgroundFunction[P, R]]: ...


def background(
    function: Any = None,
    /,
    *,
    loader: Callable[[Any], Any] | None = None,
    base: type[ApplicationWorker] = ApplicationWorker,
    **attributes: Unpack[WorkerAttributes],
) -> Any:
    """Register a function of a module as a job, with the attributes of a worker class. Also a decorator.

    ``loader`` registers a method, or a function of an object: a job carries what the loader needs, such as an id, and the loader
    returns the object. ``base`` is an abstract worker class with shared attributes and hooks.

    The wire name is that of a class in the function's place: ``send_welcome`` is named like a class ``SendWelcomeWorker`` there,
    and ``Invoice.send`` like a class ``SendWorker`` inside of ``Invoice``.

    Raises:
        DeclarationError: the function has no name that other processes know, or an attribute or a parameter is invalid.
    """
    if function is None:
        return partial(_register, loader=loader, base=base, attributes=attributes)
    return _register(function, loader=loader, base=base, attributes=attributes)


def _register(
    function: Any, *, loader: Callable[[Any], Any] | None, base: type[Any], attributes: Mapping[str, Any]
) -> BackgroundFunction[..., Any]:
    module, qualname = _checked_name(function)
    name = f"{module}.{qualname}"
    if not is_class(base) or not issubclass(base, ApplicationWorker) or vars(base).get("_aw_setter") is not None:
        message = f"base = {short_repr(base)} is not allowed. Allowed: an abstract worker class."
        raise DeclarationError(name, message, attribute="base")
    if loader is None:
        call, parameters = function, _parameters(name, function)
        if "." in qualname and not isinstance(function, MethodType) and not _is_static(module, qualname):
            raise DeclarationError(
                name, "is a method, and a job carries no object. Give loader=..., which returns the object of an id."
            )
    else:
        call, parameters = _with_loader(name, function, loader, is_method="." in qualname)
    given = {**attributes, "perform": _perform(call, parameters)}
    place = {"__module__": module, "__qualname__": qualname, "__doc__": function.__doc__}
    place["_aw_class_name"] = class_name_of(qualname)
    worker = new_class(qualname.rpartition(".")[2], (base,), exec_body=lambda body: body.update(place | given))
    made = BackgroundFunction(call, cast("type[ApplicationWorker]", worker))
    return cast("BackgroundFunction[..., Any]", update_wrapper(made, function))


def _checked_name(function: Any) -> tuple[str, str]:
    """Return module and qualified name of the function. Raises DeclarationError for one that no other process finds by them."""
    if isinstance(function, BackgroundFunction):
        raise DeclarationError(_shown(function), "is registered already. Push it with perform_async(...).")
    bound = function.__self__ if isinstance(function, MethodType) else None
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType):
        raise DeclarationError(
            _shown(function),
            f"{with_article(class_of(function).__name__)} cannot be a job. Give a function that def defines in a module.",
        )
    if bound is not None and not is_class(bound):
        call = f"background({plain.__qualname__}, loader=...)"
        raise DeclarationError(_shown(plain), f"is bound to an object, which a job cannot carry. Write {call}.")
    qualname = plain.__qualname__ if bound is None else f"{bound.__qualname__}.{plain.__name__}"
    reasons = {
        "a lambda has no name": plain.__name__ == "<lambda>",
        "a function inside of a function exists only while that one runs": "<locals>" in qualname,
        "a program's main module has another name in every other process": plain.__module__ == "__main__",
        "its name has no letter or digit": not plain.__name__.strip("_"),
    }
    for reason, holds in reasons.items():
        if holds:
            remedy = "Define it with def at the top level of a module that worker processes load."
            raise DeclarationError(_shown(plain), f"cannot be a job, as {reason}. {remedy}")
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise DeclarationError(_shown(plain), "holds a yield, so a call would run nothing.")
    return plain.__module__, qualname


def _shown(function: Any) -> str:
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if isinstance(name, str) else short_repr(function)


def _is_static(module: str, qualname: str) -> bool:
    """Return whether the name is that of a static method, which needs no object."""
    owner, _, name = qualname.rpartition(".")
    found: Any = sys.modules.get(module)
    for step in owner.split("."):
        found = getattr(found, step, None)
    return isinstance(inspect.getattr_static(found, name, None), staticmethod)


def _parameters(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of the function, with resolved annotations."""
    try:
        hints = resolve_annotations(inspect.unwrap(function))
    except InvalidValue as error:
        raise DeclarationError(name, f"{error}.") from None
    return [
        one.replace(annotation=hints.get(one.name, inspect.Parameter.empty))
        for one in inspect.signature(function).parameters.values()
    ]


def _with_loader(
    name: str, function: Callable[..., Any], loader: Callable[[Any], Any], *, is_method: bool
) -> tuple[Callable[..., Any], list[inspect.Parameter]]:
    """Return a function that loads the object and calls the method, and its parameters: the loader's first, then the method's."""
    given: Any = loader
    if not callable(given) or inspect.iscoroutinefunction(loader) != inspect.iscoroutinefunction(function):
        message = "loader and function must be of one kind: both def, or both async def."
        raise DeclarationError(name, message, attribute="loader")
    keys, others = _parameters(name, loader), _parameters(name, function)[1:]
    if not keys or keys[0].kind not in _BY_POSITION or any(map(_is_required, keys[1:])):
        message = f"loader = {short_repr(loader)} must take one argument by position, such as an id."
        raise DeclarationError(name, message, attribute="loader")
    if keys[0].name in {one.name for one in others}:
        message = f"loader and function have a parameter {keys[0].name!r} each. Rename one of them."
        raise DeclarationError(name, message, attribute="loader")

    def bound(found: Any) -> Callable[..., Any]:
        if found is None:
            raise Discard("the loader returned None: the object is gone")
        # By its name, so that a subclass may have a method of its own.
        return getattr(found, function.__name__) if is_method else partial(function, found)

    def call(key: Any, /, *args: Any, **kwargs: Any) -> Any:
        return bound(loader(key))(*args, **kwargs)

    async def call_async(key: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await bound(await loader(key))(*args, **kwargs)

    chosen = call_async if inspect.iscoroutinefunction(function) else call
    return chosen, [keys[0].replace(default=inspect.Parameter.empty), *others]


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _perform(call: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Return the method ``perform`` of the worker class, with the parameters of the function."""
    instance = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)

    def perform(self: Any, *args: Any) -> Any:
        del self
        return call(*args)

    async def perform_async(self: Any, *args: Any) -> Any:
        del self
        return await call(*args)

    method: Any = perform_async if inspect.iscoroutinefunction(call) else perform
    if parameters and parameters[0].kind is not inspect.Parameter.POSITIONAL_ONLY:
        instance = instance.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = method.__qualname__ = "perform"
    method.__signature__ = inspect.Signature([instance, *parameters], __validate_parameters__=False)
    method.__annotations__ = {one.name: one.annotation for one in parameters if one.annotation is not one.empty}
    return cast("Callable[..., Any]", method)
