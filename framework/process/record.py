"""Write and read the process record that Sidekiq's Web UI and API show, from version 6.4 on."""

import json
import math
import os
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import redis
from redis.exceptions import OutOfMemoryError, RedisError

from framework.errors import PayloadError
from framework.execute.stats import RunningJobs, ThreadCounts
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import write_when_full
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire import keys
from framework.wire.footprint import LARGE_PAYLOAD
from framework.wire.job import base36, decode, timestamp, whole_number
from framework.wire.json import dumps, loads_object

# Commands read records too, and load no part of a worker process for it.
if TYPE_CHECKING:
    from framework.process.worker_parts import ProcessContext

_DAY_TTL_S = 5 * 365 * 86_400
# Per heartbeat.
_MOST_SIGNALS = 10
_MOST_RECORDS = 2_000
_RECORDS_AT_ONCE = 200
_MAX_DISPLAY_BYTES = 4_096
_MAX_DISPLAY_NAME = 256
# Of a count in another process's record; ``int`` refuses texts of more than 4,300 digits.
_MOST_DIGITS = 9
_NAMES = ("class", "jid", "queue")

RUNS_FIELD = "aw_runs"
"""The field of the record with the ended runs since the start of the process, by queue, as JSON."""

CLOCK_FIELD = "aw_clock_s"
"""The field of the record with the seconds by which the clock of the process is ahead of Redis's."""

LOST_FIELD = "aw_lost_at"
"""The field of the record with the time at which the process has found that Redis had lost data; 0 for never."""

