"""Send packed commands over one connection and read hiredis replies, for fetch and push; keep idle connections for pushes.

On these two paths redis-py's own round trip is the larger half of the cost; it only opens the connection (address, TLS,
credentials, Sentinel). A channel never sends a command twice, each call has one deadline for all its steps, and a
channel that failed midway is closed, because a late reply would answer another call.
"""

import contextlib
import os
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from time import monotonic as clock
from typing import Any, cast
from weakref import WeakSet

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
from framework.store.key_prefix import SLOT, KeyPrefix
from framework.store.script import Script, is_right_refused

_pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)
MAX_IDLE_CHANNELS = 16
"""The most idle channels kept open. A thread beyond that connects for one push only."""

HEALTH_CHECK_AFTER_S = 0.1
"""A channel idle for longer is checked before use: its server may have stopped or restarted meanwhile."""

_READ_BYTES = 1 << 16
# hiredis's own marker, False, is a value in RESP3.
_INCOMPLETE: Any = object()
_FAILOVER_ERRORS = (ReadOnlyError, BusyLoadingError, MasterDownError, ClusterDownError)
_FAILOVER_PREFIXES = ("UNBLOCKED", "NOREPLICAS")
"""Errors after a failover: the channel closes, so that the address is resolved again."""


class Channel:
    """A connection for one thread at a time. It connects at its first use and after a failure; raises redis errors only."""

    def __init__(self, client: "redis.Redis", *, read_timeout_s: float) -> None:
        self._pool: Any = client.connection_pool
        self._read_timeout_s = read_timeout_s
        self._connection: Any = None
        self._socket: socket.socket | None = None
        self._uses_tls = False
        self._reader: Any = None
        self.sent = False
        """Whether any byte of the last packet may have been sent; when false, the caller may send the packet again."""
        self.began: float | None = None
        """The start of the next call (monotonic seconds); ``None``: when it is sent, or when its replies are read."""
        self._deadline: Deadline | None = None
        """The deadline of the current call once connecting or sending has taken time; otherwise the kernel's timeouts hold."""
        self._spent_s = 0.0
        """The time that sending took, of a call whose replies are read later."""

    @property
    def open(self) -> bool:
        """Whether there is a connection that has not failed yet."""
        return self._socket is not None

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors; connect if necessary."""
        return self._connected().fileno()

    def send(self, *commands: tuple[Any, ...]) -> None:
        """Send commands in one packet; the caller must read all replies before it gives the channel to another thread.

        The time between sending and reading does not count against the call's deadline.
        """
        self.began = None
        self.send_packet(b"".join(map(_pack, commands)))
        if self._deadline is not None:
            self._spent_s = self._deadline.spent_s()
            self.began = self._deadline = None

    def send_packet(self, packet: bytes) -> None:
        """Send packed commands as a call that started at ``began``."""
        self.sent = False
        self._deadline, self._spent_s = None, 0.0
        connected = self._socket or self._connected()
        try:
            # A TLS layer that fails may already have sent the packet.
            self.sent = self._uses_tls
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
        """Return the next reply; raise an error reply as its redis error."""
        (reply,) = self.replies(1)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def replies(self, count: int) -> list[Any]:
        """Return the next ``count`` replies; error replies are redis errors in the list."""
        connected, reader = self._socket, self._reader
        if connected is None:
            raise RedisConnectionError("the connection was closed before the replies were read")
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
                    # Most calls need one read only, for which the kernel's timeout suffices.
                    reader.feed(_received(connected))
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
        self.began = monotonic()
        self.send_packet(_pack(command))
        return self.read()

    def healthy(self) -> bool:
        """Return whether an idle channel can still be used: no byte and no end of the connection has arrived."""
        if self._socket is None:
            return False
        try:
            self._socket.setblocking(False)
            # An unexpected byte makes the channel as unusable as the end of the connection.
            self._socket.recv(1)
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
            # Not make_connection(): the pool allows a hundred connections and would never learn that one has ended.
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
            connection.connect_within(self._call_deadline())
            opened = cast("socket.socket", connection._sock.opened)
            _set_deadlines(opened, self._read_timeout_s)
            self._connection, self._socket = connection, opened
            self._uses_tls = isinstance(opened, ssl.SSLSocket)
            # redis-py maps error texts to classes, except for one.
            parse: Callable[[str], Exception] = connection._parser.parse_error
            self._reader = hiredis.Reader(
                protocolError=RedisConnectionError,
                replyError=lambda text: _parsed(parse(text)),
                notEnoughData=_INCOMPLETE,
            )
        return self._socket

    def _send_some(self, connected: socket.socket, packet: bytes) -> int:
        """Send the bytes that the connection accepts at once (with TLS, in one step); return their number."""
        if self._uses_tls:
            return connected.send(packet)
        try:
            # The part that does not fit into the kernel's buffer is sent by `_send_rest`, within the deadline of the call.
            return connected.send(packet, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _send_rest(self, connected: socket.socket, packet: bytes, count: int) -> None:
        """Send the rest of a packet after its first ``count`` bytes, within the call's deadline."""
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
        """Return ``count`` more replies of a call that has already taken time, within its deadline."""
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
        # The kernel's timeout (SO_RCVTIMEO) ends a read with EAGAIN, which is a BlockingIOError in Python.
        if isinstance(error, BlockingIOError | TimeoutError):
            return RedisTimeoutError(f"no answer within {self._read_timeout_s:g} s")
        return RedisConnectionError(str(error) or type(error).__name__)


