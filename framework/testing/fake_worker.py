"""Run the jobs of one shard of a fake in the calling thread, as a worker process with one slot runs them.

The product's own code decodes, asks the policies, calls ``perform`` through the middlewares, settles, and moves due jobs; its scripts
move them in Redis. Only the fetch is not the product's: it takes one chosen job, and no thread waits for the next one.
"""

from collections.abc import Mapping
from contextvars import copy_context
from typing import Any, Literal, TypeAlias, cast

import redis

from framework.all_settings import Settings
from framework.declare.progress import JobProgress, StopReason
from framework.execute.cancellation import Cancellation, Cancellations
from framework.execute.decoding import open_decoder
from framework.execute.end_report import report_outcome
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Execution, Executor
from framework.execute.job_log import JobLog
from framework.execute.outcomes import UnknownClassDelays
from framework.execute.stats import RunningJobs
from framework.execute.threads import FetchingThreads
from framework.features.concurrency.admission import LIMITS
from framework.features.concurrency.limits import FleetSlots, Limits
from framework.features.consistency.admission import CONSISTENCY_POLICY, ConsistencyPolicy
from framework.features.flags.process_flags import WORKER_FLAGS, WorkerFlags
from framework.features.health.admission import HEALTH_POLICY, HealthPolicy
from framework.features.health.checks import HealthEvents
from framework.features.health.indicator import registered as indicators
from framework.features.health.settings import POSTGRES_INDICATORS
from framework.features.iteration.store import Iterations, RedisIteration
from framework.features.tasks.access import LazyRecorder
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import ending_of
from framework.finish.outcome import Failed, Interrupted, Succeeded
from framework.finish.retry import RetryPolicy
from framework.finish.settle import REMOVED, Settler
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import Call
from framework.process.events import ProcessEvents
from framework.process.worker_parts import ProcessContext, WorkerPart, WorkerParts
from framework.push.argument_checks import SizeLimiter, StrictArgumentsCheck
from framework.push.deduplication import PushLocks
from framework.push.protection import PayloadProtection
from framework.recover.suspects import SuspectRunner
from framework.route.router import Router
from framework.schedule.cross_shard import CrossShardTransfer
from framework.schedule.due_job_planner import DestinationResolver, DueJobPlanner
from framework.schedule.poller import Poller
from framework.store.script import FETCH
from framework.telemetry.logs import ServerLog
from framework.telemetry.sentry import NoTracker
from framework.testing.fake_redis import FakeShard
from framework.testing.stubs import Stubs
from framework.types import Jid, Payload
from framework.wire import keys
from framework.wire.status_key import TrackedJob
from framework.wire.sub_queues import parent_of

DueSet: TypeAlias = Literal["schedule", "retry"]

IDENTITY = "fake"
"""The identity of the process that runs the jobs of a fake."""

_TAKE = """
if redis.call('LREM', 'queue:' .. ARGV[1], -1, ARGV[2]) == 0 then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[2])
local queue, key = string.match(ARGV[1], '^([^~]*)~(.*)$')
if queue and redis.call('EXISTS', 'queue:' .. ARGV[1]) == 0 then
  redis.call('SREM', 'queues', ARGV[1])
  redis.call('ZREM', 'aw:turns:' .. queue, key)
end
return 1
"""


