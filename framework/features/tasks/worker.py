"""Record the jobs of a worker process; as the leader of a shard write the spool, mend events, heal lost jobs, remove old tasks."""

from typing import TYPE_CHECKING

from framework.declare import registry
from framework.features.tasks.access import LazyRecorder, current, load_part
from framework.features.tasks.settings import TaskSettings
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.process_clock import process_clock
from framework.supervised_threads import SupervisedThread
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.wire import keys

if TYPE_CHECKING:
    from framework.features.tasks.database import TaskDatabase
    from framework.features.tasks.ledger import Ledger
    from framework.features.tasks.reconcile import EventReconciler
    from framework.features.tasks.retention import Pruned

PASS_PERIOD_S = 30.0
"""The time between two passes of the reconciler. A pass that lasts longer is followed by as long a pause."""

_LOG_PERIOD_S = 30.0
_PRUNED_PER_PASS = 20_000
"""Events that one pass removes at most: some seconds, in steps of some milliseconds."""


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of tasks in a worker process, which records its jobs. Opens no socket, and no database."""
    recorder = current()
    process.events.moved_jobs.recorder = recorder.serving(process.shard.name)
    process.absent.watch(keys.TASK_EVENTS)
    return WorkerPart(periodic=(TaskUpkeep(process, recorder).step,))


class TaskUpkeep:
    """The work of one process. ``step`` costs nothing in an application without recorded jobs, or in a process that does not lead."""

    def __init__(self, process: ProcessContext, recorder: LazyRecorder, pass_period_s: float = PASS_PERIOD_S) -> None:
        self._process = process
        self._client = process.upkeep
        self._shard = process.shard.name
        self._recorder = recorder
        self._pass_period_s = pass_period_s
        self._next = 0.0
        self._thread: SupervisedThread | None = None
        self._reconciler: EventReconciler | None = None
        self._rate = LogRateLimit(_LOG_PERIOD_S)
        self._log = logs.logger(shard=self._shard)

    def step(self) -> None:
        """Begin the work in a thread if it is due and this process leads. Raises redis errors."""
        if process_clock.monotonic() < self._next or not self._has_work():
            return
        if not self._process.leads() or (self._thread and self._thread.is_alive()):
            return
        self._next = process_clock.monotonic() + self._pass_period_s
        self._thread = SupervisedThread("task-upkeep", self._work)
        self._thread.start()

    def _has_work(self) -> bool:
        if self._recorder.is_open or any(worker.declaration().track for worker in registry.workers()):
            return True
        # Scripts keep events also of jobs that are recorded only because of their push: set(track=True).
        if not self._process.absent.may_exist(keys.TASK_EVENTS):
            return False
        found = bool(self._client.exists(keys.TASK_EVENTS))
        self._process.absent.note(keys.TASK_EVENTS, found=found)
        return found

    def _work(self) -> None:
        begun = process_clock.monotonic()
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - redis or database errors: the next pass tries again
            self._rate.error(
                "upkeep",
                "the events of jobs were not compared with Redis; the next pass tries again. Look at the error",
                "tasks.upkeep_failed",
                shard=self._shard,
                error=error,
            )
        lasted = process_clock.monotonic() - begun
        self._next = process_clock.monotonic() + max(self._pass_period_s - lasted, lasted)

    def work(self) -> None:
        """Write the spool to the database, then mend events. Raises redis errors and SQLAlchemyError."""
        database = self._recorder.store.database
        spool = load_part("store")
        store = self._recorder.store
        if written := spool.drain(self._client, database, store.recorder_of(self._shard), store.state_signatures):
            self._log.info(
                "events that Redis kept are in the database of tasks", event_name="tasks.spool_written", count=written
            )
        reconciler = self._open_reconciler(database)
        if mended := reconciler.step():
            self._log.warning(
                "events that did not agree with their jobs were mended: processes died, jobs were deleted, or Redis lost data",
                event_name="tasks.events_mended",
                count=mended,
            )

        tasks = TaskSettings.of(self._recorder.settings).tasks
        if reconciler.lost:
            self._heal(database, reconciler.lost)
        # One process removes for all shards: they share the database.
        if tasks.keep is not None and self._shard == "main":
            self._prune(database, tasks.keep)

    def _heal(self, database: "TaskDatabase", lost: set[str]) -> None:
        made = load_part("ledger")
        ledger: Ledger = made.Ledger(self._recorder.shards, database, self._recorder.settings.size_limit)
        healed = ledger.heal(list(ledger.lost(self._shard, among=lost)))
        if healed.enqueued or healed.cancelled:
            self._log.warning(
                "Redis had lost jobs; they were enqueued again from the database of tasks",
                event_name="tasks.jobs_healed",
                count=healed.enqueued,
                cancelled=healed.cancelled,
            )

    def _prune(self, database: "TaskDatabase", keep_days: float) -> None:
        made = load_part("retention")
        pruned: Pruned = made.Retention(database, keep_days).run(_PRUNED_PER_PASS)
        if pruned.tasks or pruned.events:
            self._log.info(
                "tasks and events that ended long ago were removed (setting tasks.keep)",
                event_name="tasks.pruned",
                **pruned.as_json(),
            )

    def _open_reconciler(self, database: "TaskDatabase") -> "EventReconciler":
        if self._reconciler is None:
            made = load_part("reconcile")
            self._reconciler = made.EventReconciler(
                self._client,
                self._shard,
                database,
                others=self._recorder.other_clients(self._shard),
                heals=TaskSettings.of(self._recorder.settings).tasks.ledger == "heal",
            )
        found: EventReconciler = self._reconciler  # pyright: ignore[reportAssignmentType]
        return found
