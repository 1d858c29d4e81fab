"""Answer each use of a worker class in another library's style with the call that is meant.

The table of names comes first; error messages, the linter and the migration pages read it. Type checkers see none of this. Nothing
has been pushed when it raises.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import update_wrapper
from typing import Any, Literal, NamedTuple, Never, Self, TypeAlias, cast, get_args

from framework.declare.names import class_name_of
from framework.errors import MisuseError, NoSuchMethodError
from framework.typeguards import qualified_name

Place: TypeAlias = Literal["attribute", "option", "method", "self", "hook"]
"""The place of the name in the other library: an attribute of a task, an option of one push, a method of a task, on ``self`` in a
job, a method that the library calls."""

System: TypeAlias = Literal["Celery", "RQ", "Dramatiq", "Huey", "Sidekiq"]
SYSTEMS: tuple[System, ...] = get_args(System)

_GUIDES = {
    "background": "guides/background.md",
    "batch": "guides/batches.md",
    "context": "guides/pushing.md",
    "cron": "guides/cron.md",
    "deduplication": "guides/deduplication.md",
    "end": "guides/ending_early.md",
    "failures": "guides/failures.md",
    "flow": "guides/concurrency.md",
    "middleware": "guides/middleware.md",
    "priorities": "guides/priorities.md",
    "push": "guides/pushing.md",
    "rate": "guides/limiters.md",
    "results": "guides/results.md",
    "routing": "guides/routing.md",
    "testing": "guides/testing.md",
    "workflows": "guides/workflows.md",
}


class ForeignName(NamedTuple):
    """One name of other libraries. ``word`` is the text to write here, with code between backticks and ``{0}`` for the class."""

    name: str
    places: tuple[Place, ...]
    systems: tuple[str, ...]
    word: str
    page: str
    """The guide that explains it, from the folder of the documentation."""

    def text(self, worker: str = "Worker") -> str:
        """Return the text to write in a program whose class is ``worker``."""
        return self.word.replace("{0}", worker)


def _rows(place: str, systems: str, guide: str, names: str, word: str) -> Iterator[ForeignName]:
    for name in names.split():
        places: tuple[Place, ...] = tuple(one for one in get_args(Place) if one in place.split())
        yield ForeignName(name, places, tuple(systems.split(", ")), word, _GUIDES[guide])


_ASYNC = "`{0}.perform_async(...)`"
_LATER = "`{0}.perform_in(delay, ...)` or `{0}.perform_at(time, ...)`"
_INLINE = "`{0}.perform_inline(...)`"
_FAILED_TRY = (
    "for a failure `raise` the error, and let the hook `retry_in(count, error, job)` return the delay; `raise RetryLater(60)` if the "
    "work is not ready yet"
)
_FILTER = 'every error is retried; the hook `retry_in(count, error, job)` returns `"kill"` or `"discard"` for an error that is not'
_BACKOFF = "`retry_delay = (5, 30, 300)`, in seconds; the hook `retry_in(count, error, job)` decides by the error"
_RETURNED = "`{0}.call(...).result()`, or the attribute `keep_result` and `framework.result(jid)`"
_CHAIN = "a `Workflow` whose steps receive results, or push the next job at the end of `perform`"
_FAILED_END = "the hook `retries_exhausted(job, error)`"

# One table, in the order of the pages. `{0}` is the class of the application.
_TABLE = [
    # Retries.
    *_rows(
        "attribute option self", "Celery, Dramatiq", "failures", "max_retries", "`retry = 3`, the number of retries"
    ),
    *_rows("attribute option", "Huey", "failures", "retries", "`retry = 3`"),
    *_rows("attribute", "Celery", "failures", "autoretry_for dont_autoretry_for", _FILTER),
    *_rows("attribute", "Dramatiq", "failures", "retry_when", _FILTER),
    *_rows(
        "attribute",
        "Celery, Dramatiq",
        "failures",
        "throws",
        "raise `BusinessError` (not retried, no failure of the system) or `Discard`",
    ),
    *_rows(
        "attribute",
        "Celery",
        "failures",
        "retry_backoff retry_backoff_max retry_jitter retry_kwargs default_retry_delay",
        _BACKOFF,
    ),
    *_rows("attribute", "Dramatiq", "failures", "min_backoff max_backoff", _BACKOFF),
    *_rows(
        "option",
        "Celery",
        "failures",
        "retry_policy",
        "a push that finds no Redis raises `ShardUnavailableError`; the setting `reliable_push` keeps it",
    ),
    *_rows("self", "Celery", "failures", "retry", _FAILED_TRY),
    *_rows("attribute", "Dramatiq", "failures", "on_failure on_retry_exhausted", _FAILED_END),
    *_rows("option", "RQ", "failures", "on_failure on_stopped", _FAILED_END),
    *_rows(
        "option",
        "Celery",
        "failures",
        "link_error",
        "`set(on_death=Other)`; for all jobs of a class `retries_exhausted`",
    ),
    *_rows("hook", "Celery", "failures", "on_failure", _FAILED_END),
    *_rows("hook", "Celery", "failures", "on_retry", "the hook `retry_in(count, error, job)`"),
    *_rows("hook", "Celery", "middleware", "before_start after_return", "code in `perform`, or a middleware"),
    *_rows("option attribute", "RQ", "failures", "failure_ttl", "leave it out: a dead job is kept for 180 days"),
    # Time.
    *_rows("attribute option", "Celery", "end", "time_limit soft_time_limit", "`timeout = 60`, in seconds"),
    *_rows("attribute option", "Dramatiq", "end", "time_limit", "`timeout = 60`, in seconds"),
    *_rows("attribute option", "RQ", "end", "job_timeout", "`timeout = 60`"),
    *_rows("attribute option", "Dramatiq", "end", "max_age", "`expires_in = 3600`, in seconds"),
    *_rows(
        "attribute option",
        "Celery, Huey",
        "end",
        "expires",
        "`expires_in = 3600`, in seconds; for a delayed job from its due time on",
    ),
    *_rows("attribute option", "RQ", "end", "ttl", "`expires_in = 3600`"),
    *_rows("option", "Celery", "push", "countdown eta", _LATER),
    *_rows("option", "Dramatiq, Huey", "push", "delay", _LATER + ", in seconds"),
    *_rows("option", "Sidekiq", "push", "wait wait_until at", _LATER),
    *_rows("attribute", "Celery", "cron", "run_every", 'a `CronWorker` with `cron = "*/5 * * * *"`'),
    # Queues and limits.
    *_rows("attribute", "Dramatiq", "routing", "queue_name", '`queue = "mails"`, or a routing rule'),
    *_rows("option", "Dramatiq", "routing", "queue_name", '`set(queue="mails")`'),
    *_rows("attribute option", "Celery", "routing", "routing_key exchange", '`queue = "mails"`, or a routing rule'),
    *_rows("attribute", "Sidekiq", "routing", "pool", '`shard = "other"`'),
    *_rows("option", "Sidekiq", "routing", "pool store", '`set(shard="other")`'),
    *_rows("option attribute", "RQ", "priorities", "at_front", '`set(priority="critical")` of a class with `priority`'),
    *_rows(
        "attribute",
        "Celery",
        "rate",
        "rate_limit",
        '`limiter = limiter.window("name", 10, "minute")`, over all processes',
    ),
    *_rows("attribute", "Sidekiq", "rate", "throttle sidekiq_throttle", "`limiter = ...` or `concurrency_limit = 10`"),
    *_rows(
        "attribute",
        "Sidekiq",
        "deduplication",
        "unique_for unique_until lock",
        "`idempotent = True`, or `deduplicate = Deduplicate(...)`",
    ),
    *_rows(
        "option",
        "Celery",
        "deduplication",
        "task_id",
        "leave it out: each job has a new id. `idempotent = True` drops a push while an equal job waits",
    ),
    *_rows(
        "option",
        "RQ",
        "deduplication",
        "job_id",
        "leave it out: each job has a new id. `idempotent = True` drops a push while an equal job waits",
    ),
    # Acknowledgement, names and payloads.
    *_rows(
        "attribute",
        "Celery",
        "failures",
        "acks_late acks_on_failure_or_timeout reject_on_worker_lost",
        "leave it out: every job is acknowledged after its run",
    ),
    *_rows("attribute", "Celery", "background", "bind", "a class with `perform(self, ...)`"),
    *_rows("attribute", "Celery, Huey", "background", "name", '`wire_name = "..."`'),
    *_rows("attribute", "Dramatiq", "background", "actor_name", '`wire_name = "..."`'),
    *_rows("attribute option", "Celery, RQ", "push", "serializer", "leave it out: arguments are JSON"),
    *_rows("attribute option", "Celery", "push", "compression", "leave it out: large arguments are compressed"),
    *_rows("attribute", "Dramatiq", "background", "broker", "leave it out: `config/redis.yml` names the servers"),
    *_rows("attribute option", "RQ", "context", "description", "`tags`, or `set(context={...})`"),
    *_rows("option attribute", "RQ", "context", "meta", "`set(context={...})`; in a job `self.log_extra(...)`"),
    *_rows("option", "Celery", "context", "headers", "`set(context={...})`"),
    *_rows(
        "attribute", "Sidekiq", "background", "sidekiq_options", "each option as an attribute of the class: `retry = 3`"
    ),
    *_rows("attribute option", "Sidekiq", "context", "log_level", "the setting `logging.level` of the process"),
    # Results and order.
    *_rows(
        "attribute",
        "Celery",
        "results",
        "ignore_result store_errors_even_if_ignored",
        "leave it out: a result is kept only for `call`, and for a class with `keep_result`",
    ),
    *_rows(
        "option",
        "Celery",
        "results",
        "ignore_result",
        "leave it out: a result is kept only for `call`, and for a class with `keep_result`",
    ),
    *_rows("attribute", "Dramatiq", "results", "store_results", "`keep_result = timedelta(hours=1)`"),
    *_rows("attribute", "RQ, Dramatiq", "results", "result_ttl", "`keep_result = timedelta(hours=1)`"),
    *_rows("attribute", "Celery", "results", "track_started", "`status_expiration = 3600`, and `framework.status`"),
    *_rows("option", "Celery", "workflows", "link chain chord group_id", _CHAIN),
    *_rows("option", "RQ", "workflows", "depends_on", _CHAIN + "; for several jobs a `Batch`"),
    *_rows("option", "Dramatiq", "workflows", "pipe_target pipe_ignore", _CHAIN),
    # Pushes.
    *_rows("method", "Celery", "push", "delay delay_on_commit", _ASYNC),
    *_rows("method", "Celery", "push", "apply_async apply_async_on_commit", f"{_ASYNC}; with a delay, {_LATER}"),
    *_rows(
        "method",
        "Celery",
        "push",
        "send_task",
        '`framework.enqueue("Name", args, queue=...)`, for a class that this program does not have',
    ),
    *_rows("method", "Celery", "testing", "apply", _INLINE),
    *_rows(
        "method",
        "Celery",
        "workflows",
        "s si signature subtask",
        "`{0}.arguments(...)`; for a step `Workflow.then(name, {0}, [(...)])`",
    ),
    *_rows("method", "Celery", "push", "map starmap chunks", "`{0}.perform_bulk([(1,), (2,)])`"),
    *_rows("method", "Celery", "results", "AsyncResult", _RETURNED),
    *_rows("method", "RQ", "push", "delay enqueue enqueue_call", _ASYNC),
    *_rows("method", "RQ", "push", "enqueue_in enqueue_at", _LATER + f"; now, {_ASYNC}"),
    *_rows("method", "RQ", "push", "enqueue_many prepare_data", "`{0}.perform_bulk([(1,), (2,)])`"),
    *_rows("method", "Dramatiq", "push", "send", _ASYNC),
    *_rows("method", "Dramatiq", "push", "send_with_options", _LATER + f"; now, {_ASYNC}"),
    *_rows(
        "method",
        "Dramatiq",
        "workflows",
        "message message_with_options",
        "`{0}.arguments(...)`; for a step `Workflow.then(name, {0}, [(...)])`",
    ),
    *_rows("method", "Huey", "push", "schedule", _LATER + f"; now, {_ASYNC}"),
    *_rows("method", "Huey", "testing", "call_local", _INLINE),
    *_rows("method", "Huey", "push", "map", "`{0}.perform_bulk([(1,), (2,)])`"),
    *_rows("method", "Huey", "workflows", "s", "`{0}.arguments(...)`; for a step `Workflow.then(name, {0}, [(...)])`"),
    *_rows("method", "Huey", "end", "revoke restore", "`framework.cancel(jid)`; for the class `jobs pause`"),
    *_rows("method", "Sidekiq", "push", "perform_later delay_for delay_until", f"{_ASYNC}; with a delay, {_LATER}"),
    *_rows("method", "Sidekiq", "testing", "perform_now perform_sync", _INLINE),
    *_rows("method", "Procrastinate, Taskiq", "push", "defer kiq later", f"{_ASYNC}; with a delay, {_LATER}"),
    # Inside of a job.
    *_rows(
        "self",
        "Celery",
        "background",
        "request",
        "`self.jid`; the count of failures is `count` of the hook `retry_in(count, error, job)`",
    ),
    *_rows(
        "self",
        "Celery",
        "results",
        "update_state",
        "`self.record(message, ...)` of a class with `track`, or the progress of an `IterableWorker`",
    ),
    *_rows(
        "self",
        "Celery",
        "workflows",
        "replace add_to_chord",
        "`with self.batch.jobs():` adds jobs to the batch of this job",
    ),
    *_rows("self", "Celery", "background", "AsyncResult", _RETURNED),
]


def _names_in(place: Place) -> Mapping[str, ForeignName]:
    return {one.name: one for one in reversed(_TABLE) if place in one.places}


NAMES: Mapping[Place, Mapping[str, ForeignName]] = {place: _names_in(place) for place in get_args(Place)}
"""Each name by its place."""


def rows_of(system: str) -> list[ForeignName]:
    return [one for one in _TABLE if system in one.systems]


def advice(name: str, *places: Place, worker: str = "Worker") -> str | None:
    """Return the libraries that have the name, and the text to write here; ``None`` for a name of none."""
    for place in places:
        rows = [one for one in _TABLE if one.name == name and place in one.places]
        if rows:
            systems = list(dict.fromkeys(system for one in rows for system in one.systems))
            *most, last = systems
            known_by = f"{', '.join(most)} and {last} have" if most else f"{last} has"
            return f"{known_by} this name. Here: {rows[0].text(worker)}"
    return None


_FUNCTION_ATTRIBUTES = ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__")
_PUSH_NOW_CALL = "{0}.perform_async(...)"
_INLINE_CALL = "{0}.perform_inline(...)"


# A descriptor and not a metaclass, which would forbid `class W(ApplicationWorker, SomeProtocol)`.
class ForeignMethod:
    """One name of another library (``NAMES``): an AttributeError that names the word of ours, so ``hasattr`` stays false.

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
    found = str(advice(name, "method", "self", worker=worker))
    push = _PUSH_NOW_CALL.format(worker)
    named = name in NAMES["self"] or "perform_" in found
    return f"there is no {name}. {found}" + ("" if named else f"; to push a job, `{push}`")


def add_foreign_methods(base: type[Any], *places: Place) -> None:
    """Put the names of these places on ``base``. Not in its body, where a type checker would see them."""
    for place in places:
        for name in NAMES[place]:
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
        del given, named
        word = advice("retry", "self")
        raise MisuseError(
            qualified_name(self._owner), f"self.retry is the attribute of the class, and no method. {word}"
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
