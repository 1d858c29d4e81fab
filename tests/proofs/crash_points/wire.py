"""Replace the socket that redis-py opens, which ``framework.store.channel`` shares, to number commands and to inject
faults.

Only a forked child of a case has it. All bytes of the framework to and from Redis pass here. The commands of a packet
are separated (several may leave in one ``send``) and numbered in the order in which they leave the process, over all
of its connections; one of them is the last before the process is killed, or before its connection ends.
"""

import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, get_args

import hiredis
from redis.connection import UnixDomainSocketConnection

from tests.lua import SCRIPTS

CONTROL = "points"
"""The name of the connections of the test itself: they are neither numbered nor waited for."""

Way: TypeAlias = Literal["die before", "die sent", "die replied", "cut before", "cut sent", "cut torn"]
"""The fault at a command. ``die``: SIGKILL before it leaves; when the server has run it; when its reply has been read.
``cut``: the process continues, and its connection ends before the command leaves; when the server has run it and its
reply is lost; in the middle of its reply.
"""

WAYS: tuple[Way, ...] = get_args(Way)

QUIET = {
    *(
        "CLIENT ID",
        "BLMOVE",
        "EXISTS",
        "heartbeat",
        "read_due",
        "inspect_dead",
        "HSET",
        "EXPIRE",
        "HGETALL",
        "INCRBY",
        "INFO",
        "RPOP",
        "SMEMBERS",
        "register_orphan",
    ),
    *("LRANGE", "SCAN", "TIME", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZRANGEBYSCORE", "ZSCAN"),
}
"""The commands, by their names in tables, that move no job themselves: only a few scenarios of the suite apply faults
there.
"""

_PATIENCE_S = 20.0
_READ_BYTES = 1 << 16
_NOT_YET: Any = object()
_SCRIPTS = {one.digest.encode(): name for name, one in SCRIPTS.items()}
_SOURCES = {one.source: name for name, one in SCRIPTS.items()}


@dataclass(frozen=True)
class Fault:
    """A fault at the command numbered ``at`` (from 1)."""

    at: int
    way: Way

    @property
    def kills(self) -> bool:
        """Return whether the fault ends the process."""
        return self.way.startswith("die")

    def __str__(self) -> str:
        return f"{self.way} {self.at}"


class Line:
    """The numbered commands of one process. ``on_command`` is called before each leaves, with its number and its name.

    ``is_blocked`` returns whether a server holds a blocking call. Greetings of connections have no number unless
    ``greetings``.
    """

    def __init__(
        self,
        fault: Fault | None,
        on_command: Callable[[int, str], None],
        is_blocked: Callable[[], bool],
        *,
        greetings: bool,
    ) -> None:
        self.fault = fault
        self.is_blocked = is_blocked
        self._on_command = on_command
        self._greetings = greetings
        self._count = 0
        self._open = True

    def number(self, words: list[bytes]) -> int:
        """Return the number of a command that is about to leave; 0 if it has none."""
        if not self._open or (not self._greetings and _greets(words)):
            return 0
        self._count += 1
        self._on_command(self._count, name_of(words))
        return self._count

    def faulted(self, number: int, *ways: Way) -> bool:
        """Return whether the fault is at this command and of one of these kinds."""
        return self.fault is not None and number == self.fault.at and self.fault.way in ways

    def end(self) -> None:
        """Stop numbering commands."""
        self._open = False


class Wire(socket.socket):
    """A connection to a Redis as the child has it."""

    line: ClassVar[Line]

    def __init__(self, made: socket.socket) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM, fileno=made.detach())
        self._asked: deque[int] = deque()
        self._replies: Any = hiredis.Reader(notEnoughData=_NOT_YET)
        self._cut = False
        self._begun = b""
        """The beginning of a command that leaves in parts, as the source of a long script does."""

    def send(self, data: Any, flags: int = 0) -> int:
        del flags
        return self._send(bytes(data), whole=False)

    def sendall(self, data: Any, flags: int = 0) -> None:
        del flags
        self._send(bytes(data), whole=True)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        if flags:
            return super().recv(bufsize, flags)
        if self._cut:
            self._reset()
        data = super().recv(bufsize)
        return self._received(data) if data else data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        data = self.recv(nbytes or len(buffer), flags)
        buffer[: len(data)] = data
        return len(data)

    def _send(self, data: bytes, *, whole: bool) -> int:
        if self._cut:
            self._reset()
        begun, left = len(self._begun), 0
        data = self._begun + data
        self._begun = b"" if whole else data[sum(len(piece) for _, piece in split(data, whole=False)) :]
        for words, piece in split(data, whole=whole):
            number = self.line.number(words)
            if self.line.faulted(number, "die before"):
                die()
            if self.line.faulted(number, "cut before"):
                self._end()
                if whole or not left:
                    self._reset()
                # One part has left, as the kernel would report; the next call returns the rest.
                return max(0, left - begun)
            super().sendall(piece)
            self._asked.append(number)
            left += len(piece)
            if self.line.faulted(number, "die sent"):
                self._await_run(words)
                die()
            if self.line.faulted(number, "cut sent"):
                break  # the rest of this packet does not arrive
        return len(data) - begun

    def _await_run(self, words: list[bytes]) -> None:
        """Wait until the server has run all commands sent, or holds the blocking one."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self._all_answered():
            if words[0] == b"BLMOVE" and self.line.is_blocked():
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer {name_of(words)}")

    def _all_answered(self) -> bool:
        if not select.select([self], [], [], 0.002)[0]:
            return False
        waiting: Any = hiredis.Reader(notEnoughData=_NOT_YET)
        waiting.feed(super().recv(_READ_BYTES, socket.MSG_PEEK))
        count = 0
        while waiting.gets() is not _NOT_YET:
            count += 1
        return count >= len(self._asked)

    def _received(self, data: bytes) -> bytes:
        fault = self.line.fault
        if fault is None or fault.at not in self._asked or fault.way in ("die before", "cut before"):
            self._replies.feed(data)
            while self._one_replied():
                pass
            return data
        begin, position = (0 if self._asked[0] == fault.at else None), 0
        while True:
            while position < len(data):  # byte by byte, to find the end of a reply
                self._replies.feed(data[position : position + 1])
                position += 1
                if not self._one_replied():
                    continue
                if begin is not None:
                    return self._struck(fault, data, begin, position)
                begin = position if self._asked[0] == fault.at else None
            if begin is None:
                return data  # a reply before it is still coming
            data += super().recv(_READ_BYTES)

    def _struck(self, fault: Fault, data: bytes, begin: int, end: int) -> bytes:
        """Return the bytes that the process gets for the reply in ``data`` from ``begin`` to ``end``, where the fault is."""
        if fault.way == "die replied":
            die()
        self._end()
        data = data[: begin if fault.way == "cut sent" else begin + (end - begin) // 2]
        if not data:
            self._reset()
        return data

    def _one_replied(self) -> bool:
        if self._replies.gets() is _NOT_YET:
            return False
        self._asked.popleft()
        return True

    def _end(self) -> None:
        self._cut = True
        super().shutdown(socket.SHUT_RDWR)

    def _reset(self) -> NoReturn:
        raise ConnectionResetError(104, "cut")


def install(line: Line) -> None:
    """Make every connection of this process, except those of the test, a ``Wire``."""
    Wire.line = line
    connect = UnixDomainSocketConnection._connect

    def wired(connection: Any) -> socket.socket:
        made = connect(connection)
        if connection.client_name == CONTROL:
            return made
        wire = Wire(made)
        wire.settimeout(connection.socket_timeout)
        return wire

    UnixDomainSocketConnection._connect = wired


def die() -> NoReturn:
    """End the process, as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def split(data: bytes, *, whole: bool = True) -> Iterator[tuple[list[bytes], bytes]]:
    """Return the commands of a packet: each as words and as its bytes. ``whole``: refuse a packet that ends within a command."""
    reader: Any = hiredis.Reader(notEnoughData=_NOT_YET)
    reader.feed(data)
    length = 0
    while (words := reader.gets()) is not _NOT_YET:
        piece: bytes = hiredis.pack_command(tuple(words))
        length += len(piece)
        yield words, piece
    if whole and length != len(data):
        raise RuntimeError("a packet that is no sequence of whole commands")


def name_of(words: list[bytes]) -> str:
    """Return the name of a command in tables: a script by its name."""
    head = words[0].decode()
    if head == "EVALSHA":
        return _SCRIPTS.get(words[1], "?")
    if head == "EVAL":
        return f"EVAL {_SOURCES.get(words[1], '?')}"
    return f"{head} {words[1].decode()}" if head == "CLIENT" else head


def _greets(words: list[bytes]) -> bool:
    return words[0] in (b"HELLO", b"AUTH", b"SELECT") or words[:2] == [b"CLIENT", b"SETNAME"]
