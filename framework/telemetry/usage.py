"""Count what running jobs use: calls to Redis, SQL statements, requests to other services.

A job that uses nothing has no record, and pays nothing: its first counted call makes the record, and the end of the run takes it,
if there is any. A job is found by the context of its thread or task (``context``), which ``asyncio``, ``asyncio.to_thread`` and
``copy_context`` hand on; a plain ``threading.Thread`` has no context before Python 3.14, so its calls are not counted.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from framework.telemetry.context import BoundContext, context_source
from framework.types import Json, Payload

_SWEEP_PERIOD_S = 10.0
# The reference of the record and that of the call of ``getrefcount``.
_OWN_REFERENCES = 2
_COUNTS = (
    *("redis_calls", "redis_duration_s", "redis_read_bytes", "redis_write_bytes"),
    *("db_count", "db_duration_s", "external_http_count", "external_http_duration_s"),
)
REPLICA = "_replica"
"""The end of the name of a replica's figures."""
MAX_DATABASES = 16
"""The databases of one job that have figures of their own; further ones count in the sums only."""


class Usage:
    """What one job has used so far. The names are those of the fields of its end line.

    Several threads of a job may count at once. An addition needs no lock: the interpreter switches threads at calls and jumps
    only, and it has none.
    """

    __slots__ = (*_COUNTS, "databases")

    def __init__(self) -> None:
        self.redis_calls = 0
        self.redis_duration_s = 0.0
        self.redis_read_bytes = 0
        self.redis_write_bytes = 0
        self.db_count = 0
        self.db_duration_s = 0.0
        self.external_http_count = 0
        self.external_http_duration_s = 0.0
        self.databases: dict[str, DatabaseUsage] = {}
        """The statements by database, ``main`` or ``main_replica``, where the library says which it was."""

    def count_redis(self, calls: int, seconds: float, written: int, read: int) -> None:
        """Add commands of one round trip to Redis, their seconds, and the bytes of the commands and of the replies."""
        self.redis_calls += calls
        self.redis_duration_s += seconds
        self.redis_write_bytes += written
        self.redis_read_bytes += read

    def count_sql(self, seconds: float, database: str | None = None) -> None:
        """Add one SQL statement; ``database`` is the name of its database, for a replica with ``_replica`` at the end."""
        self.db_count += 1
        self.db_duration_s += seconds
        if database is not None:
            known = self.databases.get(database)
            if known is None and len(self.databases) < MAX_DATABASES:
                known = self.databases[database] = DatabaseUsage()
            if known is not None:
                known.count += 1
                known.duration_s += seconds

    def count_http(self, seconds: float) -> None:
        """Add one request to another service."""
        self.external_http_count += 1
        self.external_http_duration_s += seconds

    def fields(self) -> dict[str, int | float]:
        """Return the fields of the end line; those of a kind of call that the job has not made are left out, as GitLab does."""
        found: dict[str, int | float] = {}
        if self.redis_calls:
            found.update(
                redis_calls=self.redis_calls,
                redis_duration_s=round(self.redis_duration_s, 6),
                redis_read_bytes=self.redis_read_bytes,
                redis_write_bytes=self.redis_write_bytes,
            )
        if self.db_count:
            found.update(db_count=self.db_count, db_duration_s=round(self.db_duration_s, 6))
            for name, one in self.databases_with_roles().items():
                found[f"db_{name}_count"] = one.count
                found[f"db_{name}_duration_s"] = round(one.duration_s, 6)
        if self.external_http_count:
            found.update(
                external_http_count=self.external_http_count,
                external_http_duration_s=round(self.external_http_duration_s, 6),
            )
        return found

    def databases_with_roles(self) -> "dict[str, DatabaseUsage]":
        """Return the statements by database and, if replicas were read, those of all ``primary`` and ``replica`` databases."""
        own = self.databases.copy()
        found = own.copy()
        if any(name.endswith(REPLICA) for name in own):
            for role, of_replicas in (("primary", False), ("replica", True)):
                ones = [one for name, one in own.items() if name.endswith(REPLICA) == of_replicas]
                found[role] = DatabaseUsage(sum(one.count for one in ones), sum(one.duration_s for one in ones))
        return found

    def add(self, other: "Usage") -> None:
        """Add what another job has used, which this one has run inline."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, one in other.databases.copy().items():
            mine = self.databases.setdefault(name, DatabaseUsage())
            mine.count += one.count
            mine.duration_s += one.duration_s

    def to_json(self) -> dict[str, Json]:
        """Return the counts for another process, which reads them with ``from_json``."""
        databases: dict[str, Json] = {name: [one.count, one.duration_s] for name, one in self.databases.copy().items()}
        return {**{name: getattr(self, name) for name in _COUNTS}, "databases": databases}

    @classmethod
    def from_json(cls, counts: Mapping[str, Any]) -> "Usage":
        """Return the usage that another process has sent. Raises KeyError, TypeError or ValueError for anything else."""
        found = cls()
        for name in _COUNTS:
            setattr(found, name, type(getattr(found, name))(counts[name]))
        for name, (count, duration_s) in counts["databases"].items():
            found.databases[str(name)] = DatabaseUsage(int(count), float(duration_s))
        return found


def size_of(value: Any) -> int:
    """Return the bytes of arguments or of a reply, without those of the protocol (GitLab's rule)."""
    kind = cast("Any", type(value))
    if kind is bytes or kind is str:
        return len(value)
    if kind is list or kind is tuple or kind is set:
        return sum(map(size_of, value))
    if kind is dict:
        return sum(map(size_of, value)) + sum(map(size_of, value.values()))
    if kind is int or kind is float:
        return len(str(value))
    return len(value) if issubclass(kind, bytes | str | bytearray | memoryview) else 0


class DatabaseUsage:
    """The statements of one job on one database, and their seconds."""

    __slots__ = ("count", "duration_s")

    def __init__(self, count: int = 0, duration_s: float = 0.0) -> None:
        self.count = count
        self.duration_s = duration_s


class _Record(NamedTuple):
    """The usage of a job. The reference to the payload keeps its ``id``, which finds the record, from being used again."""

    payload: Mapping[str, Json]
    usage: Usage


class UsageRecords:
    """The records of the running jobs of this process that have used something. Safe from any thread."""

    def __init__(self) -> None:
        self.enabled = False
        """Whether anything reads the records. Code that counts asks this first."""
        self.running: dict[int, _Record] = {}
        """The records by the ``id`` of the payload. Public, because each run asks at its end whether it is empty."""
        self._swept_at = 0.0

    def of_job_here(self) -> Usage | None:
        """Return the record of the job that runs in this thread or task; ``None`` outside of jobs, or if nothing reads it."""
        found = context_source()
        if found is None or not self.enabled:
            return None
        payload = found.job if isinstance(found, BoundContext) else found
        if payload is None:
            return None
        return self._record(payload).usage

    def count_round_trip(self, packet: bytes, replies: Sequence[Any], seconds: float) -> None:
        """Add commands of the framework's own connections to the job that runs here, if any."""
        used = self.of_job_here()
        if used is not None:
            used.count_redis(len(replies), seconds, len(packet), size_of(replies))

    def add(self, payload: Payload, used: Usage) -> None:
        """Add what a running job has used in another process."""
        self._record(payload).usage.add(used)

    def take(self, payload: Payload | None) -> Usage | None:
        """Remove and return the record of a job whose run has ended; ``None`` if it has used nothing."""
        record = self.running.pop(id(payload), None)
        return None if record is None else record.usage

    def pass_to_caller(self, payload: Payload) -> None:
        """Add what a job has used that has run inline to the job that runs here, if any."""
        used = self.take(payload) if self.running else None
        caller = None if used is None else self.of_job_here()
        if used is not None and caller is not None:
            caller.add(used)

    def find(self, jid: str) -> Usage | None:
        """Return what a running job has used so far, for a stack dump; it goes on counting."""
        for payload, usage in list(self.running.values()):
            if payload.get("jid") == jid:
                return usage
        return None

    def fields_of(self, jid: object) -> dict[str, int | float]:
        """Return ``Usage.fields`` of a running job, empty if it has used nothing."""
        found = self.find(jid) if isinstance(jid, str) else None
        return {} if found is None else found.fields()

    def _record(self, payload: Mapping[str, Json]) -> _Record:
        record = self.running.get(id(payload))
        if record is None:
            self._sweep()
            # Two threads of one job may count their first call at once.
            record = self.running.setdefault(id(payload), _Record(payload, Usage()))
        return record

    def _sweep(self) -> None:
        """Remove the records of jobs that have ended: a thread or task that a job has left running counts after its end."""
        now = time.monotonic()
        if now - self._swept_at < _SWEEP_PERIOD_S:
            return
        self._swept_at = now
        for key in list(self.running):
            record = self.running.get(key)
            # A running job has its payload, and so has the context of a thread or task.
            if record is not None and sys.getrefcount(record.payload) <= _OWN_REFERENCES:
                self.running.pop(key, None)


usage_records = UsageRecords()
"""The records of this process."""
