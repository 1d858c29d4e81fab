"""Fork the processes of tests from one Python that has imported the framework: a fork costs 6 ms, a new Python half a second.

Such a process has a pid, session, folder, environment, streams and exit status of its own. The only difference to a process
started by exec: its modules are already imported. Tests to which that matters start a new Python.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO

IMPORTED = (
    *("click._textwrap", "getpass", "pickle", "structlog", "structlog.stdlib", "tomllib", "yaml"),
    *("psycopg", "sqlalchemy", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.sqlite"),
)
"""The modules that processes import beside the framework's own. They are imported before the first fork."""

# --- in the process of the tests ------------------------------------------------------------------------------------------


class Forked:
    """A process of the fork server, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, report: int) -> None:
        self._report = open(report, "rb", buffering=0)  # noqa: SIM115 - closed when the status has come
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = self._number()
        self._report.close()

    def _number(self) -> int:
        return int(self._report.read(8).decode())


class Dialogue:
    """A process of the fork server that answers questions, each one line of text; it ends with its standard input."""

    def __init__(self, process: Forked, to_it: int, from_it: int) -> None:
        self.process = process
        self._to_it = to_it
        self._from_it = os.fdopen(from_it)

    def ask(self, question: str) -> str:
        """Return the answer; it is empty when the process has ended."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._to_it, f"{question}\n".encode())
        return self._from_it.readline()

    def close(self) -> None:
        os.close(self._to_it)
        self._from_it.close()
        self.process.wait(20)


class ForkServer:
    """The client of the fork server. The server starts with the first process and ends with ``close``."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(
        self,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        out: IO[bytes],
        err: IO[bytes],
        given: IO[bytes] | None = None,
    ) -> Forked:
        """Start ``python ARGV``: ``-W error`` or not, a script, or ``-c CODE``, or ``-m MODULE``, or ``-``, and its arguments.

        ``given``: its standard input, /dev/null otherwise.
        """
        control = self._control or self._start_submitted()
        reader, writer = os.pipe()
        nothing = Path(os.devnull)
        with tempfile.TemporaryFile() as request, nothing.open("rb") as empty, os.fdopen(writer, "wb"):
            request.write(json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode())
            request.seek(0)
            streams = [one.fileno() for one in (request, given or empty, out, err)]
            socket.send_fds(control, [b"!"], [*streams, writer])
        return Forked(reader)

    def talk(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], err: IO[bytes]) -> "Dialogue":
        """Start a program that answers each line of its standard input with a line."""
        given, to_it = os.pipe()
        from_it, out = os.pipe()
        with os.fdopen(given, "rb") as its_input, os.fdopen(out, "wb") as its_output:
            process = self.start(argv, cwd, env, its_output, err, its_input)
        return Dialogue(process, to_it, from_it)

    def run(
        self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], *, timeout: float = 60.0, together: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end, as ``subprocess.run`` does; ``together``: stderr goes to stdout."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(argv, cwd, env, out, out if together else err)
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            outputs = [os.pread(stream.fileno(), 1 << 24, 0).decode() for stream in (out, err)]
            return subprocess.CompletedProcess(argv, status, *outputs)

    def close(self) -> None:
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.wait(20)
            self._process = self._control = None

    def _start_submitted(self) -> socket.socket:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        return self._control


FORK_SERVER = ForkServer()

# --- in the fork server -----------------------------------------------------------------------------------------


def import_everything() -> None:
    """Import all modules that a process may need: without this, each of a thousand processes imports them itself."""
    for name in IMPORTED:
        importlib.import_module(name)
    package = importlib.import_module("framework")
    for module in pkgutil.walk_packages(package.__path__, "framework."):
        # The integrations belong to applications that ask for them: one sets up Django.
        if not module.name.endswith("__main__") and not module.name.startswith("framework.integrations."):
            importlib.import_module(module.name)
    # A worker reads the commands of its scripts as it starts: 20 ms.
    _ = importlib.import_module("framework.store.rights").WORKER.commands


def serve(control: socket.socket) -> list[str] | None:
    """Fork until the tests have ended. In a forked child, return the arguments that it runs.

    Each process is a direct child: a process between the two, which waits for the end, would cost as much again.
    """
    child_ended, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    signal.set_wakeup_fd(wakeup.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler nothing is written to `wakeup`
    reports: dict[int, int] = {}
    while True:
        if child_ended in select.select([control, child_ended], [], [])[0]:
            child_ended.recv(4096)
            report_ends(reports)
            continue
        message, files, _, _ = socket.recv_fds(control, 1, 5)
        if not message:
            while reports:  # their processor time then counts as that of the tests
                report_ends(reports, block=True)
            return None
        *streams, report = files
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for one in (control, child_ended, wakeup):
                one.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return become(*streams)
        reports[pid] = report
        send(report, pid)
        for stream in streams:
            os.close(stream)


# Not PR_SET_CHILD_SUBREAPER: the test session would inherit the orphans of every killed supervisor as zombies.
def report_ends(reports: dict[int, int], *, block: bool = False) -> None:
    """Send the status of each process that has ended; ``block``: wait until one has."""
    while reports:
        pid, status = os.waitpid(-1, 0 if block else os.WNOHANG)
        if not pid:
            return
        block = False
        report = reports.pop(pid)
        send(report, os.waitstatus_to_exitcode(status))
        os.close(report)


def send(report: int, number: int) -> None:
    """Send eight bytes to the test, which may have stopped waiting."""
    with contextlib.suppress(BrokenPipeError):
        os.write(report, b"%8d" % number)


def become(request: int, given: int, out: int, err: int) -> list[str]:
    """Take session, folder, streams and environment from the request, and return its arguments."""
    with os.fdopen(request, "rb") as file:
        request_fields = json.load(file)
    os.setsid()
    os.chdir(request_fields["cwd"])
    for number, file in enumerate((given, out, err)):
        os.dup2(file, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request_fields["env"])
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in named if folder and folder not in sys.path]
    sys.stdout.reconfigure(write_through="PYTHONUNBUFFERED" in os.environ)
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    return list(request_fields["argv"])


def run_to_end(arguments: Sequence[str]) -> None:
    """Run the program and end as Python does, but do not free the interpreter's objects.

    Freeing them would write to, and so copy, every page shared with the server: two thirds of the cost of a process.
    An error, or a stream that cannot be written, ends the process in the ordinary way.
    """
    status: object = None
    try:
        run(*arguments)
    except SystemExit as exit_request:
        status = exit_request.code
        if not isinstance(status, int | None):
            raise
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((status or 0) & 0xFF)


def run(first: str, *rest: str) -> None:
    if first == "-W":
        action, *rest_of_all = rest
        warnings.simplefilter(action)
        run(*rest_of_all)
    elif first in ("-c", "-"):
        code, *arguments = rest if first == "-c" else (sys.stdin.read(), *rest)
        sys.argv, sys.path[0] = [first, *arguments], ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main))
    elif first == "-m":
        name, *arguments = rest
        sys.argv, sys.path[0] = [name, *arguments], str(Path.cwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [first, *rest], str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the tests, which then close this server
    import_everything()
    gc.freeze()  # no collection of a child touches the shared objects
    argv = serve(socket.socket(fileno=int(sys.argv[1])))
    if argv:
        run_to_end(argv)
