"""``ApplicationWorker``: what a worker author subclasses. Attributes say what the job needs, ``perform`` does it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, TypeVar, Unpack, cast

from framework.declare import check, misuse, no_effect, port, registry
from framework.declare.declaration import Declaration
from framework.declare.error_collector import ErrorCollector
from framework.declare.job_context import CancellationState, JobContext, JobLogger, PlainLogger
from framework.declare.options import PushOptions, check_options
from framework.declare.policy_options import ConcurrencyScope, Deduplicate, DeferOnHealth
from framework.declare.request import NO_OPTIONS, JobRequest, P, Performs, Route
from framework.declare.setter import Setter
from framework.errors import DeclarationError
from framework.types import Ack, DataConsistency, Jid, Json, Payload, ResourceBoundary, StrictArguments, Urgency

T = TypeVar("T")


class ApplicationWorker:
    """The base of every worker: one class, one kind of job (GitLab's ApplicationWorker on Sidekiq's data model).

    Attributes are plain values in the class body, inherited along the MRO, checked when the class is created: a
    DeclarationError names the class, the attribute, the value, the allowed values and the nearest name. One instance is
    made per job, without arguments. ``class Base(ApplicationWorker, abstract=True)`` shares attributes and is never run.
    """

    feature_category: ClassVar[str | None] = None
    urgency: ClassVar[Urgency] = "low"
    resource_boundary: ClassVar[ResourceBoundary] = "unknown"
    has_external_dependencies: ClassVar[bool] = False
    data_consistency: ClassVar[DataConsistency] = "always"
    data_consistency_overrides: ClassVar[Mapping[str, DataConsistency] | None] = None

    queue_namespace: ClassVar[str | None] = None
    queue: ClassVar[str | None] = None
    shard: ClassVar[str | None] = None
    weight: ClassVar[int | None] = None
    tags: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 0
    wire_name: ClassVar[str | None] = None
    aliases: ClassVar[tuple[str, ...]] = ()

    retry: ClassVar[bool | int] = True
    retry_for: ClassVar[timedelta | float | None] = None
    retry_queue: ClassVar[str | None] = None
    dead: ClassVar[bool] = True
    backtrace: ClassVar[bool | int] = False
    max_retries_after_interruption: ClassVar[int | None] = None
    ack: ClassVar[Ack] = "batch"
    timeout: ClassVar[timedelta | float | None] = None
    expires_in: ClassVar[timedelta | float | None] = None
    status_expiration: ClassVar[timedelta | float | None] = None
    track: ClassVar[bool] = False

    idempotent: ClassVar[bool] = False
    deduplicate: ClassVar[Deduplicate | None] = None
    concurrency_limit: ClassVar[int | Callable[[], int | None] | None] = None
    max_concurrency_limit_percentage: ClassVar[float | None] = None
    max_running_jobs: ClassVar[int | Callable[[], int] | None] = None
    concurrency_scope: ClassVar[ConcurrencyScope | None] = None
    defer_on_health: ClassVar[DeferOnHealth | None] = None
    pause_control: ClassVar[str | None] = None
    strict_arguments: ClassVar[StrictArguments | None] = None
    big_payload: ClassVar[bool] = False
    compress: ClassVar[bool] = True
    loggable_arguments: ClassVar[tuple[str, ...]] = ()

    jid: str = ""
    job_version: int = 0
    """The version that the job carries; that of the class for an instance which no job made (GitLab)."""
    _aw_declaration: ClassVar[Declaration | None] = None
    _aw_setter: ClassVar[Setter[Any] | None] = None
    _aw_job: Payload | None = None
    _aw_run: JobContext | None = None
    _aw_cancellation: CancellationState | None = None
    _aw_logger: JobLogger | None = None
    _aw_extra: dict[str, Any] | None = None
    _aw_on_success: Callable[[], None] | None = None
    """What it wants done when it has succeeded and let go of all it held; raises nothing."""

    def __init_subclass__(cls, *, abstract: bool = False, **others: Never) -> None:
        super().__init_subclass__()
        faults = ErrorCollector(check.qualified_name(cls))
        check.check_class_keywords(faults, abstract, others)
        attributes = check.read_attributes(faults, cls, ApplicationWorker)
        cls.job_version = attributes["version"]
        cls._aw_declaration = cls._aw_setter = None
        if abstract:
            _reject_identity_on_abstract(faults, cls)
            faults.raise_errors()
            no_effect.warn_about_class(cls, ApplicationWorker, check.defining_classes(cls, ApplicationWorker))
            _install_perform_descriptor(cls)
            return
        cls._aw_declaration = check.build_declaration(faults, cls, ApplicationWorker, attributes)
        no_effect.warn_about_class(cls, ApplicationWorker, check.defining_classes(cls, ApplicationWorker))
        cls._aw_setter = Setter(cls, cls._aw_declaration, NO_OPTIONS)
        _install_perform_descriptor(cls)
        registry.register(cls)

    if not TYPE_CHECKING:  # to a type checker the class takes no arguments, as object does

        def __init__(self, *given: object, **named: object) -> None:
            if given or named:
                misuse.reject_constructor_arguments(type(self), given)

    @classmethod
    def declaration(cls) -> Declaration:
        """All facts of this class, frozen when it was created. Raises DeclarationError for an abstract class."""
        if cls._aw_declaration is None:
            raise DeclarationError(
                check.qualified_name(cls), "is abstract: it has no jobs. Subclass it, or drop abstract=True."
            )
        return cls._aw_declaration

    def perform(self, *args: Any, **kwargs: Any) -> Any:
        """Do the job. Every worker writes its own; ``def`` runs in a thread, ``async def`` on the event loop."""
        del args, kwargs
        raise DeclarationError(check.qualified_name(type(self)), "has no perform.", attribute="perform")

    @classmethod
    def retry_in(
        cls, count: int, error: Exception, job: Payload
    ) -> timedelta | float | Literal["discard", "kill"] | None:
        """Hook: when to run again after failure number ``count`` (from 0); None keeps Sidekiq's formula.

        ``"kill"`` buries the job now, ``"discard"`` drops it (Sidekiq 7).
        """
        del count, error, job
        return None

    @classmethod
    def retries_exhausted(cls, job: Payload, error: Exception) -> Literal["discard"] | None:
        """Hook: the job failed for the last time; called before it goes to the dead set, which ``"discard"`` prevents."""
        del job, error
        return None

    @classmethod
    def interruptions_exhausted(cls, job: Payload) -> None:
        """Hook: the job was interrupted too often and goes to the interrupted set (GitLab)."""

    @classmethod
    def on_concurrency_limit_deferred(cls, args: list[Any]) -> None:
        """Hook: a job with these arguments has to wait for a slot of the class's limit (GitLab)."""

    @classmethod
    def on_concurrency_limit_resumed(cls, args: list[Any]) -> None:
        """Hook: a job with these arguments, which had to wait, has its slot and begins (GitLab)."""

    @classmethod
    def idempotency_arguments(cls, args: list[Any]) -> list[Any]:
        """Hook: the arguments that make two jobs equal; all of them unless a worker says otherwise (GitLab).

        ``args`` has every argument, with the defaults of those that were left out, of the method that runs the job's version.
        """
        return args

    @property
    def logger(self) -> JobLogger:
        """A logger that knows this job's class and id: ``self.logger.info("indexed", files=3)``."""
        if self._aw_logger is None:
            self._aw_logger = PlainLogger() if self._aw_run is None else self._aw_run.logger(self._aw_job or {})
        return self._aw_logger

    def log_extra(self, **fields: Any) -> None:
        """The fields are on the line written when this job is done (GitLab's log_extra_metadata_on_done)."""
        if self._aw_extra is None:
            self._aw_extra = {}
        self._aw_extra.update(fields)

    @property
    def cancelled(self) -> bool:
        """Whether this job was cancelled (Sidekiq's ``Client#cancel!``); a long loop should look, and return.

        Known at most some 5 s late; asked as often as you like, since few of the answers cost a question to Redis.
        """
        if self._aw_run is None:
            return False
        if self._aw_cancellation is None:
            self._aw_cancellation = self._aw_run.cancellation(self.jid)
        return self._aw_cancellation.cancelled

    @property
    def interrupted(self) -> bool:
        """The process is stopping; a long loop should save its place and return."""
        return self._aw_run is not None and self._aw_run.interrupted

    @classmethod
    def route(cls) -> Route:
        """Where jobs of this class go: queue, shard, and the rule that said so."""
        return port.current().route(cls.declaration())

    @classmethod
    def arguments(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> JobRequest[P]:
        """One job for ``perform_bulk_for``, checked like a call of ``perform``. Raises ArgumentsError."""
        declaration = cast("type[ApplicationWorker]", cls).declaration()
        return JobRequest(declaration, declaration.signature.bind(args, kwargs))

    @classmethod
    def perform_async(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """The job is on its queue; its id, or None when it was dropped as a duplicate or by a client middleware.

        Raises ArgumentsError when the arguments do not fit ``perform`` or are not JSON, ExceedLimitError when they are too
        large, ShardUnavailableError when Redis does not answer.
        """
        return _setter_of(cls).perform_async(*args, **kwargs)

    @classmethod
    def perform_in(
        cls: type[Performs[P]], delay: timedelta | float, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """The job becomes due after ``delay``: a timedelta, or a number (below 1,000,000,000 seconds from now, else epoch).

        What is due now or in the past is pushed at once (Sidekiq 7). Raises as ``perform_async`` does.
        """
        return _setter_of(cls).perform_in(delay, *args, **kwargs)

    @classmethod
    def perform_at(cls: type[Performs[P]], when: datetime | float, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """The job becomes due at ``when``: an aware datetime or epoch seconds.

        Raises ArgumentsError for a datetime without a time zone, and otherwise as ``perform_async`` does.
        """
        return _setter_of(cls).perform_at(when, *args, **kwargs)

    @classmethod
    def perform_bulk(cls: type[Performs[P]], jobs: Iterable[Sequence[Any]], /) -> list[Jid | None]:
        """One job per tuple of arguments, written in slices; the ids stand where the tuples stood, None for dropped jobs.

        Raises BulkPushError when a slice fails; it says which jobs are in. ``perform_bulk_for`` is the typed form.
        """
        return _setter_of(cls).perform_bulk(jobs)

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
        """Like ``perform_bulk``, due after ``delay``; with both others, ``batch_size`` jobs every ``batch_delay`` (GitLab)."""
        return _setter_of(cls).perform_bulk_in(delay, jobs, batch_size=batch_size, batch_delay=batch_delay)

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
    ) -> list[Jid | None]:
        """One job per object: ``arguments`` makes it with ``Worker.arguments(...)``, ``context`` adds to its log context.

        ``delay``, ``batch_size`` and ``batch_delay`` as in ``perform_bulk_in``. Every function is called before the first job
        is written; what one raises goes out as it is.
        """
        return _setter_of(cls).perform_bulk_for(
            objects, arguments=arguments, context=context, delay=delay, batch_size=batch_size, batch_delay=batch_delay
        )

    @classmethod
    def perform_inline(cls: type[Performs[P]], *args: P.args, **kwargs: P.kwargs) -> None:
        """The job has run, here and now, through both middleware chains; what it raised is raised."""
        _setter_of(cls).perform_inline(*args, **kwargs)

    @classmethod
    def set(cls: type[Performs[P]], **options: Unpack[PushOptions]) -> Setter[P]:
        """The same pushes with other options, for these pushes only. Raises ArgumentsError for an unknown or invalid one."""
        declaration = cast("type[ApplicationWorker]", cls).declaration()
        checked = check_options(declaration.qualified_name, options)
        no_effect.warn_about_options(cls, declaration.qualified_name, checked)
        return Setter(cls, declaration, checked)


def _setter_of(cls: type[Performs[P]]) -> Setter[P]:
    worker: Any = cls  # not cast(), which is a call, and this is the way of every push
    made: Setter[P] | None = worker._aw_setter
    return Setter(cls, worker.declaration(), NO_OPTIONS) if made is None else made


def _install_perform_descriptor(cls: type[ApplicationWorker]) -> None:
    """Put the class's own ``perform`` where a call on the class differs from one on an instance."""
    perform = vars(cls).get("perform")
    if perform is not None:
        setattr(cls, "perform", misuse.PerformDescriptor(perform))  # noqa: B010 - to a type checker it stays what it is


def _reject_identity_on_abstract(faults: ErrorCollector, cls: type[ApplicationWorker]) -> None:
    for name in ("wire_name", "aliases"):
        if vars(cls).get(name):
            said = f"{name} = {vars(cls)[name]!r}"
            message = f"{said} belongs to a class that runs, and this one is abstract; declare it in the subclass."
            faults.add(message, name)


misuse.add_foreign_methods(ApplicationWorker)
