"""Write the two log lines of every run, start and end, with GitLab's fields.

They take time in every job, so a line is built from pieces of JSON: the part of a class is encoded once per class, the part of
a payload once per run, for both lines. Arguments are filtered, because they may hold personal data: numbers are shown, other
values only if the class lists them. Each argument is a text, as GitLab writes it: a log index has one type for the field.
"""

import threading
import time
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from pydantic_core import from_json, to_json

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.fetch.unit_of_work import FIRST_ASYNC_RUN_ID, UnitOfWork
from framework.known_secrets import known_secrets
from framework.telemetry.context import CORRELATION_ID, META_PREFIX, feature_category_of
from framework.telemetry.logs import (
    MAX_NAME,
    UNWRITABLE,
    LineLog,
    LogRateLimit,
    error_fields,
    iso_time,
    json_text,
    masked,
    object_text,
    shorten,
)
from framework.typeguards import is_list, is_mapping
from framework.types import Payload, Urgency
from framework.wire.context_fields import TRACEPARENT, trace_ids
from framework.wire.job import (
    BUFFERED_AT,
    DEATH_COUNT,
    DEFERRED_BY,
    DEFERRED_COUNT,
    INTERRUPTED_COUNT,
    LOAD_BALANCING_STRATEGY,
    SCHEDULED_AT,
    base36,
    decode,
    timestamp,
    version_of,
    whole_number,
)
from framework.wire.protected import hidden_arguments, is_protected
from framework.wire.resources import (
    DUPLICATE_OF,
    DUPLICATE_WAL_POSITIONS,
    IDEMPOTENCY_KEY,
    RESCHEDULED_ONCE,
    WAL_POSITIONS,
)

FILTERED = "[FILTERED]"
_FILTERED_TEXT = f'"{FILTERED}"'
# Characters of all arguments together (GitLab: 10 KiB).
_MAX_ARGUMENTS = 10_240
# Characters of one field that came with the payload.
_MAX_EXTRA = 4_096
_MAX_TAGS, _MAX_TAG = 64, 64
# A log index has no larger integers.
_MAX_NUMBER = (1 << 63) - 1
# Combinations of field names that are cached: they come from the wire, so their number has no bound.
_MAX_SHAPES = 512
# The same of the types of the values of one combination of names. Nearly all payloads of a producer have one.
_MAX_TEMPLATES = 16
_LOG_INTERVAL_S = 30.0
_REPEATED = frozenset({"concurrency_limit", "paused", "deferred"})
"""The statuses of jobs that come again: each of them gets further lines."""
_MOST_REPEATED, _REPEATED_S, _MOST_KINDS = 100, 60.0, 1_000
_NOT_LOGGABLE = frozenset[int]()
_NUMBERS = {int}
_RARE_TIMES = (SCHEDULED_AT, "failed_at", "retried_at")
_FIXED = ("time", "message", "class", "jid", "job_status")
"""The fields that no policy, job or payload replaces."""
TARGETS: Mapping[Urgency, tuple[int | None, int]] = {"high": (10, 10), "low": (60, 300), "throttled": (None, 300)}
"""Urgency -> target seconds of waiting and running (GitLab's SLO table)."""

StartLine: TypeAlias = tuple[str, str]
"""Pieces of JSON for both lines: the inside of the string ``<class> JID-<jid>``, and the fields."""


class _ClassFields(NamedTuple):
    """The part of a line that all jobs of one class and queue share, as pieces of JSON."""

    declaration: Declaration | None
    label: str
    fields: str
    loggable: frozenset[int]
    fields_without_category: str
    """``fields`` without the category, for a class without an owner: its jobs have the category of their caller. Else empty."""
    by_version: bool
    """Whether the loggable positions depend on the version of the job; only for classes that list some."""
    is_async: bool


class _OptionalField(NamedTuple):
    """A field that only some payloads have: its name, the same as JSON with comma and colon, and how to show its value."""

    name: str
    key: str
    show: Callable[[object], str | None]


