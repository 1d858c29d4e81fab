"""Hold the jobs of a class that kills its processes or fails too often, and let one of them run from time to time as a probe.

The state of a class is on its shard: all processes agree on it, and each job asks it before it starts. A process notes that it
runs the class when the first job starts; if it dies, the note stays behind, and counts as a death once the lease is gone and the
process is surely dead. The held jobs are those of the room ``pause``: nothing is lost, whatever dies when.

A call whose reply was lost may have been made. Nothing of it counts twice: deaths are counted by process, a probe ends once, and
ended runs are not sent again. So a breaker judges by fewer runs than there were at most, and never by more.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import redis
from redis.exceptions import ResponseError

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest, StagedPolicy
from framework.features.breaker.attributes import BreakAfter
from framework.features.breaker.ended_runs import EndedRuns
from framework.features.breaker.keys import BREAKERS
from framework.features.breaker.observer import broken_classes, broken_runs
from framework.features.breaker.store import MARKER, PAUSED_BY, BreakerNews, ask_start, encode_rule, tend
from framework.features.flags.flag import pause_flag
from framework.features.flags.process_flags import WORKER_FLAGS
from framework.features.pause.admission import PAGE_BYTES, Pause, PausePolicy, PauseState
from framework.features.pause.store import RELEASE_PAUSED
from framework.features.pause.strategies import PauseStrategies
from framework.finish.outcome import Deferred, NotAdmitted
from framework.process.worker_parts import OwnTask, ProcessContext, WorkerPart
from framework.store.script import is_wrong_type
from framework.telemetry import logs
from framework.telemetry.job_events import StreamEvent, job_events
from framework.telemetry.logs import LogRateLimit
from framework.wire import keys

_PERIOD_S = 1.0
_LATER_S = 2.0
"""How long a job waits while as many processes run its class as may still die."""
_LOG_INTERVAL_S = 60.0


@dataclass(frozen=True, slots=True)
class BreakerOpened(StreamEvent):
    """The breaker of a class has opened: its jobs are held."""

    counter: ClassVar[str] = "sidekiq_breakers_opened_total"
    cause: str = ""


@dataclass(frozen=True, slots=True)
class BreakerClosed(StreamEvent):
    """A probe has succeeded: the held jobs of the class return to their queues."""

    counter: ClassVar[str] = "sidekiq_breakers_closed_total"


class BreakerPolicy:
    """Ask the breaker of a class before each of its jobs starts."""

    def __init__(self, process: ProcessContext, pause: PausePolicy, steady_s: float) -> None:
        self._client = process.shard.client
        self._identity = process.identity
        self._pause = pause
        self._steady_s = steady_s
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def applies_to(self, declaration: Declaration) -> bool:
        return declaration.facts["break_after"] is not None

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """See ``AdmissionPolicy``."""
        worker, rule = request.declaration.wire_name, request.declaration.facts["break_after"]
        jid, ended = str(request.payload.get("jid")), broken_runs.take(worker)
        try:
            answer, news = ask_start(
                self._client, worker, self._identity, jid, encode_rule(rule, self._steady_s), ended
            )
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            self._log_limit.error(
                worker,
                f"a key of the breaker of {worker} has the wrong type, so its jobs run. Check the key with TYPE, then delete it",
                "breaker.unusable",
                error=error,
                **{"class": worker},
            )
            return None
        tell(worker, news, rule)
        match answer:
            case "starts" | "probe":
                broken_runs.begin(worker, request.unit)
                if answer == "probe":
                    broken_runs.note_probe(jid)
                return None
            case "later":
                return Deferred(_LATER_S * random.uniform(0.5, 1.5), PAUSED_BY)
            case "held":
                return self._pause.hold(request, Pause(PAUSED_BY, news.reason, marker=f"{MARKER}: {news.reason}"))


class BreakerTasks:
    """The periodic work for the breakers of this process's classes."""

    def __init__(self, process: ProcessContext, classes: Sequence[Declaration], steady_s: float) -> None:
        self._process = process
        self._rules: dict[str, BreakAfter] = {one.wire_name: one.facts["break_after"] for one in classes}
        self._steady_s = steady_s
        self._noted = set[str]()

    def step(self) -> float:
        """Write what has ended, and keep each breaker that has state; return the period. Raises redis errors."""
        running = broken_runs.running([unit for unit, _ in self._process.runs.running().values()])
        exists = self._process.absent.may_exist(BREAKERS)
        if exists:
            self._process.absent.note(BREAKERS, found=bool(self._process.upkeep.exists(BREAKERS)))
        for worker, rule in self._rules.items():
            ended = broken_runs.take_all(worker)
            if not (exists or ended.runs or ended.probe or worker in running or worker in self._noted):
                continue
            try:
                self._keep(worker, rule, ended, runs=worker in running)
            except BaseException:
                broken_runs.put_back_probe(worker, ended)
                raise
        return _PERIOD_S

    def _keep(self, worker: str, rule: BreakAfter, ended: EndedRuns, *, runs: bool) -> None:
        client = self._process.upkeep
        releases, closed, news = tend(
            client, worker, self._process.identity, encode_rule(rule, self._steady_s), ended, runs=runs
        )
        (self._noted.add if runs or not closed else self._noted.discard)(worker)
        tell(worker, news, rule)
        if releases:
            self._release_probe(client, worker, news.reason)

    def _release_probe(self, client: "redis.Redis", worker: str, reason: str) -> None:
        """Return the oldest held job to its queue: its start is the probe. Not while an operator has paused the class."""
        RELEASE_PAUSED(
            client,
            [keys.paused_jobs(worker), keys.PAUSED_CLASSES, keys.QUEUES, keys.FLAGS, keys.pause_strategy(worker)],
            [worker, pause_flag(worker), "", f"{MARKER}: {reason}", 1, PAGE_BYTES, 0],
        )

    def end(self) -> None:
        """Forget that this process runs its classes: it ends in order, which is no death. Raises redis errors."""
        for worker in sorted(self._noted | self._rules.keys()):
            tend(
                self._process.upkeep,
                worker,
                self._process.identity,
                encode_rule(self._rules[worker], self._steady_s),
                broken_runs.take_all(worker),
                runs=False,
            )


