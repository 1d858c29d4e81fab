"""Run the jobs of one faked shard in the calling thread, as a worker process with one slot runs them.

The product's own code decodes, asks the policies, calls ``perform`` through the middlewares, decides about a failure, and plans
where a due job goes. In memory instead of Redis: fetching, the moves, locks, slots and states.
"""

from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Literal, TypeAlias

from framework.all_settings import Settings
from framework.execute.decoding import open_decoder
from framework.execute.execution import Execution, Executor
from framework.execute.job_log import JobLog
from framework.execute.outcome_report import report_outcome
from framework.execute.stats import RunningJobs
from framework.execute.unknown import UnknownClassDelays
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, Succeeded
from framework.finish.retry import RetryPolicy
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import Call
from framework.process.events import ProcessEvents
from framework.push.lock_port import PushLocks
from framework.push.protection import PayloadProtection
from framework.push.size_limiter import SizeLimiter
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.recover.suspects import SuspectRunner
from framework.route.router import Router
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.destination import DestinationResolver
from framework.schedule.due_action import DueAction, ShardTransfer
from framework.schedule.due_job_planner import DueJobPlanner
from framework.tasks.access import LazyRecorder
from framework.testing.memory import JobMemory, StoredJob, marked_duplicate
from framework.testing.memory_iterations import MemoryIterations
from framework.testing.memory_policies import IDENTITY, Stubs, build_policies
from framework.testing.memory_settler import MemorySettler
from framework.testing.memory_shard import MemoryShard
from framework.testing.no_process import LOOP, silent_log
from framework.types import JobState
from framework.wire.json import loads
from framework.wire.status_key import TrackedJob
from framework.wire.sub_queues import parent_of

DueSet: TypeAlias = Literal["schedule", "retry"]

_DELAY_S = 60.0
"""The delay of a due job that cannot be moved, as in the poller."""


class MemoryTools:
    """The parts that the workers of all faked shards share."""

    def __init__(
        self,
        settings: Settings,
        router: Router,
        stubs: Stubs,
        clock: Callable[[], float],
        shards: dict[str, MemoryShard],
        locks: PushLocks | None,
        limiter: SizeLimiter,
        client_calls: tuple[Call, ...],
        server_calls: tuple[Call, ...],
        recorder: LazyRecorder,
        protection: PayloadProtection,
    ) -> None:
        self.settings = settings
        self.router = router
        self.stubs = stubs
        self.clock = clock
        self.shards = shards
        self.locks = locks
        self.limiter = limiter
        self.client_calls = client_calls
        self.server_calls = server_calls
        self.recorder = recorder
        self.protection = protection


class MemoryStates(StatusWriter):
    """Write the states of tracked jobs into memory."""

    def __init__(self, shard: MemoryShard) -> None:
        super().__init__(shard, _never_fails)
        self._memory_shard = shard

    def write_last(self, tracked: TrackedJob, state: JobState | None) -> None:
        """See ``StatusWriter``."""
        if state is not None:
            self._memory_shard.write_status(TrackedJob(tracked.jid, tracked.ttl_s).command(state))


