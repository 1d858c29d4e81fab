"""Drive a worker process of the framework, with all its real parts, by one thread, so that its commands have an order.

In production several threads run the jobs, the leader's calls, and the periodic tasks. Here the one thread of the case
takes the same steps one after the other; only the clocks differ, which move by the step.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from framework.cluster.supervisor import ChildLeases
from framework.execute.job_log import JobLog
from framework.fetch import fetcher, leader, pipeline
from framework.fetch.unit_of_work import UnitOfWork
from framework.process import boot
from framework.process.heartbeat import PeriodicTask
from framework.process.launcher import Launcher
from framework.process.signals import SignalQueue
from framework.process.worker_options import WorkerOptions
from framework.route.router import open_router
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.wiring import worker_process
from tests.proofs.crash_points.environment import CaseEnvironment
from tests.proofs.crash_points.jobs import QUEUE, SECOND

_TICK_S = 0.0005
"""The step of the monotonic clock of fetching at each reading: acknowledgements leave after the same few jobs each
time.
"""

_TRIES = 10
_ROUNDS = 12


class _IdleError(BaseException):
    """The only thing left to do is to wait."""


class SteppedWorker:
    """One process. ``arrival`` is called before it waits for jobs for the first time, so that one may arrive meanwhile."""

    def __init__(self, environment: CaseEnvironment, name: str, *, shard: str = "main", slots: int = 8) -> None:
        self.identity = f"points:1:{name}"
        self.arrival: Callable[[], None] | None = None
        self.left = False
        self._started = False
        self._environment = environment
        self._shard = environment.shard(shard)
        service = WorkerOptions(shard, ((QUEUE if shard == "main" else SECOND, 0),), slots, timeout_s=5.0)
        log = JobLog(environment.log, jobs=True)
        self.parts = worker_process.build_worker(
            environment.settings,
            open_router(environment.settings),
            service,
            self._shard,
            self.identity,
            log,
            supervisor=None,
        )
        self._launcher: Any = Launcher(self.parts, SignalQueue())
        self._loops: dict[str, Any] = {
            loop.name: loop for loop in (self._launcher._tasks.lease, *self._launcher._tasks.others)
        }
        self._tap()

    def heartbeat(self) -> None:
        """Renew the lease; the first time as a process does at its start."""
        if self._started:
            self._step(self._loops["lease"])
            return
        self._started = True
        if boot.wait_for_redis(self._shard, self.parts, SignalQueue(), _check_nothing) is not None:
            self._environment.notes.note("wrong", 0, "the process did not start")

    def record(self) -> None:
        """Write the process record that Sidekiq's pages read."""
        self._step(self._loops["record"])

    def sweep(self) -> None:
        """Reclaim the jobs of dead processes, and reconcile the own working list."""
        self._step(self._loops["reaper"])

    def keep(self) -> None:
        """Run the maintenance of the policies."""
        self._step(self._loops["policies"])

    def release_paused(self) -> None:
        """Return the jobs of a class that was resumed."""
        self.learn()
        self._step(self._loop(self.parts.parts.periodic[0]))

    def poll(self) -> None:
        """Move one batch of due jobs."""
        self._step(self._loops["poller"])

    def push_ticks(self) -> None:
        """Push the jobs of due ticks of the schedule."""
        self._step(self._loops["cron"])

    def keep_portions(self) -> None:
        """Divide the limits of all shards, if they hold on all of them together."""
        if "portions" in self._loops:
            self._step(self._loops["portions"])

    def poll_all(self) -> None:
        """Move every due job."""
        while self.parts.poller.poll():
            pass

    def learn(self) -> None:
        """Read the pauses and the cancelled jobs, as a process does before its first job."""
        self._step(self._loop(self.parts.parts.refresh))

    def work(self) -> None:
        """Fetch, run, settle and acknowledge until the only thing left is to wait."""
        processor: Any = self.parts.capsules.first.processor
        processor._work()

    def stop(self, overdue: bool) -> None:  # noqa: FBT001 - as what jobs call
        """Stop the process from within a job: fetching ends and jobs can see it; the deadline may have passed."""
        runs = self.parts.record.runs
        runs.interrupted = runs.stopping = True
        runs.deadline_passed = overdue
        self.parts.capsules.first.fetcher.stop()

    def leave(self) -> None:
        """End in order."""
        self.left = True
        self._launcher._stop()
        if self.parts.events.died.is_set():
            self._environment.notes.note("wrong", 0, "a part of the process died")

    def mark_dead(self, identity: str) -> None:
        """Mark a process dead, as its parent does."""
        client = self._shard.open_client("leases", read_timeout_s=COMMAND_TIMEOUT_S)
        keeper: Any = ChildLeases(self._shard.name, client, self.parts.events)
        keeper.mark_dead(identity)
        self._step(keeper._task)

    def overtaken_by(self, other: "SteppedWorker") -> None:
        """Let ``other`` move everything that is due while this poller plans a job."""
        preparation: Any = self.parts.poller._planner
        prepare = preparation.plan

        def after_the_other(source: str, member: bytes, due: float) -> Any:
            preparation.plan = prepare
            other.poll()
            return prepare(source, member, due)

        preparation.plan = after_the_other

    def pass_time(self) -> None:
        """Let the circuit breakers of the shards close."""
        transfer: Any = self.parts.poller._transfer
        transfer._unavailable_until.clear()

    def _loop(self, do: Callable[[], None]) -> PeriodicTask:
        """Give a part of a loop a loop of its own."""

        def once() -> float:
            do()
            return 1.0

        return PeriodicTask("policies", once, 1.0, self.parts.events, client=self.parts.record.client)

    def _step(self, loop: Any) -> None:
        """Run one step of a loop, and again after a failure, as its thread would."""
        once: PeriodicTask = loop
        for _ in range(_TRIES):
            once._run_step()
            if not once._failures:
                return
        self._environment.notes.note("wrong", 0, f"the step of {once.name} fails again and again")

    def _tap(self) -> None:
        """Take over the calls that would block, and the clocks of the periodic work."""
        fetcher: Any = self.parts.capsules.first.fetcher
        processor: Any = self.parts.capsules.first.processor
        threads = processor._threads
        blocking: Any = fetcher._leader._blocking
        take, wait = threads.next, blocking.wait

        looked = False

        def take_or_return() -> UnitOfWork | None:
            nonlocal looked
            looked = False
            try:
                unit: UnitOfWork | None = take()
            except _IdleError:
                return None
            return unit

        def look_or_return(timeout_s: float) -> Any:
            nonlocal looked
            if not fetcher._pipeline.unfinished and not fetcher.in_flight.buffer:
                arrive, self.arrival = self.arrival, None
                if arrive is not None:
                    arrive()
                # No call has been answered, nor lost: reading the arrived replies is all that is left.
                if self._environment.blocked_calls(self._shard.name) == len(blocking.queues):
                    if looked:
                        raise _IdleError
                    looked, timeout_s = True, 0.0
            # Even on a busy machine, an arrived job means that more may wait.
            return [(queue, data, 0.0) for queue, data, _ in wait(timeout_s)]

        threads.next, blocking.wait = take_or_return, look_or_return
        threads._start_thread = lambda _name: None  # there is one thread: this one
        threads.start(lambda: None)


def move_clock_by_steps() -> None:
    """Move the monotonic clock of fetching, in this process, by a step at each reading."""
    ticks = itertools.count(1)
    pipeline.clock = fetcher.clock = leader.clock = lambda: 1_000.0 + next(ticks) * _TICK_S


def settle(environment: CaseEnvironment, workers: Sequence[SteppedWorker]) -> None:
    """Let these living processes do all remaining work."""
    for _ in range(_ROUNDS):
        for worker in workers:
            worker.sweep()
            worker.work()  # jobs that have arrived meanwhile are not lost
            worker.sweep()
            worker.keep()
            worker.keep_portions()
        environment.make_due()
        for worker in workers:
            worker.pass_time()
            worker.poll_all()
        for worker in workers:
            worker.work()
        if not environment.left():
            return
    environment.notes.note("wrong", os.getpid(), "it does not settle")


def _check_nothing() -> None:
    """Check nothing: the check of rights is a transaction that never runs, so no fault belongs there."""
