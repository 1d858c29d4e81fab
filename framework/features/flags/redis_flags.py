"""Read flags from a shard's Redis: one HASH, cached in the process. Each shard has its own flags, as it has its own jobs."""

import math
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.features.flags.flag import Flag, Flags, FlagSource, decode_flag
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import epoch_s, server_time
from framework.store.script import write_when_full
from framework.supervised_threads import SupervisedThread, ThreadStartError
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.text import decode_escaped
from framework.timings import STANDARD
from framework.wire import keys

MAX_AGE_S = STANDARD.record_period_s
"""The maximum age of cached flags: every process reads them as often as worker processes write their record."""

_LOG_INTERVAL_S = 300.0
_MAX_VALUE = 200
_MOST_FLAGS = 50_000
"""The flags that a process keeps at most, in 70 MB."""

FIRST_READ_TIMEOUT_S = 2.0
"""The longest wait of the first use of the flags in a process."""


class _CachedFlag(NamedTuple):
    flag: Flag
    valid_until: float
    """Seconds of the monotonic clock."""

    def is_valid(self) -> bool:
        return time.monotonic() < self.valid_until


class _Snapshot(NamedTuple):
    """The flags of one read."""

    asked_at: float
    """Seconds of the monotonic clock, before the read was sent."""
    flags: Mapping[str, _CachedFlag]
    raw: Mapping[str, bytes]


class _OwnWrite(NamedTuple):
    """A write of this process. It counts until a read that was sent later."""

    noted_at: float
    flag: _CachedFlag | None


# Flags are cached in each process: a question per job would cost round trips exactly when a class floods.
class RedisFlags(FlagSource):
    """Cache the flags of one shard; flags that cannot be read keep their last values.

    ``read`` asks Redis, unless the shard has no flags (``absent``). No method takes a lock, so a fork is harmless.
    """

    def __init__(self, client: "redis.Redis", shard: str, absent: AbsentKeys | None = None) -> None:
        self._client = client
        self._absent = absent or AbsentKeys()
        self._shard = shard
        # One reference, so that another thread sees flags and time of the same read.
        self._snapshot = _Snapshot(-math.inf, {}, {})
        self._own_writes: dict[str, _OwnWrite] = {}
        self._reported: Mapping[str, Flag] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def find(self, name: str) -> Flag | None:
        snapshot = self._snapshot
        own = self._own_writes.get(name)
        found = snapshot.flags.get(name) if own is None or own.noted_at < snapshot.asked_at else own.flag
        return found.flag if found is not None and found.is_valid() else None

    def names(self) -> frozenset[str]:
        return frozenset(self._valid_flags())

    def raw_value(self, name: str) -> bytes:
        """Return the stored bytes of a flag at the last read, valid or not; empty if there was none."""
        return self._snapshot.raw.get(name, b"")

    def expect_change(self) -> None:
        """Make the next read ask Redis, even if the shard had no flags at the last check."""
        self._absent.note(keys.FLAGS, found=True)

    def note_written(self, name: str, flag: Flag | None) -> None:
        """Use a flag that this process has just written (``None``: cleared), without waiting for the next read."""
        self.expect_change()
        now = time.monotonic()
        cached = None
        if flag is not None:
            cached = _CachedFlag(flag, now + _duration_s(flag))
        self._own_writes[name] = _OwnWrite(now, cached)

    def read(self) -> bool:
        """Read all flags; return whether any has changed. Raises redis errors of the connection.

        A refusal by the server (a key of another type, an ACL) is logged, and the known flags stay.
        """
        if self._absent.may_exist(keys.FLAGS):
            # Else the last read found no flag, and there is none yet.
            asked_at = time.monotonic()
            try:
                found = self._read_from_redis()
            except (RedisConnectionError, RedisTimeoutError):
                raise
            except ResponseError as error:
                self._warn(
                    "refused",
                    "the flags cannot be read; their last values are used. Look at the error",
                    "flags.read_failed",
                    error=error,
                )
                return False
            self._snapshot = _Snapshot(asked_at, *found)
        before, self._reported = self._reported, self._valid_flags()
        return before != self._reported

    def _read_from_redis(self) -> tuple[Mapping[str, _CachedFlag], Mapping[str, bytes]]:
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.time()
        # One call returns all flags at one instant, or a cursor if there are more.
        pipeline.hscan(keys.FLAGS, 0, count=_MOST_FLAGS)
        server_now, (cursor, fields) = cast(
            "tuple[tuple[int, int], tuple[int, dict[bytes, bytes]]]", pipeline.execute()
        )
        if cursor:
            raise ResponseError(f"{keys.FLAGS} has more than {_MOST_FLAGS:,} flags. Remove those that are not used")
        self._absent.note(keys.FLAGS, found=bool(fields))
        # The end of a flag is converted by Redis's clock, so that no host's clock ends it too early or never.
        offset = time.monotonic() - epoch_s(server_now)
        raw = {decode_escaped(field): data for field, data in fields.items()}
        return {name: one for name, data in raw.items() if (one := self._decode(name, data, offset))}, raw

    def _valid_flags(self) -> dict[str, Flag]:
        candidates = [*self._snapshot.flags, *self._own_writes.copy()]
        return {name: flag for name in candidates if (flag := self.find(name)) is not None}

    def _decode(self, name: str, data: bytes, offset: float) -> _CachedFlag | None:
        try:
            flag = decode_flag(name, data)
        except ValueError as error:
            text = f"the flag {name} is malformed and counts as not set: {error}"
            shown = decode_escaped(data[:_MAX_VALUE])
            self._warn(f"{name} {shown}", text, "flags.unreadable", flag=name, value=shown)
            return None
        return _CachedFlag(flag, offset + (math.inf if flag.expires_at is None else flag.expires_at))

    def _warn(self, topic: str, message: str, event_name: str, **fields: Any) -> None:
        self._log_limit.warning(topic, message, event_name, shard=self._shard, **fields)


