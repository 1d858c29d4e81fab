"""One shard: a named Redis and the two ways of writing jobs to it."""

from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from framework.errors import FrameworkError, ShardUnavailableError
from framework.store.connect import Endpoint, open_client
from framework.wire import keys

_SCHEDULE_SLICE = 500  # members a ZADD; two arguments each


class Shard:
    """A named Redis. Opening it opens no socket; the first command does."""

    def __init__(self, name: str, endpoint: Endpoint, *, role: str) -> None:
        self.name = name
        self.endpoint = endpoint
        self.role = role
        self.client: redis.Redis = open_client(endpoint, name=f"framework:{role}")

    def open_client(self, role: str, *, read_timeout_s: float) -> "redis.Redis":
        """Return another client of this shard, with connections of its own (a lease must not queue behind a bulk push)."""
        return open_client(self.endpoint, name=f"framework:{self.role}:{role}", read_timeout_s=read_timeout_s)

    def enqueue(self, payloads: Mapping[str, Sequence[bytes]]) -> None:
        """Append payloads, oldest first, to their queues, in one round trip.

        The names come first and each queue's jobs in one LPUSH: a job is in its queue or nowhere.

        Raises:
            ShardUnavailableError: it does not answer or refuses; ``maybe_written`` says whether the jobs may be in.
        """
        commands: list[tuple[Any, ...]] = [("SADD", keys.QUEUES, *payloads)]
        commands += [("LPUSH", keys.queue(name), *jobs) for name, jobs in payloads.items()]
        self._send(commands)

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
        self._send(commands)

    def close(self) -> None:
        """Close the pooled connections; the shard may be used again."""
        self.client.close()

    def _send(self, commands: list[tuple[Any, ...]]) -> None:
        """Write ``commands`` in one packet on one connection and read every reply; never retry.

        Packed by hand because redis-py's pipeline object costs a fifth of a push (measured: 0.9x of a bare LPUSH against
        1.17x). A connection that failed midway is closed, never pooled: a late reply would answer somebody else.
        """
        pool = self.client.connection_pool
        try:
            connection: Any = pool.get_connection()
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from error
        sent = False
        refusal: ResponseError | None = None
        try:
            packet = connection.pack_commands(commands)
            sent = True
            connection.send_packed_command(packet, check_health=False)
            for _ in commands:
                try:
                    connection.read_response()
                except ResponseError as error:
                    refusal = refusal or error
            if refusal is not None:
                # READONLY and its like mean that the server behind this address changed: look the address up anew.
                connection.disconnect()  # while it is ours: once released, another thread may be using it
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise self._unavailable(error, maybe_written=sent) from error
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        if refusal is not None:
            raise self._unavailable(refusal) from refusal

    def _unavailable(self, error: BaseException, *, maybe_written: bool = False) -> ShardUnavailableError:
        reason = f"{self.endpoint.shown}: {str(error) or type(error).__name__}".rstrip(".")
        return ShardUnavailableError(self.name, reason, maybe_written=maybe_written)


class Shards(Mapping[str, Shard]):
    """All shards by name; ``main`` is always among them."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = dict(shards)

    def __getitem__(self, name: str) -> Shard:
        try:
            return self._shards[name]
        except KeyError:
            known = ", ".join(sorted(self._shards))
            raise UnknownShardError(f"no shard is named {name!r}; config/redis.yml has: {known}") from None

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