def tell(worker: str, news: BreakerNews, rule: BreakAfter) -> None:
    """Log that a breaker has opened or closed, and emit the event."""
    if news.change == "opened":
        job_events.emit(BreakerOpened(worker, cause=news.cause))
        logs.logger(**{"class": worker}).error(
            f"the breaker of {worker} is open, because {news.reason}: its jobs are held, and one runs as a probe from time to time. "
            f"{command(f'breakers close {worker}')} returns them to their queues",
            event_name="breaker.opened",
            cause=news.cause,
            reason=news.reason,
            within_s=rule.within.total_seconds(),
            probe_at=news.until,
        )
    elif news.change == "closed":
        job_events.emit(BreakerClosed(worker))
        logs.logger(**{"class": worker}).warning(
            f"the breaker of {worker} is closed: its probe has succeeded, and the held jobs return to their queues",
            event_name="breaker.closed",
        )


def worker_part(process: ProcessContext) -> WorkerPart:
    classes = broken_classes()
    if not classes:
        return WorkerPart()
    timings = process.timings
    steady_s = timings.lease_s + timings.heartbeat_period_s
    flags = process.service(WORKER_FLAGS)
    process.absent.watch(BREAKERS)
    tasks = BreakerTasks(process, classes, steady_s)

    def of_capsule(owner: str) -> Sequence[StagedPolicy]:
        pause = PausePolicy(process.shard.client, owner, PauseState(flags, PauseStrategies((), {}, timings)))
        return (StagedPolicy("hold", BreakerPolicy(process, pause, steady_s)),)

    return WorkerPart(of_capsule=of_capsule, tasks=(OwnTask("breakers", tasks.step, release=tasks.end),))
