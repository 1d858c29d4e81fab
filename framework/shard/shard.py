"""Write jobs to one shard, a named Redis, and read the statuses of tracked jobs."""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic
from typing import Any, cast

import redis
from redis.exceptions import RedisError

from framework.errors import BacklogFullError, ShardUnavailableError
from framework.shard.connection import TOKEN_MS, Command, QueueTransaction, ScheduleTransaction, ShardConnection, pack
from framework.shard.held_back import HeldBack
from framework.shard.redis_errors import BACKLOG_FULL, error_code, unavailable_error
from framework.shard.routing_validator import RoutingValidator, validated_client
from framework.store.block_store import IN_REDIS, BlockStore, attach_store
from framework.store.channel import ChannelPool
from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, epoch_s, open_client
from framework.store.script import (
    FIND_OWNERS,
    MARK_CANCELLED,
    PUSH_DELAYED,
    PUSH_DELAYED_COUNTED,
    PUSH_FAIR,
    PUSH_FAIR_COUNTED,
    PUSH_FAIR_IN_RESERVE,
    PUSH_SCHEDULED_COUNTED,
    PUSH_UNIQUE,
    PUSH_UNIQUE_COUNTED,
    PUSH_UNIQUE_IN_RESERVE,
    PUSH_UP_TO,
    PUSH_WINDOW,
    PUSH_WINDOW_COUNTED,
    Script,
)
from framework.types import Jid
from framework.wire import keys
from framework.wire.accepted import CountedJobs
from framework.wire.json import dumps
from framework.wire.resources import FENCE_MS, FormerOwner, UniqueJobs, WindowJobs, former_owner
from framework.wire.status_key import StatusCommand
from framework.wire.sub_queues import SEPARATOR

# Members per ZADD; two arguments each.
_SCHEDULE_CHUNK_SIZE = 500
# Jobs per script: two milliseconds of the server's time.
_UNIQUE_CHUNK_SIZE = 500
# Jobs of a queue that are compared with one job: a fraction of a millisecond of the server's time.
_MAX_SEARCHED = 10_000
# A job that waits longer in its queue is no longer counted, so that a lost job is not counted forever.
_RESERVATION_S = 600

MOVES_AGE_S = 5.0
"""How old the moves between shards may be by which a push chooses its shard."""


