"""Look at the jobs of the configured Redis, and run them by a real worker in this process."""

import signal
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

import redis

from framework.all_settings import Settings, load
from framework.command_line import EXIT_OK
from framework.declare.setter import declaration_of
from framework.errors import ModeError, OffloadedArgumentsError, PayloadError
from framework.execute.job_log import JobLog
from framework.process.identity import own_identity
from framework.process.launcher import Launcher
from framework.process.signals import SignalQueue
from framework.process.title import Title
from framework.process.worker_options import WorkerOptions
from framework.route.router import open_router
from framework.shard.shard import Shard
from framework.supervised_threads import SupervisedThread
from framework.testing.fake_worker import silent_log
from framework.testing.job_checks import WorkerClass, belongs_to, check_enqueued
from framework.wire import keys
from framework.wire.compress import decompress_arguments
from framework.wire.job import DEFERRED, Job, decode
from framework.wire.sub_queues import parent_of
from framework.wiring.client import ProcessClient
from framework.wiring.worker_process import build_worker

_DUE_SETS = (keys.SCHEDULE, keys.RETRY)
_SETS = (*_DUE_SETS, keys.DEAD, keys.INTERRUPTED)
_OWN_KEYS = "aw:*"


class RealJobs:
    """The jobs of ``real()``. ``drain`` and ``clear`` act on all jobs of the configured Redis, so they refuse production."""

    def __init__(self, client: ProcessClient) -> None:
        self._client = client

    @property
    def now(self) -> float:
        """Return the time by which jobs are due: of the clock of the shard `main`, in epoch seconds."""
        return self._client.shards["main"].time()

    def enqueued(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs that wait in queues, then those scheduled for later (with their time in ``at``)."""
        queued = [
            self._view(data)
            for shard in self._shards()
            for name in _queues(shard.client)
            for data in _list(shard, name)
        ]
        queued.sort(key=lambda job: job.enqueued_at or 0.0)
        return [job for job in (*queued, *self._set(keys.SCHEDULE)) if belongs_to(job, worker)]

    def retries(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the failed jobs that wait for their retry, with its time in ``at``."""
        return [job for job in self._set(keys.RETRY) if belongs_to(job, worker)]

    def dead(self, worker: WorkerClass | None = None) -> list[Job]:
        """Return the jobs of the dead set."""
        found = [self._view(data) for shard in self._shards() for data, _ in _members(shard.client, keys.DEAD)]
        return [job for job in found if belongs_to(job, worker)]

    def assert_enqueued(
        self, worker: WorkerClass, *args: Any, at: datetime | timedelta | float | None = None, count: int = 1
    ) -> None:
        """Fail unless exactly ``count`` jobs of the class wait: with these arguments if any are given, due at ``at`` if given."""
        __tracebackhide__ = True
        check_enqueued(self, worker, args, at, count)

    def drain(self, worker: WorkerClass | None = None, *, raise_errors: bool = True) -> int:
        """Run the waiting jobs and those that they push by a real worker with one slot; return the number of runs.

        Scheduled jobs and retries become due one after the other, as their times say. With ``worker`` only the queue of the class
        is served. The first error of a job is raised when the worker has stopped. Without ``raise_errors`` failed jobs are
        retried until they succeed or die.

        Raises:
            ModeError: the environment is production, or the worker failed.
            Exception: what a job raised.
        """
        settings = self._settings("drain")
        queues = None if worker is None else (declaration_of(worker), self._client.route(declaration_of(worker)).queue)
        runs = 0
        tried: set[str] = set()
        while True:
            busy = [shard for shard in self._shards() if self._has_work(shard, None if queues is None else queues[1])]
            if not busy and not self._make_next_due(worker, tried):
                return runs
            for shard in busy:
                process = DrainProcess(
                    settings, shard, None if queues is None else (queues[1],), stops_at_error=raise_errors
                )
                counted, error = process.run()
                runs += counted
                if error is not None and (raise_errors or not isinstance(error, Exception)):
                    raise error

    def perform_one(self, worker: WorkerClass) -> NoReturn:
        """Refuse: a real worker fetches several jobs at once, so it cannot stop after one.

        Raises:
            ModeError: always.
        """
        name = getattr(worker, "__name__", "this class")
        raise ModeError(f"perform_one({name}) runs one job of a fake: use drain({name}) in the mode real.")

    def clear(self) -> None:
        """Delete every job, lock and state of the configured Redis.

        Raises:
            ModeError: the environment is production.
        """
        self._settings("clear")
        for shard in self._shards():
            client: Any = shard.client
            own = list(client.scan_iter(match=_OWN_KEYS, count=1_000))
            client.delete(*_SETS, keys.QUEUES, *(keys.queue(name) for name in _queues(client)), *own)

    def _settings(self, action: str) -> Settings:
        settings = load()
        if settings.production:
            raise ModeError(
                f"{action}() acts on all jobs of the configured Redis, and FRAMEWORK_ENV is {settings.env_name}. Set it to test."
            )
        return settings

    def _shards(self) -> Sequence[Shard]:
        return list(self._client.shards.values())

    def _has_work(self, shard: Shard, queue: str | None) -> bool:
        client: Any = shard.client
        names = _queues(client) if queue is None else [queue]
        now = shard.time()
        return any(client.llen(keys.queue(name)) for name in names) or any(
            client.zcount(name, "-inf", now) for name in _DUE_SETS
        )

    def _make_next_due(self, worker: WorkerClass | None, tried: set[str]) -> bool:
        """Make the scheduled job or retry with the earliest time due now; return whether there was one.

        A job that a policy has deferred again after that is left out.
        """
        found = [
            (at, shard, name, data)
            for shard in self._shards()
            for name in _DUE_SETS
            for data, at in _members(shard.client, name)
            if belongs_to(job := self._view(data), worker) and not (DEFERRED in job and job.jid in tried)
        ]
        if not found:
            return False
        _, shard, name, data = min(found, key=lambda one: one[0])
        tried.add(self._view(data).jid)
        client: Any = shard.client
        client.zadd(name, {data: shard.time()}, xx=True)
        return True

    def _set(self, name: str) -> list[Job]:
        found = [(at, data) for shard in self._shards() for data, at in _members(shard.client, name)]
        return [Job({**self._view(data), "at": at}) for at, data in sorted(found)]

    def _view(self, data: bytes) -> Job:
        """Return a job with decompressed arguments; of bytes that are no job, one without fields."""
        try:
            payload = decode(data, None)
            if payload.get("compressed"):
                limit = self._client.settings.size_limit.decompressed_limit
                decompress_arguments(payload, limit, protected=self._client.protection.reader)
        except (PayloadError, OffloadedArgumentsError):
            return Job()
        return Job(payload)


def _queues(client: "redis.Redis") -> list[str]:
    found: Any = client.smembers(keys.QUEUES)
    return sorted(name.decode() for name in found)


def _list(shard: Shard, queue: str) -> list[bytes]:
    """Return the jobs of a queue, the oldest first."""
    found: Any = shard.client.lrange(keys.queue(queue), 0, -1)
    return cast("list[bytes]", found)[::-1]


def _members(client: "redis.Redis", name: str) -> list[tuple[bytes, float]]:
    found: Any = client.zrange(name, 0, -1, withscores=True)
    return cast("list[tuple[bytes, float]]", found)


_POLL_INTERVAL_S = 0.01
_CHECK_PERIOD_S = 0.005
_TIMEOUT_S = 25.0


class DrainProcess:
    """A worker with one slot that serves ``queues`` of a shard, or all that have jobs. Used once."""

    def __init__(self, settings: Settings, shard: Shard, queues: Sequence[str] | None, *, stops_at_error: bool) -> None:
        self._shard = Shard(shard.name, shard.endpoint, role="testing", block_store=shard.block_store)
        client: Any = self._shard.client
        names = (
            sorted({parent_of(name.decode()) for name in client.smembers(keys.QUEUES)})
            if queues is None
            else list(queues)
        )
        queues_of = tuple((name, 0) for name in names or ["default"])
        options = WorkerOptions(shard.name, queues_of, 1, _TIMEOUT_S, no_namespaces=True, isolates=False)
        self._names = [name for name, _ in options.queues]
        self._stops_at_error = stops_at_error
        self._errors: list[BaseException] = []
        self._parts = build_worker(
            settings.model_copy(update={"poll_interval": _POLL_INTERVAL_S}),
            open_router(settings),
            options,
            self._shard,
            own_identity(),
            JobLog(silent_log(), jobs=False),
            supervisor=None,
        )
        self._parts.title = _NoTitle(shard.name, (), "")
        events = self._parts.events
        report = events.job_failed

        def job_failed(error: BaseException, facts: dict[str, Any]) -> None:
            self._errors.append(error)
            report(error, facts)

        setattr(events, "job_failed", job_failed)  # noqa: B010 - to a type checker a method stays what it is
        self._signals = SignalQueue()
        self._status = EXIT_OK

    def run(self) -> tuple[int, BaseException | None]:
        """Run the jobs; return how many ran, and the first error of a job.

        Raises:
            ModeError: the worker ended by an error of its own.
        """
        self._parts.lease.renew()
        thread = SupervisedThread("testing-worker", self._launch, elastic=True)
        thread.start()
        try:
            while thread.is_alive() and not self._is_done():
                time.sleep(_CHECK_PERIOD_S)
        finally:
            self._signals.put(signal.SIGTERM)
            thread.join()
            self._signals.close()
            self._parts.close()
        if self._status != EXIT_OK:
            raise ModeError(
                "the worker of drain() ended by an error of its own: see the lines of the logger `framework`."
            )
        return self._parts.record.runs.totals().processed, self._errors[0] if self._errors else None

    def _launch(self) -> None:
        self._status = Launcher(self._parts, self._signals).run()

    def _is_done(self) -> bool:
        if self._errors and self._stops_at_error:
            return True
        client: Any = self._shard.client
        waiting = client.pipeline()
        for name in self._names:
            waiting.llen(keys.queue(name))
        waiting.llen(keys.working(self._parts.process.identity))
        now = self._shard.time()
        for name in (keys.SCHEDULE, keys.RETRY):
            waiting.zcount(name, "-inf", now)
        return not any(waiting.execute())


class _NoTitle(Title):
    """Leave the title of the test's process as it is."""

    def show(self, count: int, of: int, state: str = "") -> None:
        del count, of, state
