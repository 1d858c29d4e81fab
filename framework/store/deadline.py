"""Limit the total time of one call: sending its commands and reading all replies.

A timeout of the socket limits one ``recv`` only: a server or proxy that sends a byte every 3 s never exceeds it. A transfer that
makes progress gets more time, so that a large payload on a slow network arrives.
"""

import socket
import ssl
import threading
import weakref
from contextlib import suppress
from time import monotonic
from typing import Any, cast

from redis.connection import AbstractConnection

SLOWEST_BYTES_PER_S = 32_768
"""A transfer of at least this rate has no deadline."""

COMMAND_S = 0.01
"""The time that each command of a pipeline adds to the deadline: no command of the framework takes longer."""

_MAX_WINDOW_S = 2.0
_SAME_CALL_S = 0.05
"""A command within this time after connecting is the one for which the connection was opened: both share one deadline."""
# Eleven days, for a connection without a timeout.
_NO_LIMIT_S = 1e6
_CHUNK_BYTES = 1 << 16
_UNCHANGED_SHARE = 0.98


class _Sent(threading.local):
    commands = 0


_sent = _Sent()


def sent_commands() -> int:
    """Return how many commands this thread has sent by connections of redis-py. Channels, the way of a job, count nothing."""
    return _sent.commands


# It covers a whole call, because the timeout of a socket covers one `recv`: a byte every 3 s held a push for 45 s.
class Deadline:
    """The deadline of one call. It moves while the last seconds have transferred ``SLOWEST_BYTES_PER_S``."""

    __slots__ = ("_current_bytes", "_limit_s", "_previous_bytes", "_until", "_window_s", "_window_start")

    def __init__(self, began: float, limit_s: float) -> None:
        """Start the deadline of a call that began at ``began`` (monotonic seconds)."""
        self._limit_s = limit_s
        self._until = began + limit_s
        self._window_s = min(_MAX_WINDOW_S, limit_s / 2)
        self._window_start = began
        self._current_bytes = self._previous_bytes = 0

    def left_s(self) -> float:
        """Return the remaining time. Raises TimeoutError after the deadline."""
        now = monotonic()
        self._advance_window(now)
        if (
            self._until - now < self._window_s
            and self._current_bytes + self._previous_bytes >= SLOWEST_BYTES_PER_S * self._window_s
        ):
            self._until = now + self._window_s
        if now >= self._until:
            raise TimeoutError(f"not done within {self._limit_s:g} s")
        return self._until - now

    def spent_s(self) -> float:
        return max(0.0, self._limit_s - max(0.0, self._until - monotonic()))

    def add_bytes(self, count: int) -> None:
        self._advance_window(monotonic())
        self._current_bytes += count

    def extend(self, seconds: float) -> None:
        self._until += seconds

    def _advance_window(self, now: float) -> None:
        """Start a new window every ``_window_s``; the bytes of the previous window still count."""
        windows = int((now - self._window_start) / self._window_s)
        if windows:
            # After a pause of more than one window the counted bytes are too old.
            self._previous_bytes, self._current_bytes = self._current_bytes if windows == 1 else 0, 0
            self._window_start += windows * self._window_s


