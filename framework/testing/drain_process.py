"""Run a real worker in this process until the queues of a shard are empty."""

import signal
import time
from collections.abc import Sequence
from typing import Any

from framework.all_settings import Settings
from framework.errors import ModeError
from framework.execute.job_log import JobLog
from framework.exit_codes import EXIT_OK
from framework.process.identity import own_identity
from framework.process.launcher import Launcher
from framework.process.signals import SignalQueue
from framework.process.title import Title
from framework.process.worker_options import WorkerOptions
from framework.route.loading import open_router
from framework.shard.shard import Shard
from framework.supervised_threads import SupervisedThread
from framework.testing.no_process import silent_log
from framework.wire import keys
from framework.wire.sub_queues import parent_of
from framework.wiring.worker_process import build_worker

_POLL_INTERVAL_S = 0.01
_CHECK_PERIOD_S = 0.005
_TIMEOUT_S = 25.0


class DrainProcess:
    """A worker with one slot that serves ``queues`` of a shard, or all that have jobs. Used once."""

    def __init__(self, settings: Settings, shard: Shard, queues: Sequence[str] | None, *, stops_at_error: bool) -> None:
        self._shard = Shard(shard.name, shard.endpoint, role="testing")
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
