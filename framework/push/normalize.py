"""Build the Sidekiq payload of a request from its class, the options of ``set`` and the context of the push."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from math import ceil
from typing import Any, TypeAlias

from framework.declare import registry
from framework.declare.declaration import Declaration, PerClass
from framework.declare.options import field_of, linking_options, payload_fields
from framework.errors import ArgumentsError
from framework.feature import features
from framework.process_clock import process_clock
from framework.telemetry import context
from framework.types import Jid, Json, Payload
from framework.wire.context_fields import TRACE_FIELDS, UnknownKeyError, check_keys, trace_fields_of
from framework.wire.job import CHOSEN_QUEUE, CHOSEN_SHARD, PROFILE, wire_timestamp
from framework.wire.status_key import STATUS_EXPIRATION, tracked_job

NO_CONTEXT: Mapping[str, Json] = {}
ExtraFields: TypeAlias = Callable[[], Mapping[str, Json]]
"""Returns additional payload fields for the jobs that one push, or one chunk of a bulk push, is about to write."""


_CHOICE_FIELDS = (("queue", CHOSEN_QUEUE), ("shard", CHOSEN_SHARD))
"""Options also stored as the caller's choice: later routing may change a routed queue or shard, but not a chosen one."""
_KEPT_FOR_CRON = frozenset({context.CORRELATION_ID, context.CALLER_ID, context.ROOT_CALLER_ID, *TRACE_FIELDS})
_OPTIONS_WITHOUT_FIELD = frozenset({"queue", "shard", "context", "sync", "result_ttl", "profile"})


class Normalizer:
    """Build payloads. The fields of a class are computed once per class."""

    def __init__(self) -> None:
        self._class_fields = PerClass(class_fields)

    def payload(
        self,
        declaration: Declaration,
        args: list[Any],
        jid: Jid,
        queue: str,
        *,
        options: Mapping[str, Any],
        job_context: Mapping[str, Json] | None = None,
    ) -> Payload:
        """Return a new payload without ``enqueued_at``, which is added when the job enters a queue."""
        fields = self._class_fields.get(declaration)
        payload = {
            **fields,
            "args": args,
            "jid": jid,
            "queue": queue,
            "created_at": wire_timestamp(process_clock.now()),
        }
        payload.update(inherited_context(declaration))
        payload.update(class_context(declaration))
        payload.update(option_context(options))
        if job_context:
            payload.update(job_context)
        if context.CORRELATION_ID not in payload:
            # The id of a chain's first job is the chain's correlation id.
            payload[context.CORRELATION_ID] = jid
        if options:
            payload.update(option_fields(options))
        return payload

    def now(self) -> float:
        """Return the time for ``enqueued_at``, in the format that all versions of Sidekiq read."""
        return wire_timestamp(process_clock.now())


def inherited_context(declaration: Declaration) -> dict[str, Json]:
    """Return the context fields of a job of this class pushed here and now; empty outside of any context.

    GitLab's guideline: the facts of the pushing code, its name (``meta.caller_id``), the first caller of the chain
    (``meta.root_caller_id``, kept once set), and the feature category of the class, else of the caller.
    """
    found = context.context_source()
    # Unlike GitLab's, a push outside of a context adds no category: the log lines have that of the class anyway.
    if found is None:
        return {}
    fields = (
        {**_context_of_job(found.job), **found.trace, **found.known_facts()}
        if isinstance(found, context.BoundContext)
        else _context_of_job(found)
    )
    if declaration.is_cron:
        # GitLab's CronjobQueue: such a job belongs to no user, project or other subject of the code that pushes it.
        fields = {name: value for name, value in fields.items() if name in _KEPT_FOR_CRON}
    caller = fields.get(context.CALLER_ID)
    if caller is not None:
        fields.setdefault(context.ROOT_CALLER_ID, caller)
    if declaration.owning_category is not None:
        fields[context.FEATURE_CATEGORY] = declaration.owning_category
    return fields


