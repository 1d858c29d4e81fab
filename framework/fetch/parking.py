"""Idle wake-up: one BLMOVE parked per queue, straight into the working list, so that waiting costs Redis nothing.

Each parked call has a connection of its own. If we die while parked, the server may still move one job into our working
list when it notices too late; that is why a dead process's list is swept until no parked call can be alive.
"""

import contextlib
import selectors
import socket
from typing import Any

import redis
from redis.exceptions import RedisError

from framework.fetch.unit_of_work import UnitOfWork
from framework.wire import keys

PARK_S = 5
"""Longest wait of one parked call, seconds; bounds how long a dead process's list must be watched."""

REPLY_MARGIN_S = 2.0
"""A reply later than this after ``PARK_S`` means a dead connection."""

PARKED_QUEUES = 16
"""Parked connections per process; queues beyond these are found by the periodic sweep."""


class Parking:
    """Parked calls and a waker, waited for together by the fetcher's thread; only ``wake`` may be called from others."""

    def __init__(self, client: "redis.Redis", working_list: str) -> None:
        self._pool = client.connection_pool
        self._working_list = working_list
        self._selector = selectors.DefaultSelector()
        self._parked: dict[str, Any] = {}
        self._client_ids: dict[int, tuple[Any, int]] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)

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
        connection: Any = self._pool.get_connection()
        try:
            self._learn_id(connection)
            connection.send_command("BLMOVE", keys.queue(queue), self._working_list, "RIGHT", "LEFT", PARK_S)
            self._selector.register(_descriptor(connection), selectors.EVENT_READ, queue)
        except BaseException:
            connection.disconnect()
            self._pool.release(connection)
            raise
        self._parked[queue] = connection

    def wait(self, timeout_s: float) -> list[UnitOfWork]:
        """Wait for a job, a wake-up or the time-out; return the jobs that came, which are in the working list.

        Raises the redis error of a broken call, after giving up that connection.
        """
        arrived: list[UnitOfWork] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._drain_wakes()
            else:
                data = self._collect(key.data)
                if data is not None:
                    arrived.append(UnitOfWork(key.data, data))
        return arrived

    def unpark(self, client: "redis.Redis") -> list[UnitOfWork]:
        """End every parked call and return the jobs that came meanwhile.

        UNBLOCK makes the server answer each call, so nothing is in flight afterwards. Where it is not allowed, the calls
        end by themselves within ``PARK_S``.
        """
        arrived: list[UnitOfWork] = []
        for queue, connection in list(self._parked.items()):
            self._unblock(client, connection)
            try:
                data = self._collect(queue)
            except (RedisError, OSError):
                continue  # the connection is gone: what it may have moved is in the working list, the reaper's to find
            if data is not None:
                arrived.append(UnitOfWork(queue, data))
        return arrived

    def abandon(self) -> None:
        """Close every parked connection, after a failure."""
        for queue in list(self._parked):
            self._release(queue, broken=True)

    def close(self) -> None:
        """Close everything."""
        self.abandon()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _collect(self, queue: str) -> bytes | None:
        try:
            reply = self._parked[queue].read_response(timeout=PARK_S + REPLY_MARGIN_S)
        except BaseException:
            self._release(queue, broken=True)
            raise
        self._release(queue, broken=False)
        return reply if isinstance(reply, bytes) else None

    def _release(self, queue: str, *, broken: bool) -> None:
        connection = self._parked.pop(queue)
        for key in list(self._selector.get_map().values()):
            if key.data == queue:
                self._selector.unregister(key.fileobj)
        if broken:
            self._client_ids.pop(id(connection), None)
            connection.disconnect()
        self._pool.release(connection)

    def _learn_id(self, connection: Any) -> None:
        """Ask once per socket, before anything is parked: the answer is what UNBLOCK needs, and a reconnect changes it."""
        socket_asked, _ = self._client_ids.get(id(connection), (None, 0))
        if socket_asked is None or socket_asked is not connection._sock:
            connection.send_command("CLIENT", "ID")
            self._client_ids[id(connection)] = (connection._sock, int(connection.read_response()))

    def _unblock(self, client: "redis.Redis", connection: Any) -> None:
        with contextlib.suppress(RedisError, OSError):
            client.client_unblock(self._client_ids[id(connection)][1])  # pyright: ignore[reportUnknownMemberType]

    def _drain_wakes(self) -> None:
        try:
            while self._wake_reader.recv(4096):
                pass
        except BlockingIOError:
            pass


def _descriptor(connection: Any) -> int:
    # redis-py offers no public way to wait for several connections at once.
    return int(connection._sock.fileno())
