"""Simulate two shards and their processes, step by step. After each step all jobs are checked."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

from redis.exceptions import RedisError

from framework.declare import port, registry
from framework.execute.execution import Execution
from framework.execute.job_log import JobLog
from framework.features.concurrency.observer import class_seconds
from framework.fetch.unit_of_work import ADMITTED, UnitOfWork
from framework.recover.reaper import mark_dead
from framework.shard.shard import Shard
from framework.store.connect import Endpoint
from framework.telemetry import logs
from framework.wiring.client import ProcessClient, bind, bind_default
from tests.proofs.machine.interleaving import Act, Fate, Owner
from tests.proofs.machine.job_model import Broken
from tests.proofs.machine.servers import Servers
from tests.proofs.machine.simulation import Clock, simulated
from tests.proofs.machine.state_checks import StateChecks
from tests.proofs.machine.worker import Worker, declare, settings_for
from tests.servers.guarded import GuardedServer

_LONG = 400  # the steps of one thread without a stop that mean an endless loop
_BLOCKED_S = 10.0
_READING = {
    "SMEMBERS", "SCAN", "ZRANGEBYSCORE", "LRANGE", "ZCOUNT", "ZRANGE", "ZMSCORE", "ZSCORE", "TIME", "CLIENT",
    "read_due", "inspect_dead", "heartbeat", "register_orphan",
}  # fmt: skip
"""Commands and scripts that move no job."""

_UNANSWERED = ("BLMOVE", "fetch")
"""Commands whose reply is read later."""


class SimulatedCluster:
    """A cluster to ``open`` and ``close``; ``reset`` starts a new history. The servers of the two shards run."""

    def __init__(self, folder: Path, servers: dict[str, GuardedServer]) -> None:
        self._folder = folder
        self.servers = Servers(servers)
        self._stack = ExitStack()
        self.checked = 0
        """The number of checks, over all histories."""

    def open(self) -> None:
        """Simulate threads and clocks of the framework from here on, for the whole of this process."""
        stack, urls = self._stack, self.servers.urls
        stack.callback(self.servers.close)
        stack.enter_context(registry.isolated())
        self.jobs = declare()
        self.clock = Clock()
        stack.enter_context(simulated(self.clock))
        null = os.open(os.devnull, os.O_WRONLY)
        self._log = JobLog(logs.open_server_log("error", {}, null), jobs=False)
        stack.callback(logs.close_server_log)
        self._settings = settings_for(self._folder, urls)
        self.producer = Shard("main", Endpoint(urls["main"]), role="producer")
        stack.callback(self.producer.close)
        enqueuer = ProcessClient(self._settings)
        stack.callback(enqueuer.shards.close)
        bind(enqueuer)
        stack.callback(bind_default)
        stack.callback(port.unbind)

    def close(self) -> None:
        """Undo ``open``."""
        self._stack.close()

    # --- one history

    def reset(self) -> None:
        """Empty the servers, and forget every process."""
        # Other tests of this process may have used databases: their seconds would be written here.
        class_seconds.take()
        self.servers.reset()
        self.checks = StateChecks(self.servers)
        self.workers: list[Worker] = []
        self.zombies: list[Worker] = []
        """Processes that have died unnoticed by the servers."""
        self.others = Owner()
        """Producers and supervisors, which are threads too."""
        self.trace: list[str] = []
        self._number = 0
        self._passed_at = time.monotonic()
        self._blocked_s = 0.0
        """The longest possible wait of a blocking call so far; such a call ends after 10 s."""

    def abandon(self) -> None:
        """End all threads and processes of this history."""
        for act in self.others.acts:
            act.kill()
        for worker in [*self.workers, *self.zombies]:
            worker.end()
            worker.close()
        self.workers, self.zombies = [], []

    def boot(self, shard: str, *, eager: bool = True) -> Worker:
        """Start a process that waits for jobs; not ``eager``: its threads have not started yet."""
        self._number += 1
        identity = f"host:{self._number}:{self._number:012x}"
        worker = Worker(self._settings, shard, identity, self._log, self._started, self._ended)
        self.workers.append(worker)
        for _ in range(3 if eager else 0):
            for act in list(worker.acts):
                self.turn(act)
        self.turn(worker.acts[0])
        return worker

    # --- steps

    def step(self, act: Act, fate: Fate = "go") -> None:
        """Move the thread to its next stop: at most one command runs."""
        command = act.about if act.at == "command" else None
        if command is not None:
            self.trace.append(f"{act.owner} {act.name}: {command}{'' if fate == 'go' else f' ({fate})'}")
        if fate == "lost":
            self.checks.expect_lost_reply()
        act.resume(fate)
        if act.doomed:
            act.kill()
        if command == "heartbeat" and fate == "go" and isinstance(act.owner, Worker):
            act.owner.slept = False
        if command in _UNANSWERED:
            self.servers.catch_up()
        if command is not None and command not in _READING:
            self.check(by=act)
        self.checks.runs()
        self._check_threads(act)

    def turn(self, act: Act) -> None:
        """Move the thread until it waits, or runs a job."""
        if act.at in ("wait", "begin"):
            self.step(act)
        steps = 0
        while act.movable:
            self.step(act)
            steps += 1
            if steps > _LONG:
                raise Broken(f"liveness: {act.name} repeats the same commands: {self.trace[-8:]}")

    def work(self, worker: Worker) -> None:
        """Let its threads fetch jobs."""
        for _ in range(2):
            for act in worker.slots():
                if act.at != "perform":
                    self.turn(act)

    def finish(self, act: Act, how: str) -> None:
        """End the job that this thread runs; its thread stops before its next step."""
        act.end = how
        self.trace.append(f"{act.owner} {act.name}: {how}")
        self.step(act)

    def moving(self) -> list[Act]:
        """Return the threads that would continue by themselves."""
        owners = [worker for worker in [*self.workers, *self.zombies] if not worker.frozen]
        return [act for owner in [*owners, self.others] for act in owner.acts if act.movable]

    def performing(self) -> list[Act]:
        """Return the threads that run a job."""
        return [act for worker in self.awake() for act in worker.acts if act.at == "perform"]

    def awake(self) -> list[Worker]:
        """Return the living processes that are not stopped."""
        return [worker for worker in self.workers if not worker.frozen]

    # --- ends of processes

    def crash(self, worker: Worker, *, spare: Act | None = None) -> None:
        """Kill a process with -9. The command before which ``spare`` stopped is under way; its blocking calls stay
        until the server notices.
        """
        self.workers.remove(worker)
        self.zombies.append(worker)
        worker.end(spare=spare)

    def notice_deaths(self) -> None:
        """Let the servers notice the dead processes; commands under way are lost."""
        for worker in self.zombies:
            for act in worker.acts:
                act.kill()
            worker.close()
        self.zombies = []
        self.check()

    def mark_dead(self, worker: Worker) -> Act:
        """Mark a process dead, as its parent does."""
        client = self.servers.clients[worker.shard]

        def say_so() -> None:
            try:
                mark_dead(client, worker.identity)
            except (RedisError, OSError):
                return  # the lease expires by itself

        return self.others.begin("supervisor", say_so)

    def reap_left(self) -> None:
        """Remove processes that have ended by themselves."""
        for worker in [worker for worker in self.workers if worker.gone]:
            self.workers.remove(worker)
            worker.end()
            worker.close()

    # --- time

    def pass_time(self, seconds: float, *, beating: bool = True) -> None:
        """Let time pass. Living processes send heartbeats meanwhile, unless not ``beating``."""
        awake = self._renew_lease() if beating else []
        self._blocked_s += seconds
        ended = self._blocked_s >= _BLOCKED_S
        if ended:
            self._blocked_s = 0.0
            self.notice_deaths()
        # The real time since the last call does not count: it would change the result, and differ at each run.
        really, self._passed_at = time.monotonic() - self._passed_at, time.monotonic()
        for name, _ in self.servers.up():
            names = [worker.identity for worker in awake if worker.shard == name]
            self.servers.let_time_go_by(name, seconds - really, names, end_blocked=ended)
        self.clock.now += seconds
        for worker in [*self.workers, *self.zombies]:
            worker.let_time_go_by(seconds - really, seconds, beating=worker in awake)
        self.check(rebase=True)

    def _renew_lease(self) -> list[Worker]:
        """Send the heartbeats of all processes that can; return those processes."""
        able = [worker for worker in self.awake() if self.servers.is_up(worker.shard)]
        for worker in able:
            act = worker.act("lease")
            if act is not None:
                self.turn(act)
        return [worker for worker in able if worker.act("lease") is not None]

    def hasten(self) -> None:
        """Make every scheduled job and retry due."""
        self.servers.hasten()
        self.check(rebase=True)

    def heal(self) -> None:
        """Repair every planned damage."""
        for worker in self.workers:
            worker.frozen = False
        self.servers.heal()
        self.check()

    # --- checks

    def check(self, *, by: Act | None = None, rebase: bool = False, operator: bool = False) -> None:
        """Check the current contents, after a step of ``by``."""
        self.checked += 1
        self.checks.at_work([(act.owner, act.about) for act in self.performing()])
        self.trace += self.checks.check(self.workers, by=by, rebase=rebase, operator=operator)

    def _check_threads(self, act: Act) -> None:
        if act.error is not None:
            raise Broken(f"the thread {act.name} ended by an error of its own: {act.error!r}") from act.error
        for worker in self.workers:
            for component, error in worker.deaths:
                raise Broken(f"{component} died: {error!r}") from error

    def _started(self, worker: Worker, unit: UnitOfWork) -> None:
        prepared = unit.prepared
        if prepared is not None and prepared.admission is not None and prepared.admission.state != ADMITTED:
            return  # it was held, or lost, with the job before it: only its line is written
        self.checks.started(worker, unit)

    def _ended(self, worker: Worker, run: Execution) -> None:
        self.checks.ended(worker, run)
