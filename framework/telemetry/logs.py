"""Write structured logs: one JSON object per line, with GitLab's field names.

A server process owns its stdout: ``open_server_log`` sends the lines of the framework, structlog and the standard library there.
A producer's stdout belongs to the application: without a server log, lines go to the logger ``framework``.
"""

import importlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from functools import cache
from math import floor
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakSet

from pydantic_core import PydanticSerializationError, from_json, to_json

from framework.known_secrets import known_secrets
from framework.process_clock import process_clock
from framework.telemetry import context
from framework.telemetry.traceback_lines import traceback_lines
from framework.telemetry.writer import ConsoleWriter, LogWriter, is_shown, uses_colors
from framework.text import error_class, error_message, underscored, visible
from framework.types import LogFormat

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

LEVELS = {"debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40, "fatal": 50}
_SEVERITIES = {10: "DEBUG", 20: "INFO", 30: "WARN", 40: "ERROR", 50: "FATAL"}
UNWRITABLE = (PydanticSerializationError, ValueError, RecursionError)
"""The errors of a value that JSON cannot hold."""
_MILLISECONDS = tuple(f".{number:03d}Z" for number in range(1_000))
_MAX_SECONDS = 4_096
MAX_NAME = 256
"""The shown characters of a name, which comes from the wire and may have a megabyte."""
_NAMES = ("jid", "class", "queue", "correlation_id")
# Characters of one field, so that log collectors accept the line.
_MAX_VALUE = 4_096


class LineWriter(Protocol):
    """Take finished lines of JSON."""

    def write(self, line: str) -> None:
        """Write one line; never raises."""
        ...


class LineLog(Protocol):
    """Take the lines of jobs: the log of a server process, or the logger of an application."""

    static: dict[str, Any]
    """The fields of every line."""

    @property
    def writer(self) -> LineWriter:
        """The writer of finished lines."""
        ...

    def write(self, line: Mapping[str, Any]) -> None: ...


class ProcessLog:
    """The log of a process. Every line has the ``static`` fields (pid, shard, worker_id)."""

    def __init__(self, level: str, static: Mapping[str, Any]) -> None:
        self.level = LEVELS[level]
        self.static = dict(static)

    def emit(self, level: int, message: str, fields: Mapping[str, Any]) -> None:
        """Write one line, unless its level is below the log's."""
        if level >= self.level:
            head = {"severity": _SEVERITIES.get(level, "INFO"), "time": iso_time(time.time()), "message": message}
            line = {**head, **self.static, **context.line_fields(), **fields}
            for name in _NAMES:
                value = line.get(name)
                if isinstance(value, str) and len(value) > MAX_NAME:
                    line[name] = shorten(value)
            self.write(line)

    def write(self, line: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Write the queued lines."""


class RelayedLog(ProcessLog):
    """The log of a job's process: ``writer`` sends each line to the worker process."""

    def __init__(self, writer: LineWriter, level: str, static: Mapping[str, Any]) -> None:
        super().__init__(level, static)
        self.writer = writer

    def write(self, line: Mapping[str, Any]) -> None:
        self.writer.write(object_text(without_secrets(line)) + "\n")


class ServerLog(ProcessLog):
    """The log of a server process.

    ``text``: the lines are text for a person, otherwise JSON.
    """

    def __init__(self, descriptor: int, level: str, static: Mapping[str, Any], *, text: bool = False) -> None:
        self.on_terminal = text and os.isatty(descriptor)
        """Whether a person reads the lines at a terminal."""
        self.writer = (
            ConsoleWriter(descriptor, self._lost_line, colors=uses_colors(descriptor))
            if text
            else LogWriter(descriptor, self._lost_line)
        )
        super().__init__(level, static)

    def write(self, line: Mapping[str, Any]) -> None:
        self.writer.write(object_text(without_secrets(line)) + "\n")

    def close(self) -> None:
        """Write the queued lines, and end the thread of the writer."""
        self.writer.close()

    def show(self, text: str) -> None:
        """Write text that is no log line, if a person reads the lines at a terminal."""
        if self.on_terminal:
            LogWriter.write(self.writer, text)

    def _lost_line(self, count: int) -> str:
        message = "the log output was blocked for too long, so log lines were dropped. Check the log collector"
        head = {"severity": "WARN", "time": iso_time(time.time()), "message": message}
        return object_text({**head, **self.static, "event_name": "log.dropped", "count": count}) + "\n"


_WITHOUT_SECRETS = frozenset(
    (
        "severity",
        "time",
        "pid",
        "worker_id",
        "shard",
        "identity",
        "event_name",
        "logger",
        "class",
        "jid",
        "queue",
        "job_status",
    )
)
"""Fields that say what a line is, and whose: a password that is an ordinary word must not hide them."""


def without_secrets(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with *** in place of each secret: an application's message, reason or field may quote a URL."""
    return {name: value if name in _WITHOUT_SECRETS else masked(value) for name, value in line.items()}


def masked(value: Any) -> Any:
    """Return a value of a field with *** in place of each secret."""
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return known_secrets.masked(value)
    text = json_text(value)
    shown = known_secrets.masked(text)
    if shown == text:
        return value
    try:
        return from_json(shown)
    except ValueError:
        # The secret was a number.
        return shown


def shorten(name: str, most: int = MAX_NAME) -> str:
    """Return a name for a log line: at most ``most`` characters."""
    return name if len(name) <= most else f"{name[: most - 3]}..."


def object_text(fields: Mapping[str, Any]) -> str:
    """Return a JSON object; a field that JSON cannot hold (not Unicode, or recursive) becomes text."""
    try:
        return to_json(fields, fallback=_text_of, inf_nan_mode="null").decode()
    except UNWRITABLE:
        members = ",".join([f"{json_text(_text_of(name))}:{json_text(value)}" for name, value in fields.items()])
        return f"{{{members}}}"


def json_text(value: object) -> str:
    """Return any value as JSON; a value that JSON cannot hold becomes text."""
    try:
        if type(value) is str:
            return to_json(value).decode()
        return to_json(value, fallback=_text_of, inf_nan_mode="null").decode()
    except UNWRITABLE:
        return to_json(_text_of(value)).decode()


_seconds: dict[int, str] = {}
"""A cache of whole seconds as text: the current ones, and those at which recent jobs were pushed."""
_times: dict[int, str] = {}
"""The same of milliseconds: a busy process writes many lines in each, and jobs of one push have the same."""


def iso_time(seconds: float) -> str:
    """Return epoch seconds as ISO 8601, UTC, with milliseconds (GitLab's form); an invalid time unchanged."""
    try:
        # The float of a whole millisecond may be slightly below it, by less than the added half microsecond.
        since = floor(seconds * 1000 + 0.0005)
        return _times.get(since) or _iso_milliseconds(since)
    except (OverflowError, ValueError, OSError):
        return str(seconds)


def _iso_milliseconds(since: int) -> str:
    whole, milliseconds = divmod(since, 1000)
    text = (_seconds.get(whole) or _iso_second(whole)) + _MILLISECONDS[milliseconds]
    if len(_times) >= _MAX_SECONDS:
        _times.clear()
    _times[since] = text
    return text


def _iso_second(whole: int) -> str:
    if len(_seconds) >= _MAX_SECONDS:
        _seconds.clear()
    text = _seconds[whole] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return text


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return GitLab's ``exception.*`` fields; a text that raises is replaced."""
    fields: dict[str, Any] = {
        "exception.class": error_class(error),
        "exception.message": error_message(error, _MAX_VALUE),
        "exception.backtrace": traceback_lines(error),
    }
    if error.__cause__ is not None:
        fields["exception.cause_class"] = type(error.__cause__).__qualname__
    return fields


class _Target:
    """The last processor of structlog's chain, which writes to the server log or to the standard library."""

    server: ProcessLog | None = None
    level_before: int = logging.WARNING

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        message = str(event.pop("event", ""))
        error = event.pop("error", None)
        if isinstance(error, BaseException):
            event.update(error_fields(error))
        elif error is not None:
            event["error"] = error
        level = LEVELS.get(method, 20)
        if self.server is not None:
            self.server.emit(level, message, event)
        else:
            extra = " ".join(f"{name}={value!r}" for name, value in event.items())
            logging.getLogger("framework").log(level, "%s %s", visible(message), extra)
        raise _structlog().DropEvent


_target = _Target()

_OF_JOB_LINES = frozenset(
    (
        *("severity", "time", "message", "pid", "worker_id", "shard", "class", "jid", "job_status", "correlation_id"),
        *("trace_id", "span_id", "logger"),
    )
)
_PREFIXES_OF_JOB_LINES = ("meta.", "extra.", "exception.", "aw_")


class _JobTarget:
    """The last processor of a job's logger: the job cannot replace the fields that say what a line is, and whose."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._fixed = {"class": job.get("class"), "jid": job.get("jid"), "job_status": "running"}

    def __call__(self, wrapped: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        fields: dict[str, Any] = {}
        for name, value in event.items():
            is_reserved = name in _OF_JOB_LINES or name.startswith(_PREFIXES_OF_JOB_LINES)
            fields[self._extra(name) if is_reserved else name] = value
        return _target(wrapped, method, {**self._fixed, **fields})

    def _extra(self, name: str) -> str:
        return f"extra.{underscored(str(self._fixed['class']))}.{name}"


@cache
def _structlog() -> Any:
    """Return structlog, which the first logger imports: most commands and producers write no line.

    Its import also loads rich where that is installed, and takes a fifth of the time of ``import framework``.
    """
    return importlib.import_module("structlog")


def logger(**fields: Any) -> "FilteringBoundLogger":
    """Return a structlog logger whose lines carry ``fields``; ``error=exception`` becomes the ``exception.*`` fields."""
    return _bound_logger(_target, fields)


def job_logger(job: Mapping[str, Any]) -> "FilteringBoundLogger":
    """Return the logger of a running job. A field of a call with the name of a fixed one is written as ``extra.CLASS.NAME``."""
    return _bound_logger(_JobTarget(job), {})


def _bound_logger(target: Any, fields: Mapping[str, Any]) -> "FilteringBoundLogger":
    chain = _structlog().make_filtering_bound_logger(logging.DEBUG)
    bound: Any = _structlog().wrap_logger(None, processors=[target], wrapper_class=chain, context_class=dict)
    return cast("FilteringBoundLogger", bound.bind(**fields))


def open_server_log(
    level: str, static: Mapping[str, Any], descriptor: int | None = None, form: LogFormat = "json"
) -> ServerLog:
    """Make stdout a log with lines of JSON only, or of text; return the log. ``close_server_log`` undoes it.

    ``auto`` is text on a terminal.
    """
    descriptor = os.dup(1) if descriptor is None else descriptor
    text = form == "console" or (form == "auto" and os.isatty(descriptor))
    log = ServerLog(descriptor, level, static, text=text)
    _take_lines(log)
    return log


def open_relayed_log(level: str, static: Mapping[str, Any], writer: LineWriter) -> None:
    """Send each line of this process to ``writer``: it belongs to the log of another process."""
    _take_lines(RelayedLog(writer, level, static))


def _take_lines(log: ProcessLog) -> None:
    """Send the lines of the framework, structlog and the standard library to the log."""
    _target.server = log
    root = logging.getLogger()
    root.handlers = [_StandardHandler(log)]
    _target.level_before = root.level
    root.setLevel(log.level)
    logging.captureWarnings(True)


def flush_output() -> None:
    """Write out what Python has buffered of stdout and stderr. A job may have closed them, or replaced them by any object."""
    for name in ("stdout", "stderr"):
        with suppress(BaseException):
            getattr(sys, name).flush()


def redirect_stdout() -> int:
    """Return a descriptor of the former stdout, and redirect further output to stdout (of jobs and their children) to stderr."""
    flush_output()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor


def close_server_log() -> None:
    """Write the queued lines; later lines go to the standard library again."""
    log, _target.server = _target.server, None
    if log is not None:
        root = logging.getLogger()
        root.handlers = []
        root.setLevel(_target.level_before)
        log.close()


class _StandardHandler(logging.Handler):
    """Write the lines of the standard library (redis, SQLAlchemy, the application) in the same form."""

    def __init__(self, log: ProcessLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields: dict[str, Any] = {"logger": record.name, **context.job_fields()}
            if record.exc_info and record.exc_info[1] is not None:
                fields.update(error_fields(record.exc_info[1]))
            self._log.emit(record.levelno // 10 * 10, record.getMessage()[:_MAX_VALUE], fields)
        except Exception:  # noqa: BLE001 - a log line must not fail the code that writes it
            self.handleError(record)


def _text_of(value: object) -> str:
    try:
        if isinstance(value, BaseException):
            return error_message(value, _MAX_VALUE)
        # With the methods of plain ``str``: ``__str__`` may return a subclass that overrides them.
        return str.encode(str.__getitem__(str(value), slice(_MAX_VALUE)), "utf-8", "replace").decode()
    except BaseException:  # noqa: BLE001 - ``__str__`` of a job's object may even raise SystemExit
        return f"<{type(value).__name__}>"


# Topics may hold names from the wire, so their number has a bound.
_MAX_TOPICS = 1_000
# Names in one line of a summary.
_MAX_NAMES = 50
OTHERS = "others"


class LogRateLimit:
    """Log at most one line per topic in ``period_s`` seconds. Safe to call from any thread, and after a fork.

    Beyond 1,000 topics it forgets all of them and counts again from zero.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}
        _all.add(self)

    def warning(self, topic: str, text: str, event_name: str, **fields: Any) -> None:
        """Log a warning with a ``count``, unless ``topic`` had a line within the period."""
        if count := self.hit(topic):
            logger().warning(text, event_name=event_name, count=count, **fields)

    def error(self, topic: str, text: str, event_name: str, **fields: Any) -> None:
        """Log an error with a ``count``, unless ``topic`` had a line within the period."""
        if count := self.hit(topic):
            logger().error(text, event_name=event_name, count=count, **fields)

    def hit(self, topic: str) -> int:
        """Count one event; return the events since the last line about ``topic``, or 0 if no line is due."""
        now = process_clock.monotonic()
        with self._lock:
            last, count = self._seen.get(topic, (now - self._period_s, 0))
            due = now - last >= self._period_s
            if topic not in self._seen and len(self._seen) >= _MAX_TOPICS:
                self._seen.clear()
            self._seen[topic] = (now, 0) if due else (last, count + 1)
            return count + 1 if due else 0

    def reset_lock(self) -> None:
        """Replace the lock after a fork: a thread that exists only in the parent may hold the old one."""
        self._lock = threading.Lock()


class LogSummary:
    """Count events by name, for one line about all of them in ``period_s`` seconds.

    Safe to call from any thread, and after a fork.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._logged_at = -math.inf
        _all.add(self)

    def add(self, name: str) -> None:
        """Count one event. Names beyond the first 50 are counted together as ``others``."""
        with self._lock:
            if name not in self._counts and len(self._counts) >= _MAX_NAMES:
                name = OTHERS
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self, now: float, *, process_ends: bool = False) -> dict[str, int]:
        """Return the counts since the last line; empty if no line is due. ``process_ends`` makes a line due at once."""
        with self._lock:
            if not self._counts or (now - self._logged_at < self._period_s and not process_ends):
                return {}
            counts, self._counts, self._logged_at = self._counts, {}, now
            return counts

    def reset_lock(self) -> None:
        self._lock = threading.Lock()


_all: WeakSet[LogRateLimit | LogSummary] = WeakSet()


def _reset_locks() -> None:
    for limit in list(_all):
        limit.reset_lock()


os.register_at_fork(after_in_child=_reset_locks)


_INFO = '{"severity":"INFO"'


class LibraryLog:
    """A log whose lines are records of the logger ``framework``: text, with the fields in the attribute ``fields``."""

    def __init__(self, static: Mapping[str, Any]) -> None:
        self.static = dict(static)
        self._logger = logging.getLogger("framework")

    @property
    def writer(self) -> "LibraryLog":
        """The log itself: its lines need no thread."""
        return self

    def write(self, line: Mapping[str, Any] | str) -> None:
        """Write one line, given as fields or as JSON."""
        if isinstance(line, str):
            # The lines of a job that succeeds; by default the standard library writes no INFO.
            if line.startswith(_INFO) and not self._logger.isEnabledFor(logging.INFO):
                return
            fields: dict[str, Any] = from_json(line)
        else:
            fields = dict(from_json(object_text(line)))
        shown = " ".join(f"{visible(name)}={value!r}" for name, value in fields.items() if is_shown(name, fields))
        level = LEVELS.get(str(fields.get("severity", "info")).lower(), logging.INFO)
        self._logger.log(level, "%s %s", visible(str(fields.get("message", ""))), shown, extra={"fields": fields})
