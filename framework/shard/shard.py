"""One shard: a named Redis, the ways of writing jobs to it, and the states of those that are tracked."""

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

import redis

from framework.errors import ShardUnavailableError
from framework.shard.application_pool import validated_client
from framework.shard.channel_pool import ChannelPool
from framework.shard.connection import ShardConnection, pack
from framework.shard.routing_validator import RoutingValidator
from framework.shard.transaction import TOKEN_MS, Command, QueueTransaction, ScheduleTransaction
from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, open_client
from framework.store.script import PUSH_DELAYED, PUSH_UNIQUE, PUSH_UP_TO
from framework.types import Jid
from framework.wire import keys
from framework.wire.status_key import StatusCommand, TrackedJob

_SCHEDULE_CHUNK_SIZE = 500  # members a ZADD; two arguments each
_UNIQUE_CHUNK_SIZE = 100  # jobs a script, some milliseconds of the server's time
_RESERVATION_S = (
    600  # a job that waits longer in its queue is no longer counted, lest one that was lost is counted for ever
)


class Shard:
    """A named Redis. Opening it opens no socket; the first command does."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        role: str,
        read_timeout_s: float = COMMAND_TIMEOUT_S,
        validator: RoutingValidator | None = None,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.role = role
        self.client: redis.Redis = open_client(endpoint, name=f"framework:{role}")
        """The framework's own; application code is given ``pool``."""
        opened = open_client(endpoint, name=f"framework:{role}:application")
        self.pool: redis.Redis = validated_client(opened, name, validator or RoutingValidator())
        self._connection = ShardConnection(name, endpoint, ChannelPool(self.client, read_timeout_s=read_timeout_s))

    def open_client(self, role: str, *, read_timeout_s: float) -> "redis.Redis":
        """Return another client of this shard, with connections of its own (a lease must not queue behind a bulk push)."""
        return open_client(self.endpoint, name=f"framework:{self.role}:{role}", read_timeout_s=read_timeout_s)

    def enqueue_one(self, queue: str, payload: bytes, status_commands: Sequence[StatusCommand] = ()) -> None:
        """Append one payload to its queue; otherwise as ``enqueue``."""
        self._connection.write(
            b"%b$%d\r\n%b\r\n" % (_packed_head(queue), len(payload), payload),
            2,
            queue_command_count=1,
            status_commands=status_commands,
        )

    def enqueue(
        self, queue: str, payloads: Sequence[bytes], token: str, status_commands: Sequence[StatusCommand] = ()
    ) -> None:
        """Append payloads, oldest first, to their queue, in one round trip.

        The name comes first and the jobs in one transaction: all are in their queue or none. ``marks``, the states of
        those that are tracked, come before all: a job that a worker sees has its state, and what is refused leaves none.
        Under a ``token`` the jobs are written once, however often this is called with it within ``TOKEN_S``.

        Raises:
            ShardUnavailableError: it does not answer or refuses; ``maybe_written`` says whether the jobs may be in.
        """
        names = [("SADD", keys.QUEUES, queue)]
        self._connection.write_once(QueueTransaction(token, queue, payloads), names, status_commands)

    def schedule(
        self, entries: Sequence[tuple[float, bytes]], token: str, status_commands: Sequence[StatusCommand] = ()
    ) -> None:
        """Put payloads into the ``schedule`` set, each due at its epoch second; ``token`` and ``marks`` as in ``enqueue``.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        commands: list[Command] = []
        for start in range(0, len(entries), _SCHEDULE_CHUNK_SIZE):
            pairs = [
                part for at, payload in entries[start : start + _SCHEDULE_CHUNK_SIZE] for part in (f"{at:.6f}", payload)
            ]
            commands.append(("ZADD", keys.SCHEDULE, *pairs))
        self._connection.write_once(ScheduleTransaction(token, commands), [], status_commands)

    def schedule_one(self, at: float, payload: bytes, status_commands: Sequence[StatusCommand] = ()) -> None:
        """Put one payload into the ``schedule`` set, due at an epoch second; otherwise as ``schedule``, without a token."""
        self._connection.write(
            pack(("ZADD", keys.SCHEDULE, f"{at:.6f}", payload)),
            1,
            queue_command_count=0,
            status_commands=status_commands,
        )

    def schedule_in(self, delay_s: float, payload: bytes, tracked: TrackedJob | None = None) -> float:
        """Put a payload into the ``schedule`` set, due ``delay_s`` from now by Redis's clock; return what that clock says.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        state: tuple[str, int] = ("", 0)
        if tracked is not None:
            state = (keys.status(tracked.jid), tracked.lifetime_s(delay_s))
        now, *refused = self._connection.run_script(PUSH_DELAYED, [keys.SCHEDULE], (f"{delay_s:.6f}", payload, *state))
        if refused:
            self._connection.log_status_refused(refused[0].decode(errors="replace"))
        return float(now)

    def time(self) -> float:
        """Return what Redis's clock says, epoch seconds.

        Raises:
            ShardUnavailableError: it does not answer or refuses.
        """
        seconds, microseconds = self._connection.read(pack(("TIME",)))
        return int(seconds) + int(microseconds) / 1e6

    def is_pushed(self, token: str) -> bool:
        """Return whether what was to be written under this token is in; no later than ``TOKEN_S`` after that.

        Raises:
            ShardUnavailableError: it does not answer or refuses.
        """
        return self._connection.is_written(keys.pushed(token))

    def enqueue_unique(self, queue: str | None, entries: Sequence[tuple[bytes, bytes]], token: str = "") -> list[Jid]:
        """Write jobs of a deduplicated class, payloads and claims on their locks, to a queue, or (``None``) to the ``schedule`` set.

        Returns for each the jid of the job whose duplicate it is, empty for none (``push_unique.lua``). ``token`` as in ``enqueue``.

        Raises:
            ShardUnavailableError: as ``enqueue``; of the jobs in one of its steps all are in, or none.
        """
        names = (keys.QUEUES, keys.SCHEDULE if queue is None else keys.queue(queue))
        found: list[Jid] = []
        for start in range(0, len(entries), _UNIQUE_CHUNK_SIZE):
            part = entries[start : start + _UNIQUE_CHUNK_SIZE]
            step = keys.pushed(f"{token}:{start}") if token else ""
            payloads, claims = zip(*part, strict=True)
            try:
                reply = self._connection.run_script(
                    PUSH_UNIQUE, names, (len(part), queue or "", step, TOKEN_MS, *payloads, *claims)
                )
            except ShardUnavailableError as failure:
                failure.maybe_written = failure.maybe_written or bool(found)
                raise
            if len(reply) > len(part):
                self._connection.log_queue_name_refused(reply.pop().decode(errors="replace"))
            found += [owner.decode() for owner in reply]
        return found

    def enqueue_up_to(self, limit: str, most: int, jobs: Sequence[tuple[str, bytes, Jid]]) -> tuple[int, int]:
        """Write jobs (queue, payload, id) of a limited capacity worker, as many as are missing of ``most``; see ``push_up_to.lua``.

        Returns how many were written, in the order given, and how many are missing still.

        Raises:
            ShardUnavailableError: as ``enqueue``; all are in that were to be, or none.
        """
        queues, payloads, jids = zip(*jobs, strict=True) if jobs else ((), (), ())
        names = (limit, keys.QUEUES, *map(keys.queue, queues))
        written, missing = self._connection.run_script(
            PUSH_UP_TO, names, (most, _RESERVATION_S, len(jobs), *payloads, *jids, *queues)
        )
        return written, missing

    def close(self) -> None:
        """Close the connections that no thread uses; the shard may be used again."""
        self._connection.close()
        self.client.close()
        self.pool.close()

    def write_status(self, command: StatusCommand) -> None:
        """Write the state of one job.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        self._connection.write(pack(command), 1, queue_command_count=0)

    def states(self, jids: Sequence[Jid]) -> Sequence[bytes | None]:
        """Return the words under the status keys of these jobs, ``None`` where there is none.

        Raises:
            ShardUnavailableError: it does not answer or refuses.
        """
        return cast("Sequence[bytes | None]", self._connection.read(pack(("MGET", *map(keys.status, jids)))))


@lru_cache(maxsize=1_000)
def _packed_head(queue: str) -> bytes:
    """The packed commands that append one job to a queue, as far as they are always the same."""
    name, key = queue.encode(), keys.queue(queue).encode()
    listed = pack(("SADD", keys.QUEUES, name))
    return b"%b*3\r\n$5\r\nLPUSH\r\n$%d\r\n%b\r\n" % (listed, len(key), key)
