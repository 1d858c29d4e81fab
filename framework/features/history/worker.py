"""As the leader of a shard, write the runs of each hour into the database of tasks."""

from typing import TYPE_CHECKING

from framework.features.history.access import load_rollup
from framework.features.tasks.settings import TaskSettings
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.process_clock import process_clock
from framework.supervised_threads import SupervisedThread
from framework.telemetry.logs import LogRateLimit

if TYPE_CHECKING:
    from framework.features.history.rollup import HourlyRollup

_PERIOD_S = 300.0
_LOG_PERIOD_S = 600.0


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of the history in a worker process: nothing without a database of tasks. Opens no socket."""
    url = TaskSettings.of(process.settings).tasks.url
    if url is None or not process.settings.sidekiq_metrics:
        return WorkerPart()
    return WorkerPart(periodic=(HistoryUpkeep(process, url).step,))


class HistoryUpkeep:
    """The work of one process. ``step`` costs nothing in a process that does not lead."""

    def __init__(self, process: ProcessContext, url: str) -> None:
        self._process = process
        self._url = url
        self._next = 0.0
        self._thread: SupervisedThread | None = None
        self._rollup: HourlyRollup | None = None
        self._rate = LogRateLimit(_LOG_PERIOD_S)

    def step(self) -> None:
        """Begin the work in a thread if it is due and this process leads. Raises redis errors."""
        if process_clock.monotonic() < self._next or not self._process.leads():
            return
        if self._thread is None or not self._thread.is_alive():
            self._next = process_clock.monotonic() + _PERIOD_S
            self._thread = SupervisedThread("history", self._work)
            self._thread.start()

    def _work(self) -> None:
        try:
            self._open().run(process_clock.now())
        except Exception as error:  # noqa: BLE001 - redis or database errors: the next pass tries again
            self._rate.error(
                "history",
                "the runs of the last hours are not in the database of tasks; the next pass tries again. Look at the error",
                "history.failed",
                shard=self._process.shard.name,
                error=error,
            )

    def _open(self) -> "HourlyRollup":
        if self._rollup is None:
            made = load_rollup()
            process = self._process
            self._rollup = made.HourlyRollup(
                process.upkeep, process.shard.name, made.open_database(self._url), process.settings.sidekiq_metrics
            )
        found: HourlyRollup = self._rollup  # pyright: ignore[reportAssignmentType]
        return found