class _TextFields:
    """The fields of payloads with the same names whose values are texts and whole numbers in nearly all of them.

    One template for all fields takes a third of the time of the fields one by one (1.5 us instead of 5 us for nine).
    """

    __slots__ = ("_fields", "_templates", "_values_of")

    def __init__(self, fields: list[tuple[str, str]], texts: int) -> None:
        """``fields`` are at least two names, each with its name as JSON after a comma and before a colon.

        The first ``texts`` of them are texts in the line, also if a payload has a number.
        """
        self._fields = [(key.replace("%", "%%"), position < texts) for position, (_, key) in enumerate(fields)]
        self._values_of: Callable[[Payload], tuple[Any, ...]] = itemgetter(*(name for name, _ in fields))
        self._templates: dict[tuple[type[Any], ...], str] = {}

    def shown(self, payload: Payload) -> str | None:
        """Return the fields of a payload without escapes; ``None`` if one of them is to be looked at alone.

        That is so for other types, for a text that may be too long, and if there may be a secret.
        """
        values = self._values_of(payload)
        types = tuple(map(type, values))
        template = self._templates.get(types) or self._template_of(types)
        if template is None:
            return None
        text = template % values
        return text if len(text) <= _MAX_EXTRA and known_secrets.masked(text) is text else None

    def _template_of(self, types: tuple[type[Any], ...]) -> str | None:
        if len(self._templates) >= _MAX_TEMPLATES or not {str, int}.issuperset(types):
            return None
        fields = zip(self._fields, types, strict=True)
        template = "".join([f'{key}"%s"' if is_text or kind is str else f"{key}%s" for (key, is_text), kind in fields])
        self._templates[types] = template
        return template


class _PayloadFields(NamedTuple):
    """The fields of payloads with the same names."""

    optional: list[_OptionalField]
    context: tuple[str, ...]
    """The names that begin with ``meta.``."""
    constant: str
    """As JSON after a comma: the version of a payload that says none."""
    has_waited: bool
    """Whether a limit or the schedule set has held the job."""
    is_compressed: bool
    """Whether the payload may say that its arguments are compressed."""
    texts: _TextFields | None
    """``context``, and ``optional`` before it if its fields are texts; ``None`` for fewer than two fields."""
    optional_in_texts: bool


class _Thread(threading.local):
    def __init__(self) -> None:
        self.tid = f'"{base36(threading.get_ident())}"'


