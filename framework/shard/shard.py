"""One shard: a named Redis and the two ways of writing jobs to it."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import hiredis
import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.errors import FrameworkError, ShardUnavailableError
from framework.settings.suggest import did_you_mean
from framework.shard.application_pool import judged
from framework.shard.channels import Channels
from framework.shard.refusals import advice_for
from framework.shard.validator import Validator
from framework.store.channel import Channel
from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, open_client
from framework.wire import keys

_SCHEDULE_SLICE = 500  # members a ZADD; two arguments each
_PASSING = (RedisConnectionError, BusyLoadingError, ReadOnlyError)
"""What a new connection, its address looked up anew, may not meet again."""

_pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)


class Shard:
    """A named Redis. Opening it opens no socket; the first command does."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        role: str,
        read_timeout_s: float = COMMAND_TIMEOUT_S,
        validator: Validator | None = None,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.role = role
        self.client: redis.Redis = open_client(endpoint, name=f"framework:{role}")
        """The framework's own; application code is given ``pool``."""
        opened = open_client(endpoint, name=f"framework:{role}:application")
        self.pool: redis.Redis = judged(opened, name, validator or Validator())
        self._channels = Channels(self.client, read_timeout_s=read_timeout_s)

    def open_client(self, role: str, *, read_timeout_s: float) -> "redis.Redis":
        """Return another client of this shard, with connections of its own (a lease must not queue behind a bulk push)."""
        return open_client(self.endpoint, name=f"framework:{self.role}:{role}", read_timeout_s=read_timeout_s)

    def enqueue_one(self, queue: str, payload: bytes) -> None:
        """Append one payload to its queue; otherwise as ``enqueue``."""
        self._write(b"%b$%d\r\n%b\r\n" % (_head(queue), len(payload), payload), 2, names=1)

    def enqueue(self, payloads: Mapping[str, Sequence[bytes]]) -> None:
        """Append payloads, oldest first, to their queues, in one round trip.

        The names come first and each queue's jobs in one LPUSH: a job is in its queue or nowhere.

        Raises:
            ShardUnavailableError: it does not answer or refuses; ``maybe_written`` says whether the jobs may be in.
        """
        commands: list[tuple[Any, ...]] = [("SADD", keys.QUEUES, *payloads)]
        commands += [("LPUSH", keys.queue(name), *jobs) for name, jobs in payloads.items()]
        self._write(b"".join(map(_pack, commands)), len(commands), names=1)

    def schedule(self, entries: Sequence[tuple[float, bytes]]) -> None:
        """Put payloads into the ``schedule`` set, each due at its epoch second.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        commands: list[tuple[Any, ...]] = []
        for start in range(0, len(entries), _SCHEDULE_SLICE):
            pairs = [
                part for at, payload in entries[start : start + _SCHEDULE_SLICE] for part in (f"{at:.6f}", payload)
            ]
            commands.append(("ZADD", keys.SCHEDULE, *pairs))
        self._write(b"".join(map(_pack, commands)), len(commands), names=0)

    def close(self) -> None:
        """Close the connections that nobody uses; the shard may be used again."""
        self._channels.close()
        self.client.close()
        self.pool.close()

    def _write(self, packet: bytes, commands: int, *, names: int) -> None:
        """Send packed commands and read their replies; again, once, where surely no job was written the first time.

        The first ``names`` commands write no job.
        """
        failure = self._attempt(self._channels.take(), packet, commands, names)
        if failure is not None and not failure.maybe_written and _may_pass(failure.__cause__):
            self._channels.close()  # its siblings lead to the same server
            failure = self._attempt(self._channels.fresh(), packet, commands, names)
        if failure is not None:
            raise failure

    def _attempt(self, channel: Channel, packet: bytes, commands: int, names: int) -> ShardUnavailableError | None:
        try:
            channel.send_packet(packet)
            replies = channel.replies(commands)
        except RedisError as error:
            return self._failure(error, maybe_written=channel.sent)
        self._channels.give(channel)
        for reply in replies:
            if isinstance(reply, RedisError):
                accepted = any(not isinstance(answer, RedisError) for answer in replies[names:])
                return self._failure(reply, maybe_written=accepted)
        return None

    def _failure(self, error: RedisError, *, maybe_written: bool) -> ShardUnavailableError:
        # redis-py takes the server's word for it (OOM, READONLY) out of the text.
        words = f"{error.status_code or ''} {str(error) or type(error).__name__}".strip()
        reason = f"{self.endpoint.shown}: {words}".rstrip(".")
        failure = ShardUnavailableError(self.name, reason, maybe_written=maybe_written, advice=advice_for(error))
        failure.__cause__ = error
        return failure


@lru_cache(maxsize=1_000)
def _head(queue: str) -> bytes:
    """The packed commands that append one job to a queue, as far as they are always the same."""
    name, key = queue.encode(), keys.queue(queue).encode()
    listed = _pack(("SADD", keys.QUEUES, name))
    return b"%b*3\r\n$5\r\nLPUSH\r\n$%d\r\n%b\r\n" % (listed, len(key), key)


def _may_pass(error: BaseException | None) -> bool:
    return isinstance(error, _PASSING) and not isinstance(error, AuthenticationError)


class Shards(Mapping[str, Shard]):
    """All shards by name; ``main`` is always among them."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = dict(shards)

    def __getitem__(self, name: str) -> Shard:
        try:
            return self._shards[name]
        except KeyError:
            known = sorted(self._shards)
            raise UnknownShardError(
                f"no shard is named {name!r}{did_you_mean(name, known)}; config/redis.yml has: {', '.join(known)}"
            ) from None

    def __iter__(self) -> Any:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def close(self) -> None:
        """Close every shard's connections."""
        for shard in self._shards.values():
            shard.close()


class UnknownShardError(FrameworkError, KeyError):
    """A shard was asked for that the configuration does not have."""

    __str__ = Exception.__str__
