"""One connection driven by hand, for the two paths where redis-py's own round trip is the larger half of the cost.

redis-py makes the connection (address, TLS, credentials, Sentinel); what goes over it are packed commands out and hiredis
replies in. Nothing is ever sent twice, every call has one deadline for all of it, and a channel that failed midway is closed:
a late reply would answer another call's question.
"""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

import hiredis
import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.store.deadline import Deadline
from framework.store.script import Script, is_right_refused

_pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)
_READ_BYTES = 1 << 16
_INCOMPLETE: Any = object()  # hiredis's own sign, False, is a value in RESP3
_FAILOVER_ERRORS = (ReadOnlyError, BusyLoadingError, MasterDownError, ClusterDownError)
_FAILOVER_PREFIXES = ("UNBLOCKED", "NOREPLICAS")
"""Refusals that tell of another server behind the address than before: it is looked up anew."""


class Channel:
    """For one thread at a time. Connects at its first use and again after a failure; raises redis errors only."""

    def __init__(self, client: "redis.Redis", *, read_timeout_s: float) -> None:
        self._pool: Any = client.connection_pool
        self._read_timeout_s = read_timeout_s
        self._connection: Any = None
        self._socket: socket.socket | None = None
        self._uses_tls = False
        self._reader: Any = None
        self.sent = False
        """Whether anything of what was last to be sent may have left; false means that it may be sent again."""
        self.began: float | None = None
        """Since when the next call counts as under way (monotonic seconds); ``None``: since it is sent, or its replies are read."""
        self._deadline: Deadline | None = None
        """Of the call that is under way, once connecting or sending has taken time; for any other the kernel's time-outs will do."""
        self._spent_s = 0.0
        """What sending took of the time of a call whose replies are read later."""

    @property
    def open(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._socket is not None

    def fileno(self) -> int:
        """The socket's descriptor, for selectors; connects if need be."""
        return self._connected().fileno()

    def send(self, *commands: tuple[Any, ...]) -> None:
        """Send commands in one packet, whose replies are read later. Each needs its ``read`` before the channel is anybody else's.

        The time until they are read does not count: the call has what sending has left of its time.
        """
        self.began = None
        self.send_packet(b"".join(map(_pack, commands)))
        if self._deadline is not None:
            self._spent_s = self._deadline.spent_s()
            self.began = self._deadline = None

    def send_packet(self, packet: bytes) -> None:
        """Send commands that are packed already, as a call that ``began`` then."""
        self.sent = False
        self._deadline, self._spent_s = None, 0.0
        connected = self._socket or self._connected()
        try:
            self.sent = self._uses_tls  # what a TLS layer that failed has let through, nobody knows
            count = self._send_some(connected, packet)
            self.sent = self.sent or count > 0
            if count < len(packet):
                self._send_rest(connected, packet, count)
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    def read(self) -> Any:
        """Return the next reply; an error reply is raised, as the redis error that it is."""
        (reply,) = self.replies(1)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def replies(self, count: int) -> list[Any]:
        """Return the next ``count`` replies, error replies among them as the redis errors that they are."""
        connected, reader = self._socket, self._reader
        if connected is None:
            raise RedisConnectionError("the connection was closed; what was asked on it stays without an answer")
        found: list[Any] = []
        began = 0.0
        try:
            while len(found) < count:
                reply = reader.gets()
                if reply is not _INCOMPLETE:
                    found.append(reply)
                elif began or self._deadline is not None or self._spent_s:
                    self.began = began or self.began
                    found += self._read_in_time(connected, reader, count - len(found))
                else:
                    began = monotonic() if self.began is None else self.began
                    reader.feed(
                        _received(connected)
                    )  # most calls need no other, and the kernel's time-out will do for it
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise
        finally:
            self.began, self._deadline, self._spent_s = None, None, 0.0
        for reply in found:
            if isinstance(reply, RedisError) and _means_failover(reply):
                self.close()
        return found

    def call(self, *command: Any) -> Any:
        """One round trip."""
        self.began = monotonic()
        self.send_packet(_pack(command))
        return self.read()

    def run(self, script: Script, keys: list[str], arguments: list[Any]) -> Any:
        """Run a script by its digest, or whole where the server does not know it (restart, failover, SCRIPT FLUSH)."""
        try:
            return self.call("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return self.call("EVAL", script.source, len(keys), *keys, *arguments)

    def healthy(self) -> bool:
        """Whether an idle channel can still be used: nothing has come in, the end of the connection included."""
        if self._socket is None:
            return False
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)  # a byte that nobody asked for is as bad as the end
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(_python_timeout(self._socket, self._read_timeout_s))
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        connection, self._connection, self._socket, self._reader = self._connection, None, None, None
        if connection is not None:
            with contextlib.suppress(RedisError, OSError):
                connection.disconnect()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            # Not by make_connection(): the pool counts what it makes, to a hundred, and is never told of an end.
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
            connection.connect_within(self._call_deadline())
            opened = cast("socket.socket", connection._sock.opened)
            _set_deadlines(opened, self._read_timeout_s)
            self._connection, self._socket = connection, opened
            self._uses_tls = isinstance(opened, ssl.SSLSocket)
            # redis-py knows which text is which error, but for one.
            parse: Callable[[str], Exception] = connection._parser.parse_error
            self._reader = hiredis.Reader(
                protocolError=RedisConnectionError,
                replyError=lambda text: _parsed(parse(text)),
                notEnoughData=_INCOMPLETE,
            )
        return self._socket

    def _send_some(self, connected: socket.socket, packet: bytes) -> int:
        """Send what the connection takes at once, or, where TLS is in between, in one step; return its length."""
        if self._uses_tls:
            return connected.send(packet)
        try:
            return connected.send(packet, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _send_rest(self, connected: socket.socket, packet: bytes, count: int) -> None:
        """Send what is left of a packet of which ``count`` bytes have left, in what is left of the call."""
        deadline, view = self._call_deadline(), memoryview(packet)[count:]
        try:
            while view:
                connected.settimeout(deadline.left_s())
                count = connected.send(view)
                self.sent = True
                deadline.add_bytes(count)
                view = view[count:]
        finally:
            connected.settimeout(_python_timeout(connected, self._read_timeout_s))

    def _read_in_time(self, connected: socket.socket, reader: Any, count: int) -> list[Any]:
        """Return so many replies more of a call that has taken time already, in what is left of it."""
        deadline = self._call_deadline()
        found: list[Any] = []
        try:
            while len(found) < count:
                reply = reader.gets()
                if reply is _INCOMPLETE:
                    connected.settimeout(deadline.left_s())
                    data = _received(connected)
                    deadline.add_bytes(len(data))
                    reader.feed(data)
                else:
                    found.append(reply)
        finally:
            connected.settimeout(_python_timeout(connected, self._read_timeout_s))
        return found

    def _call_deadline(self) -> Deadline:
        """Return the deadline of the call; it begins now where no beginning was given."""
        if self._deadline is None:
            began = monotonic() - self._spent_s if self.began is None else self.began
            self._deadline = Deadline(began, self._read_timeout_s)
        return self._deadline

    def _failed(self, error: OSError) -> RedisError:
        self.close()
        if isinstance(error, BlockingIOError | TimeoutError):
            return RedisTimeoutError(f"no answer within {self._read_timeout_s:g} s")
        return RedisConnectionError(str(error) or type(error).__name__)


def _received(connected: socket.socket) -> bytes:
    data = connected.recv(_READ_BYTES)
    if not data:
        raise RedisConnectionError("the server closed the connection")
    return data


def _parsed(error: Exception) -> Exception:
    """Return the error of a reply; a right that was refused inside a script as what it is."""
    if type(error) is ResponseError and is_right_refused(error):
        return NoPermissionError(str(error))
    return error


def _means_failover(error: RedisError) -> bool:
    return isinstance(error, _FAILOVER_ERRORS) or str(error).startswith(_FAILOVER_PREFIXES)


def _set_deadlines(opened: socket.socket, seconds: float) -> None:
    """Let the kernel keep the deadline: Python's own time-out costs a poll() before every recv()."""
    opened.settimeout(_python_timeout(opened, seconds))
    if not isinstance(opened, ssl.SSLSocket):
        span = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


def _python_timeout(opened: socket.socket, seconds: float) -> float | None:
    return seconds if isinstance(opened, ssl.SSLSocket) else None
