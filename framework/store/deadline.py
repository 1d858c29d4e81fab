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

_LONGEST_LOOK_S = 2.0
_AT_ONCE_S = 0.05
"""A command that follows so soon upon its connection's making is the one that it was made for: they have one deadline."""
_ENDLESS_S = 1e6
_PIECE = 1 << 16
_NEARLY_ALL = 0.98


class Deadline:
    """Of one call. It moves on while the last seconds have brought ``SLOWEST_BYTES_PER_S``."""

    __slots__ = ("_before", "_limit_s", "_look_s", "_moved", "_since", "_until")

    def __init__(self, began: float, limit_s: float) -> None:
        """The call began then (monotonic seconds)."""
        self._limit_s = limit_s
        self._until = began + limit_s
        self._look_s = min(_LONGEST_LOOK_S, limit_s / 2)
        self._since = began
        self._moved = self._before = 0

    def left_s(self) -> float:
        """Return what is left. Raises TimeoutError when nothing is."""
        now = monotonic()
        self._turn(now)
        if self._until - now < self._look_s and self._moved + self._before >= SLOWEST_BYTES_PER_S * self._look_s:
            self._until = now + self._look_s
        if now >= self._until:
            raise TimeoutError(f"not done within {self._limit_s:g} s")
        return self._until - now

    def spent_s(self) -> float:
        """Return how much of the limit is not left."""
        return max(0.0, self._limit_s - max(0.0, self._until - monotonic()))

    def moved(self, count: int) -> None:
        """So many bytes have just gone through."""
        self._turn(monotonic())
        self._moved += count

    def extend(self, seconds: float) -> None:
        """More is asked for."""
        self._until += seconds

    def _turn(self, now: float) -> None:
        """Start a new count each ``_look_s``; what came in the one before still counts."""
        looks = int((now - self._since) / self._look_s)
        if looks:
            self._before, self._moved = self._moved if looks == 1 else 0, 0
            self._since += looks * self._look_s


class Bounded(AbstractConnection):
    """Mixed into the class of a redis-py connection: its ``socket_timeout`` is the deadline of each call, connecting included.

    What follows the replies of a command (messages of a subscription), and a read with a time-out of its own, have no call
    that they belong to, and the socket's time-out as before.
    """

    deadline = Deadline(0.0, 1.0)
    """Of the call that is under way."""
    _owed = 0
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
        self._owed = 1
        try:
            self.connect()
        finally:
            self._owed = 0

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
        self._owed = 0
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
        if self._owed <= 0 and not self._connecting:
            self._owed = 0
            if now - self._ready_at > _AT_ONCE_S:
                self.begin(now)
        self._owed += count
        self.deadline.extend((count - 1) * COMMAND_S)
        super().send_packed_command(command, check_health)  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read one reply."""
        if "timeout" in options:
            self._owed = 0
        try:
            return cast("Any", super()).read_response(*args, **options)
        finally:
            self._owed -= 1

    @property
    def under_way(self) -> bool:
        """Whether a call is, whose deadline holds."""
        return self._owed > 0 or self._connecting

    def begin(self, began: float) -> None:
        """A call began then (monotonic seconds)."""
        limit_s = self.socket_timeout
        self.deadline = Deadline(began, _ENDLESS_S if limit_s is None else limit_s)


class _Connecting:
    """Within the block what is sent and read belongs to the connection's making, or to the call that it is made for."""

    def __init__(self, connection: Bounded) -> None:
        self._connection = connection
        self._outer = connection._connecting  # pyright: ignore[reportPrivateUsage]
        self._owed = 0

    def __enter__(self) -> None:
        one = self._connection
        if self._outer or one._sock is not None:  # pyright: ignore[reportPrivateUsage]
            return
        self._owed = max(0, one._owed)  # pyright: ignore[reportPrivateUsage]
        if not self._owed:
            one.begin(monotonic())
        one._connecting = True  # pyright: ignore[reportPrivateUsage]

    def __exit__(self, kind: object, *_: object) -> None:
        one = self._connection
        if self._outer or not one._connecting:  # pyright: ignore[reportPrivateUsage]
            return
        one._connecting = False  # pyright: ignore[reportPrivateUsage]
        one._owed = self._owed if kind is None else 0  # pyright: ignore[reportPrivateUsage]
        one._ready_at = monotonic()  # pyright: ignore[reportPrivateUsage]


class BoundedSocket:
    """A connection's socket as redis-py sees it: what is read or sent within a call has what is left of that call."""

    def __init__(self, opened: socket.socket, connection: Bounded) -> None:
        self.opened = opened
        self.heard = False
        """Whether the server has answered anything in a call."""
        # No cycle: a connection that is dropped without a close() ends at once, as redis-py's own do.
        self._connection: Bounded = weakref.proxy(connection)
        self._hurry = _Hurry(opened, self._connection)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)

    @property
    def unanswered_tls(self) -> bool:
        """Whether our side has done the handshake of TLS, and the server has answered nothing since."""
        return isinstance(self.opened, ssl.SSLSocket) and not self.heard

    def recv_into(self, buffer: bytearray) -> int:
        """Receive something."""
        if not self._connection.under_way:
            return self.opened.recv_into(buffer)
        with self._hurry:
            count = self.opened.recv_into(buffer)
        self.heard = self.heard or count > 0
        self._connection.deadline.moved(count)
        return count

    def recv(self, size: int, *flags: int) -> bytes:
        """Receive something."""
        if not self._connection.under_way:
            return self.opened.recv(size, *flags)
        with self._hurry:
            data = self.opened.recv(size, *flags)
        self.heard = self.heard or bool(data)
        self._connection.deadline.moved(len(data))
        return data

    def sendall(self, data: Any) -> None:
        """Send all."""
        if len(data) <= _PIECE:
            with self._hurry:
                self.opened.sendall(data)
            return
        view = memoryview(data)
        while view:
            with self._hurry:
                count = self.opened.send(view[:_PIECE])
            self._connection.deadline.moved(count)
            view = view[count:]


class _Hurry:
    """Within the block a step on the socket lasts no longer than the call may."""

    def __init__(self, opened: socket.socket, connection: Bounded) -> None:
        self._opened = opened
        self._connection = connection
        self._before: float | None = None
        self._hurried = False

    def __enter__(self) -> None:
        self._before, left = self._opened.gettimeout(), self._connection.deadline.left_s()
        # A system call for each step is spared while the call has nearly all of its time.
        self._hurried = self._before is None or left < _NEARLY_ALL * self._before
        if self._hurried:
            self._opened.settimeout(left)

    def __exit__(self, *_: object) -> None:
        if self._hurried:
            self._opened.settimeout(self._before)


def bounded(pool: Any) -> None:
    """Let the connections that a redis-py pool is going to make be ``Bounded``."""
    kind = pool.connection_class
    if not issubclass(kind, Bounded):
        pool.connection_class = type(f"Bounded{kind.__name__}", (Bounded, kind), {})
