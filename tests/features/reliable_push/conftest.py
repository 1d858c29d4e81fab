"""Keep pushes of real worker classes in a folder of the test, in front of a real Redis that a proxy cuts off."""

import errno
import os

import pytest

from framework.declare import port, registry
from framework.features.reliable_push.push_file import FileSystem, push_files
from framework.features.reliable_push.reliable_push import KeepLimits, ReliablePush
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from framework.wiring.client import bind_default
from tests.harness import server_lines
from tests.push.conftest import Pusher, calls, jobs, worker
from tests.servers.proxy import Proxy

__all__ = ["calls", "jobs", "worker"]

READ_S = 20.0
"""No push here waits for a silent server."""
NEVER_S = 3_600.0
DOWN = "redis://127.0.0.1:1"
"""A Redis that refuses connections."""


class Killed(BaseException):
    """The end of the process at a call to the operating system."""


class CrashingFiles(FileSystem):
    """End the process before call number ``ends_at``, and forget what was not synced: the host has lost its power."""

    def __init__(self, ends_at=0, *, loses_power=False):
        self.calls, self.ends_at, self.loses_power = 0, ends_at, loses_power
        self.synced = {}
        self.opened = set()

    def _step(self):
        self.calls += 1
        if self.calls == self.ends_at:
            self.ends_at = 0
            for descriptor, data in self.synced.items() if self.loses_power else ():
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, data, 0)
            raise Killed

    def create(self, path):
        self._step()
        self.opened.add(descriptor := super().create(path))
        return descriptor

    def open(self, path):
        self.opened.add(descriptor := super().open(path))
        return descriptor

    def write(self, descriptor, data, offset):
        self._step()
        half = len(data) // 2
        super().write(descriptor, data[:half], offset)
        self._step()
        super().write(descriptor, data[half:], offset + half)

    def sync(self, descriptor):
        self._step()
        super().sync(descriptor)
        self.synced[descriptor] = os.pread(descriptor, 10_000_000, 0)
        self._step()

    def rename(self, path, target):
        self._step()
        super().rename(path, target)

    def delete(self, path):
        self._step()
        super().delete(path)

    def close(self, descriptor):
        self.synced.pop(descriptor, None)
        self.opened.discard(descriptor)
        super().close(descriptor)

    def end(self):
        for descriptor in list(self.opened):
            self.close(descriptor)


class FullDisk(FileSystem):
    """Write half of the bytes, then report a full disk; with ``broken`` the file cannot be cut to its former size either."""

    def __init__(self):
        self.full = self.broken = False

    def write(self, descriptor, data, offset):
        if self.full:
            super().write(descriptor, data[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(descriptor, data, offset)

    def truncate(self, descriptor, size):
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(descriptor, size)


class Producer:
    """A producer whose shards are behind a proxy; another one with the same folder is its next start."""

    def __init__(self, folder, url, **options):
        self.folder = folder
        self.shard = Shard("main", Endpoint(url), role="tests", read_timeout_s=READ_S)
        shards = {"main": self.shard}
        options = {"limits": KeepLimits(100, 1_000_000), "period_s": NEVER_S, **options}
        limits = options.pop("limits")
        middleware = options.pop("middleware", ())
        self.reliable = ReliablePush(folder, limits, shards, **options)
        self.pusher = Pusher(shards).open(*middleware, fallback=self.reliable)

    def end(self):
        """Free the locks as the end of a process does."""
        self.reliable.reset_in_child()
        self.shard.close()
        if isinstance(self.reliable._file_system, CrashingFiles):
            self.reliable._file_system.end()

    def stopped_replay(self):
        """Let no replay begin within the block."""
        return self.reliable._round_lock

    @property
    def files(self):
        return push_files(self.folder)


@pytest.fixture
def proxy(redis_url):
    with Proxy(redis_url) as found:
        yield found


@pytest.fixture
def producer(redis_url, proxy, tmp_path):
    """Return a function that starts a producer in place of the one before."""
    started = []

    def start(*, url=None, **options):
        for one in started:
            one.end()
        started.append(Producer(tmp_path / "pushes", url or proxy.url, **options))
        return started[-1]

    with registry.isolated():
        yield start
    port.unbind()
    bind_default()
    for one in started:
        one.end()


@pytest.fixture
def no_thread(monkeypatch):
    """Let only ``replay`` replay."""
    monkeypatch.setattr(ReliablePush, "_ensure_thread", lambda self: None)


@pytest.fixture
def lines():
    """Return a function that ends the log and returns the events of kept pushes in their order."""
    with server_lines("info") as read:
        yield lambda: [line for line in read() if str(line.get("event_name", "")).startswith("push.")]