class PrefixedChannel(Channel):
    """A channel to a shard of a cluster, whose keys have a prefix there."""

    def __init__(self, client: "redis.Redis", *, read_timeout_s: float) -> None:
        super().__init__(client, read_timeout_s=read_timeout_s)
        self._prefix: KeyPrefix = self._pool.connection_kwargs[SLOT].prefix

    def send_packet(self, packet: bytes) -> None:
        """Send packed commands, whose keys have no prefix yet. Raises redis errors, as DataError for one that cannot have one."""
        self.sent = False
        super().send_packet(self._prefix.packed(packet))


def open_channel(client: "redis.Redis", *, read_timeout_s: float) -> Channel:
    """Return a channel to the shard of a client; it opens no socket."""
    pool: Any = client.connection_pool
    kind = PrefixedChannel if SLOT in pool.connection_kwargs else Channel
    return kind(client, read_timeout_s=read_timeout_s)


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
    """Set the timeouts in the kernel: Python's own timeout costs a poll() before every recv()."""
    opened.settimeout(_python_timeout(opened, seconds))
    if not isinstance(opened, ssl.SSLSocket):
        # C's `struct timeval`: seconds and microseconds.
        span = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)


def _python_timeout(opened: socket.socket, seconds: float) -> float | None:
    return seconds if isinstance(opened, ssl.SSLSocket) else None


# Decision 15: channels of its own, because redis-py's pool, packing and parsing cost as much as the round trip.
class ChannelPool:
    """Keep a free list of channels.

    A channel belongs to one thread between ``acquire`` and ``release``; a failed channel is not returned.
    """

    def __init__(self, client: "redis.Redis", *, read_timeout_s: float) -> None:
        self._client = client
        self._read_timeout_s = read_timeout_s
        # append and pop of a deque are atomic, so that threads need no lock (decision 150).
        self._free: deque[tuple[Channel, float]] = deque()
        self.last_reply_at = 0.0
        """When a channel was last released with all of its replies read (monotonic seconds)."""
        _pools.add(self)

    def acquire(self) -> Channel:
        """Return the channel used last, or a new one, for a call that begins now."""
        now = clock()
        try:
            channel, since = self._free.pop()
        except IndexError:
            return self.new_channel(now)
        if now - since > HEALTH_CHECK_AFTER_S and not channel.healthy():
            channel.close()
        channel.began = now
        return channel

    def new_channel(self, began: float) -> Channel:
        """Return a new channel for a call that began at ``began`` (monotonic seconds). It connects when it first sends."""
        channel = open_channel(self._client, read_timeout_s=self._read_timeout_s)
        channel.began = began
        return channel

    def release(self, channel: Channel) -> None:
        """Return a channel with all replies read to the pool. A closed channel connects again when it next sends."""
        self.last_reply_at = now = clock()
        if len(self._free) < MAX_IDLE_CHANNELS:
            self._free.append((channel, now))
        else:
            channel.close()

    def run_script(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script once and return its reply. Raises redis errors: then the script may have run."""
        channel = self.acquire()
        try:
            try:
                reply = channel.call(*script.by_digest(len(keys), *keys, *arguments))
            except NoScriptError:
                reply = channel.call(*script.by_source(len(keys), *keys, *arguments))
        except ResponseError:
            # The reply was read: the channel can be used again.
            self.release(channel)
            raise
        self.release(channel)
        return reply

    def close(self) -> None:
        """Close the idle channels. Channels in use stay with their threads."""
        while self._free:
            try:
                channel, _ = self._free.pop()
            # Another thread took the last one.
            except IndexError:
                return
            channel.close()

    def reset_after_fork(self) -> None:
        """Discard the idle channels without a message to the server: after a fork they belong to the parent."""
        self._free = deque()


_pools: WeakSet[ChannelPool] = WeakSet()


def _reset_all_after_fork() -> None:
    for channels in list(_pools):
        channels.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
