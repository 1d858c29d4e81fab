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
from framework.shard.channels import Channels
from framework.shard.circuit import RETRY_S, Circuit
from framework.shard.refusals import advice_for
from framework.shard.transaction import TOKEN_MS, Command, Transaction
from framework.store.channel import Channel
from framework.store.connect import Endpoint
from framework.store.script import Script
from framework.telemetry import logs
from framework.telemetry.repeated import Repeated
from framework.wire.status import Mark

_QUIET_S = 60.0  # between two lines about refused states
_PASSING = (RedisConnectionError, BusyLoadingError, ReadOnlyError)
"""What a new connection, its address looked up again, may not meet again."""

_NO_NOTES = (
    "no permission to note in a transaction what was pushed, so whether it is in is not known; `application-worker acl producer` "
    "prints the rights"
)
_BEFORE_WRITES = 3  # commands of a transaction before its first write: WATCH, PEXPIRE, MULTI

pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)


class ShardConnection:
    """The way to one Redis for pushes. Safe to share between threads; connects at its first command."""

    def __init__(self, name: str, endpoint: Endpoint, channels: Channels) -> None:
        self._name = name
        self._endpoint = endpoint
        self._channels = channels
        self._circuit = Circuit(name)
        self._told = Repeated(_QUIET_S)
        self._tokens_refused = False
        """Whether an ACL refuses the keys of tokens, or a transaction: a bulk push cannot be resumed after a lost reply then."""

    def close(self) -> None:
        """Close the connections that no thread uses; the next command opens another."""
        self._channels.close()

    def read(self, packet: bytes) -> Any:
        """Send one packed command that changes nothing, again, once, where another connection may help; return its reply."""
        return self._try_twice(lambda channel: self._ask(channel, packet))

    def write_once(self, transaction: Transaction, names: Sequence[Command], marks: Sequence[Mark]) -> None:
        """Send a slice of a bulk push in a transaction that notes it, if it is not noted already.

        MULTI without a script around the jobs: a script would copy each of them once more. WATCH, then a PEXPIRE that changes the
        token's key if it is there, then EXEC, which does nothing where a watched key has changed: so neither a second try
        after the first nor a first that arrives late, after the second, writes anything. An ACL that refuses the token's key or
        transactions costs the token, not the jobs.
        """
        if self._tokens_refused:
            self._write_all([*names, *transaction.plain()], len(names), marks)
            return
        key = transaction.key
        whole = [*names, ("WATCH", key), ("PEXPIRE", key, TOKEN_MS), ("MULTI",), *transaction.commands, ("EXEC",)]
        try:
            self._write_all(whole, len(names), marks, transaction.jobs)
        except ShardUnavailableError as failure:
            if not isinstance(failure.__cause__, NoPermissionError):
                raise
            self._tokens_refused = True
            if not failure.maybe_written:
                self.write_once(transaction, names, marks)
                return
            try:
                self._write_all(transaction.rest(), 0, ())
            except ShardUnavailableError as again:
                again.maybe_written = True  # the others are in
                raise

    def _write_all(
        self, commands: Sequence[Command], names: int, marks: Sequence[Mark], jobs: slice | None = None
    ) -> None:
        self.write(b"".join(map(pack, commands)), len(commands), names=names, marks=marks, jobs=jobs)

    def is_written(self, key: str) -> bool:
        """Return whether the transaction that this key notes was carried out, and wrote its jobs.

        Raises:
            ShardUnavailableError: it does not answer, or refuses transactions or the key: then this cannot be known.
        """
        if self._tokens_refused:
            raise self._failure(NoPermissionError(_NO_NOTES), maybe_written=False)
        kind = self.read(pack(("TYPE", key)))
        if kind != b"list":
            return bool(kind != b"none")
        if self.read(pack(("LLEN", key))) == 1:
            return True
        # The queue was of another type: the transaction may be sent again.
        self.read(pack(("UNLINK", key)))
        return False

    def write(
        self, packet: bytes, commands: int, *, names: int, marks: Sequence[Mark] = (), jobs: slice | None = None
    ) -> None:
        """Send packed commands and read their replies; again, once, where surely no job was written the first time.

        The first ``names`` commands write no job. ``marks`` go before all of them. With ``jobs``, those commands of a
        transaction do (``write_once``), else all others.
        """
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.refuses(began):
            raise self._spared()
        if marks:
            packet = b"".join(map(pack, marks)) + packet
        failure = self._attempt(self._channels.take(), packet, commands, names, marks, jobs)
        if failure is not None and not failure.maybe_written and _may_pass(failure.__cause__):
            self._channels.close()  # its siblings lead to the same server
            failure = self._attempt(self._channels.fresh(began), packet, commands, names, marks, jobs)
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
        reason = f"{self._endpoint.shown}: it has not answered for {self._circuit.open_s:.1f} s"
        advice = f"nothing was sent; one push in {RETRY_S:g} s is, and as soon as one is answered all others are, too"
        return ShardUnavailableError(self._name, reason, advice=advice)

    def _attempt(
        self, channel: Channel, packet: bytes, commands: int, names: int, marks: Sequence[Mark], jobs: slice | None
    ) -> ShardUnavailableError | None:
        try:
            channel.send_packet(packet)
            replies = channel.replies(len(marks) + commands)
        except RedisError as error:
            self._channels.close()  # the others lead the same way, and each would cost another push its time
            return self._failure(error, maybe_written=channel.sent)
        answers = replies[len(marks) :] if marks else replies
        failure = None
        if jobs is not None:
            failure = self._judge_transaction(channel, answers, names, jobs)
        else:
            for reply in answers:
                if isinstance(reply, RedisError):
                    failure = self._judge(answers[:names], answers[names:])
                    break
        if marks:
            self._look_at_marks(channel, marks, replies, failure)
        self._channels.give(channel)
        return failure

    def _judge(self, listed: Sequence[Any], written: Sequence[Any]) -> ShardUnavailableError | None:
        """Return what the replies to the commands that write jobs say; a name that is not ``listed`` is only told of."""
        refused = next((reply for reply in written if isinstance(reply, RedisError)), None)
        if refused is not None:
            accepted = any(not isinstance(reply, RedisError) for reply in written)
            return self._failure(refused, maybe_written=accepted)
        for reply in listed:
            if isinstance(reply, RedisError):
                self.names_refused(reply)
        return None

    def _judge_transaction(
        self, channel: Channel, answers: Sequence[Any], names: int, jobs: slice
    ) -> ShardUnavailableError | None:
        done, queued = answers[-1], answers[names:-1]
        if done is None:  # an earlier try of ours wrote it
            return None
        if isinstance(done, list):
            return self._judge(answers[:names], cast("list[Any]", done)[jobs])
        channel.close()  # whether it is still in a transaction is not known
        if isinstance(queued[_BEFORE_WRITES - 1], RedisError):
            # An ACL without MULTI: what follows was carried out at once, and a note says nothing about the whole.
            self._tokens_refused = True
            direct = queued[_BEFORE_WRITES:]
            # An LMOVE that finds nothing: the RPUSH before it was refused.
            return self._judge(answers[:names], [direct[0] if reply is None else reply for reply in direct[jobs]])
        reason = next((reply for reply in queued if isinstance(reply, RedisError)), done)
        return self._failure(reason, maybe_written=False)

    def names_refused(self, error: RedisError | str) -> None:
        """Tell, once a minute at most, that a name was not added to ``queues``; its queue is served all the same."""
        if count := self._told.due("queues", monotonic()):
            logs.logger(shard=self._name).warning(
                "Redis refuses to add to the set `queues`. The jobs are in their queue, but Sidekiq's Web UI does not list it: see "
                "that `queues` is a set, and that the ACL allows SADD on it",
                event_name="queues.refused",
                count=count,
                error=error,
            )

    def state_refused(self, error: RedisError | str) -> None:
        """Tell, once a minute at most, that the state of a tracked job was refused; its job is in."""
        if count := self._told.due("marks", monotonic()):
            logs.logger(shard=self._name).warning(
                "the states of tracked jobs are refused; the jobs are in",
                event_name="status.refused",
                count=count,
                error=error,
            )

    def _look_at_marks(
        self, channel: Channel, marks: Sequence[Mark], replies: Sequence[Any], failure: ShardUnavailableError | None
    ) -> None:
        """See that no state is left of jobs that were refused; what becomes of a job is never decided by its state's reply."""
        refused = [reply for reply in replies[: len(marks)] if isinstance(reply, RedisError)]
        if failure is None and refused:  # an ACL without our keys
            self.state_refused(refused[0])
        elif failure is not None and not failure.maybe_written and len(refused) < len(marks):
            with suppress(RedisError):  # should it fail too, they expire
                channel.call("UNLINK", *(mark[1] for mark in marks))

    def run(self, script: Script, names: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script that writes all or nothing, again, once, where surely nothing was written; return its reply."""
        return self._try_twice(lambda channel: self._evaluate(channel, script, names, arguments))

    def _try_twice(self, ask: Callable[[Channel], tuple[Any, ShardUnavailableError | None]]) -> Any:
        """Ask, and once more where another connection may help and surely nothing was written; return the reply."""
        circuit, began = self._circuit, monotonic()
        if circuit.open and circuit.refuses(began):
            raise self._spared()
        reply, failure = ask(self._channels.take())
        if failure is not None and not failure.maybe_written and _may_pass(failure.__cause__):
            self._channels.close()
            reply, failure = ask(self._channels.fresh(began))
        self._conclude(began, failure)
        return reply

    def _evaluate(
        self, channel: Channel, script: Script, names: Sequence[str], arguments: Sequence[Any]
    ) -> tuple[Any, ShardUnavailableError | None]:
        """Run a script that writes all or nothing; return its reply, or what failed."""
        told = (len(names), *names, *arguments)
        reply, failure = self._ask(channel, pack(("EVALSHA", script.digest, *told)), writes=True)
        if failure is None or not isinstance(failure.__cause__, NoScriptError):
            return reply, failure
        return self._ask(self._channels.take(), pack(("EVAL", script.source, *told)), writes=True)

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
        reason = f"{self._endpoint.shown}: {words}".rstrip(".")
        source = self._endpoint.source
        advice = advice_for(error, source)
        failure = ShardUnavailableError(self._name, reason, maybe_written=maybe_written, advice=advice, source=source)
        failure.__cause__ = error
        return failure


def _may_pass(error: BaseException | None) -> bool:
    return isinstance(error, _PASSING) and not isinstance(error, AuthenticationError)
