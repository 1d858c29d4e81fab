"""What systemd is told (``Type=notify``): that we serve, that we are being replaced, that we end, and that our loop turns."""

import math
import os
import socket
import time
from contextlib import suppress


class SystemdNotifier:
    """Says nothing where nobody asked (no ``NOTIFY_SOCKET``), and waits for nobody."""

    def __init__(self) -> None:
        """Read the environment, and take from it what is not meant for children."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watched = usec.isdecimal() and pid in ("", str(os.getpid()))
        self._ping_s = int(usec) / 2_000_000 if watched else 0.0
        # Not 0.0: the clock counts from the start of the machine, and the first ping of a service must not wait for it.
        self._pinged_at = -math.inf
        self._status = ""

    def ready(self) -> None:
        """We serve: for the first time, or after ``reloading``."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The children are being replaced; ``ready`` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """We end."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """How we are, in one line for ``systemctl status``; sent when it is news."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def ping_watchdog(self) -> None:
        """Our loop turns: call it more often than systemd expects to hear of it."""
        now = time.monotonic()
        if self._ping_s and now - self._pinged_at >= self._ping_s:
            self._pinged_at = now
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outlet:
                outlet.setblocking(False)
                outlet.sendto(text.encode(), self._address)
