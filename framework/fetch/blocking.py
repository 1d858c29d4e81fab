"""Idle wake-up: one BLMOVE parked per queue, straight into the working list, so that waiting costs Redis nothing.

Each parked call has a connection of its own. If we die while parked, the server may still move one job into our working
list when it notices too late; that is why a dead process's list is swept until no parked call can be alive. If only the
connection dies (a network that swallows packets), the server serves that call first, as it waits the longest: it is ended by
its client id as soon as the server can be reached.
"""

import contextlib
import select
import selectors
import socket
import time
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.channel import Channel
from framework.wire import keys

BLOCK_TIMEOUT_S = 10
"""Longest wait of one parked call, seconds; bounds how long a dead process's list must be watched."""

REPLY_MARGIN_S = 2.0
"""A reply later than this after ``BLOCK_TIMEOUT_S`` means a dead connection."""

UNBLOCK_REPLY_S = 1.0
"""How long a call that was told to end may take to answer: a few round trips. Its connection is dead if it does not."""

MAX_BLOCKED_QUEUES = 16
"""Parked connections per process; queues beyond these are found by the periodic sweep."""


@dataclass(slots=True)
class _BlockedCall:
    """One connection, watched from its opening to its end: telling the kernel for each job costs more than the job's wait."""

    channel: Channel
    client_id: int
    descriptor: int
    queue: str = ""
    """Where it is parked; empty: nowhere."""
    armed_at: float = 0.0