BUSY_FIELD = "aw_busy"
"""The field of the record with the running jobs by queue, as JSON."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Statistics:
    """Collect the increments of Sidekiq's counters, except for jobs that the acknowledgement counts (``parts/count.lua``).

    A process that is killed loses the increments since its last heartbeat. Redis may accept the increment of one key and refuse
    that of another, so each key is confirmed on its own.
    """

    def __init__(self) -> None:
        self._totals = ThreadCounts()
        self._pending: dict[str, int] = {}

    def add(self, pipeline: Any, totals: ThreadCounts) -> list[str]:
        """Add the increments to an empty pipeline; return the names of the counters in the order of their replies."""
        day = time.strftime("%Y-%m-%d", time.gmtime())
        for key, count in (
            (keys.STAT_PROCESSED, totals.uncounted - self._totals.uncounted),
            (keys.STAT_FAILED, totals.failed - self._totals.failed),
        ):
            if count:
                for name in (key, f"{key}:{day}"):
                    self._pending[name] = self._pending.get(name, 0) + count
        self._totals = totals
        counted = list(self._pending)
        for name in counted:
            pipeline.incrby(name, self._pending[name])
        for name in counted:
            if name not in (keys.STAT_PROCESSED, keys.STAT_FAILED):
                pipeline.expire(name, _DAY_TTL_S)
        return counted

    def has_changes(self, totals: ThreadCounts) -> bool:
        """Return whether there is an increment to write."""
        return totals != self._totals

    def confirm(self, names: Iterable[str]) -> None:
        """Record that these counters have been written."""
        for name in names:
            del self._pending[name]


@dataclass
class ProcessRecord:
    """Write the record of this process. Two heartbeats without changes cost two commands, and two more for signals."""

    process: "ProcessContext"
    version: str
    runs: RunningJobs
    tag: str = ""
    labels: Sequence[str] = ()
    queues_from: str = ""
    """The source of the queues' names, for the first log line of the process."""
    embedded: bool = False
    """Whether the process belongs to an application: dashboards then offer no signals, and any that arrive are ignored."""
    started_at: float = field(default_factory=time.time)
    rtt_us: int = 0
    clock_s: float = 0.0
    """The seconds by which the clock of this host is ahead of Redis's, at the last heartbeat of the lease."""
    lost_at: float = 0.0
    """When this process has last found that Redis had lost data, by Redis's clock."""
    _statistics: _Statistics = field(default_factory=_Statistics)
    _work_payloads: dict[int, tuple[UnitOfWork, str]] = field(default_factory=dict[int, tuple[UnitOfWork, str]])
    _listed_at: float = -math.inf
    _appeared: bool = False
    _last_quiet: bool | None = None
    """The last written ``quiet``; ``None`` before the first record, after a refusal, and after a heartbeat without a record."""

    @property
    def client(self) -> "redis.Redis":
        return self.process.upkeep

    @property
    def identity(self) -> str:
        return self.process.identity

    @property
    def queues(self) -> list[str]:
        """The queues of all capsules."""
        return list(dict.fromkeys(name for one in self.process.plans for name in one.order.names))

    @property
    def slots(self) -> int:
        return sum(one.slots for one in self.process.plans)

    def heartbeat(self) -> list[str]:
        """Return the signals that were requested through Redis; write the record and the statistics. Raises redis errors.

        Without changes only every second heartbeat writes.
        """
        requested = self._take_signals()
        due = self._has_changes()
        self._last_quiet = None
        if not due:
            return requested
        try:
            self._write()
            self._last_quiet = self.process.quiet
        except (RedisError, OSError):
            # A signal that has been read is gone from Redis, so it must be returned; the next heartbeat reports the refusal.
            if not requested:
                raise
        return requested

    def take_appeared(self) -> bool:
        """Return whether a record has been written where Redis had none, since the last call."""
        appeared, self._appeared = self._appeared, False
        return appeared

    def remove(self) -> None:
        """Write the last statistics and remove the process from the list. Raises redis errors."""
        pipeline: Any = self.client.pipeline(transaction=False)
        counted = self._statistics.add(pipeline, self.runs.totals())
        pipeline.srem(keys.PROCESSES, self.identity)
        pipeline.delete(*keys.work(self.identity), self.identity, keys.signals(self.identity))
        self._execute(pipeline, counted)

    def _take_signals(self) -> list[str]:
        """Read the requested signals, if there may be any; take the round-trip time of this command or of the last check."""
        if not self.process.absent.may_exist(keys.signals(self.identity)):
            self.rtt_us = int(self.process.absent.round_trip_s * 1_000_000)
            return []
        sent_at = time.perf_counter()
        taken: Any = self.client.rpop(keys.signals(self.identity), _MOST_SIGNALS)  # pyright: ignore[reportUnknownMemberType]
        self.rtt_us = int((time.perf_counter() - sent_at) * 1_000_000)
        self.process.absent.note(keys.signals(self.identity), found=bool(taken))
        return [name.decode(errors="replace") for name in cast("list[bytes]", taken or [])]

    def _has_changes(self) -> bool:
        if self._last_quiet is not self.process.quiet or self._statistics.has_changes(self.runs.totals()):
            return True
        return bool(self._work_payloads or self.runs.running())

    def _write(self) -> None:
        # Not a transaction: at maxmemory Redis refuses a MULTI as a whole, and these writes are independent of each other.
        pipeline: Any = self.client.pipeline(transaction=False)
        counted = self._statistics.add(pipeline, self.runs.totals())
        self._add_work(pipeline)
        now = time.monotonic()
        if now - self._listed_at >= self.process.timings.record_ttl_s:
            pipeline.sadd(keys.PROCESSES, self.identity)
        fields = self._fields()
        pipeline.hset(self.identity, mapping=fields)
        pipeline.expire(self.identity, self.process.timings.record_ttl_s)
        try:
            replies = self._execute(pipeline, counted)
        except OutOfMemoryError:
            # Without a record the process is invisible, and an operator cannot stop it.
            words = (word for pair in fields.items() for word in pair)
            write_when_full(self.client, ("SADD", keys.PROCESSES, self.identity), ("HSET", self.identity, *words))
            self.client.expire(self.identity, self.process.timings.record_ttl_s)
            raise
        # HSET counts the fields that the hash did not have.
        self._appeared = self._appeared or replies[-2] > 0
        if now - self._listed_at >= self.process.timings.record_ttl_s:
            self._listed_at = now
        elif replies[-2] > 0:
            # The record had expired, so a dashboard may have removed this process from the list.
            self.client.sadd(keys.PROCESSES, self.identity)

    def _execute(self, pipeline: Any, counted: list[str]) -> list[Any]:
        """Execute the pipeline and confirm each accepted statistic. Raises the first refusal."""
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        self._statistics.confirm(name for name, reply in zip(counted, replies, strict=False) if isinstance(reply, int))
        refusal = next((reply for reply in replies if isinstance(reply, RedisError)), None)
        if refusal is not None:
            raise refusal
        return replies

    def _add_work(self, pipeline: Any) -> None:
        running = self.runs.running()
        shown = {thread: self._work_payload(thread, unit) for thread, (unit, _) in running.items()}
        entries = {
            base36(thread): json.dumps({"queue": unit.queue, "payload": shown[thread][1], "run_at": started})
            for thread, (unit, started) in running.items()
        }
        if entries or self._work_payloads:
            pipeline.unlink(*keys.work(self.identity))
        for key in keys.work(self.identity) if entries else ():
            pipeline.hset(key, mapping=entries)
            pipeline.expire(key, self.process.timings.record_ttl_s)
        self._work_payloads = shown

    def _work_payload(self, thread: int, unit: UnitOfWork) -> tuple[UnitOfWork, str]:
        before = self._work_payloads.get(thread)
        return (
            before
            if before is not None and before[0] is unit
            else (unit, display_payload(unit.data, unit.payload_without_args))
        )

    def _fields(self) -> Mapping[str, Any]:
        running = [unit for unit, _ in self.runs.running().values()]
        return {
            "info": json.dumps(self._info()),
            "concurrency": self.slots,
            "busy": len(running),
            "beat": time.time(),
            "rtt_us": self.rtt_us,
            "quiet": "true" if self.process.quiet else "false",
            "rss": resident_bytes(os.getpid()) // 1024,
            RUNS_FIELD: json.dumps(self.runs.runs_by_queue()),
            CLOCK_FIELD: round(self.clock_s, 3),
            LOST_FIELD: round(self.lost_at, 3),
            BUSY_FIELD: json.dumps(Counter(unit.queue for unit in running)),
        }

    def _info(self) -> dict[str, Any]:
        """Return a superset of the fields that each version reads (`concurrency` and `queues` moved between versions)."""
        capsules = {
            one.name: {"concurrency": one.slots, "mode": one.order.mode, "weights": dict(one.order.weights)}
            for one in self.process.plans
        }
        return {
            "hostname": self.identity.rsplit(":", 2)[0] or socket.gethostname(),
            "started_at": self.started_at,
            "pid": os.getpid(),
            "tag": self.tag,
            "concurrency": self.slots,
            "queues": self.queues,
            "weights": [one["weights"] for one in capsules.values()],
            "labels": ["python", *self.labels],
            "identity": self.identity,
            "version": self.version,
            "embedded": self.embedded,
            "capsules": capsules,
        }


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A running process of this framework or of Sidekiq, by its record. A quiet process has no queues."""

    identity: str
    queues: frozenset[str]
    quiet: bool
    busy: int
    slots: int
    is_ruby: bool = False
    """Whether its record lacks the label of this framework."""
    started_at: float | None = None


def read_processes(client: "redis.Redis") -> list[ProcessInfo]:
    """Return the processes of a shard that have a record; malformed fields count as empty. Raises redis errors."""
    listed: Any = client.smembers(keys.PROCESSES)
    pipeline: Any = client.pipeline(transaction=False)
    identities: list[bytes] = sorted(listed)
    for identity in identities:
        pipeline.hmget(identity, "info", "quiet", "busy", "concurrency")
    return [
        process_info(decode_escaped(identity), *fields)
        for identity, fields in zip(identities, pipeline.execute(), strict=True)
        if fields[0] is not None
    ]


def served_queues(client: "redis.Redis") -> set[str]:
    """Return the queues that the running processes of a shard serve, Sidekiq's too; quiet processes serve none.

    A malformed record counts as empty. Raises redis errors.
    """
    return {queue for process in read_processes(client) for queue in process.queues}


def unserved_queues(client: "redis.Redis", queues: Collection[str]) -> frozenset[str]:
    """Return those of ``queues`` that no process with a record names, Sidekiq's too. Raises redis errors.

    A quiet process counts, because its successor is about to start. The call reads ``_MOST_RECORDS`` records at most, in a few
    round trips, and stops when each queue is found. With more processes it returns no queue, as the answer would be incomplete.
    """
    left = set(queues)
    identities: Any = client.srandmember(keys.PROCESSES, _MOST_RECORDS)
    for start in range(0, len(identities), _RECORDS_AT_ONCE):
        if not left:
            break
        pipeline: Any = client.pipeline(transaction=False)
        for identity in identities[start : start + _RECORDS_AT_ONCE]:
            pipeline.hget(identity, "info")
        # A key of another type, which is no record, answers with an error.
        for info in pipeline.execute(raise_on_error=False):
            if isinstance(info, bytes):
                left -= _queues_of(loads_object(info))
    return frozenset(left) if len(identities) < _MOST_RECORDS else frozenset()


def process_info(
    identity: str, info: bytes, quiet: bytes | None, busy: bytes | None, slots: bytes | None
) -> ProcessInfo:
    """Return the facts in a process's record; malformed fields count as empty."""
    return info_of(identity, loads_object(info), quiet, busy, slots)


