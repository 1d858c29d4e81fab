"""Serve the dashboard beside a run: a process of its own, which shows the stores of the demo and ends with it."""

import os
import signal
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from demo.stop import StopSignal
from framework.store.embedded import LAUNCHER

PORT = 7433
"""The port of ``application-worker dashboard``; another one if a program listens there."""

_ANSWERS_WITHIN_S, _ENDS_WITHIN_S = 30.0, 5.0
_POLL_S = 0.05
_LONG_S = 3_600.0
_PACKAGES = ("jinja2", "starlette", "uvicorn")


class DemoDashboard:
    """The dashboard of one run. ``opens``: in a browser, once it answers. ``keeps``: until the user stops it."""

    def __init__(self, stop: StopSignal, *, opens: bool = False, keeps: bool = False) -> None:
        self._stop, self._opens, self._keeps = stop, opens, keeps
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @contextmanager
    def beside(self, folder: Path) -> Iterator[None]:
        """Serve it within the block, for the stores of the folder; its output is in ``dashboard.log`` there."""
        missing = [name for name in _PACKAGES if find_spec(name) is None]
        if missing:
            print(f"Dashboard  not served: {', '.join(missing)} is not installed", flush=True)
            yield
            return
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}/"
        command = [sys.executable, "-m", "framework", "dashboard", "--listen", f"127.0.0.1:{port}"]
        with (folder / "dashboard.log").open("wb") as log:
            self._process = subprocess.Popen(
                # It is killed with the demo, however that ends (Linux). Ctrl-C reaches the demo alone, which ends it in order.
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), "no", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        print(f"Dashboard  {self.url}", flush=True)
        try:
            if self._opens and self._answers(port):
                webbrowser.open(self.url)
            yield
        finally:
            self._end()

    def stay(self) -> None:
        """Wait until the user stops the demo, if the dashboard is to stay."""
        if self._keeps and self._process is not None and self._process.poll() is None:
            print(f"\nThe run is over. The dashboard stays at {self.url} until Ctrl-C.", flush=True)
            while not self._stop.wait(_LONG_S):
                pass

    def _answers(self, port: int) -> bool:
        """Wait until it answers; return whether it does."""
        waited = 0.0
        while waited < _ANSWERS_WITHIN_S and self._process is not None and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
                return True
            if self._stop.wait(_POLL_S):
                return False
            waited += _POLL_S
        return False

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    """Return the usual port if it is free, else another one."""
    for port in (PORT, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                return int(listener.getsockname()[1])
    return PORT
