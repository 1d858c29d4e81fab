"""Read flags from a shard's Redis: one HASH, cached in the process. Each shard has its own flags, as it has its own jobs."""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.feature_flags.flag import Flag, FlagSource, decode_flag
from framework.store.absent_keys import AbsentKeys
from framework.store.clock import epoch_s, server_time
from framework.telemetry.rate_limit import LogRateLimit
from framework.text import decode_escaped
from framework.timings import STANDARD
from framework.wire import keys

MAX_AGE_S = STANDARD.record_period_s
"""The maximum age of cached flags: worker processes read them as often as they write their record."""

_LOG_INTERVAL_S = 300.0
_MAX_VALUE = 200


class _CachedFlag(NamedTuple):
    flag: Flag
    valid_until: float
    """Seconds of the monotonic clock."""

    def is_valid(self) -> bool:
        return time.monotonic() < self.valid_until


# Decision 133: flags are cached in each process.
class RedisFlags(FlagSource):
    """Cache the flags of one shard; flags that cannot be read keep their last values.

    A worker process reads them every few seconds, unless the shard has none (``absent``). A producer has no periodic task: with
    ``lazy`` the flags are read on use, if older than ``MAX_AGE_S``.
    """

    def __init__(
        self, client: "redis.Redis", shard: str, absent: AbsentKeys | None = None, *, lazy: bool = False
    ) -> None:
        self._client = client
        self._absent = absent or AbsentKeys()
        self._shard = shard
        self._lazy = lazy
        self._read_at: float | None = None
        self._flags: Mapping[str, _CachedFlag] = {}
        self._raw: Mapping[str, bytes] = {}
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def find(self, name: str) -> Flag | None:
        """See ``Flags``."""
        self._refresh_if_stale()
        found = self._flags.get(name)
        return found.flag if found is not None and found.is_valid() else None

    def names(self) -> frozenset[str]:
        """See ``Flags``."""
        self._refresh_if_stale()
        return self._valid_names()

    def _valid_names(self) -> frozenset[str]:
        return frozenset(name for name, one in self._flags.items() if one.is_valid())

    def raw_value(self, name: str) -> bytes:
        """Return the stored bytes of a flag at the last read, valid or not; empty if there was none."""
        return self._raw.get(name, b"")

    def expect_change(self) -> None:
        """Make the next read ask Redis, even if the shard had no flags at the last check."""
        self._absent.note(keys.FLAGS, found=True)

    def read(self) -> bool:
        """Read all flags; return whether any has changed. Raises redis errors of the connection.

        A refusal by the server (a key of another type, an ACL) is logged, and the known flags stay.
        """
        # Set before the read, so that other threads do not read at the same time.
        self._read_at = time.monotonic()
        if not self._absent.may_exist(keys.FLAGS):
            # The last read found no flag, and there is none yet.
            return False
        pipeline: Any = self._client.pipeline(transaction=False)
        pipeline.time()
        pipeline.hgetall(keys.FLAGS)
        try:
            server_now, fields = cast("tuple[tuple[int, int], dict[bytes, bytes]]", pipeline.execute())
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
        self._absent.note(keys.FLAGS, found=bool(fields))
        # The end of a flag is converted by Redis's clock, so that no host's clock ends it too early or never.
        offset = time.monotonic() - epoch_s(server_now)
        raw = {decode_escaped(field): data for field, data in fields.items()}
        before, known = self._valid_names(), self._flags
        self._flags, self._raw = (
            {name: one for name, data in raw.items() if (one := self._decode(name, data, offset))},
            raw,
        )
        return before != self._valid_names() or any(known[name].flag != self._flags[name].flag for name in before)

    def _refresh_if_stale(self) -> None:
        if not self._lazy or (self._read_at is not None and time.monotonic() - self._read_at < MAX_AGE_S):
            return
        try:
            self.read()
        except (RedisError, OSError) as error:
            self._warn(
                "away",
                "the flags cannot be read; their last values are used. Look at the error",
                "flags.unavailable",
                error=error,
            )

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


def set_flag(client: "redis.Redis", flag: Flag, duration_s: float | None) -> Flag:
    """Set a flag for ``duration_s``, or without an end; return it with its times. Raises redis errors."""
    now = server_time(client)
    ends = None if duration_s is None else now + duration_s
    dated = Flag(flag.name, flag.percentage, flag.reason, flag.set_by, now, ends)
    client.hset(keys.FLAGS, flag.name, cast("Any", dated.encode()))
    return dated


def unset_flag(client: "redis.Redis", name: str) -> bool:
    """Remove a flag; return whether it existed. Raises redis errors."""
    removed: Any = client.hdel(keys.FLAGS, name)
    return bool(removed)


def read_flags(client: "redis.Redis") -> dict[str, Flag]:
    """Return the flags of a shard by name, including expired ones, without malformed ones. Raises redis errors."""
    return {name: flag for name, flag in read_flags_or_none(client).items() if flag is not None}


def read_flags_or_none(client: "redis.Redis") -> dict[str, Flag | None]:
    """Return the flags of a shard by name, ``None`` for malformed ones. Raises redis errors."""
    found: dict[str, Flag | None] = {}
    fields: Any = client.hgetall(keys.FLAGS)
    for name, data in fields.items():
        text = decode_escaped(name)
        try:
            found[text] = decode_flag(text, data)
        except ValueError:
            found[text] = None
    return found
