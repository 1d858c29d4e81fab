"""Define ``CoreWorker``: what every worker class has, whatever features there are (see ``application_worker.py``)."""

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from inspect import Parameter, Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Never, TypeVar, cast

from framework.declare import check, misuse, port, registry
from framework.declare.attribute import Attribute, is_group, merged
from framework.declare.attributes import CoreAttributes
from framework.declare.declaration import Declaration
from framework.declare.job_context import (
    CancellationState,
    ExtraFields,
    JobContext,
    JobLogger,
    JobStory,
    PlainLogger,
)
from framework.declare.misuse import unwrap
from framework.declare.options import Moment
from framework.declare.progress import StopReason
from framework.declare.request import NO_OPTIONS, JobRequest, P, Performs, Route
from framework.declare.setter import CoreSetter, setter_of
from framework.declare.validators import ErrorCollector
from framework.errors import DeclarationError
from framework.typeguards import qualified_name
from framework.types import (
    Jid,
    Json,
    Payload,
)
from framework.wire.job import Job, bid_of

T = TypeVar("T")


class AwaitablePushes:
    """Push from a coroutine. Each method pushes as its twin without ``a``, in a thread, while the event loop goes on.

    The arguments must not change until the push has ended. When the waiting task is cancelled, the push may have been made.
    """

    @classmethod
    async def aperform_async(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push the job as ``perform_async`` does, and with its errors."""
        return await setter_of(cls).aperform_async(*args, **kwargs)

    @classmethod
    async def aperform_in(
        cls: type[Performs[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """Push the job as ``perform_in`` does, and with its errors."""
        return await setter_of(cls).aperform_in(delay, *args, **kwargs)

    @classmethod
    async def aperform_at(
        cls: type[Performs[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """Push the job as ``perform_at`` does, and with its errors."""
        return await setter_of(cls).aperform_at(when, *args, **kwargs)

    @classmethod
    async def aperform_bulk(
        cls: type[Performs[P]],
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        at: Moment | Iterable[Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push the jobs as ``perform_bulk`` does, and with its errors. The iterables are read in another thread."""
        return await setter_of(cls).aperform_bulk(jobs, at=at, spread_interval=spread_interval)

    @classmethod
    async def aperform_bulk_stream(
        cls: type[Performs[P]],
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        spread_interval: timedelta | float | None = None,
    ) -> int:
        """Push the jobs as ``perform_bulk_stream`` does, and with its errors. Cancelled, it ends after the chunk in progress."""
        return await setter_of(cls).aperform_bulk_stream(jobs, spread_interval=spread_interval)

    @classmethod
    async def aperform_bulk_in(
        cls: type[Performs[P]],
        delay: timedelta | float,
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push the jobs as ``perform_bulk_in`` does, and with its errors."""
        return await setter_of(cls).aperform_bulk_in(delay, jobs, batch_size=batch_size, batch_delay=batch_delay)

    @classmethod
    async def aperform_bulk_for(
        cls: type[Performs[P]],
        objects: Iterable[T],
        *,
        arguments: Callable[[T], JobRequest[P]],
        context: Callable[[T], Mapping[str, Json]] | None = None,
        delay: timedelta | float | None = None,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
        at: Callable[[T], Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push the jobs as ``perform_bulk_for`` does, and with its errors. The functions are called in another thread."""
        return await setter_of(cls).aperform_bulk_for(
            objects,
            arguments=arguments,
            context=context,
            delay=delay,
            batch_size=batch_size,
            batch_delay=batch_delay,
            at=at,
            spread_interval=spread_interval,
        )


class CoreWorker(CoreAttributes, AwaitablePushes):
    """The base of all workers, without the attributes and calls of features.

    A direct subclass composes what the worker classes of a program have. It has no jobs.
    """

    jid: str = ""
    """The id of the job that runs; empty without a job."""
    job_version: int = 0
    """The version of the job; without a job, the version of the class (GitLab)."""
    _aw_class_name: ClassVar[str | None] = None
    """The name that stands for a function in its wire name; None for a class of the application."""
    _aw_is_cron: ClassVar[bool] = False
    """Whether a schedule pushes the jobs of the class (``CronWorker``)."""
    _aw_is_iterable: ClassVar[bool] = False
    """Whether the class runs item by item (``IterableWorker``)."""
    _aw_chosen_queues: ClassVar[tuple[str, ...]] = ()
    """The queues that pushes of the class choose (``set(queue=...)``), where they are known."""
    _aw_base: "ClassVar[type[CoreWorker]]"
    """The direct subclass of ``CoreWorker`` that the class descends from."""
    _aw_parts: ClassVar[frozenset[type[Any]]]
    """That base and its own bases."""
    _aw_attributes: ClassVar[dict[str, Attribute]]
    """The attributes of that base by their names, with those that the application declares."""
    _aw_declaration: ClassVar[Declaration | None] = None
    _aw_setter_type: ClassVar[type[CoreSetter[Any]]] = CoreSetter
    """The class of ``set(...)``, with the calls of features."""
    _aw_setter: ClassVar[CoreSetter[Any] | None] = None
    _aw_job: Payload | None = None
    _aw_run: JobContext | None = None
    _aw_cancellation: CancellationState | None = None
    _aw_logger: JobLogger | None = None
    _aw_extra: ExtraFields | None = None
    _aw_record: JobStory | None = None
    _aw_returned: Any = None
    _aw_stop: tuple[StopReason, bool] | None = None
    """Why a run that has returned is to continue later, and whether it did anything."""
    _aw_on_success: Callable[[], None] | None = None
    """Called after the job has succeeded and has released its locks and slots. An error is logged."""

    def __init_subclass__(cls, *, abstract: bool = False, **others: Never) -> None:
        super().__init_subclass__()
        if CoreWorker in cls.__bases__:
            _compose(cls)
            return
        faults = ErrorCollector(qualified_name(cls))
        check.check_class_keywords(faults, cls, abstract, others)
        attributes = check.read_attributes(faults, cls)
        misuse.install_retry_attribute(cls)
        cls.job_version = attributes["version"]
        cls._aw_declaration = cls._aw_setter = None
        if abstract:
            check.reject_identity_on_abstract(faults, cls)
            faults.raise_errors()
            misuse.install_perform_descriptor(cls)
            return
        cls._aw_declaration = check.build_declaration(faults, cls, attributes)
        cls._aw_setter = cls._aw_setter_type(cls, cls._aw_declaration, NO_OPTIONS)
        if next(owner for owner in cls.__mro__ if "on_success" in vars(owner)) is not CoreAttributes:
            # A function of the class is a method of the instance. Other classes have none, and their jobs pay nothing.
            cls._aw_on_success = cast("Any", CoreWorker._aw_call_on_success)  # pyright: ignore[reportAttributeAccessIssue]
        misuse.install_perform_descriptor(cls)
        show_signatures(cls, cls._aw_declaration.signature.method)
        registry.register(cls)

    # To a type checker the class takes no arguments, as object does.
    if not TYPE_CHECKING:

        def __init__(self, *given: object, **named: object) -> None:
            if given or named:
                misuse.reject_constructor_arguments(type(self), given)

    @classmethod
    def declaration(cls) -> Declaration:
        """Return the attributes of this class with all values derived from them. They do not change after its creation.

        Raises:
            DeclarationError: the class is abstract.
        """
        if cls._aw_declaration is None:
            name = qualified_name(cls)
            raise DeclarationError(name, "is abstract: it has no jobs. Subclass it, or drop abstract=True.")
        return cls._aw_declaration

    def perform(self, *args: Any, **kwargs: Any) -> Any:
        """Run the job. Every worker defines this method: ``def`` runs in a thread, ``async def`` on the event loop."""
        del args, kwargs
        raise DeclarationError(qualified_name(type(self)), "has no perform.", attribute="perform")

    def _aw_call_on_success(self) -> None:
        type(self).on_success(Job(self._aw_job or {}))

    @property
    def logger(self) -> JobLogger:
        """Return a logger whose lines have the job's class and id: ``self.logger.info("indexed", files=3)``."""
        if self._aw_logger is None:
            self._aw_logger = PlainLogger() if self._aw_run is None else self._aw_run.logger(self._aw_job or {})
        return self._aw_logger

    def log_extra(self, **fields: Any) -> None:
        """Add fields to the line of the job's end (GitLab's log_extra_metadata_on_done)."""
        if self._aw_extra is None:
            self._aw_extra = ExtraFields()
        self._aw_extra.update(fields)

    @property
    def cancelled(self) -> bool:
        """Return whether this job was cancelled: ``framework.cancel``, ``jobs cancel``, or Sidekiq's ``Client#cancel!``.

        Check it in a long loop, and return from ``perform``: the job has then ended as cancelled. The answer is up to 5 s old. Most
        reads send nothing to Redis.
        """
        if self._aw_run is None:
            return False
        if self._aw_cancellation is None:
            self._aw_cancellation = self._aw_run.cancellation(self.jid, bid_of(self._aw_job))
        return self._aw_cancellation.cancelled

    @property
    def interrupted(self) -> bool:
        """Return whether the process is stopping. Check it in a long loop, save the position, and raise ``Shutdown``."""
        return self._aw_run is not None and self._aw_run.interrupted

    @classmethod
    def route(cls) -> Route:
        """Return the queue and the shard of this class's jobs, and the rule that matched."""
        return port.current().route(cls.declaration())

    @classmethod
    def arguments(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> JobRequest[P]:
        """Return one job for ``perform_bulk_for``, checked like a call of ``perform``.

        Raises:
            ArgumentsError: the arguments do not fit ``perform`` or are not JSON.
        """
        declaration = cast("type[CoreWorker]", cls).declaration()
        return JobRequest(declaration, declaration.signature.bind(args, kwargs))

    @classmethod
    def perform_async(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push the job; return its id, or None when deduplication or a client middleware dropped it.

        Raises:
            ArgumentsError: the arguments do not fit ``perform`` or are not JSON.
            ExceedLimitError: the arguments are too large.
            ShardUnavailableError: Redis does not answer or refuses the write.
        """
        # Not setter_of() at once: that is a call, and every push comes through here.
        worker: Any = cls
        setter: CoreSetter[P] = worker._aw_setter or setter_of(cls)
        return setter.perform_async(*args, **kwargs)

    @classmethod
    def perform_in(
        cls: type[Performs[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """Push the job, due after ``delay``: a timedelta or seconds. A number from 1,000,000,000 on is epoch seconds.

        A job that is due now or in the past is pushed at once (Sidekiq 7). The errors are those of ``perform_async``.
        """
        return setter_of(cls).perform_in(delay, *args, **kwargs)

    @classmethod
    def perform_at(cls: type[Performs[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Push the job, due at ``when``: an aware datetime or epoch seconds.

        Raises:
            ArgumentsError: the datetime has no time zone. The other errors are those of ``perform_async``.
        """
        return setter_of(cls).perform_at(when, *args, **kwargs)

    @classmethod
    def perform_bulk(
        cls: type[Performs[P]],
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        at: Moment | Iterable[Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push one job per tuple of arguments, in chunks of 1,000; return the ids in the same order, None for dropped jobs.

        Every job is checked before the first is written. ``perform_bulk_for`` is the typed form. ``at`` is the time of all jobs, or
        an iterable with the time of each; with ``spread_interval`` each is due at a random time within it (Sidekiq 8.0.8).

        Raises:
            ArgumentsError: the arguments of a job, or the times are invalid; nothing was written.
            ExceedLimitError: the arguments of a job are too large; nothing was written.
            BulkPushError: a chunk failed; ``resume()`` of the error pushes the remaining jobs.
        """
        return setter_of(cls).perform_bulk(jobs, at=at, spread_interval=spread_interval)

    @classmethod
    def perform_bulk_stream(
        cls: type[Performs[P]],
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        spread_interval: timedelta | float | None = None,
    ) -> int:
        """Push the jobs of an iterator as they come, 1,000 at a time; return the number of written jobs.

        No more than one chunk is in memory, and each chunk is checked just before it is written.

        Raises:
            ArgumentsError, ExceedLimitError: a job of the first chunk is refused; nothing was written.
            BulkPushError: a later chunk was refused, or a chunk failed. The jobs before ``failed_from`` are written.
        """
        return setter_of(cls).perform_bulk_stream(jobs, spread_interval=spread_interval)

    @classmethod
    def perform_bulk_in(
        cls: type[Performs[P]],
        delay: timedelta | float,
        jobs: Iterable[Sequence[Any]],
        /,
        *,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push like ``perform_bulk``, due after ``delay``; each next ``batch_size`` jobs ``batch_delay`` later (GitLab)."""
        return setter_of(cls).perform_bulk_in(delay, jobs, batch_size=batch_size, batch_delay=batch_delay)

    @classmethod
    def perform_bulk_for(
        cls: type[Performs[P]],
        objects: Iterable[T],
        *,
        arguments: Callable[[T], JobRequest[P]],
        context: Callable[[T], Mapping[str, Json]] | None = None,
        delay: timedelta | float | None = None,
        batch_size: int | None = None,
        batch_delay: timedelta | float | None = None,
        at: Callable[[T], Moment] | None = None,
        spread_interval: timedelta | float | None = None,
    ) -> list[Jid | None]:
        """Push one job per object: ``arguments`` returns ``Worker.arguments(...)``, ``context`` the job's ``meta.*`` fields.

        ``delay``, ``batch_size`` and ``batch_delay`` are those of ``perform_bulk_in``; ``at`` returns a job's time. All functions are
        called for every object before the first job is written. Their exceptions reach the caller.
        """
        return setter_of(cls).perform_bulk_for(
            objects,
            arguments=arguments,
            context=context,
            delay=delay,
            batch_size=batch_size,
            batch_delay=batch_delay,
            at=at,
            spread_interval=spread_interval,
        )

    @classmethod
    def perform_inline(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run the job in this process, through both middleware chains. Its exception reaches the caller."""
        setter_of(cls).perform_inline(*args, **kwargs)


def _compose(base: type[CoreWorker]) -> None:
    """Make a class the base of worker classes: collect the attributes of the core, then those of its groups in their order."""
    groups = [owner for owner in base.__mro__ if is_group(owner)]
    base._aw_base = base  # pyright: ignore[reportPrivateUsage]
    base._aw_parts = frozenset(base.__mro__)  # pyright: ignore[reportPrivateUsage]
    base._aw_attributes = merged(sorted(groups, key=lambda one: not issubclass(CoreWorker, one)))  # pyright: ignore[reportPrivateUsage]


misuse.install_retry_attribute(CoreAttributes)
misuse.add_foreign_methods(CoreWorker, "method", "self")


# To Python ``perform_async`` takes ``*args, **kwargs``, and a class method has one function for all classes. So each class gets a
# copy of the function, whose signature has the parameters of ``perform``: for ``help()``, IPython and ``inspect.signature``. The copy
# has the same code, and a call costs the same.
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