class MemoryWorker:
    """Run the jobs of one shard."""

    def __init__(self, shard: MemoryShard, tools: MemoryTools) -> None:
        settings, client, clock = tools.settings, shard.client, tools.clock
        self._memory: JobMemory = shard.memory
        self._tools = tools
        self._events = ProcessEvents(shard.name)
        self._events.moved_jobs.recorder = recorder = tools.recorder.serving(shard.name)
        states = MemoryStates(shard)
        runs = RunningJobs(list)
        runs.cancelled = self._memory.cancelled
        self._executor = Executor(
            tools.server_calls,
            JobLog(silent_log(), jobs=False),
            runs,
            open_decoder(settings.size_limit, tools.protection, runs),
            _do_nothing,
            SuspectRunner(client, IDENTITY, 1),
            StrictArgumentsCheck(settings.strict_arguments),
            states,
            settings.retired_workers,
            build_policies(settings, self._memory, client, tools.stubs, tools.protection),
            UnknownClassDelays(settings.foreign_classes, settings.unknown_class_max_wait),
            recorder=recorder,
            iterations=MemoryIterations(self._memory, client, runs, tools.stubs, settings.max_iteration_runtime),
        )
        policy = RetryPolicy(settings.max_retries, keeps_business_failures=settings.dead.business)
        self._settler = MemorySettler(self._memory, client, self._events.handlers, policy, states, clock)
        self._planner = DueJobPlanner(
            self._events,
            DestinationResolver(tools.router, shard.name),
            CrossShardTransfer(client, shard.name, tools.shards, self._events),
            states,
            middleware=tools.client_calls,
            limiter=tools.limiter,
            locks=tools.locks,
            protection=tools.protection,
        )

    def run(self, job: StoredJob) -> tuple[bool, BaseException | None]:
        """Run a job that waits in its queue; return whether it counts as run, and the error of a failure."""
        if not self._memory.remove("queue", job):
            return False, None
        unit = UnitOfWork(job.queue, job.data)
        context = copy_context()
        run = context.run(self._executor.begin, unit)
        if run.coroutine is not None:
            LOOP.run(self._executor.complete_async(run), context)
        return context.run(self._finish, run)

    def _finish(self, run: Execution) -> tuple[bool, BaseException | None]:
        unit, outcome = run.unit, run.outcome
        assert outcome is not None, "no suspect runs here, and no other process can own a job"  # noqa: S101
        args = run.payload["args"] if run.payload else None
        ending, decision = self._settler.decide(unit, run.worker, outcome, args)
        report_outcome(self._events, run, decision)
        if run.record is not None and (durable := run.record.end(ending, outcome, decision)) is not None:
            durable.wait()
        self._settler.settle(unit, outcome, ending, decision, run.tracked)
        if isinstance(outcome, Succeeded) and run.instance._aw_on_success is not None:  # pyright: ignore[reportPrivateUsage]
            run.instance._aw_on_success()  # pyright: ignore[reportPrivateUsage]
        return ending.processed != "no", outcome.error if isinstance(outcome, Failed) else None

    def move_due(self, source: DueSet, job: StoredJob) -> bool:
        """Move a due job as the poller does; return false if it was delayed: a client middleware raised."""
        plan = self._planner.plan(source, job.data, job.due)
        if isinstance(plan, DueAction) and plan.action == "mark":
            # The job goes to another shard. The plan for its marked bytes says how.
            plan = self._planner.plan(source, plan.data, job.due)
        if isinstance(plan, DueAction) and plan.action == "delay":
            if plan.on_done is not None:
                plan.on_done()
            if self._memory.remove(source, job):
                self._memory.add(source, job.data, due=self._tools.clock() + _DELAY_S)
            return False
        if not self._memory.remove(source, job):
            return False
        if isinstance(plan, ShardTransfer):
            self._enqueue(
                self._tools.shards[plan.shard].memory, plan.data, plan.queue, plan.lock_request, plan.on_duplicate
            )
            self._memory.release(plan.resources)
        elif plan.action == "queue":
            self._enqueue(self._memory, plan.data, plan.queue, plan.lock_argument, plan.on_duplicate)
        else:
            self._end_due(plan)
        return True

    def _end_due(self, plan: DueAction) -> None:
        if plan.before is not None:
            plan.before()
        if plan.action == "dead":
            self._memory.add("dead", plan.data)
        self._memory.release(plan.lock_argument)
        if plan.on_done is not None:
            plan.on_done()

    def _enqueue(
        self,
        memory: JobMemory,
        data: bytes,
        queue: str,
        lock_request: bytes | str,
        on_duplicate: Callable[[str], None] | None,
    ) -> None:
        """Put a due job into its queue with its lock, or drop it as a duplicate (``enqueue_due.lua``)."""
        request: Any = (
            loads(lock_request if isinstance(lock_request, bytes) else lock_request.encode()) if lock_request else None
        )
        if request is not None:
            owner = memory.holder(request["key"], request["jid"])
            if owner and request["drops"]:
                memory.note_duplicate(request["key"])
                if request.get("mark"):
                    _, key, state, mode, seconds = request["mark"]
                    memory.set_state(key, state, mode, float(seconds))
                memory.tell_waiters(request)
                if on_duplicate is not None:
                    on_duplicate(owner)
                return
            if owner:
                data = marked_duplicate(data, owner)
            else:
                memory.take_lock(request["key"], request["jid"], request["ttl_ms"], request)
        memory.add("queue", data, parent_of(queue))


def _do_nothing() -> None:
    """Do nothing: no thread fetches."""


def _never_fails(tracked: TrackedJob, state: JobState, error: BaseException) -> None:
    """Ignore a state that was not written: memory takes every state."""
    del tracked, state, error