class _RepeatedLines:
    """Bound the lines of one kind: ``_MOST_REPEATED`` in ``_REPEATED_S``. Threads share it without a lock: counts may be too low."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], tuple[float, int]] = {}

    def take(self, *kind: str) -> int | None:
        """Return how many lines were left out since the last one, ``None`` for a line that is left out."""
        now = time.monotonic()
        since, count = self._counts.get(kind, (now, 0))
        unlogged = 0
        if now - since >= _REPEATED_S:
            since, unlogged, count = now, max(0, count - _MOST_REPEATED), 0
        elif count == 0 and len(self._counts) >= _MOST_KINDS:
            self._counts.clear()
        self._counts[kind] = since, count + 1
        return unlogged if count < _MOST_REPEATED else None


class JobLog:
    """Write the start and end lines of one process's runs; with ``jobs`` false, only the end lines of failures."""

    def __init__(self, log: LineLog, *, jobs: bool) -> None:
        self.log = log
        self._write = log.writer.write
        self.has_job_lines = jobs
        """Whether each job gets a start line and an end line."""
        self._class_fields: dict[tuple[str, str], _ClassFields] = {}
        self._payload_fields: dict[tuple[str, ...], _PayloadFields] = {}
        self._thread = _Thread()
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)
        self._repeated = _RepeatedLines()

    def start(self, payload: Payload, unit: UnitOfWork, declaration: Declaration | None) -> StartLine | None:
        """Write the start line; return its pieces for the end line, ``None`` if job lines are off."""
        if not self.has_job_lines:
            return None
        now = time.time()
        started = self._start_line(payload, unit, declaration, now)
        label, fields = started
        self._write(
            f'{{"severity":"INFO","time":"{iso_time(now)}","message":"{label}: start",{fields},"job_status":"start"}}\n'
        )
        return started

    def end(
        self,
        started: StartLine | None,
        unit: UnitOfWork,
        declaration: Declaration | None,
        status: str,
        duration_s: float,
        cpu_s: float,
        more: Mapping[str, Any] | None,
        error: BaseException | None,
    ) -> None:
        """Write the end line. A failure is written even if job lines are off, if its payload can be read.

        ``status`` is a plain word; ``more`` are further fields, of any type and name.
        """
        if started is None:
            if error is None:
                return
            started = self._start_line_of_failure(unit, declaration, time.time() - duration_s)
            if started is None:
                return
        label, fields = started
        now, took = iso_time(time.time()), f"{duration_s:.6f}"
        text = (
            f'{{"severity":"INFO","time":"{now}","message":"{label}: {status}: {took} sec",{fields},'
            f'"job_status":"{status}","duration_s":{took},"cpu_s":{cpu_s:.6f},"completed_at":"{now}"}}\n'
        )
        if not more and error is None:
            self._write(text)
            return
        # Rare, so the text is parsed again: a later field may have the name of an earlier one.
        line = from_json(text)
        level = {} if error is None else {"severity": "WARN", **error_fields(error)}
        self.log.write({**line, **(more or {}), **{name: line[name] for name in _FIXED}, **level})

    def log_not_started(
        self, payload: Payload, unit: UnitOfWork, declaration: Declaration | None, status: str, more: Mapping[str, Any]
    ) -> None:
        """Write the only line of a job that a policy held, deferred or dropped before its run.

        Of a flood of held jobs most lines say the same: at most a hundred of a class and status are written in a minute.
        """
        if not self.has_job_lines:
            return
        if status in _REPEATED:
            unlogged = self._repeated.take(status, str(payload["class"]))
            if unlogged is None:
                return
            if unlogged:
                more = {**more, "unlogged_jobs": unlogged}
        now = time.time()
        label, fields = self._start_line(payload, unit, declaration, now)
        line = from_json(
            f'{{"severity":"INFO","time":"{iso_time(now)}","message":"{label}: {status}",{fields},"job_status":"{status}"}}'
        )
        self.log.write({**line, **more, **{name: line[name] for name in _FIXED}})

    def policy_unavailable(self, unit: UnitOfWork, error: BaseException) -> None:
        """Warn, at a limited rate, that jobs do not start because Redis does not answer a policy."""
        text = "jobs of this queue wait, because Redis does not answer a policy (limit, pause, lock); they start when it answers"
        self._log_rate.warning(unit.queue, text, "policy.redis_unavailable", queue=unit.queue, error=error)

    def right_refused(self, declaration: Declaration, error: BaseException) -> None:
        """Report, at a limited rate, that jobs of a class are deferred because an ACL refuses a policy's command."""
        name = declaration.wire_name
        self._log_rate.error(
            f"rights of {name}",
            f"jobs of {name} are deferred, because the Redis user lacks a right that a limit, pause or lock needs. Grant the "
            f"rights that `{command('acl worker')}` prints",
            "policy.right_refused",
            error=error,
            **{"class": name},
        )

    def _start_line_of_failure(self, unit: UnitOfWork, declaration: Declaration | None, now: float) -> StartLine | None:
        try:
            payload = decode(unit.data, None)
        except PayloadError:
            return None
        return self._start_line(payload, unit, declaration, now)

    def _start_line(self, payload: Payload, unit: UnitOfWork, declaration: Declaration | None, now: float) -> StartLine:
        name, queue, jid, args = payload["class"], unit.queue, payload.get("jid"), payload["args"]
        known = self._class_fields.get((name, queue))
        if known is None or known[0] is not declaration:
            known = self._describe_class(name, queue, declaration)
        _, label, fields, loggable, bare, by_version, is_async = known
        shape = tuple(payload)
        found = self._payload_fields.get(shape) or self._describe_payload(shape)
        if by_version:
            loggable = _loggable(payload, declaration)
        if type(jid) is str and jid.isalnum() and len(jid) < MAX_NAME:
            # Letters and digits of any script are the same in JSON.
            shown_jid, jid_in_label = f'"{jid}"', jid
        else:
            shown_jid = "null" if jid is None else _shown_name(jid)
            jid_in_label = "None" if jid is None else shown_jid[1:-1]
        shown_args, size = "[]", 2
        if args or found.is_compressed:
            numbers = None if found.is_compressed else _shown_numbers(args)
            if numbers is None:
                shown_args, size = _shown_arguments(payload, declaration, loggable), _json_size(args)
            else:
                # Both quotes of each number are the log's.
                shown_args, size = numbers, len(numbers) - 2 * len(args)
        retry, times = payload.get("retry"), _shown_times(payload, now)
        more = _shown_ids_and_context(payload, unit.data, found, shown_jid)
        category = feature_category_of(payload) if bare and found.context else None
        if category is not None:
            fields = f'{bare},"feature_category":{json_text(category)}'
        if found.has_waited:
            times = _shown_waits(payload, now, times)
        # The same id as in the process record, so that a job of Sidekiq's Busy page is found in the log.
        tid = f'"{base36(FIRST_ASYNC_RUN_ID + unit.run_index)}"' if is_async else self._thread.tid
        return f"{label}{jid_in_label}", (
            f'{fields},"jid":{shown_jid},"args":{shown_args},"retry":{"25" if retry is True else retry_number(retry)},'
            f'"job_size_bytes":{size},"tid":{tid}{more}{times}'
        )

    def _describe_class(self, name: str, queue: str, declaration: Declaration | None) -> _ClassFields:
        fields: dict[str, Any] = {**self.log.static, "class": shorten(name), "queue": shorten(queue)}
        loggable = _NOT_LOGGABLE
        if declaration is not None:
            wait, run = TARGETS[declaration.urgency]
            optional = {
                "feature_category": declaration.feature_category,
                "urgency": declaration.urgency,
                "queue_namespace": declaration.queue_namespace,
                "target_scheduling_latency_s": wait,
                "target_duration_s": run,
            }
            fields.update({field: value for field, value in optional.items() if value is not None})
            if name != declaration.wire_name:
                fields["worker_name"] = declaration.wire_name
            loggable = declaration.loggable_positions
        bare, by_version = "", False
        if declaration is not None:
            by_version = any([loggable, *(one.loggable_positions for one in declaration.version_handlers.values())])
            if declaration.owning_category is None:
                bare = object_text({name: value for name, value in fields.items() if name != "feature_category"})[1:-1]
        label = f"{json_text(shorten(name))[1:-1]} JID-"
        is_async = declaration is not None and declaration.is_async
        known = _ClassFields(declaration, label, object_text(fields)[1:-1], loggable, bare, by_version, is_async)
        # Unknown names come from the wire, so their number has no bound.
        if declaration is not None:
            self._class_fields[name, queue] = known
        return known

    def _describe_payload(self, shape: tuple[str, ...]) -> _PayloadFields:
        extras: list[_OptionalField] = []
        for name in shape:
            key = f",{json_text(name)}:"
            if name == "version":
                extras.append(_OptionalField(name, key, _shown_version))
            elif name in _COPIED:
                extras.append(_OptionalField(name, key, _COPIED[name]))
            elif name == DEFERRED_BY:
                extras.append(_OptionalField(name, ',"job_deferred_by":', _shown_text))
            elif name in _RARE_TIMES:
                extras.append(_OptionalField(name, key, _shown_time))
            elif name == TRACEPARENT:
                extras.append(_OptionalField(name, ',"trace_id":', _shown_trace))
        if len(self._payload_fields) >= _MAX_SHAPES:
            self._payload_fields.clear()
        constant = "" if "version" in shape else ',"version":0'
        context = tuple(name for name in shape if name.startswith(META_PREFIX))
        has_waited = BUFFERED_AT in shape or SCHEDULED_AT in shape
        optional_in_texts = all(one.show is _shown_text for one in extras)
        together = [(one.name, one.key) for one in extras] if optional_in_texts else []
        together += [(name, f",{json_text(name)}:") for name in context]
        texts = _TextFields(together, len(together) - len(context)) if len(together) > 1 else None
        found = _PayloadFields(extras, context, constant, has_waited, "compressed" in shape, texts, optional_in_texts)
        self._payload_fields[shape] = found
        return found