class ShardFlags(NamedTuple):
    """The flags of one shard: all sources together, and the source in Redis."""

    all: Flags
    stored: RedisFlags


def _duration_s(flag: Flag) -> float:
    return math.inf if flag.expires_at is None or flag.set_at is None else flag.expires_at - flag.set_at


def set_flag(client: "redis.Redis", flag: Flag, duration_s: float | None) -> Flag:
    """Set a flag for ``duration_s``, or without an end; return it with its times. Raises redis errors."""
    now = server_time(client)
    ends = None if duration_s is None else now + duration_s
    dated = Flag(flag.name, flag.percentage, flag.reason, flag.set_by, now, ends)
    write_when_full(client, ("HSET", keys.FLAGS, flag.name, dated.encode()))
    return dated


def unset_flag(client: "redis.Redis", name: str) -> bool:
    """Remove a flag; return whether it existed. Raises redis errors."""
    removed: Any = client.hdel(keys.FLAGS, name)
    return bool(removed)


def read_flags(client: "redis.Redis") -> dict[str, Flag]:
    """Return the flags of a shard by name, including expired ones, without malformed ones. Raises redis errors."""
    return {name: flag for name, flag in _decoded(client.hgetall(keys.FLAGS)).items() if flag is not None}


def read_flags_in_force(client: "redis.Redis") -> tuple[float, dict[str, Flag | None]]:
    """Return Redis's time, and the flags of a shard that have not expired, ``None`` for malformed ones. Raises redis errors."""
    now = server_time(client)
    found = _decoded(client.hgetall(keys.FLAGS))
    ended = {name for name, flag in found.items() if flag and flag.expires_at is not None and flag.expires_at <= now}
    return now, {name: flag for name, flag in found.items() if name not in ended}


def _decoded(fields: Any) -> dict[str, Flag | None]:
    found: dict[str, Flag | None] = {}
    for name, data in fields.items():
        text = decode_escaped(name)
        try:
            found[text] = decode_flag(text, data)
        except ValueError:
            found[text] = None
    return found


class _Reader:
    """The thread that reads the flags of one process; a forked process needs another."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.unstarted = threading.Lock()
        """Taken once, by the thread of the application that starts the reader."""
        self.read_once = threading.Event()
        """Set after the first read, or when the first use has waited long enough for it."""


class RefreshedFlags(Flags):
    """Keep the flags of a source fresh from their first use on.

    The first use in a process, also in a forked one, waits for the flags, for two seconds at most. Later ones never wait: while
    the flags cannot be read, their last values count, and the log says so once.
    """

    def __init__(self, source: FlagSource, shard: str, *, period_s: float = MAX_AGE_S) -> None:
        self._source = source
        self._shard = shard
        self._period_s = period_s
        self._reader = _Reader(0)
        # One step of the interpreter adds a reader, so no lock is needed, which a fork might leave locked.
        self._readers: dict[int, _Reader] = {}
        self._failing = False

    def find(self, name: str) -> Flag | None:
        reader = self._reader
        if reader.pid != os.getpid() or not reader.read_once.is_set():
            self._wait_for_first_read()
        return self._source.find(name)

    def names(self) -> frozenset[str]:
        self._wait_for_first_read()
        return self._source.names()

    def watch(self, name: str) -> None:
        self._source.watch(name)

    @property
    def ready(self) -> bool:
        """Whether a use of the flags does not wait."""
        return self._reader.pid == os.getpid() and self._reader.read_once.is_set()

    def _wait_for_first_read(self) -> None:
        pid = os.getpid()
        self._reader = reader = self._readers.setdefault(pid, _Reader(pid))
        if reader.unstarted.acquire(blocking=False):
            # A weak reference: the thread ends when the flags are no longer used.
            arguments = (weakref.ref(self), reader)
            try:
                SupervisedThread("flags", _read_periodically, *arguments).start()
            except ThreadStartError:
                # The next use tries again; until then the flags are as they were read last.
                reader.unstarted.release()
                return
        if not reader.read_once.wait(FIRST_READ_TIMEOUT_S):
            reader.read_once.set()

    def refresh(self) -> float:
        """Read the source and return the seconds until the next read. Raises nothing."""
        try:
            self._source.read()
            self._failing = False
        except (RedisError, OSError) as error:
            if not self._failing:
                logs.logger().warning(
                    "the flags cannot be read; their last values are used. Look at the error",
                    event_name="flags.unavailable",
                    shard=self._shard,
                    error=error,
                )
            self._failing = True
        return self._period_s


def _read_periodically(flags: weakref.ref[RefreshedFlags], reader: _Reader) -> None:
    try:
        while (used := flags()) is not None:
            pause_s = used.refresh()
            del used
            reader.read_once.set()
            time.sleep(pause_s)
    except BaseException:
        # The next use starts another thread.
        reader.read_once.clear()
        reader.unstarted.release()
        raise