def info_of(
    identity: str, fields: Payload, quiet: bytes | None, busy: bytes | None, slots: bytes | None
) -> ProcessInfo:
    """Return the facts in a record whose field ``info`` is decoded; malformed ones count as empty."""
    queues = frozenset[str]() if quiet == b"true" else frozenset(_queues_of(fields))
    labels = fields.get("labels")
    is_ruby = not isinstance(labels, list) or "python" not in labels
    counts = parse_count(busy), parse_count(slots) or _slots_of(fields)
    return ProcessInfo(identity, queues, quiet == b"true", *counts, is_ruby, timestamp(fields.get("started_at")))


def parse_count(value: bytes | None) -> int:
    """Return a count in a record; 0 if it is malformed."""
    if value is None or not value.isdigit() or len(value) > _MOST_DIGITS:
        return 0
    return int(value)


def _queues_of(info: Mapping[str, Any]) -> set[str]:
    """Return the queues of the capsules (Sidekiq from 8.0.9 on) and of the list that Sidekiq 9 will leave out."""
    queues = _queue_names(info.get("queues"))
    for capsule in _capsules(info):
        queues |= _queue_names(capsule.get("weights"))
    return queues


def _slots_of(info: Mapping[str, Any]) -> int:
    """Return the slots of a record of Sidekiq before 8.1.2, which has no field of its own for them."""
    total = whole_number(info.get("concurrency"))
    if total is None:
        total = sum(whole_number(capsule.get("concurrency")) or 0 for capsule in _capsules(info))
    return max(0, total)