def _shown_ids_and_context(payload: Payload, data: bytes, found: _PayloadFields, shown_jid: str) -> str:
    """Return the fields from the version to the context, each after a comma."""
    optional, context, more, _, _, texts, optional_in_texts = found
    # Of JSON without a backslash no text needs an escape. One search takes 0.2 us.
    has_no_escapes = b"\\" not in data
    correlation = payload.get(CORRELATION_ID)
    if type(correlation) is str and correlation == payload.get("jid"):
        # The correlation id is the jid of the first job of a chain, and most chains have one job.
        more = f'{more},"correlation_id":{shown_jid}'
    elif type(correlation) is str and has_no_escapes and len(correlation) <= MAX_NAME:
        more = f'{more},"correlation_id":"{correlation}"'
    elif correlation is not None:
        more = f'{more},"correlation_id":{_shown_name(correlation)}'
    shown = texts.shown(payload) if texts is not None and has_no_escapes else None
    if shown is None:
        return more + _shown_optional_fields(payload, optional) + (_shown_context(payload, context) if context else "")
    if not optional_in_texts:
        more += _shown_optional_fields(payload, optional)
    return more + shown


def _shown_optional_fields(payload: Payload, extras: list[_OptionalField]) -> str:
    shown = [(key, show(payload[name])) for name, key, show in extras]
    return "".join([f"{key}{text}" for key, text in shown if text is not None])


