"""A server with scripted replies, for replies that a real server rarely gives."""

import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress

CLOSE = None
"""As an answer: the connection is closed."""

WELCOME = (b"CLIENT", b"HELLO")
"""Every connection begins with CLIENT SETNAME and HELLO; these are always answered with OK."""


class ScriptedServer:
    """Listens on a loopback port. ``answer(packet)`` returns the bytes to send, or CLOSE; ``packets`` has the received packets."""

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self.answer = answer
        self.packets: list[bytes] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}?protocol=2"

    @property
    def open(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def hang_up(self) -> None:
        """Close every connection; new ones are taken."""
        while self._open:
            with suppress(OSError):  # the thread of a connection that the client has closed closes it, too
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while packet := self._received(connection):
                greetings = sum(map(packet.count, WELCOME))
                if greetings:
                    connection.sendall(b"+OK\r\n" * greetings)
                    continue
                self.packets.append(packet)
                answer = self.answer(packet)
                if answer is CLOSE:
                    break
                with suppress(OSError):  # the client has closed it after an earlier answer
                    connection.sendall(answer)
            if connection in self._open:
                self._open.remove(connection)

    def _received(self, connection: socket.socket) -> bytes:
        try:
            return connection.recv(1 << 20)
        except OSError:
            return b""


@contextmanager
def scripted(answer):
    """A scripted server for a block; ``answer`` is a function of the packet, or always the same bytes."""
    server = ScriptedServer(answer if callable(answer) else lambda packet: answer)
    try:
        yield server
    finally:
        server.close()
