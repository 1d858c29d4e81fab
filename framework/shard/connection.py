"""Send packed commands to one Redis through its circuit breaker; an error says whether the jobs may be written."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol, TypeAlias, cast

import hiredis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import MasterNotFoundError

from framework.errors import ShardUnavailableError
from framework.shard.redis_errors import advice_for, error_code, is_refusal
from framework.store.channel import Channel, ChannelPool
from framework.store.connect import Endpoint
from framework.store.script import NOTE_PUSHED, Script
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.usage import usage_records
from framework.wire import keys
from framework.wire.status_key import QueuedCommands, StatusCommand

# Seconds between two warnings about refused statuses, or queue names.
_LOG_INTERVAL_S = 60.0
_RETRYABLE = (RedisConnectionError, BusyLoadingError, ReadOnlyError)
"""Errors that a new connection to the address, resolved again, may not meet."""

_TRANSACTION_REFUSED = (
    "no permission to record the push in a transaction, so it is not known whether the jobs were written; "
    "`application-worker acl producer` prints the rights"
)
# Commands of a transaction before its first write: WATCH, PEXPIRE, MULTI.
_BEFORE_WRITES = 3

pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)

# A stopped server refuses connections, which costs a caller no time. A frozen server, or a network that drops packets, costs
# each caller a whole timeout; an application with one thread per request would soon have no free thread.

SLOW_FAILURE_S = 0.25
"""A faster failure costs its caller no time and does not open the circuit."""

PROBE_PERIOD_S = 2.0
"""While the circuit is open, one call per period is sent. The circuit closes at most this long after the shard answers again."""

_NO_REPLY_ERRORS = (RedisConnectionError, RedisTimeoutError, MasterNotFoundError)
"""Compared by exact type: redis-py derives refusals (LOADING, wrong password, too many clients) from the first class, and a
refusal is a reply."""


# A push to a silent shard fails at once, except for one in two seconds: else each thread of a web server waits 5 s for it.
class CircuitBreaker:
    """Hold the state of one shard's circuit. Used by any number of threads without a lock: a race only sends one call more.

    The circuit opens when a call failed slowly and without a reply while no other call got one. Any reply closes it, also a
    refusal or a slow one.
    """

    def __init__(self, shard: str) -> None:
        self.open = False
        self._shard = shard
        self._opened_at = 0.0
        self._probe_at = 0.0

    def rejects(self, now: float) -> bool:
        """Return whether a call must fail at once; asked only while the circuit is open. One call per period is the probe."""
        if now < self._probe_at:
            return True
        self._probe_at = now + PROBE_PERIOD_S
        return False

    @property
    def open_s(self) -> float:
        return monotonic() - self._opened_at

    def record_failure(self, error: BaseException | None, began: float, last_reply_at: float) -> None:
        """Record a failed call that began at ``began``; the shard's last reply was at ``last_reply_at`` (monotonic seconds)."""
        if type(error) not in _NO_REPLY_ERRORS:
            self.record_reply()
            return
        now = monotonic()
        if now - began < SLOW_FAILURE_S or last_reply_at >= began:
            return
        self._probe_at = now + PROBE_PERIOD_S
        if not self.open:
            self._opened_at, self.open = now, True
            logs.logger(shard=self._shard).error(
                f"the shard does not answer: one push per {PROBE_PERIOD_S:g} s tests it, and all others fail at once. "
                "Check its Redis and the network.",
                event_name="shard.circuit_open",
                error=error if isinstance(error, RedisError) else None,
            )

    def record_reply(self) -> None:
        if self.open:
            self.open = False
            logs.logger(shard=self._shard).info(
                "the shard answers again; pushes are accepted",
                event_name="shard.circuit_closed",
                open_s=round(self.open_s, 3),
            )


TOKEN_S = 600
"""How long Redis keeps the token of a written chunk. Until then the chunk may be repeated."""

TOKEN_MS = TOKEN_S * 1_000
_SENTINEL = b""

