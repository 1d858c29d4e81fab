"""The time that one call may take as a whole: what is sent, and all of its replies.

A time-out of the socket is of one ``recv``: a server, or a proxy, that gives a byte every 3 s never meets it. What makes headway
gets more time, so that a large payload on a narrow network arrives at last.
"""

import socket
import ssl
import weakref
from time import monotonic
from typing import Any, cast

from redis.connection import AbstractConnection

SLOWEST_BYTES_PER_S = 32_768
"""As long as so much goes through, a transfer may last."""

COMMAND_S = 0.01
"""What each command of a pipeline adds: none of ours keeps the server longer."""

_MAX_WINDOW_S = 2.0
_SAME_CALL_S = 0.05
"""A command that follows so soon upon its connection's making is the one that it was made for: they have one deadline."""
_NO_LIMIT_S = 1e6
_CHUNK_BYTES = 1 << 16
_UNCHANGED_SHARE = 0.98


# Decision 152: a deadline covers a whole call and moves only while data flows.
class Deadline:
    """Of one call. It moves on while the last seconds have brought ``SLOWEST_BYTES_PER_S``."""

    __slots__ = ("_before", "_limit_s", "_look_s", "_moved", "_since", "_until")

    def __init__(self, began: float, limit_s: float) -> None:
        """The call began then (monotonic seconds)."""
        self._limit_s = limit_s
        self._until = began + limit_s
        self._look_s = min(_MAX_WINDOW_S, limit_s / 2)
        self._since = began
        self._moved = self._before = 0

    def left_s(self) -> float:
        """Return what is left. Raises TimeoutError when nothing is."""
        now = monotonic()
        self._advance_window(now)
        if self._until - now < self._look_s and self._moved + self._before >= SLOWEST_BYTES_PER_S * self._look_s:
            self._until = now + self._look_s
        if now >= self._until:
            raise TimeoutError(f"not done within {self._limit_s:g} s")
        return self._until - now

    def spent_s(self) -> float:
        """Return how much of the limit is not left."""
        return max(0.0, self._limit_s - max(0.0, self._until - monotonic()))

    def add_bytes(self, count: int) -> None:
        """So many bytes have just gone through."""
        self._advance_window(monotonic())
        self._moved += count

    def extend(self, seconds: float) -> None:
        """More is asked for."""
        self._until += seconds

    def _advance_window(self, now: float) -> None:
        """Start a new count each ``_look_s``; what came in the one before still counts."""
        looks = int((now - self._since) / self._look_s)
        if looks:
            self._before, self._moved = self._moved if looks == 1 else 0, 0
            self._since += looks * self._look_s


class BoundedConnection(AbstractConnection):
    """Mixed into the class of a redis-py connection: its ``socket_timeout`` is the deadline of each call, connecting included.

    What follows the replies of a command (messages of a subscription), and a read with a time-out of its own, have no call
    that they belong to, and the socket's time-out as before.
    """

    deadline = Deadline(0.0, 1.0)
    """Of the call that is under way."""
    _replies_due = 0
    """Replies to come of the call that is under way; none is when there are none."""
    _connecting = False
    _ready_at = 0.0
    _packed = 1

    def connect(self) -> None:
        """Connect, as a call, or for one."""
        with _Connecting(self):
            super().connect()  # type: ignore[no-untyped-call]

    def connect_within(self, deadline: Deadline) -> None:
        """Connect for a call that is under way."""
        self.deadline = deadline
        self._replies_due = 1
        try:
            self.connect()
        finally:
            self._replies_due = 0

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        """Connect, as a call, or for one."""
        with _Connecting(self):
            super().connect_check_health(*args, **options)

    def _connect(self) -> Any:
        opened: Any = cast("Any", super())._connect()
        return BoundedSocket(opened, self)

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> Any:
        sock.settimeout(self.deadline.left_s())  # the handshake of TLS is one step for Python, with one deadline
        wrapped: Any = cast("Any", super())._wrap_socket_with_ssl(sock)
        wrapped.settimeout(self.socket_timeout)
        return wrapped

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Disconnect; no call is under way any more."""
        self._replies_due = 0
        super().disconnect(*args, **options)  # type: ignore[no-untyped-call]

    def pack_commands(self, commands: Any) -> Any:
        """Pack the commands of a pipeline, which are one call."""
        listed = list(commands)
        self._packed = max(1, len(listed))
        return super().pack_commands(listed)  # type: ignore[no-untyped-call]

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's own
        """Send commands: a call begins, or one that is under way goes on."""
        count, self._packed = self._packed, 1
        now = monotonic()
        if self._replies_due <= 0 and not self._connecting:
            self._replies_due = 0
            if now - self._ready_at > _SAME_CALL_S:
                self.begin_call(now)
        self._replies_due += count
        self.deadline.extend((count - 1) * COMMAND_S)
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read one reply."""
        if "timeout" in options:
            self._replies_due = 0
        try:
            return cast("Any", super()).read_response(*args, **options)
        finally:
            self._replies_due -= 1

    @property
    def in_call(self) -> bool:
        """Whether a call is, whose deadline holds."""
        return self._replies_due > 0 or self._connecting

    def begin_call(self, began: float) -> None:
        """A call began then (monotonic seconds)."""
        limit_s = self.socket_timeout
        self.deadline = Deadline(began, _NO_LIMIT_S if limit_s is None else limit_s)


