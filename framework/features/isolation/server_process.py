"""Start and reach the process that starts the processes of isolated jobs (``server``), from the threads of a worker process."""

import json
import os
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from framework.declare import registry
from framework.supervised_threads import SupervisedThread

SERVER_MODULE = "framework.wiring.isolation"
"""The module that ``python -m`` runs as this process."""

READY = b"R"
"""The byte that it sends once it has loaded the modules of the workers. It stays in the socket: a later look finds it too."""

MARK_VARIABLE = "FRAMEWORK_ISOLATION_MARK"

_END_LIMIT_S = 30.0
_LOOK_PERIOD_S = 0.25


class ServerProcess:
    """Start the process when it is first needed, and again after its end. The caller's lock protects all but ``wait_until_ready``."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self.popen: subprocess.Popen[bytes] | None = None
        self.mark = ""
        """The variable (``NAME=value``) in the environment of the process, of those of its jobs, and of those that they start."""

    def open(self) -> socket.socket:
        """Return the socket over which jobs are sent; start the process if there is none. Raises OSError."""
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair()
        options = {"modules": sorted(registry.loaded()), "path": [str(one) for one in sys.path]}
        command = [sys.executable, "-P", "-m", SERVER_MODULE, "server", str(theirs.fileno()), json.dumps(options)]
        value = secrets.token_hex(16)
        environment = {**os.environ, MARK_VARIABLE: value}
        started: Future[subprocess.Popen[bytes]] = Future()
        # A thread of its own, which lives as long: the system ends that process with the thread that started it.
        try:
            SupervisedThread("isolation", _keep, command, environment, theirs, started).start()
            self.popen = started.result()
        except BaseException:
            ours.close()
            raise
        self._control, self.mark = ours, f"{MARK_VARIABLE}={value}"
        return ours

    def forget(self) -> "subprocess.Popen[bytes] | None":
        """Close the socket, which ends the process; return the process."""
        self.close_socket()
        popen, self.popen, self._control = self.popen, None, None
        return popen

    def close_socket(self) -> None:
        """Close the socket only."""
        if self._control is not None:
            self._control.close()

    def close(self) -> None:
        """End the process, and wait for its end."""
        popen = self.forget()
        if popen is not None:
            with suppress(subprocess.TimeoutExpired):
                popen.wait(_END_LIMIT_S)

    def kill(self) -> None:
        """Kill a process that does not answer; its jobs' processes end with it."""
        if self.popen is not None:
            self.popen.kill()


def wait_until_ready(control: int, limit_s: float, stops: Callable[[], bool]) -> None:
    """Wait until the process has loaded its modules, has ended, or ``stops``, and close ``control``, a copy of its socket."""
    poll, deadline = select.poll(), time.monotonic() + limit_s
    poll.register(control, select.POLLIN)
    try:
        while not stops() and time.monotonic() < deadline and not poll.poll(_LOOK_PERIOD_S * 1_000):
            pass
    finally:
        os.close(control)


def _keep(
    command: list[str], environment: dict[str, str], theirs: socket.socket, started: "Future[subprocess.Popen[bytes]]"
) -> None:
    """Start the process, and wait for its end, so that it does not stay a zombie."""
    try:
        with theirs:
            # A group of its own: a supervisor kills that of a dead worker process, and this one ends the processes of its jobs.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )
    except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
        started.set_exception(error)
        return
    started.set_result(process)
    process.wait()
