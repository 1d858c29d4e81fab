"""The options of one push (``Worker.set``), and when a job is due."""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Generic, TypeAlias, TypedDict, TypeVar, cast, get_type_hints

from framework.declare import validators
from framework.declare.attribute import is_attribute
from framework.declare.declaration import Declaration
from framework.declare.misuse import advice
from framework.declare.request import BulkPacing, DueTime, JobTimes, RandomSpread
from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.declare.validators import InvalidValue, Validator
from framework.errors import ArgumentsError
from framework.text import did_you_mean, with_article
from framework.typeguards import short_repr
from framework.types import Json, Payload
from framework.wire.context_fields import UnknownKeyError, check_keys
from framework.wire.job import TRACK
from framework.wire.sub_queues import LEVELS, PRIORITY

MIN_EPOCH_S = 1_000_000_000
"""Numbers below are seconds from now, numbers from here on are epoch seconds (Sidekiq)."""

MIN_SPREAD_S = 5.0
"""The shortest time over which jobs are spread (Sidekiq). Pollers look for due jobs every few seconds only."""

Moment: TypeAlias = datetime | timedelta | float
"""When a job is due: an aware datetime, a delay, or a number (see ``MIN_EPOCH_S``)."""


_CONTEXT_ALLOWED = "a mapping of names to JSON values"


def check_context(value: object) -> dict[str, Json]:
    """Return a copy of the facts of a context. Raises InvalidValue unless they map names to JSON values."""
    if not isinstance(value, Mapping):
        raise InvalidValue(f"{_CONTEXT_ALLOWED}; this is {with_article(type(value).__name__)}")
    facts = dict(cast("Mapping[str, Json]", value))
    try:
        # One level deeper, as the payload holds them.
        check_strict_json(facts)
    except NotJsonError as error:
        raise InvalidValue(f"{_CONTEXT_ALLOWED}; context{error.path} {error.reason}") from None
    if "" in facts:
        raise InvalidValue(f"{_CONTEXT_ALLOWED}; this has an empty name")
    try:
        check_keys(facts)
    except UnknownKeyError as error:
        raise InvalidValue(f"{_CONTEXT_ALLOWED}; {error}") from None
    return facts


context_facts = Validator(_CONTEXT_ALLOWED, check_context, {"type": "object"})


class CoreOptions(TypedDict, total=False):
    """The options of ``set``, each with the validator of its values. An option of an attribute's name replaces it for this push."""

    queue: Annotated[str, validators.queue]
    """The queue of the job, whatever the routing rules say."""
    shard: Annotated[str, validators.shard]
    """The shard of this one job, its retries too, whatever the rules say when it is due."""
    retry: Annotated[bool | int, validators.boolean_or_count(0)]
    """How often the job is retried after a failure; ``0`` moves it to the dead set, ``False`` deletes it."""
    retry_for: Annotated[timedelta | float, validators.duration]
    """Retry until this time after the first failure, instead of a number of retries."""
    retry_queue: Annotated[str, validators.queue]
    """The queue for the retries of the job."""
    dead: Annotated[bool, validators.boolean]
    """``False``: after its last retry the job is deleted instead of moved to the dead set."""
    backtrace: Annotated[bool | int, validators.boolean_or_count(1)]
    """Keep the traceback of a failure in the payload: all lines, or so many innermost lines."""
    tags: Annotated[tuple[str, ...] | list[str], validators.tags_of_push]
    """Labels of the job for log lines and filters. Routing rules match those of the class."""
    expires_in: Annotated[timedelta | float, validators.duration]
    """The most time between the push, or the due time, and the start of the job."""
    timeout: Annotated[timedelta | float, validators.duration]
    """The maximum time of one run."""
    context: Annotated[Mapping[str, Json], context_facts]
    """Facts for the ``meta.*`` fields of the job and its log lines."""
    sync: Annotated[bool, validators.boolean]
    """Run the job here and now instead of pushing it (Sidekiq)."""


_VALIDATORS: dict[str, Validator] = {}

LINKING = object()
"""Marks an option that a setter carries out at one push, by ``_push_linked``: no payload has it, and no other push takes it."""

linking_options: set[str] = set()
"""The names of these options."""


def add_options(options: type[Any]) -> None:
    """Let ``set`` take the options that a TypedDict annotates: each with its type and its validator."""
    for name, hint in get_type_hints(options, include_extras=True).items():
        _VALIDATORS[name] = hint.__metadata__[0]
        if LINKING in hint.__metadata__:
            linking_options.add(name)