Command: TypeAlias = tuple[Any, ...]


class Transaction(Protocol):
    """Hold the commands between MULTI and EXEC, and the commands that write the same jobs without a token."""

    @property
    def key(self) -> str: ...

    @property
    def commands(self) -> Sequence[Command]:
        """Return the commands that are executed as a whole or not at all."""
        ...

    @property
    def job_commands(self) -> slice: ...

    def plain_commands(self) -> Sequence[Command]:
        """Return the commands for a Redis that refuses the token."""
        ...

    def remaining_commands(self) -> Sequence[Command]:
        """Return the commands still to send if Redis refused MULTI and the token but executed the others at once."""
        ...


class QueueTransaction:
    """Append jobs, oldest first, to a queue.

    The last job passes through the token's key: RPUSH of a sentinel and that job, then LMOVE into the queue. Afterwards the
    key holds only the sentinel if the jobs are written, and also the job if the queue was of another type. A script that
    checks the type would say the same, but costs Redis 16 us per chunk where these commands cost 6 (decision 166).
    """

    def __init__(self, token: str, queue: str, payloads: Sequence[bytes]) -> None:
        self.key = keys.pushed(token)
        self._queue_key = keys.queue(queue)
        self._payloads = payloads
        writes: list[Command] = [("LMOVE", self.key, self._queue_key, "RIGHT", "LEFT")]
        if len(payloads) > 1:
            writes.insert(0, ("LPUSH", self._queue_key, *payloads[:-1]))
        self.commands: Sequence[Command] = (
            ("RPUSH", self.key, _SENTINEL, payloads[-1]),
            *writes,
            ("PEXPIRE", self.key, TOKEN_MS),
        )
        self.job_commands = slice(1, 1 + len(writes))

    def plain_commands(self) -> Sequence[Command]:
        return [("LPUSH", self._queue_key, *self._payloads)]

    def remaining_commands(self) -> Sequence[Command]:
        return [("LPUSH", self._queue_key, self._payloads[-1])]


class ScheduleTransaction:
    """Add jobs to the ``schedule`` set.

    No command moves a member between sorted sets, so a script checks the type of the set and records the token.
    """

    def __init__(self, token: str, writes: Sequence[Command]) -> None:
        self.key = keys.pushed(token)
        self._writes = writes
        self.commands: Sequence[Command] = (*writes, ("EVAL", NOTE_PUSHED.code, 2, self.key, keys.SCHEDULE, TOKEN_MS))
        self.job_commands = slice(0, len(writes))

    def plain_commands(self) -> Sequence[Command]:
        return self._writes

    def remaining_commands(self) -> Sequence[Command]:
        """See ``Transaction``. Empty, because no job passes through the token's key."""
        return ()


