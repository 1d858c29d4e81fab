"""Notify systemd (``Type=notify``) of start, reload, stop and status, and ping its watchdog."""

import math
import os
import socket
import time
from contextlib import suppress


class SystemdNotifier:
    """Send notifications without waiting; do nothing without ``NOTIFY_SOCKET``."""

    def __init__(self) -> None:
        """Read systemd's variables, and remove them from the environment of the children."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        usec, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watched = usec.isdecimal() and pid in ("", str(os.getpid()))
        self._ping_s = int(usec) / 2_000_000 if watched else 0.0
        # Not 0.0: the clock counts from the start of the machine, and the first ping of a service must not wait for it.
        self._pinged_at = -math.inf
        self._status = ""

    def ready(self) -> None:
        """Notify that the group serves, after the start or after ``reloading``."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Notify that a rolling restart has started; ``ready`` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Notify that the group stops."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Send a changed line for ``systemctl status``."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def ping_watchdog(self) -> None:
        """Ping the watchdog; call it more often than systemd's watchdog period."""
        now = time.monotonic()
        if self._ping_s and now - self._pinged_at >= self._ping_s:
            self._pinged_at = now
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outlet:
                outlet.setblocking(False)
                outlet.sendto(text.encode(), self._address)