def _context_of_job(job: Mapping[str, Any] | None) -> dict[str, Json]:
    """Return the context fields that a running job passes on to the jobs that it pushes."""
    if job is None:
        return {}
    fields = {**context.fields_of(job), **trace_fields_of(job)}
    worker: Any = registry.find(job["class"])
    caller: Declaration | None = worker.declaration() if worker is not None else None
    name = caller.wire_name if caller is not None else job["class"]
    # If no root caller is known, the caller of the running job is the root of the chain.
    fields.setdefault(context.ROOT_CALLER_ID, fields.get(context.CALLER_ID, name))
    fields[context.CALLER_ID] = name
    if caller is not None and caller.owning_category is not None:
        fields[context.FEATURE_CATEGORY] = caller.owning_category
    return fields


def class_fields(declaration: Declaration) -> Payload:
    """Return the payload fields that a class decides. Fields with Sidekiq's default are left out, except ``retry``."""
    fields: Payload = {"class": declaration.wire_name, "args": [], "retry": declaration.retry}
    optional = {
        "version": declaration.version or None,
        "queue_namespace": declaration.queue_namespace,
        "retry_queue": declaration.retry_queue,
        "retry_for": declaration.retry_for,
        "backtrace": declaration.backtrace or None,
        "tags": declaration.tags or None,
        "dead": None if declaration.dead else False,
        "status_expiration": declaration.status_expiration,
        "expires_in": declaration.expires_in,
    }
    fields.update({name: wire_value(value) for name, value in optional.items() if value is not None})
    fields.update(payload_fields(declaration.options))
    for add_fields in _of_features():
        add_fields(fields, declaration)
    return fields


@cache
def _of_features() -> tuple[Callable[[Payload, Declaration], None], ...]:
    return tuple(one.payload.load() for one in features() if one.payload is not None)


def option_fields(options: Mapping[str, Any]) -> Payload:
    """Return the payload fields set by the options of ``set``, without the queue and the context.

    Raises ArgumentsError for callbacks: they belong to a single push, which takes them out of its options.
    """
    link = next((name for name in options if name in linking_options), None)
    if link is not None:
        reason = f"{link} belongs to one push by perform_async, perform_in or perform_at. Make a Batch for any other"
        raise ArgumentsError("set()", reason)
    fields = {
        field_of(name): wire_value(value) for name, value in options.items() if name not in _OPTIONS_WITHOUT_FIELD
    }
    fields.update({field: options[name] for name, field in _CHOICE_FIELDS if name in options})
    if options.get("profile"):
        fields[PROFILE] = True
    return fields


def queued_lifetime_s(declaration: Declaration, options: Mapping[str, Any]) -> int:
    """Return for how many seconds the state of a job that waits is kept, 0 if it is not tracked."""
    fields = class_fields(declaration) | option_fields(options)
    tracked = tracked_job({**fields, "jid": "any"}) if STATUS_EXPIRATION in fields else None
    return 0 if tracked is None else tracked.lifetime_s(0)


def option_context(options: Mapping[str, Any]) -> Mapping[str, Json]:
    """Return the context fields of ``set(context=...)``. They override the ambient context; a job's own context overrides them."""
    facts: Mapping[str, Json] | None = options.get("context")
    return context.meta(facts) if facts else NO_CONTEXT


def class_context(declaration: Declaration) -> Mapping[str, Json]:
    """Return the context fields of ``worker_context``. They override the ambient context, and ``set(context=...)`` overrides them.

    Raises ArgumentsError for a key that the setting ``context.keys`` does not allow: the class was defined before it was read.
    """
    facts: Mapping[str, Json] | None = declaration.facts.get("worker_context")
    if not facts:
        return NO_CONTEXT
    try:
        check_keys(facts)
    except UnknownKeyError as error:
        raise ArgumentsError(declaration.wire_name, f"worker_context is refused: {error}") from None
    return context.meta(facts)


def wire_value(value: Any) -> Any:
    """Return an attribute's value in wire format: durations in seconds, rounded up; tuples as lists."""
    if isinstance(value, timedelta):
        return ceil(value.total_seconds())
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
