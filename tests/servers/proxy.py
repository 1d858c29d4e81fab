"""Run a TCP proxy in front of a Redis that injects network faults: resets, partitions, delays, cuts, lost replies,
refusals.

It runs in threads of the test's own process. Faults are switched on and off while connections are open.
"""

import re
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Self
from urllib.parse import unquote, urlsplit

_COMMAND = re.compile(rb"\*\d+\r\n\$")
_PACKET = 1_500
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: closing sends RST


class Proxy:
    """Listens at ``host`` as long as the ``with`` block lasts; clients use ``url``."""

    def __init__(self, upstream: str, host: str = "127.0.0.1") -> None:
        self._upstream = urlsplit(upstream)
        self._host = host
        self._listener = socket.create_server((host, 0))
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._rule: _Rule | None = None
        self._hole = False
        self.refusal: bytes | None = None
        """While set, every command is answered with this line and never reaches Redis."""
        self.refused = 0
        self.delay_s = 0.0
        """The delay of every reply."""
        self.bytes_per_s = 0
        """The bytes per second in each direction of each connection; 0: unlimited."""
        self.drip_s = 0.0
        """The time of each single byte of a reply."""
        self.wire_bytes_per_s = 0
        """The bytes per second on all connections and in both directions together; 0: unlimited."""
        self._wire = threading.Lock()
        self.lost: list[bytes] = []
        """The replies that were lost by ``lose_replies``."""
        self._ever: list[_Link] = []
        self._acceptor = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Refuse new connections, and reset all others, also silent ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        for link in self._ever:
            link.reset()

    @property
    def url(self) -> str:
        secret = f"{self._upstream.netloc.rpartition('@')[0]}@" if "@" in self._upstream.netloc else ""
        return f"redis://{secret}{self._host}:{self._listener.getsockname()[1]}/0"

    # --- faults

    def reset(self) -> None:
        """Reset every open connection."""
        for link in self._forget_links():
            link.reset()

    def swallow(self) -> None:
        """Drop every byte from now on and close no connection; current connections stay silent."""
        self._hole = True
        for link in self._forget_links():
            link.swallowed = True

    def heal(self) -> None:
        """Let new connections work."""
        self._hole = False
        self.refusal = None
        self.delay_s = self.drip_s = 0.0
        self.bytes_per_s = self.wire_bytes_per_s = 0
        self._rule = None

    def lose_replies(self, pattern: bytes, numbers: "range | set[int]", *, hang: bool = False) -> None:
        """Lose the reply of the n-th matching request (from 1 on), for each n of ``numbers``; Redis runs the request.

        Then the connection is reset, or hangs for ever.
        """
        self._rule = _Rule(re.compile(pattern, re.IGNORECASE | re.DOTALL), numbers, hang=hang)

    def lose_under_way(self, pattern: bytes) -> None:
        """Lose the reply to the request that a connection waits for, if it matches."""
        for link in self.open:
            if re.search(pattern, link.last, re.IGNORECASE):
                link.fault = _Rule(re.compile(pattern), {1}, hang=False)

    @property
    def open(self) -> "list[_Link]":
        """Return the connections; ``last`` is the client's last request."""
        with self._lock:
            return list(self._links)

    def cut_after(self, count: int) -> None:
        """Forward ``count`` bytes of the next reply, then reset the connection."""
        self._rule = _Rule(re.compile(b""), {1}, hang=False, passed=count)

    # --- machinery

    def _forget_links(self) -> "list[_Link]":
        with self._lock:
            links, self._links = self._links, []
        return links

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                link = _Link(client, self._connect(), swallowed=self._hole)
            except OSError:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                client.close()
                continue
            self._ever.append(link)
            with self._lock:
                self._links.append(link)
            for pump in (self._pump_up, self._pump_down):
                threading.Thread(target=pump, args=(link,), name="proxy", daemon=True).start()

    def _connect(self) -> socket.socket:
        if self._upstream.scheme == "unix":
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(unquote(self._upstream.path))
            except OSError:
                server.close()
                raise
            return server
        return socket.create_connection((self._upstream.hostname, self._upstream.port))

    def _pump_up(self, link: "_Link") -> None:
        with link:
            while data := link.client.recv(1 << 16):
                if link.swallowed:
                    continue
                if self.refusal is not None:
                    count = len(_COMMAND.findall(data))
                    self.refused += count
                    link.client.sendall(self.refusal * count)
                    continue
                with self._lock:
                    if self._rule is not None and self._rule.matches(data):
                        link.fault = self._rule
                link.last = data
                self._squeeze(data)
                link.server.sendall(data)

    def _pump_down(self, link: "_Link") -> None:
        with link:
            while data := link.server.recv(1 << 16):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._squeeze(data)
                if link.swallowed:
                    continue
                if link.fault is None:
                    self._give(link, data)
                    continue
                self.lost.append(data)
                link.client.sendall(data[: link.fault.passed])
                if link.fault.hang:
                    link.swallowed = True
                else:
                    link.reset()

    def _give(self, link: "_Link", data: bytes) -> None:
        """Forward a reply: whole, or byte by byte while it must drip."""
        given = 0
        while given < len(data) and self.drip_s:
            link.client.sendall(data[given : given + 1])
            given += 1
            time.sleep(self.drip_s)
        link.client.sendall(data[given:])

    def _squeeze(self, data: bytes) -> None:
        # Each rate is read once: the test's thread sets it to 0 while this thread is between the check and the division.
        if link_rate := self.bytes_per_s:
            time.sleep(len(data) / link_rate)
        if wire_rate := self.wire_bytes_per_s:
            for start in range(0, len(data), _PACKET):
                with self._wire:  # other threads send in between
                    time.sleep(len(data[start : start + _PACKET]) / wire_rate)


class _Rule:
    def __init__(
        self, pattern: "re.Pattern[bytes]", numbers: "range | set[int]", *, hang: bool, passed: int = 0
    ) -> None:
        self.pattern, self.numbers, self.hang, self.passed = pattern, numbers, hang, passed
        self._seen = 0

    def matches(self, data: bytes) -> bool:
        if self.pattern.search(data):
            self._seen += 1
            return self._seen in self.numbers
        return False


class _Link:
    """One connection on both sides. Leaving it as a context ends it: an end on one side is passed to the other."""

    def __init__(self, client: socket.socket, server: socket.socket, *, swallowed: bool) -> None:
        self.client, self.server, self.swallowed = client, server, swallowed
        self.fault: _Rule | None = None
        self.last = b""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if not self.swallowed:
            self._close()
        return kind is None or issubclass(kind, OSError)

    def reset(self) -> None:
        with suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._close()

    def _close(self) -> None:
        # A pump that waits in recv would keep its socket open; SHUT_RD wakes it and sends nothing, so RST stays possible.
        for side, how in ((self.client, socket.SHUT_RD), (self.server, socket.SHUT_RDWR)):
            with suppress(OSError):
                side.shutdown(how)
            side.close()
