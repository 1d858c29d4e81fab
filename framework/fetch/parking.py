"""Idle wake-up: one BLMOVE parked per queue, straight into the working list, so that waiting costs Redis nothing.

Each parked call has a connection of its own. If we die while parked, the server may still move one job into our working
list when it notices too late; that is why a dead process's list is swept until no parked call can be alive.
"""

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass

import redis
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.channel import Channel
from framework.wire import keys

PARK_S = 10
"""Longest wait of one parked call, seconds; bounds how long a dead process's list must be watched."""

REPLY_MARGIN_S = 2.0
"""A reply later than this after ``PARK_S`` means a dead connection."""

PARKED_QUEUES = 16
"""Parked connections per process; queues beyond these are found by the periodic sweep."""


@dataclass(slots=True)
class _Call:
    """One connection, watched from its opening to its end: telling the kernel for each job costs more than the job's wait."""

    channel: Channel
    client_id: int
    descriptor: int
    queue: str = ""
    """Where it is parked; empty: nowhere."""
    parked_at: float = 0.0


class Parking:
    """Parked calls and a waker, waited for together by one thread; only ``wake`` may be called from others."""

    def __init__(self, client: "redis.Redis", working_list: str) -> None:
        self._client = client
        self._working_list = working_list
        self._selector = selectors.DefaultSelector()
        self._parked: dict[str, _Call] = {}
        self._spare: list[_Call] = []
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self.lost_at: float | None = None
        """When a call was last given up without an answer (monotonic seconds): until it times out on the server, a job may
        still come into our working list."""

    @property
    def queues(self) -> set[str]:
        """Queues with a call parked."""
        return set(self._parked)

    def wake(self) -> None:
        """End the current or next ``wait`` at once; safe from any thread."""
        with contextlib.suppress(BlockingIOError):  # full of wake-ups already
            self._wake_writer.send(b"\0")

    def park(self, queue: str) -> None:
        """Leave a call at ``queue``; raises a redis error when the connection cannot be made."""
        call = self._spare.pop() if self._spare else self._open()
        try:
            call.channel.send(("BLMOVE", keys.queue(queue), self._working_list, "RIGHT", "LEFT", PARK_S))
        except RedisError:
            self._close(call)
            raise
        call.parked_at = time.monotonic()
        call.queue = queue
        self._parked[queue] = call

    def wait(self, timeout_s: float) -> list[tuple[str, bytes, float]]:
        """Wait for a job, a wake-up or the time-out; return (queue, payload, seconds waited) of the jobs that came.

        They are in the working list. Raises the redis error of a broken call, after giving up that connection.
        """
        arrived: list[tuple[str, bytes, float]] = []
        failure: RedisError | None = None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._drain_wakes()
                continue
            call: _Call = key.data
            if not call.queue:
                self._spare.remove(call)
                self._close(call)  # the server has ended a connection that nothing was asked on
                continue
            queue, waited = call.queue, time.monotonic() - call.parked_at
            try:
                data = self._collect(call)
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

    def unpark(self) -> list[UnitOfWork]:
        """End every parked call and return the jobs that came meanwhile.

        UNBLOCK makes the server answer each call, so nothing is in flight afterwards. Where it is not allowed, the calls
        end by themselves within ``PARK_S``. A server that hangs is waited for once, not once for each call.
        """
        arrived: list[UnitOfWork] = []
        try:
            for call in self._parked.values():
                self._client.client_unblock(call.client_id)  # pyright: ignore[reportUnknownMemberType]
        except ResponseError:
            pass  # not allowed
        except (RedisError, OSError):
            self.abandon()
        for queue, call in list(self._parked.items()):
            try:
                data = self._collect(call)
            except RedisTimeoutError:
                self.abandon()
                break
            except RedisError:
                continue  # the connection is gone: what it may have moved is in the working list, the reaper's to find
            if data is not None:
                arrived.append(UnitOfWork(queue, data))
        return arrived

    def abandon(self) -> None:
        """Close every connection, after a failure."""
        for queue in list(self._parked):
            self._give_up(queue)
        for call in self._spare:
            self._close(call)
        self._spare.clear()

    def close(self) -> None:
        """Close everything."""
        self.abandon()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _open(self) -> _Call:
        channel = Channel(self._client, read_timeout_s=PARK_S + REPLY_MARGIN_S)
        # Asked before anything is parked: the answer is what UNBLOCK needs.
        client_id = int(channel.call("CLIENT", "ID"))
        call = _Call(channel, client_id, channel.fileno())
        self._selector.register(call.descriptor, selectors.EVENT_READ, call)
        return call

    def _collect(self, call: _Call) -> bytes | None:
        self._parked.pop(call.queue)
        call.queue = ""
        try:
            reply = call.channel.read()
        except ResponseError:
            self._close(call)  # refused: nothing was moved
            raise
        except BaseException:
            self._close(call)
            self.lost_at = time.monotonic()
            raise
        self._spare.append(call)
        return reply if isinstance(reply, bytes) else None

    def _give_up(self, queue: str) -> None:
        self._close(self._parked.pop(queue))
        self.lost_at = time.monotonic()

    def _close(self, call: _Call) -> None:
        with contextlib.suppress(KeyError, ValueError, OSError):  # closed by itself when it failed
            self._selector.unregister(call.descriptor)
        call.channel.close()

    def _check_overdue(self) -> None:
        latest = time.monotonic() - PARK_S - REPLY_MARGIN_S
        overdue = [queue for queue, call in self._parked.items() if call.parked_at < latest]
        for queue in overdue:
            self._give_up(queue)
        if overdue:
            raise RedisTimeoutError(f"no answer to a parked call within {PARK_S + REPLY_MARGIN_S:g} s")

    def _drain_wakes(self) -> None:
        try:
            while self._wake_reader.recv(4096):
                pass
        except BlockingIOError:
            pass
