"""One connection driven by hand, for the two paths where redis-py's own round trip is the larger half of the cost.

redis-py makes the connection (address, TLS, credentials, Sentinel); what goes over it are packed commands out and hiredis
replies in. Nothing is ever sent twice, every read has a deadline, and a channel that failed midway is closed: a late
reply would answer somebody else's question.
"""

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, cast

import hiredis
import redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.store.script import Script

_pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)
_READ_BYTES = 1 << 16
_STALE = (ReadOnlyError, BusyLoadingError, MasterDownError, ClusterDownError)
_STALE_WORDS = ("UNBLOCKED", "NOREPLICAS")
"""Refusals that tell of another server behind the address than before: it is looked up anew."""


class Channel:
    """For one thread at a time. Connects at its first use and again after a failure; raises redis errors only."""

    def __init__(self, client: "redis.Redis", *, read_timeout_s: float) -> None:
        self._pool: Any = client.connection_pool
        self._read_timeout_s = read_timeout_s
        self._connection: Any = None
        self._socket: socket.socket | None = None
        self._reader: Any = None

    @property
    def open(self) -> bool:
        """Whether there is a connection, as far as we know."""
        return self._socket is not None

    def fileno(self) -> int:
        """The socket's descriptor, for selectors; connects if need be."""
        return self._connected().fileno()

    def send(self, *commands: tuple[Any, ...]) -> None:
        """Send commands in one packet. Each needs its ``read`` before the channel is anybody else's."""
        connected = self._connected()
        try:
            connected.sendall(b"".join(map(_pack, commands)))
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    def read(self) -> Any:
        """Return the next reply; an error reply is raised, as the redis error that it is."""
        reply = self._next()
        if isinstance(reply, RedisError):
            if isinstance(reply, _STALE) or str(reply).startswith(_STALE_WORDS):
                self.close()
            raise reply
        return reply

    def call(self, *command: Any) -> Any:
        """One round trip."""
        self.send(command)
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
            connection = self._pool.make_connection()
            connection.connect()
            opened = cast("socket.socket", connection._sock)
            _set_deadlines(opened, self._read_timeout_s)
            self._connection, self._socket = connection, opened
            # redis-py knows which text is which error.
            self._reader = hiredis.Reader(protocolError=RedisConnectionError, replyError=connection._parser.parse_error)
        return self._socket

    def _next(self) -> Any:
        connected, reader = self._connected(), self._reader
        try:
            reply = reader.gets()
            while reply is False:
                data = connected.recv(_READ_BYTES)
                if not data:
                    raise RedisConnectionError("the server closed the connection")
                reader.feed(data)
                reply = reader.gets()
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise
        return reply

    def _failed(self, error: OSError) -> RedisError:
        self.close()
        if isinstance(error, BlockingIOError | TimeoutError):
            return RedisTimeoutError(f"no answer within {self._read_timeout_s:g} s")
        return RedisConnectionError(str(error) or type(error).__name__)


def _set_deadlines(opened: socket.socket, seconds: float) -> None:
    """Let the kernel keep the deadline: Python's own time-out costs a poll() before every recv()."""
    opened.settimeout(_python_timeout(opened, seconds))
    if not isinstance(opened, ssl.SSLSocket):
        span = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


def _python_timeout(opened: socket.socket, seconds: float) -> float | None:
    return seconds if isinstance(opened, ssl.SSLSocket) else None