class BlockingMoves:
    """Parked calls and a waker, waited for together by one thread; only ``wake`` may be called from others."""

    def __init__(self, client: "redis.Redis", working_list: str) -> None:
        self._client = client
        self._working_list = working_list
        self._selector = selectors.DefaultSelector()
        self._armed: dict[str, _BlockedCall] = {}
        self._idle: list[_BlockedCall] = []
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._unanswered: list[tuple[int, float]] = []
        """Calls given up without an answer: client id, and until when (monotonic) the server may still serve it."""
        self.connection_lost_at: float | None = None
        """When a call was last given up without an answer (monotonic seconds): until it times out on the server, a job may
        still come into our working list."""

    @property
    def queues(self) -> set[str]:
        """Queues with a call parked."""
        return set(self._armed)

    def wake(self) -> None:
        """End the current or next ``wait`` at once; safe from any thread."""
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            self._wake_writer.send(b"\0")

    def arm(self, queue: str) -> None:
        """Leave a call at ``queue``; raises a redis error when the connection cannot be made."""
        call = self._idle.pop() if self._idle else self._open()
        try:
            call.channel.send(("BLMOVE", keys.queue(queue), self._working_list, "RIGHT", "LEFT", BLOCK_TIMEOUT_S))
        except BaseException:
            self._close(call)
            raise
        call.armed_at = time.monotonic()
        call.queue = queue
        self._armed[queue] = call

    def wait(self, timeout_s: float) -> list[tuple[str, bytes, float]]:
        """Wait for a job, a wake-up or the time-out; return (queue, payload, seconds waited) of the jobs that came.

        They are in the working list. Raises the redis error of a broken call, after giving up that connection.
        """
        arrived: list[tuple[str, bytes, float]] = []
        failure: RedisError | None = None
        for key, _ in self._selector.select(min(timeout_s, self._overdue_in_s())):
            if key.data is None:
                self._drain_wakes()
                continue
            call: _BlockedCall = key.data
            if not call.queue:
                self._idle.remove(call)
                self._close(call)  # the server has ended a connection that nothing was asked on
                continue
            queue, waited = call.queue, time.monotonic() - call.armed_at
            try:
                data = self._read_reply(call)
            except RedisError as error:
                failure = error
                continue
            if data is not None:
                arrived.append((queue, data, waited))
        if arrived:
            return arrived  # a queue whose call failed gets another, which tells
        if failure is not None:
            raise failure
        self._check_overdue()
        return []

    def cancel_all(self, *, no_wait: bool = False) -> list[UnitOfWork]:
        """End every parked call, those given up unanswered too, and return the jobs that came meanwhile.

        UNBLOCK makes the server answer each call, so nothing is in flight afterwards; who has not answered ``UNBLOCK_REPLY_S`` later
        sits on a dead connection and is given up. Where UNBLOCK is not allowed, the calls end within ``BLOCK_TIMEOUT_S``,
        or, if we are ``hurried``, are given up. A server that hangs is waited for once, not once for each call.
        """
        arrived: list[UnitOfWork] = []
        patience_s = UNBLOCK_REPLY_S
        try:
            self._unblock()
        except ResponseError:  # not allowed
            patience_s = 0.0 if no_wait else BLOCK_TIMEOUT_S + REPLY_MARGIN_S
        except (RedisError, OSError):
            self.drop_connections()
        deadline = time.monotonic() + patience_s
        for queue, call in list(self._armed.items()):
            if not _has_answered(call, deadline - time.monotonic()):
                self._drop_call(queue)
                continue
            try:
                data = self._read_reply(call)
            except RedisError:
                continue  # the connection is gone: what it may have moved is in the working list, the reaper's to find
            if data is not None:
                arrived.append(UnitOfWork(queue, data))
        return arrived

    def drop_connections(self) -> None:
        """Close every connection, after a failure."""
        for queue in list(self._armed):
            self._drop_call(queue)
        for call in self._idle:
            self._close(call)
        self._idle.clear()

    def close(self) -> None:
        """Close everything."""
        self.drop_connections()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _open(self) -> _BlockedCall:
        channel = Channel(self._client, read_timeout_s=BLOCK_TIMEOUT_S + REPLY_MARGIN_S)
        try:
            # Asked before anything is parked: the answer is what UNBLOCK needs.
            client_id = int(channel.call("CLIENT", "ID"))
            call = _BlockedCall(channel, client_id, channel.fileno())
            self._selector.register(call.descriptor, selectors.EVENT_READ, call)
        except BaseException:
            channel.close()
            raise
        return call

    def _read_reply(self, call: _BlockedCall) -> bytes | None:
        self._armed.pop(call.queue)
        call.queue = ""
        try:
            reply = call.channel.read()
        except ResponseError:
            self._close(call)  # refused: nothing was moved
            raise
        except BaseException:
            self._close_unanswered(call)
            raise
        self._idle.append(call)
        return reply if isinstance(reply, bytes) else None

    def _drop_call(self, queue: str) -> None:
        self._close_unanswered(self._armed.pop(queue))

    def _close_unanswered(self, call: _BlockedCall) -> None:
        self._close(call)
        self.connection_lost_at = now = time.monotonic()
        self._unanswered = [(client_id, until) for client_id, until in self._unanswered if until > now]
        self._unanswered.append((call.client_id, call.armed_at + BLOCK_TIMEOUT_S + REPLY_MARGIN_S))

    def _unblock(self) -> None:
        """Tell the server to end every call that it may still hold for us, in one round trip. Raises redis errors."""
        now = time.monotonic()
        client_ids = [client_id for client_id, until in self._unanswered if until > now]
        client_ids += [call.client_id for call in self._armed.values()]
        if not client_ids:
            return
        pipeline: Any = self._client.pipeline(transaction=False)
        for client_id in client_ids:
            pipeline.client_unblock(
                client_id
            )  # should the number be another's since a restart, that reads as a time-out
        pipeline.execute()
        self._unanswered.clear()

    def _close(self, call: _BlockedCall) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):  # closed by itself when it failed
            self._selector.unregister(call.descriptor)
        call.channel.close()

    def _overdue_in_s(self) -> float:
        """Return the seconds until the oldest parked call should have been answered; they stand in the order of parking."""
        oldest = next(iter(self._armed.values()), None)
        if oldest is None:
            return BLOCK_TIMEOUT_S
        return max(0.0, oldest.armed_at + BLOCK_TIMEOUT_S + REPLY_MARGIN_S - time.monotonic())

    def _check_overdue(self) -> None:
        latest = time.monotonic() - BLOCK_TIMEOUT_S - REPLY_MARGIN_S
        overdue = [queue for queue, call in self._armed.items() if call.armed_at < latest]
        for queue in overdue:
            self._drop_call(queue)
        if overdue:
            raise RedisTimeoutError(f"no answer to a parked call within {BLOCK_TIMEOUT_S + REPLY_MARGIN_S:g} s")

    def _drain_wakes(self) -> None:
        try:
            while self._wake_reader.recv(4096):
                pass
        except BlockingIOError:
            pass


def _has_answered(call: _BlockedCall, within_s: float) -> bool:
    """Wait until there is something to read on a call's connection, its end included; tell whether there is."""
    poll = select.poll()
    poll.register(call.descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))