class _Connecting:
    """Within the block what is sent and read belongs to the connection's making, or to the call that it is made for."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection = connection
        self._outer = connection._connecting  # pyright: ignore[reportPrivateUsage]
        self._owed = 0

    def __enter__(self) -> None:
        one = self._connection
        if self._outer or one._sock is not None:  # pyright: ignore[reportPrivateUsage]
            return
        self._owed = max(0, one._replies_due)  # pyright: ignore[reportPrivateUsage]
        if not self._owed:
            one.begin_call(monotonic())
        one._connecting = True  # pyright: ignore[reportPrivateUsage]

    def __exit__(self, kind: object, *_: object) -> None:
        one = self._connection
        if self._outer or not one._connecting:  # pyright: ignore[reportPrivateUsage]
            return
        one._connecting = False  # pyright: ignore[reportPrivateUsage]
        one._replies_due = self._owed if kind is None else 0  # pyright: ignore[reportPrivateUsage]
        one._ready_at = monotonic()  # pyright: ignore[reportPrivateUsage]


class BoundedSocket:
    """A connection's socket as redis-py sees it: what is read or sent within a call has what is left of that call."""

    def __init__(self, opened: socket.socket, connection: BoundedConnection) -> None:
        self.opened = opened
        self.answered = False
        """Whether the server has answered anything in a call."""
        # No cycle: a connection that is dropped without a close() ends at once, as redis-py's own do.
        self._connection: BoundedConnection = weakref.proxy(connection)
        self._timeout = _SocketTimeout(opened, self._connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)

    @property
    def unanswered_tls(self) -> bool:
        """Whether our side has done the handshake of TLS, and the server has answered nothing since."""
        return isinstance(self.opened, ssl.SSLSocket) and not self.answered

    def recv_into(self, buffer: bytearray) -> int:
        """Receive something."""
        if not self._connection.in_call:
            return self.opened.recv_into(buffer)
        with self._timeout:
            count = self.opened.recv_into(buffer)
        self.answered = self.answered or count > 0
        self._connection.deadline.add_bytes(count)
        return count

    def recv(self, size: int, *flags: int) -> bytes:
        """Receive something."""
        if not self._connection.in_call:
            return self.opened.recv(size, *flags)
        with self._timeout:
            data = self.opened.recv(size, *flags)
        self.answered = self.answered or bool(data)
        self._connection.deadline.add_bytes(len(data))
        return data

    def sendall(self, data: Any) -> None:
        """Send all."""
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
    """Within the block a step on the socket lasts no longer than the call may."""

    def __init__(self, opened: socket.socket, connection: BoundedConnection) -> None:
        self._opened = opened
        self._connection = connection
        self._before: float | None = None
        self._changed = False

    def __enter__(self) -> None:
        self._before, left = self._opened.gettimeout(), self._connection.deadline.left_s()
        # A system call for each step is spared while the call has nearly all of its time.
        self._changed = self._before is None or left < _UNCHANGED_SHARE * self._before
        if self._changed:
            self._opened.settimeout(left)

    def __exit__(self, *_: object) -> None:
        if self._changed:
            self._opened.settimeout(self._before)


def use_deadlines(pool: Any) -> None:
    """Let the connections that a redis-py pool is going to make be ``Bounded``."""
    kind = pool.connection_class
    if not issubclass(kind, BoundedConnection):
        pool.connection_class = type(f"Bounded{kind.__name__}", (BoundedConnection, kind), {})