def _shown_context(payload: Payload, names: tuple[str, ...]) -> str:
    """Return the fields of a payload with these names, without secrets, after a comma."""
    values = {name: masked(payload[name]) for name in names}
    try:
        text = to_json(values, inf_nan_mode="null")
    except UNWRITABLE:
        text = b""
    if 0 < len(text) <= _MAX_EXTRA:
        return f",{text[1:-1].decode()}"
    return "".join([f",{json_text(name)}:{_shown_any(value)}" for name, value in values.items()])


# Other programs may write any value: a field has one type, as a log index needs, or is left out.


def _shown_any(value: object) -> str:
    """Return the value as JSON without secrets, or if it is too long for a line, its beginning as a text."""
    text = json_text(masked(value))
    return text if len(text) <= _MAX_EXTRA else json_text(shorten(text, _MAX_EXTRA))


def _shown_text(value: object) -> str | None:
    """Return a text as JSON, cut to ``_MAX_EXTRA`` characters; of any other value, the JSON as a text."""
    if value is None:
        return None
    return json_text(shorten(value if isinstance(value, str) else json_text(value), _MAX_EXTRA))


def _shown_number(value: object) -> str | None:
    number = whole_number(value)
    return None if number is None or abs(number) > _MAX_NUMBER else str(number)


def _shown_flag(value: object) -> str | None:
    return "true" if value is True else None


def _shown_texts(value: object) -> str | None:
    if not is_list(value):
        return None
    texts = [shorten(one if isinstance(one, str) else json_text(one), _MAX_TAG) for one in value[:_MAX_TAGS]]
    return f"[{','.join(map(json_text, texts))}]"