class Shard:
    """Represent a named Redis. Opening it opens no socket; the first command does."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        role: str,
        read_timeout_s: float = COMMAND_TIMEOUT_S,
        validator: RoutingValidator | None = None,
        block_store: BlockStore = IN_REDIS,
    ) -> None:
        self.name = name
        self.endpoint = endpoint
        self.role = role
        self.block_store = block_store
        """Where blocks of packed jobs may be beside Redis."""
        self.client: redis.Redis = attach_store(open_client(endpoint, name=f"framework:{role}"), block_store)
        """The framework's client. Application code receives ``pool``."""
        opened = open_client(endpoint, name=f"framework:{role}:application")
        self.pool: redis.Redis = validated_client(opened, name, validator or RoutingValidator())
        pool = ChannelPool(self.client, read_timeout_s=read_timeout_s)
        self.held_back = HeldBack(name, self.read)
        """The classes whose pushes the shard holds back."""
        self.moves_valid_until = monotonic() + MOVES_AGE_S
        """Until when pushes need not ask the shard again which jobs have moved away from it (seconds of the monotonic clock)."""
        self._connection = ShardConnection(name, endpoint, pool, self.held_back.largest)

    @property
    def circuit_open(self) -> bool:
        """Whether pushes fail at once, because the shard does not answer this process."""
        return self._connection.circuit_open

    def open_client(self, role: str, *, read_timeout_s: float) -> "redis.Redis":
        """Return another client of this shard with its own connections (a lease must not wait behind a bulk push)."""
        opened = open_client(self.endpoint, name=f"framework:{self.role}:{role}", read_timeout_s=read_timeout_s)
        return attach_store(opened, self.block_store)

    def enqueue_one(self, queue: str, payload: bytes, status_commands: Sequence[StatusCommand] = ()) -> None:
        """Append one payload to its queue. Raises as ``enqueue``."""
        if SEPARATOR in queue:
            self._enqueue_fair((queue,), (payload,), "", status_commands)
            return
        self._connection.write(
            b"%b$%d\r\n%b\r\n" % (_packed_head(queue), len(payload), payload),
            2,
            queue_command_count=1,
            status_commands=status_commands,
        )

    def enqueue(
        self,
        queue: str,
        payloads: Sequence[bytes],
        token: str,
        status_commands: Sequence[StatusCommand] = (),
        lists: Sequence[str] | None = None,
        counted: CountedJobs | None = None,
    ) -> None:
        """Append payloads, oldest first, to their queue, in one round trip.

        The queue's name is sent first, then the jobs in one transaction: all are in their queue or none. The statuses of tracked
        jobs (``status_commands``) come before all: a job that a worker sees has its status, and a refused job leaves none.
        Under one ``token`` the jobs are written once, however often this is called with it within ``TOKEN_S``. ``lists`` has the
        sub-queue of each job, where they go to several ones of the queue; jobs of one are neighbours. ``counted``: the class has a
        limit of accepted jobs.

        Raises:
            ShardUnavailableError: Redis does not answer or refuses; ``maybe_written`` says whether the jobs may be written.
            BacklogFullError: the limit is reached; nothing was written.
        """
        if counted is not None or SEPARATOR in queue or lists is not None:
            self._enqueue_fair(lists or [queue] * len(payloads), payloads, token, status_commands, counted)
            return
        names = [("SADD", keys.QUEUES, queue)]
        self._connection.write_once(QueueTransaction(token, queue, payloads), names, status_commands)

    def enqueue_in_reserve(
        self,
        queue: str,
        payloads: Sequence[bytes],
        token: str,
        status_commands: Sequence[StatusCommand] = (),
        lists: Sequence[str] | None = None,
    ) -> None:
        """Append payloads to their queue, or its sub-queues, also where Redis has no memory left. As ``enqueue``.

        The caller has asked ``held_back.has_reserve``.
        """
        self._enqueue_fair(lists or [queue] * len(payloads), payloads, token, status_commands, in_reserve=True)

    def _enqueue_fair(
        self,
        lists: Sequence[str],
        payloads: Sequence[bytes],
        token: str,
        status_commands: Sequence[StatusCommand],
        counted: CountedJobs | None = None,
        *,
        in_reserve: bool = False,
    ) -> None:
        """Append payloads to sub-queues of one queue, whose keys then have a turn. As ``enqueue``."""
        statuses = _statuses(status_commands)
        done_key = keys.pushed(token) if token else ""
        counts = Counter(lists)
        names = (keys.QUEUES, *map(keys.queue, counts))
        sizes = [part for pair in counts.items() for part in pair]
        arguments = (done_key, TOKEN_MS, statuses, *sizes, *payloads)
        if counted is None:
            self._connection.run_script(PUSH_FAIR_IN_RESERVE if in_reserve else PUSH_FAIR, names, arguments)
        else:
            words = counted.argument(len(payloads), 2, done_key=done_key)
            self._run_counted(PUSH_FAIR_COUNTED, counted, names, (*arguments, words))

    def _run_counted(self, script: Script, counted: CountedJobs, names: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script that counts the jobs that it writes; return its reply. Raises as ``enqueue``."""
        try:
            return self._connection.run_script(script, names, arguments)
        except ShardUnavailableError as failure:
            cause = failure.__cause__
            if not isinstance(cause, RedisError) or error_code(cause) != BACKLOG_FULL:
                raise
            jobs, size, free = map(int, str(cause).split()[-3:])
            limit = counted.limit
            raise BacklogFullError(limit.worker, self.name, jobs, size, limit.described, free=free) from None

    def schedule(
        self,
        entries: Sequence[tuple[float, bytes]],
        token: str,
        status_commands: Sequence[StatusCommand] = (),
        counted: CountedJobs | None = None,
    ) -> None:
        """Add payloads to the ``schedule`` set, each due at its epoch second. The other arguments are as in ``enqueue``.

        Raises:
            ShardUnavailableError, BacklogFullError: as ``enqueue``.
        """
        if counted is not None:
            done_key = keys.pushed(token) if token else ""
            pairs = [part for at, payload in entries for part in (f"{at:.6f}", payload)]
            words = counted.argument(len(entries), 1, in_set=True, done_key=done_key)
            arguments = (done_key, TOKEN_MS, _statuses(status_commands), *pairs, words)
            self._run_counted(PUSH_SCHEDULED_COUNTED, counted, [keys.SCHEDULE], arguments)
            return
        commands: list[Command] = []
        for start in range(0, len(entries), _SCHEDULE_CHUNK_SIZE):
            pairs = [
                part for at, payload in entries[start : start + _SCHEDULE_CHUNK_SIZE] for part in (f"{at:.6f}", payload)
            ]
            commands.append(("ZADD", keys.SCHEDULE, *pairs))
        self._connection.write_once(ScheduleTransaction(token, commands), [], status_commands)

    def schedule_one(self, at: float, payload: bytes, status_commands: Sequence[StatusCommand] = ()) -> None:
        """Add one payload to the ``schedule`` set, due at an epoch second. Raises as ``schedule``; has no token."""
        self._connection.write(
            pack(("ZADD", keys.SCHEDULE, f"{at:.6f}", payload)),
            1,
            queue_command_count=0,
            status_commands=status_commands,
        )

    def schedule_in(
        self,
        delay_s: float,
        payload: bytes,
        statuses: Sequence[StatusCommand] = (),
        counted: CountedJobs | None = None,
    ) -> float:
        """Add a payload to the ``schedule`` set, due in ``delay_s`` by Redis's clock; return the time of that clock.

        ``statuses`` has the command that records a tracked job as delayed.

        Raises:
            ShardUnavailableError, BacklogFullError: as ``enqueue``.
        """
        status: tuple[str, int] = ("", 0)
        for _, key, _, _, lifetime_s in statuses:
            status = (key, lifetime_s)
        names, arguments = [keys.SCHEDULE], (f"{delay_s:.6f}", payload, *status)
        if counted is None:
            reply = self._connection.run_script(PUSH_DELAYED, names, arguments)
        else:
            words = counted.argument(1, 1, in_set=True)
            reply = self._run_counted(PUSH_DELAYED_COUNTED, counted, names, (*arguments, words))
        now, *refused = reply
        if refused:
            self._connection.log_status_refused(refused[0].decode(errors="replace"))
        return float(now)

    def time(self) -> float:
        """Return the time of Redis's clock in epoch seconds.

        Raises:
            ShardUnavailableError: Redis does not answer or refuses.
        """
        return epoch_s(map(int, self._connection.read(pack(("TIME",)))))

    def is_pushed(self, token: str) -> bool:
        """Return whether the jobs of this token are written. Valid for ``TOKEN_S`` after the write.

        Raises:
            ShardUnavailableError: Redis does not answer or refuses.
        """
        return self._connection.is_written(keys.pushed(token))

    def is_waiting(self, queue: str | None, payload: bytes) -> bool:
        """Return whether exactly this payload is among the newest jobs of a queue, or (``None``) in the ``schedule`` set.

        Raises:
            ShardUnavailableError: Redis does not answer or refuses.
        """
        if queue is None:
            return self._connection.read(pack(("ZSCORE", keys.SCHEDULE, payload))) is not None
        place = self._connection.read(pack(("LPOS", keys.queue(queue), payload, "MAXLEN", _MAX_SEARCHED)))
        return place is not None

    def enqueue_unique(
        self,
        queue: str | None,
        jobs: UniqueJobs,
        token: str = "",
        counted: CountedJobs | None = None,
        *,
        in_reserve: bool = False,
    ) -> list[Jid]:
        """Write jobs of a deduplicated class with their locks to a queue, or (``None``) to the ``schedule`` set.

        Returns for each job the jid of the job that it duplicates, empty for none, ``MOVED_JOBS`` for one that is not written: such
        jobs have moved, and the caller has not looked for them (``push_unique.lua``, and ``push_window.lua`` for jobs that wait for
        further pushes). ``token`` and ``counted`` as in ``enqueue``. ``in_reserve``: also where Redis has no
        memory left, as ``enqueue_in_reserve``.

        Raises:
            ShardUnavailableError: as ``enqueue``; each script call writes all of its jobs or none.
            BacklogFullError: as ``enqueue``. Duplicates of other jobs are refused too.
        """
        names = (keys.QUEUES, keys.SCHEDULE if queue is None else keys.queue(queue))
        owners: list[Jid] = []
        # Counted jobs are refused all or none, so one call takes them all.
        size = _UNIQUE_CHUNK_SIZE if counted is None else max(1, len(jobs.payloads))
        for start in range(0, len(jobs.payloads), size):
            count = min(size, len(jobs.payloads) - start)
            token_key = keys.pushed(f"{token}:{start}") if token else ""
            arguments = (count, queue or "", token_key, TOKEN_MS, *jobs.arguments(start, count))
            try:
                if counted is not None:
                    has_window = isinstance(jobs, WindowJobs)
                    reply = self._push_unique_counted(names, arguments, counted, has_window=has_window)
                elif isinstance(jobs, WindowJobs):
                    reply = self._connection.run_script(PUSH_WINDOW, names[1:], (count, *arguments[2:]))
                else:
                    script = PUSH_UNIQUE_IN_RESERVE if in_reserve else PUSH_UNIQUE
                    reply = self._connection.run_script(script, names, arguments)
            except ShardUnavailableError as failure:
                failure.maybe_written = failure.maybe_written or bool(owners)
                raise
            if len(reply) > count:
                self._connection.log_queue_name_refused(reply.pop().decode(errors="replace"))
            # Most pushes have no duplicate.
            owners += map(bytes.decode, reply) if any(reply) else [""] * count
        return owners

    def find_owners(self, jobs: UniqueJobs) -> list[FormerOwner]:
        """Return the owner here of the lock of each job that is about to be pushed to another shard (``find_owners.lua``).

        Raises:
            ShardUnavailableError: Redis does not answer or refuses.
        """
        found: list[FormerOwner] = []
        for start in range(0, len(jobs.jids), _UNIQUE_CHUNK_SIZE):
            part = slice(start, start + _UNIQUE_CHUNK_SIZE)
            *_, drops, _counter, shared = jobs.terms
            arguments = (dumps(jobs.jids[part]), drops, FENCE_MS, shared, *jobs.details[part])
            reply = self._connection.run_script(FIND_OWNERS, jobs.lock_keys[part], arguments)
            found += map(former_owner, reply)
        return found

    def _push_unique_counted(
        self, names: Sequence[str], arguments: Sequence[Any], counted: CountedJobs, *, has_window: bool
    ) -> Any:
        count, queue, done_key, *others = arguments
        if has_window:
            names, arguments = names[1:], (count, done_key, *others)
        script = PUSH_WINDOW_COUNTED if has_window else PUSH_UNIQUE_COUNTED
        words = counted.argument(count, len(names), in_set=not queue, done_key=done_key)
        return self._run_counted(script, counted, names, (*arguments, words))

    def enqueue_up_to(self, limit: str, most: int, jobs: Sequence[tuple[str, bytes, Jid]]) -> tuple[int, int]:
        """Write jobs (queue, payload, id) of a limited-capacity worker until ``most`` run or wait; see ``push_up_to.lua``.

        Returns how many were written, in the given order, and how many are still missing.

        Raises:
            ShardUnavailableError: as ``enqueue``; all of these jobs are written or none.
        """
        queues, payloads, jids = zip(*jobs, strict=True) if jobs else ((), (), ())
        names = (limit, keys.QUEUES, *map(keys.queue, queues))
        written, missing = self._connection.run_script(
            PUSH_UP_TO, names, (most, _RESERVATION_S, len(jobs), *payloads, *jids, *queues)
        )
        return written, missing

    def close(self) -> None:
        """Close the idle connections; the shard may be used again."""
        self._connection.close()
        self.client.close()
        self.pool.close()

    def write_status(self, command: StatusCommand) -> None:
        """Write the status of one job.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        self._connection.write(pack(command), 1, queue_command_count=0)

    def cancel(self, jids: Sequence[Jid]) -> list[bool]:
        """Mark jobs as cancelled; return for each whether it is marked: one whose status says that it has ended is not.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        names = [keys.CANCELLED, *map(keys.status, jids)]
        reply: list[int] = self._connection.run_script(MARK_CANCELLED, names, [keys.CANCELLED_TTL_S, *jids])
        return [bool(marked) for marked in reply]

    def run_script(self, script: Script, names: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script of a feature; return its reply.

        Raises:
            ShardUnavailableError: as ``enqueue``. A script whose reply is lost has perhaps run.
        """
        return self._connection.run_script(script, names, arguments)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Raise ShardUnavailableError for redis errors of the block, which uses ``client``."""
        try:
            yield
        except (RedisError, OSError) as error:
            raise self.unavailable(error) from error

    def unavailable(self, error: RedisError | OSError | ShardUnavailableError) -> ShardUnavailableError:
        """Return the error for callers of a read that has failed."""
        return error if isinstance(error, ShardUnavailableError) else unavailable_error(self.name, self.endpoint, error)

    def states(self, jids: Sequence[Jid]) -> Sequence[bytes | None]:
        """Return the values of the status keys of these jobs, ``None`` for a missing key.

        Raises:
            ShardUnavailableError: Redis does not answer or refuses.
        """
        return cast("Sequence[bytes | None]", self._connection.read(pack(("MGET", *map(keys.status, jids)))))

    def read(self, *command: Any) -> Any:
        """Run a command that may run twice; return its reply. Raises as ``states``."""
        return self._connection.read(pack(command))


def _statuses(commands: Sequence[StatusCommand]) -> bytes | str:
    """Return the commands that record tracked jobs as an argument of a script."""
    return dumps([[str(word) for word in command[1:]] for command in commands]) if commands else ""


@lru_cache(maxsize=1_000)
def _packed_head(queue: str) -> bytes:
    """Return the constant part of the packed commands that append one job to a queue."""
    # A push of one job then formats only its payload: packing SADD and LPUSH again would cost more than the rest.
    name, key = queue.encode(), keys.queue(queue).encode()
    listed = pack(("SADD", keys.QUEUES, name))
    return b"%b*3\r\n$5\r\nLPUSH\r\n$%d\r\n%b\r\n" % (listed, len(key), key)
