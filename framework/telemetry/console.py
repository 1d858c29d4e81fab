"""Write log lines as text for a person at a terminal, instead of JSON.

The lines are the same: each is parsed and shown as one line of text, without the fields that are of use only to a log collector.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pydantic_core import from_json

from framework.telemetry.visible import visible
from framework.telemetry.writer import LogWriter
from framework.typeguards import is_list

_LEVELS = {"WARN": "warning", "FATAL": "critical"}
_HEAD = ("severity", "time", "message")
_SAME_EVERYWHERE = frozenset(("pid", "worker_id", "shard", "tid", "correlation_id"))
_OF_JOBS = frozenset(
    (
        *(
            "job_status",
            "class",
            "jid",
            "retry",
            "version",
            "worker_name",
            "queue_namespace",
            "feature_category",
            "urgency",
        ),
        *("created_at", "enqueued_at", "scheduled_at", "completed_at", "queue_duration_s", "scheduling_latency_s"),
        *("duration_s", "cpu_s", "target_duration_s", "target_scheduling_latency_s", "job_size_bytes"),
        *("error_class", "load_balancing_strategy", "meta.caller_id", "meta.root_caller_id", "meta.feature_category"),
    )
)
"""The fields of a job's lines that their message says already, or that are of use only in a collection of lines."""
_START_ONLY = frozenset(("queue", "args", "tags"))
_BACKTRACE = "exception.backtrace"


class ConsoleWriter(LogWriter):
    """A writer that shows each line as text; with ``colors`` for a terminal."""

    def __init__(self, descriptor: int, lost_line: Callable[[int], str], *, colors: bool) -> None:
        renderer = importlib.import_module("structlog.dev").ConsoleRenderer
        self._render: Callable[[Any, str, dict[str, Any]], str] = renderer(colors=colors, sort_keys=False)
        super().__init__(descriptor, lambda count: self.text_of(lost_line(count)))

    def write(self, line: str) -> None:
        """Queue one line, given as JSON; never blocks, never raises."""
        try:
            text = self.text_of(line)
        except Exception:  # noqa: BLE001 - a line that cannot be shown as text is better shown as JSON than lost
            text = line
        super().write(text)

    def text_of(self, line: str) -> str:
        """Return a line of JSON as text."""
        fields: dict[str, Any] = from_json(line)
        shown = {name: value for name, value in fields.items() if is_shown(name, fields)}
        backtrace = shown.pop(_BACKTRACE, None)
        severity: str = fields["severity"]
        level = _LEVELS.get(severity, severity.lower())
        event: dict[str, Any] = {
            "timestamp": _clock_time(fields.get("time", "")),
            "level": level,
            "event": visible(str(fields.get("message", ""))),
            **{visible(name): _escaped(value) for name, value in shown.items()},
        }
        text = self._render(None, level, event)
        if is_list(backtrace):
            text += "".join(f"\n    {visible(str(frame))}" for frame in backtrace)
        return f"{text}\n"


def uses_colors(descriptor: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether text at this descriptor may have colors: a terminal that shows them, and no ``NO_COLOR``."""
    return os.isatty(descriptor) and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def is_shown(name: str, fields: Mapping[str, Any]) -> bool:
    """Return whether a person wants to see this field of a line."""
    if name in _HEAD or name in _SAME_EVERYWHERE:
        return False
    status = fields.get("job_status")
    if status is None:
        return True
    # A line of the job itself (``self.logger``) has no ``X JID-Y`` in its message.
    if name in ("class", "jid") and f"JID-{fields.get('jid')}" not in fields.get("message", ""):
        return True
    return name not in _OF_JOBS and (status == "start" or name not in _START_ONLY)


def _escaped(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _clock_time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except ValueError:
        return visible(text)
