"""The two lines of every run: start, and done, fail or what else came of it, with GitLab's fields.

What a class contributes is worked out once per class; arguments are filtered (numbers pass, others only when the class
lists them), because arguments carry people's data.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

from framework.declare.declaration import Declaration
from framework.errors import PayloadError
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry.context import CORRELATION_ID, META_PREFIX
from framework.telemetry.logs import ServerLog, error_fields, iso_time
from framework.types import Payload
from framework.wire.job import decode, timestamp, whole_number

FILTERED = "[FILTERED]"
_MAX_ARGUMENTS = 10_240  # characters of all arguments together (GitLab: 10 KiB)
_TIMES = ("created_at", "scheduled_at", "enqueued_at", "failed_at", "retried_at")
_COPIED = ("version", "tags", "bid", "interrupted_count", "retry_count", "original_job_size_bytes", "job_deferred_by")
_TARGETS = {"high": (10, 10), "low": (60, 300), "throttled": (None, 300)}
"""Urgency to target seconds of waiting and running (GitLab's SLO table)."""

Started: TypeAlias = dict[str, Any]
"""What the end line repeats of the start line."""


class JobLog:
    """Writes the start and end lines of one process's runs. ``jobs`` false leaves out all but failures."""

    def __init__(self, log: ServerLog, shard: str, *, jobs: bool) -> None:
        self._log = log
        self._shard = shard
        self._jobs = jobs
        self._classes: dict[str, dict[str, Any]] = {}

    def start(self, payload: Payload, unit: UnitOfWork, declaration: Declaration | None) -> Started | None:
        """Write the start line; return what the end line repeats, ``None`` when job lines are off."""
        if not self._jobs:
            return None
        now = time.time()
        fields = self._fields(payload, unit, declaration, now)
        label = f"{payload.get('class')} JID-{payload.get('jid')}: start"
        self._log.write({**self._head("INFO", now, label), **fields, "job_status": "start"})
        return fields

    def end(
        self,
        started: Started | None,
        unit: UnitOfWork,
        declaration: Declaration | None,
        status: str,
        duration_s: float,
        cpu_s: float,
        more: Mapping[str, Any] | None,
        error: BaseException | None,
    ) -> None:
        """Write the end line; a failure is written whatever the setting."""
        if started is None and error is not None:
            started = self._late(unit, declaration, time.time() - duration_s)
        if started is None:
            return
        now = time.time()
        label = f"{started.get('class')} JID-{started.get('jid')}: {status}: {duration_s:.6f} sec"
        line = {
            **self._head("INFO" if error is None else "WARN", now, label),
            **started,
            "job_status": status,
            "duration_s": round(duration_s, 6),
            "cpu_s": round(cpu_s, 6),
            "completed_at": iso_time(now),
            **(more or {}),
        }
        if error is not None:
            line.update(error_fields(error))
        self._log.write(line)

    def _late(self, unit: UnitOfWork, declaration: Declaration | None, now: float) -> Started | None:
        try:
            payload = decode(unit.data)
        except PayloadError:
            return None
        return self._fields(payload, unit, declaration, now)

    def _head(self, severity: str, now: float, message: str) -> dict[str, Any]:
        return {"severity": severity, "time": iso_time(now), "message": message, **self._log.static}

    def _fields(
        self, payload: Payload, unit: UnitOfWork, declaration: Declaration | None, now: float
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "class": payload.get("class"),
            "jid": payload.get("jid"),
            "queue": unit.queue,
            "shard": self._shard,
            "args": shown_arguments(payload, declaration),
            "retry": shown_retry(payload.get("retry")),
            "job_size_bytes": len(unit.data),
            "tid": threading.get_native_id(),
        }
        if payload.get(CORRELATION_ID) is not None:
            fields[CORRELATION_ID] = payload[CORRELATION_ID]
        if declaration is not None:
            fields.update(self._class_fields(declaration))
        fields.update({name: payload[name] for name in _COPIED if payload.get(name) is not None})
        fields.update({name: value for name, value in payload.items() if name.startswith(META_PREFIX)})
        for name in _TIMES:
            seconds = timestamp(payload.get(name))
            if seconds is not None:
                fields[name] = iso_time(seconds)
        waiting_since = timestamp(payload.get("enqueued_at"))
        if waiting_since is None:
            waiting_since = timestamp(payload.get("created_at"))
        if waiting_since is not None:
            # Clamped: the clocks of two hosts differ.
            fields["queue_duration_s"] = fields["scheduling_latency_s"] = round(max(0.0, now - waiting_since), 6)
        return fields

    def _class_fields(self, declaration: Declaration) -> dict[str, Any]:
        fields = self._classes.get(declaration.wire_name)
        if fields is None:
            wait, run = _TARGETS[declaration.urgency]
            fields = {
                "feature_category": declaration.feature_category,
                "urgency": declaration.urgency,
                "queue_namespace": declaration.queue_namespace,
                "target_scheduling_latency_s": wait,
                "target_duration_s": run,
            }
            fields = {name: value for name, value in fields.items() if value is not None}
            self._classes[declaration.wire_name] = fields
        return fields


def shown_arguments(payload: Payload, declaration: Declaration | None) -> list[str]:
    """Return the arguments as text: numbers as they are, others only where ``loggable_arguments`` allows (GitLab's rule)."""
    if payload.get("compressed"):
        return ["[COMPRESSED]"]
    allowed = declaration.loggable_positions if declaration is not None else frozenset[int]()
    shown: list[str] = []
    room = _MAX_ARGUMENTS
    for position, value in enumerate(payload.get("args", ())):
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        text = _text(value) if numeric or position in allowed else FILTERED
        room -= len(text)
        if room < 0:
            return [*shown, "..."]
        shown.append(text)
    return shown


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of more digits than Python prints
        return "<a very long number>"


def shown_retry(retry: object) -> int:
    """Return ``retry`` as a number, so that a log index has one type for it: true 25, false or nothing 0, other -1."""
    if retry is True:
        return 25
    if retry is False or retry is None:
        return 0
    number = whole_number(retry)
    return -1 if number is None else number
