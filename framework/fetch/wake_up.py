"""Wake a thread that waits in ``select``: a socket pair, which is readable after a wake-up."""

import contextlib
import socket


class WakeUp:
    """A socket pair that ends a wait in ``select``. ``wake`` is safe from any thread; one thread waits and drains."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor that is readable after ``wake``."""
        return self._reader.fileno()

    def wake(self) -> None:
        """End the current or next wait at once."""
        # The socket is full of wake-ups.
        with contextlib.suppress(BlockingIOError):
            self._writer.send(b"\0")

    def drain(self) -> None:
        """Forget the wake-ups so far."""
        try:
            while self._reader.recv(4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close both sockets."""
        self._reader.close()
        self._writer.close()
