"""Define type aliases, and the patterns of names that several layers check."""

import re
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from pydantic import JsonValue

Json: TypeAlias = JsonValue
Jid: TypeAlias = str
"""Id of a job: 24 lower-case hex digits from this framework, any string from other programs."""

Payload: TypeAlias = dict[str, Any]
"""Payload of a job, decoded: Sidekiq's fields, those of this framework, and any others."""

MAIN = "main"
"""The shard that each configuration has."""

WIRE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*")
"""Name of a class in a payload."""

WIRE_NAME_FORMAT = "a class name as it travels: words joined by '::', for example 'Chaos::SleepWorker'"

QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:-]*")
"""Name of a queue, safe on a command line and in a Redis key."""

QUEUE_NAME_FORMAT = "a queue name is made of letters, digits and _ . : -, without a - in front"

Urgency: TypeAlias = Literal["high", "low", "throttled"]
ResourceBoundary: TypeAlias = Literal["cpu", "memory", "unknown"]
DataConsistency: TypeAlias = Literal["always", "sticky", "delayed"]
Priority: TypeAlias = Literal["critical", "high", "normal", "low"]
Ack: TypeAlias = Literal["batch", "sync"]
Isolation: TypeAlias = Literal["process"]
WithoutMetaShard: TypeAlias = Literal["proceed", "hold"]
OnFull: TypeAlias = Literal["refuse", "keep", "drop"]
StrictArguments: TypeAlias = Literal["raise", "warn", "off"]
PushInTransaction: TypeAlias = Literal["raise", "warn", "wait", "now"]
LogFormat: TypeAlias = Literal["auto", "json", "console"]
JobState: TypeAlias = Literal[
    "queued", "running", "retrying", "completed", "failed", "discarded", "expired", "cancelled", "unknown"
]


class Outcome(StrEnum):
    """Name the end of a run, or of a job that did not run.

    ``framework/finish/endings.py`` has the table from outcome to log status, state, script and counters.
    """

    SUCCEEDED = "succeeded"
    """``perform`` returned."""
    FAILED = "failed"
    """``perform`` or a middleware raised, or the arguments do not fit the signature."""
    SNOOZED = "snoozed"
    """The job raised ``RetryLater``."""
    YIELDED = "yielded"
    """An iterating job stopped at an item: it is in its queue again, with its cursor."""
    DISCARDED = "discarded"
    """The job raised ``Discard``, a middleware did not yield, or a policy dropped it."""
    EXPIRED = "expired"
    """The job was to begin after its ``expires_in``: it did not run."""
    CANCELLED = "cancelled"
    """The job was cancelled: it did not run, or it saw the cancellation and ended."""
    RETIRED = "retired"
    """The class of the job is in the setting ``retired_workers``."""
    MALFORMED = "malformed"
    """The payload cannot be read."""
    DEFERRED = "deferred"
    """A policy, or a process without the class of the job, moves it to the schedule set."""
    HELD = "held"
    """A policy has moved the job out of the working list until a pause ends or a limit has a slot."""
    INTERRUPTED = "interrupted"
    """The process stopped or died while the job was in flight."""
