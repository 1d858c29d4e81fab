"""Represent a push that is kept in a file: what a replay needs to write its jobs as the push would have written them."""

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare.request import DueTime
from framework.push.job_batch import JobBatch
from framework.typeguards import is_mapping
from framework.types import Jid
from framework.wire import keys
from framework.wire.accepted import AcceptedLimit, CountedJobs
from framework.wire.job import set_fields, wire_timestamp
from framework.wire.json import dumps, loads, loads_object
from framework.wire.resources import UniqueJobs, WindowJobs
from framework.wire.status_key import StatusCommand, TrackedJob, tracked_job


class DamagedRecordError(ValueError):
    """Report bytes that are no whole record."""


class KeptPush(NamedTuple):
    """Hold the jobs of one write, with their shard."""

    shard: str
    batch: JobBatch
    token: str
    """The replay writes under it, so that Redis writes the jobs once."""
    kept_at: float
    """The epoch second of the push by the clock of its host."""
    in_doubt: bool
    """Whether the push itself may have written the jobs without this token, because its reply was lost."""
    locks_when_due: bool
    """Whether the jobs take their locks when they are due, as delayed jobs of most deduplicated classes."""

    @property
    def destination(self) -> tuple[str, str]:
        """Return the shard and the queue, whose jobs must stay in their order."""
        return self.shard, self.batch.queue

    @property
    def worker(self) -> str:
        """Return the wire name of the class, whose jobs a write has alone; empty if the payload has none."""
        name = loads_object(self.batch.payloads[0]).get("class") if self.batch.payloads else None
        return name if isinstance(name, str) else ""

    def encode(self) -> bytes:
        batch, counted = self.batch, self.batch.counted
        fields: dict[str, Any] = {
            "shard": self.shard,
            "queue": batch.queue,
            "token": self.token,
            "kept_at": self.kept_at,
            "in_doubt": self.in_doubt,
            "locks_when_due": self.locks_when_due,
            "jids": list(batch.jids),
            "payloads": [payload.decode() for payload in batch.payloads],
            "dues": None if batch.dues is None else [list(due) for due in batch.dues],
            "statuses": [list(command) for command in batch.statuses],
            "unique": None,
            # A process of an older version does not know them: it pushes these jobs to their queue.
            "lists": None if batch.lists is None else list(batch.lists),
            # An older process does not count the jobs.
            "counted": None if counted is None else [*counted.limit[:3], counted.each],
        }
        unique = batch.unique
        if unique is not None:
            fields["unique"] = {
                "terms": [term.decode() if isinstance(term, bytes) else term for term in unique.terms],
                "lock_keys": list(unique.lock_keys),
                "details": [one.decode() for one in unique.details],
                "has_window": isinstance(unique, WindowJobs),
            }
        return with_checksum(fields)

    @classmethod
    def decode(cls, record: bytes) -> "KeptPush":
        """Return the push of a record.

        Raises:
            DamagedRecordError: the record is damaged.
        """
        fields = without_checksum(record)
        try:
            payloads = [payload.encode() for payload in fields["payloads"]]
            dues = None if fields["dues"] is None else [DueTime(*due) for due in fields["dues"]]
            statuses = [_status_command(command, fields["jids"]) for command in fields["statuses"]]
            unique = None
            if fields["unique"] is not None:
                *terms, details = fields["unique"]["terms"]
                own_details = [one.encode() for one in fields["unique"]["details"]]
                lock_keys = [_lock_key(key) for key in fields["unique"]["lock_keys"]]
                for one in (details.encode(), *own_details):
                    _check_details(one)
                kind = WindowJobs if fields["unique"]["has_window"] else UniqueJobs
                unique = kind((*terms, details.encode()), payloads, lock_keys, fields["jids"], own_details)
            lists = fields.get("lists")
            if lists is not None and [type(name) for name in lists] != [str] * len(payloads):
                raise TypeError("the lists are no names of sub-queues")
            counted = None
            if fields.get("counted") is not None:
                *limit, each = fields["counted"]
                counted = CountedJobs(AcceptedLimit(*limit), int(each))
            batch = JobBatch(fields["queue"], payloads, fields["jids"], dues, statuses, unique, None, lists, counted)
            times = fields["token"], float(fields["kept_at"])
            return cls(fields["shard"], batch, *times, bool(fields["in_doubt"]), bool(fields["locks_when_due"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedRecordError(repr(error)) from error

    def at_replay(self, now: float, redis_now: float) -> JobBatch:
        """Return the jobs as the replay writes them; ``now`` is the time of this host, ``redis_now`` that of Redis.

        A delay counts from the push. A job whose time has passed goes to its queue. Jobs that take their locks when they are due,
        and the jobs of a bulk, go to the schedule set nevertheless: worker processes move them to their queues, with their locks.
        """
        batch = self.batch
        if batch.dues is None:
            return batch
        elapsed_s = max(0.0, now - self.kept_at)
        dues = [_absolute(due, elapsed_s, redis_now) for due in batch.dues]
        waits_in_set = self.locks_when_due or isinstance(batch.unique, WindowJobs)
        if len(dues) == 1 and dues[0].at <= redis_now and not waits_in_set:
            return _for_queue(batch, now)
        if batch.unique is None:
            return batch._replace(dues=dues)
        return batch._replace(dues=dues, unique=_shortened(batch.unique, elapsed_s))


def with_checksum(fields: Mapping[str, Any]) -> bytes:
    """Return fields as one line of text with a checksum, without the end of the line."""
    # The standard library escapes all that is not ASCII, so a line has no other line end.
    data = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %b" % (zlib.crc32(data), data)


def without_checksum(record: bytes) -> dict[str, Any]:
    """Return the fields of a line of ``with_checksum``.

    Raises:
        DamagedRecordError: the checksum is wrong.
    """
    checksum, _, data = record.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(data):
        raise DamagedRecordError("the checksum is wrong")
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise DamagedRecordError(repr(error)) from error
    if not is_mapping(fields):
        raise DamagedRecordError("it is no object")
    return fields


def _status_command(command: Sequence[Any], jids: Sequence[Jid]) -> StatusCommand:
    """Return the command that records a job of the push as queued. Raises ValueError for any other command: a file holds data."""
    name, key, *state = command
    if name != "SET" or not any(key == keys.status(jid) for jid in jids) or not _is_queued(state):
        raise ValueError(f"{command!r} does not record a job of the push as queued")
    return tuple(command)


def _is_queued(state: Sequence[Any]) -> bool:
    """Return whether these are the arguments of SET that write the state of a waiting job."""
    word, unit, seconds = state
    return word == "queued" and unit in ("EX", "EXAT") and str(seconds).isdecimal()


def _lock_key(key: str) -> str:
    if not key.startswith(keys.LOCKS):
        raise ValueError(f"{key!r} is not the key of a lock")
    return key


def _check_details(details: bytes) -> None:
    fields = _fields_of(details)
    if "status" in fields and not _is_queued(fields["status"]):
        raise ValueError(f"{fields['status']!r} does not record a job as queued")


def _absolute(due: DueTime, elapsed_s: float, redis_now: float) -> DueTime:
    return DueTime(due.at if due.delay_s is None else redis_now + due.delay_s - elapsed_s)


def _for_queue(batch: JobBatch, now: float) -> JobBatch:
    """Return a batch of one overdue job as a push without a delay would write it."""
    payload = set_fields(batch.payloads[0], {"enqueued_at": wire_timestamp(now)})
    tracked = tracked_job(loads(payload, None))
    statuses = [tracked.queued_command(None)] if tracked is not None and batch.statuses else []
    unique = batch.unique
    if unique is not None:
        *terms, details = unique.terms
        unique = unique._replace(terms=(*terms, _details_for_queue(details, tracked)), payloads=[payload], details=())
    return batch._replace(payloads=[payload], dues=None, statuses=statuses, unique=unique)


def _details_for_queue(details: str | int | bytes, tracked: TrackedJob | None) -> bytes:
    """Return encoded ``LockDetails`` without their due time."""
    fields = _fields_of(details)
    fields.pop("due", None)
    fields.pop("delay", None)
    if tracked is not None and "status" in fields:
        fields["status"] = [str(word) for word in tracked.queued_command(None)[2:]]
    return dumps(fields) if fields else b""


def _shortened(unique: UniqueJobs, elapsed_s: float) -> UniqueJobs:
    """Return jobs with delays that have already lasted ``elapsed_s``."""
    *terms, shared = unique.terms
    details = [_shorter_delay(one, elapsed_s) for one in unique.details]
    return unique._replace(terms=(*terms, _shorter_delay(shared, elapsed_s)), details=details)


def _shorter_delay(details: str | int | bytes, elapsed_s: float) -> bytes:
    fields = _fields_of(details)
    if "delay" in fields:
        fields["delay"] = f"{float(fields['delay']) - elapsed_s:.6f}"
    return dumps(fields) if fields else b""


def _fields_of(details: str | int | bytes) -> dict[str, Any]:
    return loads(details) if isinstance(details, bytes) and details else {}