class ShardConnection:
    """Connect pushes to one Redis. Safe to share between threads; connects at its first command."""

    def __init__(
        self, name: str, endpoint: Endpoint, channel_pool: ChannelPool, largest: Callable[[], str] = lambda: ""
    ) -> None:
        """``largest`` says what fills a Redis without memory, '' if that is not known. It may call ``read``."""
        self._name = name
        self._largest = largest
        self._endpoint = endpoint
        self._channel_pool = channel_pool
        self._circuit = CircuitBreaker(name)
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self._tokens_refused = False
        """Whether an ACL refuses token keys or transactions. A bulk push then cannot be resumed after a lost reply."""

    @property
    def circuit_open(self) -> bool:
        return self._circuit.open

    def close(self) -> None:
        """Close the idle connections; the next command opens another."""
        self._channel_pool.close()

    def read(self, packet: bytes) -> Any:
        """Send one packed read-only command, at most twice; return its reply. The second try uses a new connection."""
        return self._with_one_retry(packet, lambda: packet, writes=False)

    def write_once(
        self, transaction: Transaction, queue_commands: Sequence[Command], status_commands: Sequence[StatusCommand]
    ) -> None:
        """Write a chunk of a bulk push and record its token in one transaction, unless the token is already recorded.

        The transaction is MULTI and not a script, because a script would copy each job once more. WATCH on the token's key is
        followed by a PEXPIRE, which changes the key if it exists; EXEC does nothing if a watched key has changed. Thus neither a
        second try after the first writes twice, nor a first try that arrives late. An ACL that refuses the token's key or
        transactions costs the token, not the jobs.
        """
        if self._tokens_refused:
            self._write_all([*queue_commands, *transaction.plain_commands()], len(queue_commands), status_commands)
            return
        key = transaction.key
        whole = [
            *queue_commands,
            ("WATCH", key),
            ("PEXPIRE", key, TOKEN_MS),
            ("MULTI",),
            *transaction.commands,
            ("EXEC",),
        ]
        try:
            self._write_all(whole, len(queue_commands), status_commands, transaction.job_commands)
        except ShardUnavailableError as failure:
            if not isinstance(failure.__cause__, NoPermissionError):
                raise
            self._tokens_refused = True
            if not failure.maybe_written:
                self.write_once(transaction, queue_commands, status_commands)
                return
            try:
                self._write_all(transaction.remaining_commands(), 0, ())
            except ShardUnavailableError as again:
                # The other jobs are written.
                again.maybe_written = True
                raise

    def _write_all(
        self,
        commands: Sequence[Command],
        queue_command_count: int,
        status_commands: Sequence[StatusCommand],
        job_commands: slice | None = None,
    ) -> None:
        self.write(
            b"".join(map(pack, commands)),
            len(commands),
            queue_command_count=queue_command_count,
            status_commands=status_commands,
            job_commands=job_commands,
        )

    def is_written(self, key: str) -> bool:
        """Return whether the transaction recorded under this key was executed and wrote its jobs.

        Raises:
            ShardUnavailableError: Redis does not answer, or refuses transactions or the key; the result is then unknown.
        """
        if self._tokens_refused:
            raise self._failure(NoPermissionError(_TRANSACTION_REFUSED), maybe_written=False)
        kind = self.read(pack(("TYPE", key)))
        if kind != b"list":
            return bool(kind != b"none")
        if self.read(pack(("LLEN", key))) == 1:
            return True
        # The key still holds the job, so the queue was not a list: delete the key, and the transaction may be sent again.
        self.read(pack(("UNLINK", key)))
        return False

    def write(
        self,
        packet: bytes,
        command_count: int,
        *,
        queue_command_count: int,
        status_commands: Sequence[StatusCommand] = (),
        job_commands: slice | None = None,
    ) -> None:
        """Send packed commands and read their replies, at most twice. The second try happens only if certainly no job was written.

        The first ``queue_command_count`` commands write no job. ``status_commands`` are sent before all others. With
        ``job_commands``, that slice of the commands of a transaction writes the jobs (``write_once``), else all others do.
        """
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.rejects(began):
            raise self._open_error()
        if status_commands:
            if isinstance(status_commands, QueuedCommands):
                packet = status_commands.packed(pack) + packet
            else:
                packet = b"".join(map(pack, status_commands)) + packet
        failure = self._attempt(
            self._channel_pool.acquire(), packet, command_count, queue_command_count, status_commands, job_commands
        )
        if failure is not None and not failure.maybe_written and _is_retryable(failure.__cause__):
            # The other connections lead to the same server.
            self._channel_pool.close()
            failure = self._attempt(
                self._channel_pool.new_channel(began),
                packet,
                command_count,
                queue_command_count,
                status_commands,
                job_commands,
            )
        if failure is not None or circuit.open:
            self._record(began, failure)

    def _record(self, began: float, failure: ShardUnavailableError | None) -> None:
        """Record the result of a call that began at ``began`` in the circuit breaker, and raise its failure."""
        if failure is None:
            self._circuit.record_reply()
            return
        cause = failure.__cause__
        self._circuit.record_failure(cause, began, self._channel_pool.last_reply_at)
        # Only here, where the connection of the call is free again.
        if isinstance(cause, RedisError) and error_code(cause) == "OOM" and (largest := self._largest()):
            raise self._failure(cause, maybe_written=failure.maybe_written, largest=largest)
        raise failure

    def _open_error(self) -> ShardUnavailableError:
        reason = f"{self._endpoint.shown}: it has not answered for {self._circuit.open_s:.1f} s"
        advice = f"nothing was sent; one push per {PROBE_PERIOD_S:g} s is sent as a probe, and after its reply all pushes are sent"
        return ShardUnavailableError(self._name, reason, advice=advice)

    def _attempt(
        self,
        channel: Channel,
        packet: bytes,
        command_count: int,
        queue_command_count: int,
        status_commands: Sequence[StatusCommand],
        job_commands: slice | None,
    ) -> ShardUnavailableError | None:
        try:
            began = monotonic() if usage_records.enabled else 0.0
            channel.send_packet(packet)
            replies = channel.replies(len(status_commands) + command_count)
            if began:
                usage_records.count_round_trip(packet, replies, monotonic() - began)
        except RedisError as error:
            # The other connections lead to the same server: each would cost one more push a timeout.
            self._channel_pool.close()
            return self._failure(error, maybe_written=channel.sent)
        job_replies = replies[len(status_commands) :] if status_commands else replies
        failure = None
        if job_commands is not None:
            failure = self._check_transaction(channel, job_replies, queue_command_count, job_commands)
        else:
            for reply in job_replies:
                if isinstance(reply, RedisError):
                    failure = self._check_replies(job_replies[:queue_command_count], job_replies[queue_command_count:])
                    break
        if status_commands:
            self._check_status_replies(channel, status_commands, replies, failure)
        self._channel_pool.release(channel)
        return failure

    def _check_replies(self, queue_replies: Sequence[Any], job_replies: Sequence[Any]) -> ShardUnavailableError | None:
        """Return the failure of the commands that write jobs. A refused queue name is only logged."""
        refused = next((reply for reply in job_replies if isinstance(reply, RedisError)), None)
        if refused is not None:
            accepted = any(not isinstance(reply, RedisError) for reply in job_replies)
            return self._failure(refused, maybe_written=accepted)
        for reply in queue_replies:
            if isinstance(reply, RedisError):
                self.log_queue_name_refused(reply)
        return None

    def _check_transaction(
        self, channel: Channel, answers: Sequence[Any], queue_command_count: int, job_commands: slice
    ) -> ShardUnavailableError | None:
        done, queued = answers[-1], answers[queue_command_count:-1]
        # The token exists: an earlier try wrote the chunk.
        if done is None:
            return None
        if isinstance(done, list):
            return self._check_replies(answers[:queue_command_count], cast("list[Any]", done)[job_commands])
        # The connection may still be inside of a transaction.
        channel.close()
        if isinstance(queued[_BEFORE_WRITES - 1], RedisError):
            # The ACL refuses MULTI: Redis executed the following commands at once, and the token proves nothing.
            self._tokens_refused = True
            direct = queued[_BEFORE_WRITES:]
            # An LMOVE without a result: the RPUSH before it was refused.
            return self._check_replies(
                answers[:queue_command_count], [direct[0] if reply is None else reply for reply in direct[job_commands]]
            )
        reason = next((reply for reply in queued if isinstance(reply, RedisError)), done)
        return self._failure(reason, maybe_written=False)

    def log_queue_name_refused(self, error: RedisError | str) -> None:
        """Log, once a minute at most, that a name was not added to ``queues``; its queue is served nevertheless."""
        self._log_limit.warning(
            "queues",
            "Redis refuses SADD on the set `queues`. The jobs are in their queue, but Sidekiq's Web UI does not list it. Check "
            "that `queues` is a set, and that the ACL allows SADD on it.",
            "queues.write_failed",
            shard=self._name,
            error=error,
        )

    def log_status_refused(self, error: RedisError | str) -> None:
        """Log, once a minute at most, that the state of a tracked job was refused; its job is written."""
        self._log_limit.warning(
            "statuses",
            "Redis refuses the status of tracked jobs: the jobs are written, but `framework.status` does not know them. Check "
            "that the ACL allows SET on the keys of statuses (`application-worker acl producer`).",
            "status.write_failed",
            shard=self._name,
            error=error,
        )

    def _check_status_replies(
        self,
        channel: Channel,
        status_commands: Sequence[StatusCommand],
        replies: Sequence[Any],
        failure: ShardUnavailableError | None,
    ) -> None:
        """Delete the statuses of refused jobs, and log refused statuses. The reply of a status never decides about its job."""
        refused = [reply for reply in replies[: len(status_commands)] if isinstance(reply, RedisError)]
        # The ACL of the user lacks the keys of statuses.
        if failure is None and refused:
            self.log_status_refused(refused[0])
        elif failure is not None and not failure.maybe_written and len(refused) < len(status_commands):
            # If this fails too, the statuses expire.
            with suppress(RedisError):
                channel.call("UNLINK", *(command[1] for command in status_commands))

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script that writes all or nothing, at most twice; return its reply.

        The second try happens only if certainly nothing was written. It sends the source, which every server can run.
        """
        first = pack(("EVALSHA", script.digest, len(keys), *keys, *arguments))
        return self._with_one_retry(first, lambda: pack(script.by_source(len(keys), *keys, *arguments)), writes=True)

    def _with_one_retry(self, packet: bytes, second: Callable[[], bytes], *, writes: bool) -> Any:
        """Send a packed command, and ``second`` if that may help and certainly nothing was written; return the reply."""
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.rejects(began):
            raise self._open_error()
        reply, failure = self._send(self._channel_pool.acquire(), packet, writes=writes)
        if failure is not None and isinstance(failure.__cause__, NoScriptError):
            reply, failure = self._send(self._channel_pool.acquire(), second(), writes=writes)
        elif failure is not None and not failure.maybe_written and _is_retryable(failure.__cause__):
            # A new connection to the address, resolved again.
            self._channel_pool.close()
            reply, failure = self._send(self._channel_pool.new_channel(began), second(), writes=writes)
        if failure is not None or circuit.open:
            self._record(began, failure)
        return reply

    def _send(self, channel: Channel, packet: bytes, *, writes: bool) -> tuple[Any, ShardUnavailableError | None]:
        """Send one packed command; return its reply and its failure.

        A failed command has written nothing unless ``maybe_written``.
        """
        try:
            began = monotonic() if usage_records.enabled else 0.0
            channel.send_packet(packet)
            (reply,) = channel.replies(1)
            if began:
                usage_records.count_round_trip(packet, (reply,), monotonic() - began)
        except RedisError as error:
            self._channel_pool.close()
            return None, self._failure(error, maybe_written=writes and channel.sent)
        self._channel_pool.release(channel)
        return reply, self._failure(reply, maybe_written=False) if isinstance(reply, RedisError) else None

    def _failure(self, error: RedisError, *, maybe_written: bool, largest: str = "") -> ShardUnavailableError:
        # redis-py removes the server's error code (OOM, READONLY) from the text: put it back.
        text = f"{error.status_code or ''} {str(error) or type(error).__name__}".strip()
        reason = f"{self._endpoint.shown}: {text}".rstrip(".")
        source = self._endpoint.source
        advice = advice_for(error, source)
        if largest:
            advice = f"{advice}. {largest}"
        refused = is_refusal(error)
        failure = ShardUnavailableError(
            self._name, reason, refused=refused, maybe_written=maybe_written, advice=advice, source=source
        )
        failure.__cause__ = error
        failure.is_full = not maybe_written and error_code(error) == "OOM"
        return failure


def _is_retryable(error: BaseException | None) -> bool:
    return isinstance(error, _RETRYABLE) and not isinstance(error, AuthenticationError)
