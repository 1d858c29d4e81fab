"""One shard: a named Redis, the two ways of writing jobs to it, and the states of those that are tracked."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any, cast

import hiredis
import redis
from redis.exceptions import AuthenticationError, BusyLoadingError, NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.errors import FrameworkError, ShardUnavailableError
from framework.settings.suggest import did_you_mean
from framework.shard.application_pool import judged
from framework.shard.channels import Channels
from framework.shard.circuit import RETRY_S, Circuit
from framework.shard.refusals import advice_for
from framework.shard.validator import Validator
from framework.store.channel import Channel
from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, open_client
from framework.store.script import ADMIT, FILL, Script
from framework.telemetry import logs
from framework.telemetry.repeated import Repeated
from framework.types import Jid, JobState
from framework.wire import keys
from framework.wire.status import Mark, merged

_SCHEDULE_SLICE = 500  # members a ZADD; two arguments each
_ADMIT_SLICE = 100  # jobs a script, some milliseconds of the server's time
_RESERVED_S = (
    600  # a job that waits longer in its queue is no longer counted, lest one that was lost is counted for ever
)
_LOOK_UP_SLICE = 1_000
_QUIET_S = 60.0  # between two lines about refused states
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
        self._told = Repeated(_QUIET_S)
        self._channels = Channels(self.client, read_timeout_s=read_timeout_s)
        self._circuit = Circuit(name)

    def open_client(self, role: str, *, read_timeout_s: float) -> "redis.Redis":
        """Return another client of this shard, with connections of its own (a lease must not queue behind a bulk push)."""
        return open_client(self.endpoint, name=f"framework:{self.role}:{role}", read_timeout_s=read_timeout_s)

    def enqueue_one(self, queue: str, payload: bytes, marks: Sequence[Mark] = ()) -> None:
        """Append one payload to its queue; otherwise as ``enqueue``."""
        self._write(b"%b$%d\r\n%b\r\n" % (_head(queue), len(payload), payload), 2, names=1, marks=marks)

    def enqueue(self, payloads: Mapping[str, Sequence[bytes]], marks: Sequence[Mark] = ()) -> None:
        """Append payloads, oldest first, to their queues, in one round trip.

        The names come first and each queue's jobs in one LPUSH: a job is in its queue or nowhere. ``marks``, the states of
        those that are tracked, come before all: a job that a worker sees has its state, and what is refused leaves none.

        Raises:
            ShardUnavailableError: it does not answer or refuses; ``maybe_written`` says whether the jobs may be in.
        """
        commands: list[tuple[Any, ...]] = [("SADD", keys.QUEUES, *payloads)]
        commands += [("LPUSH", keys.queue(name), *jobs) for name, jobs in payloads.items()]
        self._write(b"".join(map(_pack, commands)), len(commands), names=1, marks=marks)

    def schedule(self, entries: Sequence[tuple[float, bytes]], marks: Sequence[Mark] = ()) -> None:
        """Put payloads into the ``schedule`` set, each due at its epoch second; ``marks`` as in ``enqueue``.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        commands: list[tuple[Any, ...]] = []
        for start in range(0, len(entries), _SCHEDULE_SLICE):
            pairs = [
                part for at, payload in entries[start : start + _SCHEDULE_SLICE] for part in (f"{at:.6f}", payload)
            ]
            commands.append(("ZADD", keys.SCHEDULE, *pairs))
        self._write(b"".join(map(_pack, commands)), len(commands), names=0, marks=marks)

    def admit(self, queue: str | None, jobs: Sequence[tuple[bytes, bytes]]) -> list[Jid]:
        """Write jobs of a deduplicated class, payloads and claims on their locks, to a queue, or (``None``) to the ``schedule`` set.

        Returns for each the jid of the job whose duplicate it is, empty for none (``admit.lua``).

        Raises:
            ShardUnavailableError: as ``enqueue``; of the jobs in one of its steps all are in, or none.
        """
        names = (keys.QUEUES, keys.SCHEDULE if queue is None else keys.queue(queue))
        found: list[Jid] = []
        for start in range(0, len(jobs), _ADMIT_SLICE):
            part = jobs[start : start + _ADMIT_SLICE]
            arguments = (len(part), queue or "", *(data for data, _ in part), *(claim for _, claim in part))
            try:
                reply = self._step(ADMIT, names, arguments)
            except ShardUnavailableError as failure:
                failure.maybe_written = failure.maybe_written or bool(found)
                raise
            found += [owner.decode() for owner in reply]
        return found

    def fill(self, limit: str, most: int, jobs: Sequence[tuple[str, bytes, Jid]]) -> tuple[int, int]:
        """Write jobs (queue, payload, id) of a limited capacity worker, as many as are missing of ``most``; see ``fill.lua``.

        Returns how many were written, in the order given, and how many are missing still.

        Raises:
            ShardUnavailableError: as ``enqueue``; all are in that were to be, or none.
        """
        queues, payloads, jids = zip(*jobs, strict=True) if jobs else ((), (), ())
        names = (limit, keys.QUEUES, *map(keys.queue, queues))
        written, missing = self._step(FILL, names, (most, _RESERVED_S, len(jobs), *payloads, *jids, *queues))
        return written, missing

    def mark(self, mark: Mark) -> None:
        """Write the state of one job.

        Raises:
            ShardUnavailableError: as ``enqueue``.
        """
        self._write(_pack(mark), 1, names=0)

    def states(self, jids: Sequence[Jid]) -> Sequence[bytes | None]:
        """Return the words under the status keys of these jobs, ``None`` where there is none.

        Raises:
            ShardUnavailableError: it does not answer or refuses.
        """
        packet = _pack(("MGET", *map(keys.status, jids)))
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.refuses(began):
            raise self._spared()
        reply, failure = self._ask(self._channels.take(), packet)
        if failure is not None and _may_pass(failure.__cause__):
            self._channels.close()
            reply, failure = self._ask(self._channels.fresh(), packet)
        self._conclude(began, failure)
        return cast("Sequence[bytes | None]", reply)

    def close(self) -> None:
        """Close the connections that nobody uses; the shard may be used again."""
        self._channels.close()
        self.client.close()
        self.pool.close()

    def _write(self, packet: bytes, commands: int, *, names: int, marks: Sequence[Mark] = ()) -> None:
        """Send packed commands and read their replies; again, once, where surely no job was written the first time.

        The first ``names`` commands write no job. ``marks`` go before all of them.
        """
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.refuses(began):
            raise self._spared()
        if marks:
            packet = b"".join(map(_pack, marks)) + packet
        failure = self._attempt(self._channels.take(), packet, commands, names, marks)
        if failure is not None and not failure.maybe_written and _may_pass(failure.__cause__):
            self._channels.close()  # its siblings lead to the same server
            failure = self._attempt(self._channels.fresh(), packet, commands, names, marks)
        if failure is not None or circuit.open:
            self._conclude(began, failure)

    def _conclude(self, began: float, failure: ShardUnavailableError | None) -> None:
        """Tell the circuit what a call that ``began`` then came to, and raise what failed."""
        if failure is None:
            self._circuit.answered()
            return
        self._circuit.failed(failure.__cause__, began, self._channels.answered_at)
        raise failure

    def _spared(self) -> ShardUnavailableError:
        """Return what is told instead of making another wait."""
        reason = f"{self.endpoint.shown}: it has not answered for {self._circuit.open_s:.1f} s"
        advice = f"nothing was sent; one push in {RETRY_S:g} s is, and as soon as one is answered all others are, too"
        return ShardUnavailableError(self.name, reason, advice=advice)

    def _attempt(
        self, channel: Channel, packet: bytes, commands: int, names: int, marks: Sequence[Mark]
    ) -> ShardUnavailableError | None:
        try:
            channel.send_packet(packet)
            replies = channel.replies(len(marks) + commands)
        except RedisError as error:
            self._channels.close()  # the others lead the same way, and each would cost another push its time
            return self._failure(error, maybe_written=channel.sent)
        answers = replies[len(marks) :] if marks else replies
        failure = None
        for reply in answers:
            if isinstance(reply, RedisError):
                accepted = any(not isinstance(answer, RedisError) for answer in answers[names:])
                failure = self._failure(reply, maybe_written=accepted)
                break
        if marks:
            self._look_at_marks(channel, marks, replies, failure)
        self._channels.give(channel)
        return failure

    def _look_at_marks(
        self, channel: Channel, marks: Sequence[Mark], replies: Sequence[Any], failure: ShardUnavailableError | None
    ) -> None:
        """See that no state is left of jobs that were refused; what becomes of a job is never decided by its state's reply."""
        refused = [reply for reply in replies[: len(marks)] if isinstance(reply, RedisError)]
        if failure is None and refused:  # an ACL without our keys
            if count := self._told.due("marks", monotonic()):
                logs.logger(shard=self.name).warning(
                    "the states of tracked jobs are refused; the jobs are in",
                    event_name="status.refused",
                    count=count,
                    error=refused[0],
                )
        elif failure is not None and not failure.maybe_written and len(refused) < len(marks):
            with suppress(RedisError):  # should it fail too, they expire
                channel.call("UNLINK", *(mark[1] for mark in marks))

    def _step(self, script: Script, names: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script that writes all or nothing, again, once, where surely nothing was written; return its reply."""
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.refuses(began):
            raise self._spared()
        reply, failure = self._evaluate(self._channels.take(), script, names, arguments)
        if failure is not None and not failure.maybe_written and _may_pass(failure.__cause__):
            self._channels.close()
            reply, failure = self._evaluate(self._channels.fresh(), script, names, arguments)
        self._conclude(began, failure)
        return reply

    def _evaluate(
        self, channel: Channel, script: Script, names: Sequence[str], arguments: Sequence[Any]
    ) -> tuple[Any, ShardUnavailableError | None]:
        """Run a script that writes all or nothing; return its reply, or what failed."""
        told = (len(names), *names, *arguments)
        reply, failure = self._ask(channel, _pack(("EVALSHA", script.digest, *told)), writes=True)
        if failure is None or not isinstance(failure.__cause__, NoScriptError):
            return reply, failure
        return self._ask(self._channels.take(), _pack(("EVAL", script.source, *told)), writes=True)

    def _ask(
        self, channel: Channel, packet: bytes, *, writes: bool = False
    ) -> tuple[Any, ShardUnavailableError | None]:
        """Send one packed command, which changes nothing when it fails; return its reply, or what failed."""
        try:
            channel.send_packet(packet)
            (reply,) = channel.replies(1)
        except RedisError as error:
            self._channels.close()
            return None, self._failure(error, maybe_written=writes and channel.sent)
        self._channels.give(channel)
        return reply, self._failure(reply, maybe_written=False) if isinstance(reply, RedisError) else None

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

    def look_up(self, jids: Sequence[Jid]) -> dict[Jid, JobState]:
        """Return the state of each job, merged over all shards: a MGET each for a thousand jobs.

        Raises:
            ShardUnavailableError: one does not answer; without its word no state is certain.
        """
        states: dict[Jid, JobState] = {}
        wanted = list(dict.fromkeys(jids))
        for start in range(0, len(wanted), _LOOK_UP_SLICE):
            part = wanted[start : start + _LOOK_UP_SLICE]
            words = zip(*(shard.states(part) for shard in self._shards.values()), strict=True)
            states.update({jid: merged(found) for jid, found in zip(part, words, strict=True)})
        return states

    def close(self) -> None:
        """Close every shard's connections."""
        for shard in self._shards.values():
            shard.close()


class UnknownShardError(FrameworkError, KeyError):
    """A shard was asked for that the configuration does not have."""

    __str__ = Exception.__str__