def _shown_object(value: object) -> str | None:
    if not is_mapping(value):
        return None
    text = json_text(value)
    return text if len(text) <= _MAX_EXTRA else None


_COPIED: Mapping[str, Callable[[object], str | None]] = {
    # ActiveJob and others wrap a class: its name.
    **dict.fromkeys(("bid", "priority", "wrapped", "display_class", "size_limiter"), _shown_text),
    **dict.fromkeys((LOAD_BALANCING_STRATEGY, DUPLICATE_OF, IDEMPOTENCY_KEY, "worker_data_consistency"), _shown_text),
    **dict.fromkeys((INTERRUPTED_COUNT, DEATH_COUNT, "retry_count", DEFERRED_COUNT), _shown_number),
    "original_job_size_bytes": _shown_number,
    **dict.fromkeys(("compressed", RESCHEDULED_ONCE), _shown_flag),
    "tags": _shown_texts,
    **dict.fromkeys((WAL_POSITIONS, "wal_location_sources", DUPLICATE_WAL_POSITIONS), _shown_object),
    "worker_data_consistency_per_db": _shown_object,
}
"""The payload fields that both lines repeat under their own name, and how."""


def _shown_name(value: object) -> str:
    """Return an id as a text, cut to ``MAX_NAME`` characters. Other programs may write any value."""
    return json_text(shorten(value if isinstance(value, str) else json_text(value)))


def _shown_version(value: object) -> str | None:
    """Return the version as the run reads it: always a number, so that a log index has one type for the field."""
    return json_text(version_of({"version": value}))


def _shown_time(value: object) -> str | None:
    seconds = timestamp(value)
    return None if seconds is None else f'"{iso_time(seconds)}"'


def _shown_trace(traceparent: object) -> str | None:
    """Return the id of the trace, followed by the field ``span_id``."""
    ids = trace_ids(traceparent)
    return None if ids is None else f'"{ids[0]}","span_id":"{ids[1]}"'


def _shown_times(payload: Payload, now: float) -> str:
    """Return the times of creation and enqueueing, and the waiting time, each after a comma."""
    created, enqueued = payload.get("created_at"), payload.get("enqueued_at")
    if type(created) is float and type(enqueued) is float and 0.0 <= created <= enqueued <= now:
        waited, shown = f"{now - enqueued:.6f}", iso_time(created)
        # Most jobs are enqueued by their push.
        return (
            f',"created_at":"{shown}","enqueued_at":"{shown if enqueued == created else iso_time(enqueued)}"'
            f',"queue_duration_s":{waited},"scheduling_latency_s":{waited}'
        )
    return _shown_incomplete_times(timestamp(created), timestamp(enqueued), now)


def _shown_incomplete_times(created: float | None, enqueued: float | None, now: float) -> str:
    since = created if enqueued is None else enqueued
    times = {"created_at": created, "enqueued_at": enqueued}
    text = "".join([f',"{name}":"{iso_time(time)}"' for name, time in times.items() if time is not None])
    if since is None:
        return text
    # At least 0: the clocks of two hosts differ.
    waited = f"{max(0.0, now - since):.6f}"
    return f'{text},"queue_duration_s":{waited},"scheduling_latency_s":{waited}'


def _shown_waits(payload: Payload, now: float, times: str) -> str:
    """Return ``times`` with the waits of a job that a limit or the schedule set has held, by GitLab's names.

    Each is at least 0: the clocks of two hosts differ.
    """
    enqueued, scheduled = timestamp(payload.get("enqueued_at")), timestamp(payload.get(SCHEDULED_AT))
    buffered = timestamp(payload.get(BUFFERED_AT))
    if scheduled is not None and enqueued is not None:
        times += f',"enqueue_latency_s":{max(0.0, enqueued - scheduled):.6f}'
    if buffered is None:
        return times
    text = f',"concurrency_limit_buffering_duration_s":{max(0.0, now - buffered):.6f}'
    if enqueued is not None:
        # The job kept the time of its enqueue while it was held, so its whole wait is that of ``times``.
        whole = f"{max(0.0, now - enqueued):.6f}"
        alone = f"{max(0.0, min(now, buffered) - enqueued):.6f}"
        times = times.replace(f'"queue_duration_s":{whole}', f'"queue_duration_s":{alone}')
    return times + text