def check_options(worker: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, normalised. Raises ArgumentsError for an unknown name or a value that is not allowed."""
    return {name: _check_option(worker, name, value) for name, value in options.items()}


def _check_option(worker: str, name: str, value: Any) -> Any:
    validator = _VALIDATORS.get(name) or (OPTIONS[name].validator if name in OPTIONS else None)
    if validator is None:
        raise ArgumentsError(worker, f"set() has no option {name!r}{_advice(worker, name)}")
    try:
        return validator(value)
    except InvalidValue as error:
        raise ArgumentsError(worker, f"set({name}={short_repr(value)}) is not allowed. Allowed: {error}.") from None


def _advice(worker: str, name: str) -> str:
    """Return the end of the message for an unknown option. All options are listed only if no name is near."""
    word = advice(name, "option", "attribute", worker=worker.rpartition(".")[2])
    if word is not None:
        return f". {word}."
    known = dict.fromkeys((*_VALIDATORS, *OPTIONS))
    options = f"Options: {', '.join(known)}."
    if is_attribute(name):
        return f": it belongs to the class, and is the same for all its jobs. {options}"
    hint = did_you_mean(name, known)
    return f"{hint}." if hint else f". {options}"


def due_at(worker: str, when: object, now: float) -> DueTime | None:
    """Return when a job is due, or None when that is now or past (Sidekiq: it is pushed at once).

    A timedelta is a delay, and so is a number below 1,000,000,000; a larger one is epoch seconds. Raises
    ArgumentsError for a datetime without a time zone, NaN, infinity and anything else.
    """
    due = _due(worker, when, now)
    if due.delay_s is not None:
        return due if due.delay_s > 0 else None
    return due if due.at > now else None


def _due(worker: str, when: object, now: float) -> DueTime:
    due = _any_due(worker, when, now)
    if not math.isfinite(due.at):
        raise ArgumentsError(worker, f"cannot be due at {due.at}; give a finite time")
    return due


def _any_due(worker: str, when: object, now: float) -> DueTime:
    if isinstance(when, timedelta):
        return DueTime(now + when.total_seconds(), when.total_seconds())
    if isinstance(when, datetime):
        if when.tzinfo is None or when.utcoffset() is None:
            raise ArgumentsError(
                worker, "is due at a datetime without a time zone; use datetime.now(UTC), or .replace(tzinfo=...)"
            )
        return DueTime(when.timestamp())
    if isinstance(when, (int, float)) and not isinstance(when, bool):
        try:
            seconds = float(when)
        except OverflowError:
            seconds = math.inf
        return DueTime(now + seconds, seconds) if seconds < MIN_EPOCH_S else DueTime(seconds)
    raise ArgumentsError(
        worker,
        f"is due at {with_article(type(when).__name__)}; give a timedelta, an aware datetime or a number of seconds",
    )


def bulk_schedule(
    worker: str,
    delay: object,
    batch_size: int | None,
    batch_delay: timedelta | float | None,
    now: float,
) -> tuple[DueTime | None, BulkPacing | None]:
    """Return when the jobs of a bulk push are due: all after ``delay``, or ``batch_size`` of them every ``batch_delay`` (GitLab).

    A pacing whose ``delay`` is now or past begins now. Raises ArgumentsError when only one of ``batch_size`` and ``batch_delay``
    is given: GitLab then silently spreads nothing.
    """
    if batch_size is None and batch_delay is None:
        return due_at(worker, delay, now), None
    if batch_size is None or batch_delay is None:
        raise ArgumentsError(worker, "batch_size and batch_delay belong together; give both or neither")
    if type(batch_size) is not int or batch_size < 1:
        raise ArgumentsError(
            worker, f"batch_size = {short_repr(batch_size)} is not allowed. Allowed: a whole number >= 1"
        )
    try:
        step = validators.duration(batch_delay).total_seconds()
    except InvalidValue as error:
        raise ArgumentsError(
            worker, f"batch_delay = {short_repr(batch_delay)} is not allowed. Allowed: {error}"
        ) from None
    return due_at(worker, delay, now) or DueTime(now, 0.0), BulkPacing(batch_size, step)


def spread_schedule(worker: str, interval: object, now: float) -> tuple[DueTime, RandomSpread]:
    """Return when the jobs of a bulk push are due: each at a random time within ``interval`` from now (Sidekiq).

    Raises ArgumentsError for anything but a positive duration.
    """
    try:
        seconds = validators.duration(interval).total_seconds()
    except InvalidValue as error:
        reason = f"spread_interval = {short_repr(interval)} is not allowed. Allowed: {error}"
        raise ArgumentsError(worker, reason) from None
    return DueTime(now, 0.0), RandomSpread(max(seconds, MIN_SPREAD_S))


def times_schedule(worker: str, times: Iterable[object], now: float) -> tuple[DueTime, JobTimes]:
    """Return when the jobs of a bulk push are due, by the time of each (Sidekiq).

    Redis's clock counts if all times are delays, else the clock of this host. Raises ArgumentsError naming the first wrong time.
    """
    dues = list[DueTime]()
    for index, when in enumerate(times):
        try:
            dues.append(_due(worker, when, now))
        except ArgumentsError as error:
            raise ArgumentsError(worker, f"(job {index} of the bulk) {error.reason}") from None
    by_redis = all(due.delay_s is not None for due in dues)
    seconds = [due.at - now if due.delay_s is None else due.delay_s for due in dues]
    return DueTime(now, 0.0 if by_redis else None), JobTimes(seconds)


V = TypeVar("V")

KINDS: tuple[type[Any], ...] = (bool, int, float, str)
"""The types of values: each is JSON, and arrives in Python and Ruby as it was."""

_MAX_INTEGER = 2**53
_NOT_GIVEN = object()


class JobOption(Generic[V]):
    """One option: its name, the default, and the validator of its values. Middlewares read it with ``of``."""

    __slots__ = ("default", "doc", "field", "name", "place", "validator")

    def __init__(
        self, name: str, validator: Validator, default: V, *, field: str = "", doc: str = "", place: str = ""
    ) -> None:
        self.name = name
        self.validator = validator
        self.default = default
        self.field = field or name
        """The field of the payload."""
        self.doc = doc
        self.place = place
        """The module that declared it."""

    def __repr__(self) -> str:
        return f"<JobOption {self.name}>"

    def of(self, worker: object, job: Mapping[str, Any]) -> V:
        """Return the value of a job: that of its payload, else that of its class, else the default.

        ``worker`` is what a middleware gets: the class, its instance, or the name of a class that this process does not have. A value
        that another program wrote and that is not allowed counts as missing.
        """
        return self.value_in(job, getattr(worker, "_aw_declaration", None))

    def value_in(self, job: Mapping[str, Any], declaration: Declaration | None) -> V:
        """Return the value of a job of the class with this declaration, as ``of``."""
        found = job.get(self.field, _NOT_GIVEN)
        if found is not _NOT_GIVEN:
            try:
                return self.validator(found)  # type: ignore[no-any-return]
            except InvalidValue:
                pass
        return self.default if declaration is None else self.declared(declaration)

    def declared(self, declaration: Declaration) -> V:
        """Return the value of a class."""
        return declaration.options.get(self.name, self.default)  # type: ignore[no-any-return]

    def keyword(self, value: V) -> dict[str, Any]:
        """Return the keyword of ``set`` for type checkers, which do not know the option: ``Worker.set(**OPTION.keyword(True))``."""
        return {self.name: value}


TRACKED: JobOption[bool] = JobOption(
    TRACK, validators.boolean, default=False, doc="Whether the life of each job is recorded in the database of tasks."
)
"""The attribute ``track`` is such an option of the framework."""

PRIORITIES: JobOption[str | None] = JobOption(
    PRIORITY,
    validators.one_of(*LEVELS),
    default=None,
    doc="The level of the class's jobs, unless a push sets another one.",
)
"""The attribute ``priority`` is another one."""

OPTIONS: dict[str, JobOption[Any]] = {one.name: one for one in (TRACKED, PRIORITIES)}
"""Every option by its name."""


_OWN = frozenset(OPTIONS)


def application_fields() -> list[str]:
    """Return the fields of the payload for the options that the application has declared."""
    return [one.field for name, one in OPTIONS.items() if name not in _OWN]


def declared_options(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a class that differ from their defaults, by name."""
    found = {name: attributes.get(name, one.default) for name, one in OPTIONS.items()}
    return {name: value for name, value in found.items() if value != OPTIONS[name].default}


def payload_fields(options: Mapping[str, Any]) -> Payload:
    """Return the fields of the payload for the options of a class."""
    return {OPTIONS[name].field: value for name, value in options.items() if name in OPTIONS}


def field_of(name: str) -> str:
    """Return the field of the payload for an option of ``set``."""
    found = OPTIONS.get(name)
    return name if found is None else found.field


def value_validator(kind: type[V], choices: tuple[V, ...] | None, check: Callable[[V], object] | None) -> Validator:
    """Return the validator of an option: the type, the choices if there are any, and the application's own check."""
    allowed = _ALLOWED[kind] if choices is None else f"one of {', '.join(map(repr, choices))}"

    def validate(value: Any) -> Any:
        # A whole number that no float is stays one, and is refused.
        typed = float(value) if kind is float and type(value) is int and abs(value) <= _MAX_INTEGER else value
        if type(typed) is not kind or not _is_exact(typed) or (choices is not None and typed not in choices):
            raise InvalidValue(allowed)
        if check is not None:
            _call_check(check, typed)
        return typed

    return Validator(allowed, validate, {"enum": list(choices)} if choices is not None else _SCHEMAS[kind])


def _is_exact(value: Any) -> bool:
    """Return whether JSON carries the value unchanged to Python and Ruby, and to a browser."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        # A lone surrogate is no text of UTF-8.
        return value.isascii() or value.encode("utf-8", "ignore").decode() == value
    return abs(value) <= _MAX_INTEGER  # type: ignore[no-any-return]


def _call_check(check: Callable[[Any], object], value: Any) -> None:
    try:
        check(value)
    except ValueError as error:
        raise InvalidValue(str(error) or f"not {short_repr(value)}") from None


_ALLOWED: Mapping[type[Any], str] = {
    bool: validators.boolean.allowed,
    int: "a whole number of at most 2**53",
    float: "a finite number, a whole one of at most 2**53",
    str: "a text",
}
_SCHEMAS: Mapping[type[Any], Mapping[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}
