"""Options of your own that travel with jobs, for middlewares of your own.

    from framework.job_options import declare_option

    USE_TASK_EVENT = declare_option("use_task_event", bool, default=False, doc="Whether a run writes a task event.")

Then ``use_task_event = True`` in a worker class and ``Worker.set(use_task_event=True)`` are checked as the framework's own names are.
A middleware reads the value of a job with ``USE_TASK_EVENT.of(worker, job)``. See docs/guides/middleware.md.
"""

import keyword
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Never, TypeVar

from framework.application_worker import ATTRIBUTES, ApplicationWorker, PushOptions
from framework.declare import registry
from framework.declare.attribute import Attribute
from framework.declare.options import KINDS, OPTIONS, JobOption, value_validator
from framework.declare.validators import InvalidValue
from framework.errors import DeclarationError
from framework.feature import features
from framework.typeguards import qualified_name, short_repr

__all__ = ["JobOption", "declare_option"]

V = TypeVar("V", bool, int, float, str)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FIELDS = frozenset(
    (
        *("class", "args", "jid", "queue", "created_at", "enqueued_at", "at", "retry", "retry_count", "retry_queue"),
        *("retry_for", "retried_at", "failed_at", "discarded_at", "error_class", "error_message", "error_backtrace"),
        *(
            "backtrace",
            "dead",
            "tags",
            "bid",
            "cbid",
            "cattr",
            "locale",
            "wrapped",
            "display_class",
            "pool",
            "apartment",
        ),
        *("encrypt", "expires_in", "expiry", "status", "profile", "profiler_options", "log_level", "iteration", "tz"),
        *("unique_for", "unique_until", "unique_token", "overrated", "limited", "trace_propagation_headers", "cron"),
        *("version", "queue_namespace", "status_expiration", "compressed", "original_job_size_bytes", "correlation_id"),
        *("idempotency_key", "duplicate_of", "deferred", "deferred_by", "deferred_count", "load_balancing_strategy"),
        *("concurrency_limit_buffered_at", "interrupted_count", "dedup_wal_locations", "wal_locations", "resource"),
        *("worker_data_consistency", "worker_data_consistency_per_db", "database_chosen", "size_limiter", "job_status"),
        *("scheduled_at", "scheduling_latency_s", "queue_duration_s", "instrumentation", "timeout", "sync", "context"),
    )
)
"""Fields with a meaning in Sidekiq, in GitLab's middlewares, or here."""


def declare_option(
    name: str,
    kind: type[V],
    *,
    default: V,
    wire_field: str | None = None,
    choices: tuple[V, ...] | None = None,
    check: Callable[[V], object] | None = None,
    doc: str,
) -> JobOption[V]:
    """Declare an option that travels with jobs, and return it. Call it once, in a module that the worker modules import.

    Then ``name`` is an attribute of every worker class and an option of ``set``. Its value is a field of the payload
    (``wire_field``, else the name) if it differs from ``default``, so other jobs pay nothing. ``kind`` is bool, int, float or str.
    ``choices`` are the only allowed values. ``check`` gets a value, and raises ValueError with what is allowed. ``doc`` says in a
    sentence what the option does.

    Raises:
        DeclarationError: the name or the field is taken or malformed, the default is not allowed, or a class already has the name.
    """
    place = sys._getframe(1).f_globals.get("__name__", "?")  # pyright: ignore[reportPrivateUsage] - for messages
    field = name if wire_field is None else wire_field
    _check_name(place, name)
    _check_field(place, name, field)
    given: Any = doc
    if kind not in KINDS or not isinstance(given, str) or not given.strip():
        allowed = ", ".join(one.__name__ for one in KINDS)
        _refuse(place, name, f"give kind = one of {allowed}, and doc = a sentence about the option.")
    validator = value_validator(kind, choices, check)
    try:
        option = JobOption(name, validator, validator(default), field=field, doc=doc, place=place)
        for one in choices or ():
            validator(one)
    except InvalidValue as error:
        _refuse(place, name, f"its default or a choice is not allowed. Allowed: {error}.")
    _check_not_late(place, name)
    OPTIONS[name] = option
    ATTRIBUTES[name] = Attribute(
        name=name,
        default=option.default,
        validator=validator,
        group="application",
        text=doc,
        effect=f"A middleware of the application reads it from the field `{field}` of the payload.",
        trap="Every process that pushes or runs such jobs must import the module that declares it.",
    )
    setattr(ApplicationWorker, name, option.default)
    return option


@contextmanager
def isolated() -> Generator[None]:
    """For tests: forget the options that are declared within the block."""
    before = dict(OPTIONS)
    try:
        yield
    finally:
        for name in OPTIONS.keys() - before.keys():
            del OPTIONS[name], ATTRIBUTES[name]
            delattr(ApplicationWorker, name)


def _check_name(place: str, name: str) -> None:
    given: Any = name
    if not isinstance(given, str) or _NAME.fullmatch(given) is None or keyword.iskeyword(given):
        shown = short_repr(given)
        _refuse(
            place, shown, "give a name of at most 64 lower-case letters, digits and underscores, with a letter first."
        )
    if name in OPTIONS and OPTIONS[name].place:
        _refuse(
            place,
            name,
            f"it is declared already, in {OPTIONS[name].place}. Import it from there, or choose another name.",
        )
    # Not hasattr: methods of other libraries, such as delay, raise an AttributeError.
    is_method = any(name in vars(owner) for base in _bases() for owner in base.__mro__)
    if name in ATTRIBUTES or name in PushOptions.__annotations__ or is_method:
        _refuse(place, name, "the framework has an attribute, an option or a method of this name. Choose another one.")


def _bases() -> list[type[Any]]:
    return [ApplicationWorker, *(late.load() for one in features() for late in one.bases)]


def _check_field(place: str, name: str, field: str) -> None:
    given: Any = field
    if not isinstance(given, str) or _NAME.fullmatch(given) is None:
        shown = short_repr(given)
        _refuse(
            place, name, f"wire_field = {shown} is not allowed. Allowed: lower-case letters, digits and underscores."
        )
    if field in _FIELDS or field.startswith("aw_"):
        _refuse(
            place,
            name,
            f"the payload field {field!r} has a meaning in Sidekiq or in the framework. Give another wire_field.",
        )
    holder = next((one for one in OPTIONS.values() if one.field == field), None)
    if holder is not None:
        owner = f"the option {holder.name!r}" + (f" of {holder.place}" if holder.place else "")
        _refuse(place, name, f"the payload field {field!r} belongs to {owner}. Give another wire_field.")


def _check_not_late(place: str, name: str) -> None:
    """Refuse an option that a class has had before: its value was not checked, and its jobs would not carry it."""
    for worker in registry.workers():
        for owner in worker.__mro__:
            if name in vars(owner):
                message = f"{qualified_name(owner)} had the name before: import {place} in the module of that class."
                _refuse(place, name, message)


def _refuse(place: str, name: str, reason: str) -> Never:
    raise DeclarationError(place, f"option {name}: {reason}", attribute=name)