class BoundedConnection(AbstractConnection):
    """Mix-in of redis-py's connection classes: ``socket_timeout`` is the deadline of each call, including connecting.

    Messages of a subscription, and reads with a timeout of their own, belong to no call: for them the socket's timeout holds.
    """

    deadline = Deadline(0.0, 1.0)
    """The deadline of the current call."""
    _replies_due = 0
    """The replies of the current call that have not arrived; 0 without a call."""
    _connecting = False
    _ready_at = 0.0
    _packed = 1

    def connect(self) -> None:
        with _Connecting(self):
            super().connect()  # type: ignore[no-untyped-call]

    def connect_within(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self._replies_due = 1
        try:
            self.connect()
        finally:
            self._replies_due = 0

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        with _Connecting(self):
            super().connect_check_health(*args, **options)

    def _connect(self) -> Any:
        opened: Any = cast("Any", super())._connect()
        return BoundedSocket(opened, self)

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> Any:
        # The TLS handshake is a single step for Python, with one timeout.
        sock.settimeout(self.deadline.left_s())
        wrapped: Any = cast("Any", super())._wrap_socket_with_ssl(sock)
        wrapped.settimeout(self.socket_timeout)
        return wrapped

    def disconnect(self, *args: Any, **options: Any) -> None:
        self._replies_due = 0
        super().disconnect(*args, **options)  # type: ignore[no-untyped-call]

    def shut_down(self) -> None:
        """End the connection from another thread; its user sees a lost connection."""
        bounded: Any = self._sock
        if bounded is not None:
            with suppress(OSError):
                # Below the TLS layer, which two threads must not use.
                socket.socket.shutdown(bounded.opened, socket.SHUT_RDWR)

    def pack_commands(self, commands: Any) -> Any:
        """Pack the commands of a pipeline, which form one call."""
        listed = list(commands)
        self._packed = max(1, len(listed))
        return super().pack_commands(listed)  # type: ignore[no-untyped-call]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        """Send commands, which start a call or continue the current one."""
        count, self._packed = self._packed, 1
        _sent.commands += count
        now = monotonic()
        if self._replies_due <= 0 and not self._connecting:
            self._replies_due = 0
            if now - self._ready_at > _SAME_CALL_S:
                self.begin_call(now)
        self._replies_due += count
        self.deadline.extend((count - 1) * COMMAND_S)
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        if "timeout" in options:
            self._replies_due = 0
        try:
            return cast("Any", super()).read_response(*args, **options)
        finally:
            self._replies_due -= 1

    @property
    def in_call(self) -> bool:
        """Whether there is a current call, whose deadline holds."""
        return self._replies_due > 0 or self._connecting

    def connecting(self) -> "_Connecting":
        """Return a block that counts as connecting: several attempts have one deadline."""
        return _Connecting(self)

    def begin_call(self, began: float) -> None:
        """Start a call that began at ``began`` (monotonic seconds)."""
        limit_s = self.socket_timeout
        self.deadline = Deadline(began, _NO_LIMIT_S if limit_s is None else limit_s)


class _Connecting:
    """Count commands and replies within the block as part of connecting, or of the call for which it happens."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection = connection
        self._outer = connection._connecting  # pyright: ignore[reportPrivateUsage]
        self._outer_replies_due = 0

    def __enter__(self) -> None:
        one = self._connection
        if self._outer or one._sock is not None:  # pyright: ignore[reportPrivateUsage]
            return
        self._outer_replies_due = max(0, one._replies_due)  # pyright: ignore[reportPrivateUsage]
        if not self._outer_replies_due:
            one.begin_call(monotonic())
        one._connecting = True  # pyright: ignore[reportPrivateUsage]

    def __exit__(self, kind: object, *_: object) -> None:
        one = self._connection
        if self._outer or not one._connecting:  # pyright: ignore[reportPrivateUsage]
            return
        one._connecting = False  # pyright: ignore[reportPrivateUsage]
        one._replies_due = self._outer_replies_due if kind is None else 0  # pyright: ignore[reportPrivateUsage]
        one._ready_at = monotonic()  # pyright: ignore[reportPrivateUsage]


class BoundedSocket:
    """Wrap the socket of a connection for redis-py: reads and writes within a call use the call's remaining time."""

    def __init__(self, opened: socket.socket, connection: BoundedConnection) -> None:
        self.opened = opened
        self.answered = False
        """Whether the server has answered in a call."""
        # A proxy makes no reference cycle, so a connection that is dropped without close() ends at once, as redis-py's own do.
        self._connection: BoundedConnection = weakref.proxy(connection)
        self._timeout = _SocketTimeout(opened, self._connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)

    @property
    def unanswered_tls(self) -> bool:
        """Whether the client's TLS handshake is complete and the server has not answered since."""
        return isinstance(self.opened, ssl.SSLSocket) and not self.answered

    def recv_into(self, buffer: bytearray) -> int:
        if not self._connection.in_call:
            return self.opened.recv_into(buffer)
        with self._timeout:
            count = self.opened.recv_into(buffer)
        self.answered = self.answered or count > 0
        self._connection.deadline.add_bytes(count)
        return count

    def recv(self, size: int, *flags: int) -> bytes:
        if not self._connection.in_call:
            return self.opened.recv(size, *flags)
        with self._timeout:
            data = self.opened.recv(size, *flags)
        self.answered = self.answered or bool(data)
        self._connection.deadline.add_bytes(len(data))
        return data

    def sendall(self, data: Any) -> None:
        if len(data) <= _CHUNK_BYTES:
            with self._timeout:
                self.opened.sendall(data)
            return
        view = memoryview(data)
        while view:
            with self._timeout:
                count = self.opened.send(view[:_CHUNK_BYTES])
            self._connection.deadline.add_bytes(count)
            view = view[count:]


class _SocketTimeout:
    """Limit a socket operation within the block to the remaining time of the call."""

    def __init__(self, opened: socket.socket, connection: BoundedConnection) -> None:
        self._opened = opened
        self._connection = connection
        self._before: float | None = None
        self._changed = False

    def __enter__(self) -> None:
        self._before, left = self._opened.gettimeout(), self._connection.deadline.left_s()
        # While nearly all of the time remains, the timeout stays unchanged, which saves a system call.
        self._changed = self._before is None or left < _UNCHANGED_SHARE * self._before
        if self._changed:
            self._opened.settimeout(left)

    def __exit__(self, *_: object) -> None:
        if self._changed:
            self._opened.settimeout(self._before)


def use_deadlines(pool: Any) -> None:
    """Make a redis-py pool open connections with deadlines."""
    kind = pool.connection_class
    if not issubclass(kind, BoundedConnection):
        pool.connection_class = type(f"Bounded{kind.__name__}", (BoundedConnection, kind), {})
