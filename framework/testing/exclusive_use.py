"""Let one process of tests at a time use a Redis in the mode ``real``, where ``clear`` and ``drain`` act on all of its jobs."""

import fcntl
import hashlib
import os
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import gettempdir
from urllib.parse import urlsplit

from framework import private_files
from framework.errors import ModeError
from framework.store.connect import Endpoint

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