def _json_size(args: object) -> int:
    """Return the bytes of the arguments in Redis (GitLab's ``job_size_bytes``)."""
    if not args:
        return 2
    try:
        return len(to_json(args, inf_nan_mode="null"))
    except UNWRITABLE:
        return len(json_text(args).encode())


def _shown_numbers(args: list[Any]) -> str | None:
    """Return the arguments as the line shows them if all are whole numbers that need no cut; else ``None``."""
    try:
        # Most jobs have one id: so they pay 0.3 us instead of 0.8.
        if len(args) == 1:
            return f'["{args[0]}"]' if type(args[0]) is int else None
        if set(map(type, args)) != _NUMBERS:
            return None
        text = '["' + '","'.join(map(str, args)) + '"]'
    # An integer of more digits than Python prints.
    except ValueError:
        return None
    return text if len(text) <= _MAX_ARGUMENTS else None


def _shown_arguments(payload: Payload, declaration: Declaration | None, loggable: frozenset[int]) -> str:
    shown = None if payload.get("compressed") else _uncut_arguments(payload["args"], loggable)
    return json_text(filtered_arguments(payload, declaration)) if shown is None else shown


def _uncut_arguments(args: list[Any], loggable: frozenset[int]) -> str | None:
    """Return ``filtered_arguments`` as JSON; ``None`` if an argument may have to be cut."""
    if not args:
        return "[]"
    if len(args) > _MAX_ARGUMENTS:
        return None
    shown: list[str] = []
    try:
        for value in args:
            # Not `isinstance`: a bool is an int, but no number, and is filtered.
            if type(value) is int or type(value) is float:
                shown.append(f'"{value}"')
            elif loggable and len(shown) in loggable:
                shown.append(json_text(_argument_text(value)))
            else:
                shown.append(_FILTERED_TEXT)
    # An integer of more digits than Python prints.
    except ValueError:
        return None
    text = f"[{','.join(shown)}]"
    return text if len(text) <= _MAX_ARGUMENTS else None


def filtered_arguments(payload: Payload, declaration: Declaration | None) -> list[str]:
    """Return the arguments as texts of JSON: numbers, and others only if ``loggable_arguments`` lists them (GitLab's rule)."""
    if payload.get("compressed"):
        return [hidden_arguments(payload) if is_protected(payload) else "[COMPRESSED]"]
    allowed = _loggable(payload, declaration)
    shown: list[str] = []
    room = _MAX_ARGUMENTS
    for position, value in enumerate(payload.get("args", ())):
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        text = _argument_text(value) if numeric or position in allowed else FILTERED
        room -= len(text)
        if room < 0:
            return [*shown, "..."]
        shown.append(text)
    return shown


def _loggable(payload: Payload, declaration: Declaration | None) -> frozenset[int]:
    return _NOT_LOGGABLE if declaration is None else declaration.loggable_positions_for(version_of(payload))


def _argument_text(value: object) -> str:
    """Return an argument as JSON without secrets, a text without its quotes."""
    if type(value) is int or type(value) is float:
        return _text(value)
    return known_secrets.masked(value if type(value) is str else json_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    # An integer of more digits than Python prints.
    except ValueError:
        return "<a very long number>"


def retry_number(retry: object) -> int:
    """Return ``retry`` as a number, so that a log index has one type for the field: true 25, false or none 0, other -1."""
    if retry is True:
        return 25
    if retry is False or retry is None:
        return 0
    number = whole_number(retry)
    return -1 if number is None else number
