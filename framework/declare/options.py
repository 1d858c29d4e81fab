"""The options of one push (``Worker.set``), and when a job is due."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeAlias, TypedDict, cast, get_type_hints

from framework.declare import validators
from framework.declare.attribute import is_attribute
from framework.declare.job_option import OPTIONS
from framework.declare.misuse import advice
from framework.declare.request import BulkPacing, DueTime, JobTimes, RandomSpread
from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.declare.validators import InvalidValue, Validator
from framework.errors import ArgumentsError
from framework.messages import did_you_mean
from framework.text import with_article
from framework.typeguards import short_repr
from framework.types import Json

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
    return facts


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
    context: Annotated[Mapping[str, Json], Validator(_CONTEXT_ALLOWED, check_context)]
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
