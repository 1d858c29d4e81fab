"""Define ``IterableWorker``: a long job that runs item by item, and resumes where it stopped (Sidekiq's iterable jobs)."""

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Never, ParamSpec, Protocol, Unpack, cast

from framework.application_worker import ApplicationWorker, PushOptions, Setter
from framework.declare import check
from framework.declare.annotations import resolve_annotations
from framework.declare.progress import JobProgress, StopReason
from framework.declare.request import JobRequest
from framework.declare.signature import check_method, check_self_parameter
from framework.declare.validators import ErrorCollector, InvalidValue
from framework.declare.worker import CoreWorker
from framework.errors import DeclarationError
from framework.features.iteration.run import IterationRun, iterate, iterate_async
from framework.text import nearest
from framework.typeguards import qualified_name
from framework.types import Jid

_PERFORM, _BUILD, _EACH, _CURSOR = "perform", "build_enumerator", "each_iteration", "cursor"
_HOOKS = ("on_start", "on_resume", "on_stop", "on_cancel", "on_complete")
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


P = ParamSpec("P")


class Iterates(Protocol[P]):
    """Represent a worker whose ``each_iteration`` takes an item and P. Type checkers compare pushes with it."""

    def each_iteration(self, item: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Process one item."""


class IterablePushes:
    """The push methods, for type checkers: they take the arguments of ``each_iteration`` behind its item. At run time it is empty."""

    if TYPE_CHECKING:

        @classmethod
        def arguments(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> JobRequest[P]:
            """Return one job for ``perform_bulk_for``."""
            ...

        @classmethod
        def perform_async(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
            """Push the job."""
            ...

        @classmethod
        def perform_in(
            cls: type[Iterates[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due after ``delay``."""
            ...

        @classmethod
        def perform_at(
            cls: type[Iterates[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due at ``when``."""
            ...

        @classmethod
        def perform_inline(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> None:
            """Run the job in this process."""
            ...

        @classmethod
        def set(cls: type[Iterates[P]], **options: Unpack[PushOptions]) -> Setter[P]:
            """Return an object with the same push methods and these options."""
            ...

        @classmethod
        async def aperform_async(cls: type[Iterates[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
            """Push the job, in a thread."""
            ...

        @classmethod
        async def aperform_in(
            cls: type[Iterates[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due after ``delay``, in a thread."""
            ...

        @classmethod
        async def aperform_at(
            cls: type[Iterates[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs
        ) -> Jid | None:
            """Push the job, due at ``when``, in a thread."""
            ...


class IterableWorker(IterablePushes, ApplicationWorker, abstract=True):
    """Run a long job item by item. An interrupted or failed run resumes at the item that was to run.

    ``build_enumerator(self, *args, cursor)`` returns an iterator of pairs (item, cursor); a cursor is a JSON value, and
    ``build_enumerator`` called with it begins **with that item**. ``each_iteration(self, item, *args)`` processes one item: ``def``
    in a thread, ``async def`` on the event loop. An item may run twice, so it must be idempotent.

    Hooks: ``on_start`` at the first run, ``on_resume`` at each later one, ``on_stop`` at the end of every run, then ``on_complete``
    after the last item; ``on_cancel`` if the job was cancelled. A hook takes the arguments of the job, or none.
    """

    flush_interval: ClassVar[timedelta | float] = 5.0
    max_iteration_runtime: ClassVar[timedelta | float | None] = None
    _aw_is_iterable = True
    _aw_hooks_with_arguments: ClassVar[frozenset[str]] = frozenset()
    _aw_iteration: IterationRun | None = None
    _aw_progress: JobProgress | None = None
    _aw_cursor: Any = None

    def __init_subclass__(cls, *, abstract: bool = False, **others: Never) -> None:
        faults = ErrorCollector(qualified_name(cls))
        _check_no_perform(faults, cls)
        _check_hook_names(faults, cls)
        if not abstract:
            _check_iterable(faults, cls)
        if faults.errors:
            check.read_attributes(faults, cls)
            faults.raise_errors()
        if not abstract:
            cls._aw_hooks_with_arguments = frozenset(one for one in _HOOKS if _takes_arguments(cls, one))
            setattr(cls, _PERFORM, _build_perform(cls))
        super().__init_subclass__(abstract=abstract, **others)

    @property
    def _aw_stop(self) -> tuple[StopReason, bool] | None:  # type: ignore[override]
        run = self._aw_iteration
        if run is None or run.stopped_by is None or run.stopped_by == "cancelled":
            return None
        return run.stopped_by, run.items > 0

    @property
    def cursor(self) -> Any:
        """The cursor of the item that runs."""
        return self._aw_cursor

    @property
    def progress(self) -> JobProgress:
        """How many items are done, of how many, and how fast: ``jobs explain JID`` shows it. Set ``progress.total``."""
        if self._aw_progress is None:
            self._aw_progress = JobProgress()
        return self._aw_progress

    # To a type checker a subclass may have any parameters.
    if not TYPE_CHECKING:

        def build_enumerator(self, *args: Any, cursor: Any) -> Any:
            """Return an iterator of (item, cursor) that begins with the item of ``cursor``; None is the first item."""
            del args, cursor
            raise DeclarationError(qualified_name(type(self)), f"has no {_BUILD}.", attribute=_BUILD)

        def each_iteration(self, item: Any, *args: Any) -> Any:
            """Process one item."""
            del item, args
            raise DeclarationError(qualified_name(type(self)), f"has no {_EACH}.", attribute=_EACH)

    def on_start(self, *args: Any, **kwargs: Any) -> Any:
        """Hook: called before the first item, and again if that run ended without a saved cursor."""

    def on_resume(self, *args: Any, **kwargs: Any) -> Any:
        """Hook: called in place of ``on_start`` when a run continues at a cursor."""

    def on_stop(self, *args: Any, **kwargs: Any) -> Any:
        """Hook: called at the end of every run: after the last item, and when the job stops, is cancelled or fails."""

    def on_cancel(self, *args: Any, **kwargs: Any) -> Any:
        """Hook: called when the job stops because it was cancelled."""

    def on_complete(self, *args: Any, **kwargs: Any) -> Any:
        """Hook: called after the last item. If it raises, the last item runs again."""


def _check_no_perform(faults: ErrorCollector, cls: type[Any]) -> None:
    owners = [owner for owner in cls.__mro__ if owner is cls or not issubclass(owner, CoreWorker)]
    if any(_PERFORM in vars(owner) for owner in owners):
        message = (
            "perform belongs to the framework here, which iterates. Write def build_enumerator(self, ..., cursor) and "
        )
        faults.add(f"{message}def each_iteration(self, item, ...).", _PERFORM)


def _check_hook_names(faults: ErrorCollector, cls: type[Any]) -> None:
    """Note names that are nearly those of a method which the framework calls."""
    known = (_BUILD, _EACH, *_HOOKS)
    for name, value in vars(cls).items():
        if name.startswith("_") or name in known or not inspect.isfunction(value):
            continue
        match = nearest(name, known, cutoff=0.85)
        if match is not None:
            message = (
                f"{name!r} is not called by the framework (did you mean {match!r}?). A helper of your own: _{name}."
            )
            faults.add(message, name)


def _check_iterable(faults: ErrorCollector, cls: type[Any]) -> None:
    """Note missing and wrong methods."""
    noted = len(faults.errors)
    for name, wanted in ((_BUILD, "self, ..., cursor"), (_EACH, "self, item, ...")):
        method = inspect.getattr_static(cls, name)
        if method is inspect.getattr_static(IterableWorker, name):
            faults.add(f"{name} is missing: write def {name}({wanted}).", name)
        elif isinstance(method, staticmethod | classmethod | type) or not callable(method):
            faults.add(f"{name} is not allowed as it is. Allowed: an ordinary method, def {name}({wanted}).", name)
        else:
            with faults.collect():
                check_self_parameter(faults.worker, name, method)
    if len(faults.errors) > noted:
        return
    with faults.collect():
        check_method(faults.worker, _EACH, cls.each_iteration)
    _check_parameters(faults, cls)
    is_async = inspect.iscoroutinefunction(cls.each_iteration)
    build = cls.build_enumerator
    if not is_async and (inspect.isasyncgenfunction(build) or inspect.iscoroutinefunction(build)):
        message = f"{_BUILD} is async, and {_EACH} is not, so its items would not be awaited. Make both async, or none."
        faults.add(message, _BUILD)
    for name in _HOOKS:
        _check_hook(faults, cls, name, is_async=is_async)


def _check_parameters(faults: ErrorCollector, cls: type[Any]) -> None:
    build = inspect.signature(cls.build_enumerator).parameters
    cursor = build.get(_CURSOR)
    if cursor is None or cursor.kind not in (cursor.POSITIONAL_OR_KEYWORD, cursor.KEYWORD_ONLY):
        fact = f"{_BUILD}{inspect.signature(cls.build_enumerator)} needs the parameter cursor"
        message = f"{fact}: the position of the item to begin with, None for the first. Write def {_BUILD}(self, ..., cursor)."
        faults.add(message, _BUILD)
        return
    each = list(inspect.signature(cls.each_iteration).parameters.values())[1:]
    if not each or each[0].kind not in (*_BY_POSITION, inspect.Parameter.VAR_POSITIONAL):
        faults.add(f"{_EACH} has no parameter for the item: write def {_EACH}(self, item, ...).", _EACH)
        return
    item = [] if each[0].kind is inspect.Parameter.VAR_POSITIONAL else each[:1]
    wanted, given = _counts(_job_parameters(cls)), _counts(each[len(item) :])
    if not (given[0] <= wanted[0] and wanted[1] <= given[1]):
        message = f"{_EACH}{inspect.signature(cls.each_iteration)} must take an item and the arguments of {_BUILD}"
        faults.add(f"{message}{inspect.signature(cls.build_enumerator)}: both get the arguments of the job.", _EACH)


def _check_hook(faults: ErrorCollector, cls: type[Any], name: str, *, is_async: bool) -> None:
    owner = next(owner for owner in cls.__mro__ if name in vars(owner))
    if owner is IterableWorker:
        return
    method = vars(owner)[name]
    if not inspect.isfunction(method):
        faults.add(f"{name} is not allowed as it is. Allowed: an ordinary method, def {name}(self).", name)
        return
    if inspect.iscoroutinefunction(method) and not is_async:
        faults.add(f"{name} is async, and {_EACH} is not, so it would not be awaited. Write def {name}.", name)
    least, most = _counts(list(inspect.signature(method).parameters.values())[1:])
    wanted = _counts(_job_parameters(cls))
    if least and not (least <= wanted[0] and wanted[1] <= most):
        message = f"{name}{inspect.signature(method)} must take the arguments of {_BUILD}, or none but self."
        faults.add(message, name)


def _takes_arguments(cls: type[Any], name: str) -> bool:
    method = getattr(cls, name)
    if method is getattr(IterableWorker, name):
        return False
    _, most = _counts(list(inspect.signature(method).parameters.values())[1:])
    return most >= _counts(_job_parameters(cls))[1] and most > 0


def _job_parameters(cls: type[Any]) -> list[inspect.Parameter]:
    """Return the parameters of ``build_enumerator`` that are arguments of the job: all but self and the cursor."""
    parameters = list(inspect.signature(cls.build_enumerator).parameters.values())[1:]
    return [one for one in parameters if one.name != _CURSOR]


def _counts(parameters: list[inspect.Parameter]) -> tuple[float, float]:
    """Return how many positional arguments the parameters need, and how many they take."""
    positional = [one for one in parameters if one.kind in _BY_POSITION]
    needed = sum(one.default is inspect.Parameter.empty for one in positional)
    takes_more = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    return needed, float("inf") if takes_more else len(positional)


def _build_perform(cls: type[Any]) -> Callable[..., Any]:
    """Return the ``perform`` of a class: it has the parameters of ``build_enumerator`` without the cursor."""
    build = cast("Callable[..., Any]", inspect.getattr_static(cls, _BUILD))
    try:
        hints = resolve_annotations(inspect.unwrap(build))
    except InvalidValue as error:
        raise DeclarationError(qualified_name(cls), f"{_BUILD}: {error}.", attribute=_BUILD) from None

    if inspect.iscoroutinefunction(cls.each_iteration):

        async def perform_items(self: Any, *args: Any) -> None:
            await iterate_async(self, args)

        method: Any = perform_items
    else:

        def perform(self: Any, *args: Any) -> None:
            iterate(self, args)

        method = perform
    wraps(build)(method)
    del method.__wrapped__
    method.__name__, method.__qualname__ = _PERFORM, f"{cls.__qualname__}.{_PERFORM}"
    (instance, *_), parameters = inspect.signature(build).parameters.values(), _job_parameters(cls)
    resolved = [one.replace(annotation=hints.get(one.name, inspect.Parameter.empty)) for one in parameters]
    method.__signature__ = inspect.Signature([instance, *resolved], __validate_parameters__=False)
    method.__annotations__ = {one.name: one.annotation for one in resolved if one.annotation is not one.empty}
    return cast("Callable[..., Any]", method)
