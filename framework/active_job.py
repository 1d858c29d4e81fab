"""Exchange jobs with Active Job, the job interface of Ruby on Rails, in the format of its Sidekiq adapter.

    active_job.enqueue("ReportJob", [7], {"mode": "fast"}, queue="reports")

pushes a job that a Rails process runs as ``ReportJob.perform_now(7, mode: "fast")``. On Redis it is a job of the class ``WRAPPER``
with one argument: an object that names the job and holds its arguments. ``unwrap`` reads it in a Python worker.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack, cast

from framework.application_worker import PushOptions, Setter
from framework.by_name import as_list, check_name, foreign_setter
from framework.declare.options import Moment, check_options, due_at
from framework.errors import ArgumentsError
from framework.process_clock import process_clock
from framework.typeguards import short_repr
from framework.types import Jid

WRAPPER = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
"""The class of a wrapped job on the wire. All versions of Sidekiq run it."""

WRAPPER_8 = "Sidekiq::ActiveJob::Wrapper"
"""The class of a wrapped job that Sidekiq 8 pushes."""

_SYMBOL_KEYS, _KEYWORDS, _GLOBAL_ID = "_aj_symbol_keys", "_aj_ruby2_keywords", "_aj_globalid"
_ANY_KEYS = "_aj_hash_with_indifferent_access"
_SERIALIZER, _SYMBOL = "_aj_serialized", "ActiveJob::Serializers::SymbolSerializer"
_RESERVED_PREFIX = "_aj_"


@dataclass(frozen=True, slots=True)
class GlobalID:
    """Name a record of the Rails application, as Active Job does: ``GlobalID("gid://shop/Order/7")``."""

    uri: str


@dataclass(frozen=True, slots=True)
class WrappedJob:
    """Hold a job that Rails wrapped. A symbol of Ruby is a text, a record is a ``GlobalID``."""

    job_class: str
    job_id: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    executions: int
    """How often Active Job has run it before (Ruby's ``retry_on``)."""


def enqueue(
    job_class: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    /,
    *,
    at: Moment | None = None,
    **options: Unpack[PushOptions],
) -> Jid | None:
    """Push a job for a Rails process; return Sidekiq's id of the job, or ``None`` when a client middleware dropped it.

    ``args`` and ``kwargs`` are those of the Ruby method: JSON values and ``GlobalID``. ``at`` and ``options`` are those of
    ``framework.enqueue``; ``queue`` is required.

    Raises:
        ArgumentsError: Active Job or JSON cannot carry the arguments, or an option is missing or invalid.
        ExceedLimitError: the arguments are too large.
        ShardUnavailableError: Redis does not answer or refuses the write.
    """
    setter, job = _wrap(job_class, args, kwargs or {}, at, options)
    if at is None:
        return setter.perform_async(job)
    return setter.perform_in(at, job) if isinstance(at, timedelta) else setter.perform_at(at, job)


async def aenqueue(
    job_class: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    /,
    *,
    at: Moment | None = None,
    **options: Unpack[PushOptions],
) -> Jid | None:
    """Push as ``enqueue`` does, in a thread, while the event loop goes on. A push whose task is cancelled may have been made."""
    setter, job = _wrap(job_class, args, kwargs or {}, at, options)
    if at is None:
        return await setter.aperform_async(job)
    return await (setter.aperform_in(at, job) if isinstance(at, timedelta) else setter.aperform_at(at, job))


def unwrap(job: Mapping[str, Any]) -> WrappedJob:
    """Return the job that Rails wrapped. ``job`` is the one argument of a job of the class ``WRAPPER``.

    Values with a serializer of their own in Ruby (a time, a duration) stay the objects that Active Job made of them.

    Raises:
        ValueError: ``job`` is no job of Active Job.
    """
    arguments = job.get("arguments")
    if not isinstance(job.get("job_class"), str) or not isinstance(arguments, list):
        reason = f"this is no job of Active Job: it needs job_class and arguments, and has {sorted(job)}"
        raise ValueError(reason)  # noqa: TRY004 - a wrong value from the wire, not a wrong call
    args, kwargs = list[Any](), dict[str, Any]()
    for given in cast("list[Any]", arguments):
        if isinstance(given, dict) and _KEYWORDS in given:
            kwargs = _ruby_value(cast("Any", given))
        else:
            args.append(_ruby_value(given))
    executions = job.get("executions")
    return WrappedJob(
        job_class=str(job["job_class"]),
        job_id=str(job.get("job_id") or ""),
        queue=str(job.get("queue_name") or ""),
        args=args,
        kwargs=kwargs,
        executions=executions if isinstance(executions, int) else 0,
    )


def _wrap(
    job_class: str, args: Sequence[Any], kwargs: Mapping[str, Any], at: Moment | None, options: Mapping[str, Any]
) -> tuple[Setter[...], dict[str, Any]]:
    """Return the function that pushes the wrapped job, and its one argument."""
    name = check_name(job_class)
    checked = check_options(name, options)
    if "queue" not in checked:
        raise ArgumentsError(name, "give the queue of the Rails processes: queue=...")
    if checked.get("sync"):
        raise ArgumentsError(name, "Ruby runs this job; leave out sync")
    arguments = [_wire_value(name, value) for value in as_list(name, args)]
    if kwargs:
        arguments.append(_wire_object(name, kwargs, _KEYWORDS, list(kwargs)))
    now = process_clock.now()
    due = None if at is None else due_at(name, at, now)
    job: dict[str, Any] = {
        "job_class": name,
        "job_id": str(uuid.uuid4()),
        "provider_job_id": None,
        "queue_name": checked["queue"],
        "priority": None,
        "arguments": arguments,
        "executions": 0,
        "exception_executions": {},
        "locale": "en",
        "timezone": "UTC",
        "enqueued_at": _iso_time(now),
        "scheduled_at": None if due is None else _iso_time(due.at),
    }
    # Sidekiq shows, measures and logs a wrapped job under the name in this field.
    return foreign_setter(WRAPPER, {**checked, "wrapped": name}), job


def _wire_value(name: str, value: Any) -> Any:
    """Return an argument in Active Job's format. What JSON cannot carry is refused by the push."""
    if isinstance(value, GlobalID):
        return {_GLOBAL_ID: value.uri}
    if isinstance(value, list):
        return [_wire_value(name, one) for one in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return _wire_object(name, cast("Mapping[Any, Any]", value), _SYMBOL_KEYS, [])
    return value


def _wire_object(name: str, value: Mapping[Any, Any], marker: str, marked: list[str]) -> dict[str, Any]:
    """Return an object with its marker, which says which of its keys are symbols or keywords."""
    for key in value:
        # Ruby would take such an object for a marker, and lose the value.
        if isinstance(key, str) and key.startswith(_RESERVED_PREFIX):
            raise ArgumentsError(
                name, f"has the key {short_repr(key)}; Active Job reserves keys that begin with {_RESERVED_PREFIX}"
            )
    return {**{key: _wire_value(name, one) for key, one in value.items()}, marker: marked}


def _ruby_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_ruby_value(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if set(fields) == {_GLOBAL_ID}:
        return GlobalID(str(fields[_GLOBAL_ID]))
    if fields.get(_SERIALIZER) == _SYMBOL:
        return fields.get("value")
    markers = {_SYMBOL_KEYS, _KEYWORDS, _ANY_KEYS}
    return {key: _ruby_value(one) for key, one in fields.items() if key not in markers}


def _iso_time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z")
