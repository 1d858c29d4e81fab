"""Sending packed commands to one Redis, under its circuit breaker: what failed becomes an error that says whether a job is in."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, cast

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

from framework.errors import ShardUnavailableError
from framework.shard.channel_pool import ChannelPool
from framework.shard.circuit_breaker import PROBE_PERIOD_S, CircuitBreaker
from framework.shard.redis_errors import advice_for
from framework.shard.transaction import TOKEN_MS, Command, Transaction
from framework.store.channel import Channel
from framework.store.connect import Endpoint
from framework.store.script import Script
from framework.telemetry.rate_limit import LogRateLimit
from framework.wire.status_key import StatusCommand

_LOG_INTERVAL_S = 60.0  # between two lines about refused states
_RETRYABLE = (RedisConnectionError, BusyLoadingError, ReadOnlyError)
"""What a new connection, its address looked up again, may not meet again."""

_TRANSACTION_REFUSED = (
    "no permission to note in a transaction what was pushed, so whether it is in is not known; `application-worker acl producer` "
    "prints the rights"
)
_BEFORE_WRITES = 3  # commands of a transaction before its first write: WATCH, PEXPIRE, MULTI

pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)


class ShardConnection:
    """The way to one Redis for pushes. Safe to share between threads; connects at its first command."""

    def __init__(self, name: str, endpoint: Endpoint, channel_pool: ChannelPool) -> None:
        self._name = name
        self._endpoint = endpoint
        self._channel_pool = channel_pool
        self._circuit = CircuitBreaker(name)
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)
        self._tokens_refused = False
        """Whether an ACL refuses the keys of tokens, or a transaction: a bulk push cannot be resumed after a lost reply then."""

    def close(self) -> None:
        """Close the connections that no thread uses; the next command opens another."""
        self._channel_pool.close()

    def read(self, packet: bytes) -> Any:
        """Send one packed command that changes nothing, again, once, where another connection may help; return its reply."""
        return self._with_one_retry(lambda channel: self._send(channel, packet))

    def write_once(
        self, transaction: Transaction, queue_commands: Sequence[Command], status_commands: Sequence[StatusCommand]
    ) -> None:
        """Send a slice of a bulk push in a transaction that notes it, if it is not noted already.

        MULTI without a script around the jobs: a script would copy each of them once more. WATCH, then a PEXPIRE that changes the
        token's key if it is there, then EXEC, which does nothing where a watched key has changed: so neither a second try
        after the first nor a first that arrives late, after the second, writes anything. An ACL that refuses the token's key or
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
                again.maybe_written = True  # the others are in
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
        """Return whether the transaction that this key notes was carried out, and wrote its jobs.

        Raises:
            ShardUnavailableError: it does not answer, or refuses transactions or the key: then this cannot be known.
        """
        if self._tokens_refused:
            raise self._failure(NoPermissionError(_TRANSACTION_REFUSED), maybe_written=False)
        kind = self.read(pack(("TYPE", key)))
        if kind != b"list":
            return bool(kind != b"none")
        if self.read(pack(("LLEN", key))) == 1:
            return True
        # The queue was of another type: the transaction may be sent again.
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
        """Send packed commands and read their replies; again, once, where surely no job was written the first time.

        The first ``names`` commands write no job. ``marks`` go before all of them. With ``jobs``, those commands of a
        transaction do (``write_once``), else all others.
        """
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.rejects(began):
            raise self._open_error()
        if status_commands:
            packet = b"".join(map(pack, status_commands)) + packet
        failure = self._attempt(
            self._channel_pool.acquire(), packet, command_count, queue_command_count, status_commands, job_commands
        )
        if failure is not None and not failure.maybe_written and _is_retryable(failure.__cause__):
            self._channel_pool.close()  # its siblings lead to the same server
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
        """Tell the circuit what a call that ``began`` then came to, and raise what failed."""
        if failure is None:
            self._circuit.record_reply()
            return
        self._circuit.record_failure(failure.__cause__, began, self._channel_pool.last_reply_at)
        raise failure

    def _open_error(self) -> ShardUnavailableError:
        """Return what is told instead of making another wait."""
        reason = f"{self._endpoint.shown}: it has not answered for {self._circuit.open_s:.1f} s"
        advice = (
            f"nothing was sent; one push in {PROBE_PERIOD_S:g} s is, and as soon as one is answered all others are, too"
        )
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
            channel.send_packet(packet)
            replies = channel.replies(len(status_commands) + command_count)
        except RedisError as error:
            self._channel_pool.close()  # the others lead the same way, and each would cost another push its time
            return self._failure(error, maybe_written=channel.sent)
        answers = replies[len(status_commands) :] if status_commands else replies
        failure = None
        if job_commands is not None:
            failure = self._check_transaction(channel, answers, queue_command_count, job_commands)
        else:
            for reply in answers:
                if isinstance(reply, RedisError):
                    failure = self._check_replies(answers[:queue_command_count], answers[queue_command_count:])
                    break
        if status_commands:
            self._check_status_replies(channel, status_commands, replies, failure)
        self._channel_pool.release(channel)
        return failure

    def _check_replies(self, listed: Sequence[Any], written: Sequence[Any]) -> ShardUnavailableError | None:
        """Return what the replies to the commands that write jobs say; a name that is not ``listed`` is only told of."""
        refused = next((reply for reply in written if isinstance(reply, RedisError)), None)
        if refused is not None:
            accepted = any(not isinstance(reply, RedisError) for reply in written)
            return self._failure(refused, maybe_written=accepted)
        for reply in listed:
            if isinstance(reply, RedisError):
                self.log_queue_name_refused(reply)
        return None

    def _check_transaction(
        self, channel: Channel, answers: Sequence[Any], queue_command_count: int, job_commands: slice
    ) -> ShardUnavailableError | None:
        done, queued = answers[-1], answers[queue_command_count:-1]
        if done is None:  # an earlier try of ours wrote it
            return None
        if isinstance(done, list):
            return self._check_replies(answers[:queue_command_count], cast("list[Any]", done)[job_commands])
        channel.close()  # whether it is still in a transaction is not known
        if isinstance(queued[_BEFORE_WRITES - 1], RedisError):
            # An ACL without MULTI: what follows was carried out at once, and a note says nothing about the whole.
            self._tokens_refused = True
            direct = queued[_BEFORE_WRITES:]
            # An LMOVE that finds nothing: the RPUSH before it was refused.
            return self._check_replies(
                answers[:queue_command_count], [direct[0] if reply is None else reply for reply in direct[job_commands]]
            )
        reason = next((reply for reply in queued if isinstance(reply, RedisError)), done)
        return self._failure(reason, maybe_written=False)

    def log_queue_name_refused(self, error: RedisError | str) -> None:
        """Tell, once a minute at most, that a name was not added to ``queues``; its queue is served all the same."""
        self._log_limit.warning(
            "queues",
            "Redis refuses to add to the set `queues`. The jobs are in their queue, but Sidekiq's Web UI does not list it: see "
            "that `queues` is a set, and that the ACL allows SADD on it",
            "queues.write_failed",
            shard=self._name,
            error=error,
        )

    def log_status_refused(self, error: RedisError | str) -> None:
        """Tell, once a minute at most, that the state of a tracked job was refused; its job is in."""
        self._log_limit.warning(
            "statuses",
            "the states of tracked jobs are refused; the jobs are in",
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
        """See that no state is left of jobs that were refused; what becomes of a job is never decided by its state's reply."""
        refused = [reply for reply in replies[: len(status_commands)] if isinstance(reply, RedisError)]
        if failure is None and refused:  # an ACL without our keys
            self.log_status_refused(refused[0])
        elif failure is not None and not failure.maybe_written and len(refused) < len(status_commands):
            with suppress(RedisError):  # should it fail too, they expire
                channel.call("UNLINK", *(mark[1] for mark in status_commands))

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script that writes all or nothing, again, once, where surely nothing was written; return its reply."""
        return self._with_one_retry(lambda channel: self._run_script(channel, script, keys, arguments))

    def _with_one_retry(self, send: Callable[[Channel], tuple[Any, ShardUnavailableError | None]]) -> Any:
        """Ask, and once more where another connection may help and surely nothing was written; return the reply."""
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.rejects(began):
            raise self._open_error()
        reply, failure = send(self._channel_pool.acquire())
        if failure is not None and not failure.maybe_written and _is_retryable(failure.__cause__):
            self._channel_pool.close()
            reply, failure = send(self._channel_pool.new_channel(began))
        self._record(began, failure)
        return reply

    def _run_script(
        self, channel: Channel, script: Script, keys: Sequence[str], arguments: Sequence[Any]
    ) -> tuple[Any, ShardUnavailableError | None]:
        """Run a script that writes all or nothing; return its reply, or what failed."""
        told = (len(keys), *keys, *arguments)
        reply, failure = self._send(channel, pack(("EVALSHA", script.digest, *told)), writes=True)
        if failure is None or not isinstance(failure.__cause__, NoScriptError):
            return reply, failure
        return self._send(self._channel_pool.acquire(), pack(("EVAL", script.source, *told)), writes=True)

    def _send(
        self, channel: Channel, packet: bytes, *, writes: bool = False
    ) -> tuple[Any, ShardUnavailableError | None]:
        """Send one packed command, which changes nothing when it fails; return its reply, or what failed."""
        try:
            channel.send_packet(packet)
            (reply,) = channel.replies(1)
        except RedisError as error:
            self._channel_pool.close()
            return None, self._failure(error, maybe_written=writes and channel.sent)
        self._channel_pool.release(channel)
        return reply, self._failure(reply, maybe_written=False) if isinstance(reply, RedisError) else None

    def _failure(self, error: RedisError, *, maybe_written: bool) -> ShardUnavailableError:
        # redis-py takes the server's word for it (OOM, READONLY) out of the text.
        words = f"{error.status_code or ''} {str(error) or type(error).__name__}".strip()
        reason = f"{self._endpoint.shown}: {words}".rstrip(".")
        source = self._endpoint.source
        advice = advice_for(error, source)
        failure = ShardUnavailableError(self._name, reason, maybe_written=maybe_written, advice=advice, source=source)
        failure.__cause__ = error
        return failure


def _is_retryable(error: BaseException | None) -> bool:
    return isinstance(error, _RETRYABLE) and not isinstance(error, AuthenticationError)