class FakeTools:
    """The parts that the workers of all shards of a fake share."""

    def __init__(
        self,
        settings: Settings,
        router: Router,
        stubs: Stubs,
        shards: Mapping[str, FakeShard],
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
        self.shards = shards
        self.locks = locks
        self.limiter = limiter
        self.client_calls = client_calls
        self.server_calls = server_calls
        self.recorder = recorder
        self.protection = protection


class FakeContext(ProcessContext):
    """The objects from which features make their parts, of which some are the decisions of the test."""

    runs: "FakeRuns"

    def __init__(self, tools: FakeTools, shard: FakeShard, events: ProcessEvents) -> None:
        log = JobLog(silent_log(), jobs=False)
        super().__init__(tools.settings, tools.router, shard, IDENTITY, (), events, tools.protection, log)
        self.runs = FakeRuns(self.cancellations)
        self._services |= {
            WORKER_FLAGS: _TestFlags(self, tools.stubs),
            LIMITS: _limits(tools.settings, shard.client),
            CONSISTENCY_POLICY: ConsistencyPolicy(tools.stubs.replicas, wait_for_replicas=False),
            HEALTH_POLICY: _health(tools.settings, tools.stubs),
        }


class _TestFlags(WorkerFlags):
    def __init__(self, process: ProcessContext, stubs: Stubs) -> None:
        super().__init__(process)
        self.all = stubs.flags


class _OneProcess(FleetSlots):
    """Count the slots of the only process."""

    def __init__(self, client: "redis.Redis", slots: int) -> None:
        super().__init__(client)
        self._slots = slots

    def total(self) -> int:
        return self._slots


def _limits(settings: Settings, client: "redis.Redis") -> Limits:
    return Limits(
        _OneProcess(client, settings.concurrency),
        settings.limits,
        by_urgency=settings.concurrency_limit_by_urgency,
        # A test that changes the result of a callable sees the change at once.
        callable_ttl_s=0.0,
    )


def _health(settings: Settings, stubs: Stubs) -> HealthPolicy:
    available = (*POSTGRES_INDICATORS, *settings.health.indicators, *indicators)
    return HealthPolicy(stubs.health, available, settings.databases, HealthEvents(NoTracker()))


class FakeRuns(RunningJobs):
    """The running job of a fake. No other thread reads the marks of cancelled jobs, so a job that asks reads them."""

    def __init__(self, marks: Cancellations) -> None:
        super().__init__(marks)
        self.marks = marks

    def cancellation(self, jid: Jid, bid: str = "") -> Cancellation:
        self.marks.refresh()
        return super().cancellation(jid, bid)


class FakeIterations(Iterations):
    """The iterating jobs of one shard, which a test may interrupt."""

    def __init__(self, client: "redis.Redis", runs: FakeRuns, max_runtime_s: float | None, stubs: Stubs) -> None:
        super().__init__(client, IDENTITY, runs, max_runtime_s)
        self.marks, self.stubs = runs.marks, stubs

    def prepare(self, instance: Any, unit: UnitOfWork, payload: Payload) -> None:
        run = _FakeIteration(self, unit, payload)
        unit.own_resources().iteration = run.jid
        self.adopt(instance, run)


class _FakeIteration(RedisIteration):
    def __init__(self, iterations: FakeIterations, unit: UnitOfWork, payload: Payload) -> None:
        super().__init__(iterations, unit, payload)
        self._stubs, self._marks = iterations.stubs, iterations.marks

    def save(self, cursor: bytes, progress: JobProgress) -> StopReason | None:
        reason = super().save(cursor, progress)
        self._marks.refresh()
        return reason or (self.stop_reason() if self.cancellation.is_set else None)

    def stop_reason(self) -> StopReason | None:
        most = self._stubs.interrupt_every
        return super().stop_reason() or ("stop" if most is not None and self.items >= most else None)


class FakeThreads(FetchingThreads):
    """No thread fetches beside the job: the state of a tracked job is written as it starts."""

    def __init__(self, states: StatusWriter) -> None:
        self._states = states

    def show_running(self, unit: UnitOfWork, tracked: TrackedJob) -> None:
        """Write the state."""
        del unit
        self._states.write(tracked, "running")


class FakeWorker:
    """Run the jobs of one shard."""

    def __init__(self, shard: FakeShard, tools: FakeTools) -> None:
        settings, client = tools.settings, shard.client
        self._client = client
        self._events = events = ProcessEvents(shard.name)
        events.moved_jobs.recorder = recorder = tools.recorder.serving(shard.name)
        process = FakeContext(tools, shard, events)
        self._marks, runs = process.cancellations, process.runs
        self._parts = WorkerParts(process, WorkerPart())
        self._executor = Executor(
            tools.server_calls,
            process.job_log,
            runs,
            open_decoder(settings.size_limit, tools.protection, runs),
            FakeThreads(process.states),
            SuspectRunner(client, IDENTITY, 1),
            StrictArgumentsCheck(settings.strict_arguments),
            settings.retired_workers,
            self._parts.chain(IDENTITY),
            UnknownClassDelays(settings.foreign_classes, settings.unknown_class_max_wait),
            recorder=recorder,
            cursors=FakeIterations(client, runs, settings.max_iteration_runtime, tools.stubs),
        )
        policy = RetryPolicy(settings.max_retries, keeps_business_failures=settings.dead.business)
        self._settler = Settler(
            client,
            IDENTITY,
            events,
            policy,
            process.dead_set,
            process.poll_timing.expect_retry,
            process.states,
        )
        transfer = CrossShardTransfer(client, shard.name, tools.shards, events)
        planner = DueJobPlanner(
            events,
            DestinationResolver(tools.router, shard.name),
            transfer,
            process.states,
            middleware=tools.client_calls,
            limiter=tools.limiter,
            locks=tools.locks,
            protection=tools.protection,
        )
        self._poller = Poller(client, events, planner, transfer, process.poll_timing, process.dead_set)
        self._parts.refresh()

    def do_periodic_work(self) -> None:
        """Resume the classes whose pause has ended, and give free slots to jobs that wait."""
        for step in self._parts.periodic:
            step()

    def move_due(self, source: DueSet, data: bytes, due: float) -> bool:
        """Move a due job as the poller does; return false if it was delayed: a client middleware raised."""
        self._poller.promote(source, [data], [str(due).encode()])
        return self._client.zscore(source, data) is None

    def run(self, queue: str, data: bytes, *, cancels: bool) -> tuple[bool, BaseException | None]:
        """Run a job that waits in a queue; return whether it counts as run, and the error of a failure.

        ``cancels``: jobs of the shard are cancelled.
        """
        if cancels or self._marks.marked:
            self._marks.refresh()
        if not self._client.eval(_TAKE, 1, keys.working(IDENTITY), queue, data):
            return False, None
        unit = UnitOfWork(parent_of(queue), data)
        context = copy_context()
        run = context.run(self._executor.begin, unit)
        if run.coroutine is not None:
            LOOP.run(self._executor.complete_async(run), context)
        return context.run(self._finish, run)

    def _finish(self, run: Execution) -> tuple[bool, BaseException | None]:
        """Settle a run, as ``Processor`` does."""
        unit, outcome = run.unit, run.outcome
        assert outcome is not None, "no suspect runs here, and no other process can own a job"  # noqa: S101
        assert not isinstance(outcome, Interrupted), "no process stops here"  # noqa: S101
        args = run.payload["args"] if run.payload else None
        decision = self._settler.decide_retry(unit, run.worker, outcome, args)
        ending = ending_of(outcome, decision)
        report_outcome(self._events, run, decision)
        if run.record is not None and (durable := run.record.end(ending, outcome, decision)) is not None:
            durable.wait()
        settled = self._settler.settle(unit, outcome, decision, run.tracked, confirmed=True)
        if settled.acknowledge:
            FETCH(self._client, [keys.lease(IDENTITY), keys.working(IDENTITY)], [1, 0, 1, unit.data])
        resources = unit.resources
        if resources is not None and resources.on_removed is not None and settled.moved_to in REMOVED:
            resources.on_removed()
        if isinstance(outcome, Succeeded) and run.instance._aw_on_success is not None:  # pyright: ignore[reportPrivateUsage]
            self._settler.call_hook("on_success", run.instance._aw_on_success)  # pyright: ignore[reportPrivateUsage]
        if run.reserved:
            self._executor.release_memory(run)
        return ending.processed != "no", outcome.error if isinstance(outcome, Failed) else None


LOOP = EventLoop()
"""Runs the async jobs of all tests of this process; its thread starts with the first."""


class _SilentLog:
    def __init__(self) -> None:
        self.writer = self
        self.static: dict[str, Any] = {}

    def write(self, line: str) -> None:
        del line


def silent_log() -> ServerLog:
    """Return a server log that drops every line. A job's own lines go to the logger ``framework`` of the standard library."""
    return cast("ServerLog", _SilentLog())
