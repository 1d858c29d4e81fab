"""Define the modes of a test, and the functions that act on the innermost active mode."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from framework.all_settings import Settings, load
from framework.errors import ModeError
from framework.process_clock import process_clock
from framework.testing.fake_clock import FakeClock
from framework.testing.fake_jobs import FakeJobs
from framework.testing.fake_redis import faked_shards
from framework.testing.job_checks import WorkerClass
from framework.testing.real_jobs import RealJobs
from framework.testing.server import exclusive_use
from framework.wire.job import Job
from framework.wiring import client as wiring

_active: list[FakeJobs | RealJobs] = []
"""The active modes, the innermost last."""


@contextmanager
def fake(
    *, clock: FakeClock | None = None, server_middlewares: Sequence[type[Any]] | None = None
) -> Generator[FakeJobs]:
    """Keep the jobs of every push within the block in a Redis of the test's process, and run none until the test asks.

    ``clock`` replaces the clock that decides when jobs are due. ``server_middlewares`` run around the jobs instead of those of the
    application: ``()`` for none. Neither ``framework.boot()`` nor a second thread leaves the block.

    Raises:
        ConfigurationError: the configuration of the application is invalid.
        ModeError: no server is installed, and no Redis for tests is configured.
    """
    with _faked(clock, server_middlewares) as jobs:
        yield jobs


@contextmanager
def inline(
    *, clock: FakeClock | None = None, server_middlewares: Sequence[type[Any]] | None = None
) -> Generator[FakeJobs]:
    """Run the job of every push within the block at once, in the pushing thread, also if it is scheduled for later.

    The error of a job reaches the pushing code, after its retry was written. Otherwise as ``fake``.
    """
    with _faked(clock, server_middlewares) as jobs:
        jobs.client.on_push, jobs.client.on_written = jobs.run_now, jobs.run_callbacks
        yield jobs


@contextmanager
def real() -> Generator[RealJobs]:
    """Push to the Redis of the configuration within the block, also within a fake.

    It waits until no other process of tests of this machine uses one of the databases, such as another worker of pytest-xdist.

    Raises:
        ConfigurationError: the configuration of the application is invalid.
        ModeError: another process uses one of the databases for minutes.
    """
    client = wiring.process_client.original()
    endpoints = [shard.endpoint for shard in client.shards.values()]
    with (
        exclusive_use(endpoints),
        wiring.override(client),
        process_clock.override(process_clock.host),
        _activated(RealJobs(client)) as jobs,
    ):
        yield jobs


def enqueued(worker: WorkerClass | None = None) -> list[Job]:
    """Return the jobs of the active mode that wait in queues, then those scheduled for later (with their time in ``at``)."""
    return _current().enqueued(worker)


def drain(worker: WorkerClass | None = None, *, raise_errors: bool = True) -> int:
    """Run the waiting jobs of the active mode and those that they push; return the number of runs.

    Raises:
        Exception: what a job raised.
    """
    return _current().drain(worker, raise_errors=raise_errors)


def perform_one(worker: WorkerClass) -> Job:
    """Run the first waiting job of the class; return the job as it was.

    Raises:
        EmptyQueueError: no job of the class can run.
        ModeError: the active mode is ``real``, or there is none.
        Exception: what the job raised.
    """
    return _current().perform_one(worker)


def clear() -> None:
    """Forget every job, lock and state of the active mode."""
    _current().clear()


def assert_enqueued(
    worker: WorkerClass, *args: Any, at: datetime | timedelta | float | None = None, count: int = 1
) -> None:
    """Fail unless exactly ``count`` jobs of the class wait: with these arguments if any are given, due at ``at`` if given."""
    __tracebackhide__ = True
    _current().assert_enqueued(worker, *args, at=at, count=count)


@contextmanager
def _faked(clock: FakeClock | None, server_middlewares: Sequence[type[Any]] | None) -> Generator[FakeJobs]:
    settings, now = known_settings(), clock or FakeClock()
    with faked_shards(settings, now) as shards:
        jobs = FakeJobs(settings, now, shards, server_middlewares)
        with wiring.override(jobs.client), process_clock.override(now, now.to_host), _activated(jobs):
            try:
                yield jobs
            finally:
                jobs.client.close_recorder()


@contextmanager
def _activated(jobs: Any) -> Generator[Any]:
    _active.append(jobs)
    try:
        yield jobs
    finally:
        _active.remove(jobs)


def _current() -> FakeJobs | RealJobs:
    if not _active:
        raise ModeError(
            "no mode of framework.testing is active: use the fixture application_worker, or `with framework.testing.fake():`."
        )
    return _active[-1]


# pytest changes it for each test.
_OF_PYTEST = "PYTEST_CURRENT_TEST"
_MOST = 100


class _Known(NamedTuple):
    settings: Settings
    files: object


_known: dict[Any, _Known] = {}


def known_settings() -> Settings:
    """Return the settings of this process; the same object until a file, a variable or the working directory changes.

    Raises:
        ConfigurationError: the configuration is invalid.
    """
    environment = frozenset(pair for pair in os.environ.items() if pair[0] != _OF_PYTEST)
    place = (environment, Path.cwd())
    found = _known.get(place)
    if found is not None and found.files == _files_of(found.settings.config_dir):
        return found.settings
    settings = load()
    if len(_known) >= _MOST:
        _known.clear()
    _known[place] = _Known(settings, _files_of(settings.config_dir))
    return settings


def _files_of(folder: Path) -> object:
    """Return what changes with each file of a folder."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None
    return sorted((name, one.st_mtime_ns, one.st_size, one.st_ino) for name, one in found)