def _capsules(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    capsules = info.get("capsules")
    if not isinstance(capsules, dict):
        return []
    members = cast("dict[str, Any]", capsules).values()
    return [cast("Mapping[str, Any]", one) for one in members if isinstance(one, dict)]


def _queue_names(found: object) -> set[str]:
    if not isinstance(found, list | dict):
        return set()
    return {str(name) for name in cast("Iterable[Any]", found) if isinstance(name, str)}


def recorded_payload(entry: Payload) -> bytes:
    """Return the payload in the record of a running job, empty without one."""
    payload = entry.get("payload")
    if isinstance(payload, str):
        return payload.encode(errors="replace")
    # Sidekiq writes text, and reads an object too.
    return b"" if payload is None else dumps(payload)


def display_payload(data: bytes, outline: Payload | None = None) -> str:
    """Return the payload for dashboards: whole, or with a note in place of the arguments when it is large.

    Each heartbeat writes every running job again, and a page that lists them must stay readable. ``outline`` has the fields
    of a payload that is too large to decode here.
    """
    if len(data) <= _MAX_DISPLAY_BYTES:
        return data.decode("utf-8", "replace")
    note = f"{len(data)} bytes, not shown"
    try:
        payload = outline if outline is not None else decode(data, LARGE_PAYLOAD)
    except PayloadError:
        return json.dumps({"class": "", "jid": "", "args": [note]})
    shown = json.dumps({**payload, "args": [note]})
    if len(shown) <= _MAX_DISPLAY_BYTES:
        return shown
    return json.dumps({**{name: str(payload.get(name, ""))[:_MAX_DISPLAY_NAME] for name in _NAMES}, "args": [note]})


def default_tag() -> str:
    """Return the name of the working folder, or of the folder that contains its releases (Sidekiq's rule)."""
    try:
        folder = Path.cwd()
    # The folder has been removed.
    except OSError:
        return ""
    return folder.parent.parent.name if folder.name.isdigit() and folder.parent.name == "releases" else folder.name


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 where the system does not report it, or when the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
