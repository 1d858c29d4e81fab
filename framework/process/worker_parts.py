"""What a worker process is built from: the core's objects, and the parts that features make of them."""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeVar, cast

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.execute.admission import AdmissionChain, AdmissionPolicy, AdmissionRequest, StagedPolicy
from framework.execute.cancellation import Cancellations
from framework.execute.event_loop import EventLoop
from framework.execute.job_log import JobLog
from framework.execute.perform import AroundRun, CursorStore, DetachedRuns, RunSpans
from framework.execute.stats import RunningJobs
from framework.feature import Feature, Late, features, own_features
from framework.finish.outcome import Deferred, Discarded, NotAdmitted
from framework.finish.status_writer import StatusWriter
from framework.process.events import ProcessEvents
from framework.process.lifecycle import LifecycleEvents
from framework.process.own_queues import CapsulePlan
from framework.process.shared_state import SharedState
from framework.push.protection import PayloadProtection
from framework.recover.suspects import InterruptionLimit
from framework.route.router import Router
from framework.schedule.poller import PollTiming
from framework.settings.model import CoreSettings
from framework.shard.shard import Shard
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.telemetry.logs import LogRateLimit
from framework.timings import STANDARD, Timings
from framework.types import Payload
from framework.wire import keys
from framework.wire.footprint import MemoryBudget
from framework.wire.keys import SetLimits, capsule_owner

T = TypeVar("T")

_OWN_FIELDS = ("policies", "refresh", "periodic")
_OWN_STAGES = ("end", "hold", "check")
"""The stages of policies that acquire nothing: an application may have those."""
_LOG_INTERVAL_S = 60.0
ABSENT_PERIODS = 1.25
"""How many periods of the record task an answer about absent keys is believed."""


class ProcessContext:
    """The core's objects that the parts of one worker process share. Opens no socket."""

    def __init__(
        self,
        settings: CoreSettings,
        router: Router,
        shard: Shard,
        identity: str,
        plans: Sequence[CapsulePlan],
        events: ProcessEvents,
        protection: PayloadProtection,
        job_log: JobLog,
        timings: Timings = STANDARD,
        *,
        isolates: bool = False,
    ) -> None:
        self.settings = settings
        self.router = router
        self.shard = shard
        """The shard that the process serves; its client is safe from any thread."""
        self.identity = identity
        self.plans = plans
        """The capsules, and their owners of working lists in the same order."""
        self.owners = [capsule_owner(identity, plan.name if at else "") for at, plan in enumerate(plans)]
        self.events = events
        self.protection = protection
        self.timings = timings
        self.job_log = job_log
        self.isolates = isolates
        """Whether isolated jobs run in processes of their own."""
        self.upkeep = shard.open_client("upkeep", read_timeout_s=COMMAND_TIMEOUT_S)
        """The client of the periodic work."""
        orders = (keys.signals(identity), keys.orders(identity))
        rare = (keys.CANCELLED, keys.PAUSED, keys.RETRY, *orders, *map(keys.working, self.owners))
        # The record task checks them; an answer must last until the next check has been made.
        self.absent = AbsentKeys(rare, ABSENT_PERIODS * timings.record_period_s)
        """The keys that a process without work or operators' orders does not find. Features add theirs."""
        self.poll_timing = PollTiming(self.upkeep, settings.poll_interval, self.absent, timings=timings)
        self.states = StatusWriter(shard, events.status_write_failed)
        dead = settings.dead
        self.dead_set = SetLimits(dead.max_jobs, dead.timeout_days * 86_400.0, dead.business_max_jobs)
        self.loop = EventLoop()
        self.cancellations = Cancellations(shard.client, self.absent, self.loop)
        self.runs = RunningJobs(self.cancellations)
        """The running jobs of all capsules."""
        self.budget = MemoryBudget(settings.size_limit.decoding_budget)
        self.interruptions = InterruptionLimit(settings.max_retries_after_interruption)
        self.lifecycle = LifecycleEvents(events)
        self.quiet = False
        """Whether the process fetches no new jobs: it is quiet, drains or stops."""
        self.shared_state = SharedState.from_environment()
        """What a supervisor and the health checks read of the process."""
        self._leads: Callable[[], bool] | None = None
        self._chains: list[AdmissionChain] = []
        self._stop_checks: Sequence[Callable[[Declaration], bool]] = ()
        self._postponers: Sequence[Callable[[Declaration, Payload], float]] = ()
        self._services: dict[Late[Any], Any] = {}

    def service(self, kind: "Late[Callable[[ProcessContext], T]]") -> T:
        """Return the one object of its kind in this process, for features that share it; made at the first call."""
        if kind not in self._services:
            self._services[kind] = kind.load()(self)
        return cast("T", self._services[kind])

    def follow(self, leads: Callable[[], bool]) -> None:
        """Let ``leads`` answer for the process. Its parts are made before the leadership is."""
        self._leads = leads

    def leads(self) -> bool:
        """Return whether the process leads those of its application. Periodic work asks."""
        return self._leads is not None and self._leads()

    def ask_parts(self, parts: "Sequence[WorkerPart]") -> None:
        """Let these parts answer ``stops`` and ``postpones``. They are made behind the process."""
        self._stop_checks = [one.stops for one in parts if one.stops is not None]
        self._postponers = [one.postpones for one in parts if one.postpones is not None]

    def postpones(self, declaration: Declaration, payload: Payload) -> float:
        """Return for how many seconds a deferred job stays in the schedule set although it is due; 0.0 to move it."""
        return max((one(declaration, payload) for one in self._postponers), default=0.0)

    def stops(self, declaration: Declaration) -> bool:
        """Return whether no job of a class can start now, as far as this process knows. Reads only memory."""
        return any(check(declaration) for check in self._stop_checks)

    def invalidate(self) -> None:
        """Ask every policy about every class again, in all capsules."""
        for chain in self._chains:
            chain.invalidate()

    def add(self, chain: AdmissionChain) -> AdmissionChain:
        """Return the chain, which ``invalidate`` concerns from now on."""
        self._chains.append(chain)
        return chain


def _do_nothing() -> None: ...


class OwnTask(NamedTuple):
    """Work that has a thread of its own, with a Redis client that a failed step reconnects."""

    name: str
    step: Callable[[], float]
    """Returns the seconds until the next step."""
    end: Callable[[], None] = _do_nothing
    """Called by the main thread after the last step, before the last jobs have ended."""
    release: Callable[[], None] = _do_nothing
    """Called by the main thread when the last jobs have ended. Raises redis errors."""


class WorkerPart(NamedTuple):
    """What one feature does in a worker process. A Redis error of its steps ends the round; the next round tries again."""

    policies: Sequence[StagedPolicy] = ()
    """Its policies, the same for every capsule."""
    of_capsule: Callable[[str], Sequence[StagedPolicy]] | None = None
    """Returns its policies for the capsule whose working list has this owner: those that write to the list."""
    refresh: Callable[[], None] | None = None
    """Reads its state, before the first job and every few seconds, before the periodic work."""
    periodic: Sequence[Callable[[], None]] = ()
    """Its work every few seconds."""
    tasks: Sequence[OwnTask] = ()
    stops: Callable[[Declaration], bool] | None = None
    """Returns whether it lets no job of a class start now, as far as the process knows. Reads only memory."""
    postpones: Callable[[Declaration, Payload], float] | None = None
    """Returns for how many seconds a due job that it has deferred stays where it is; 0.0 to move it. Reads only memory."""
    sub_queues: AbstractSet[str] = frozenset()
    """The queues of the shard whose jobs may wait in sub-queues."""
    around: Sequence[AroundRun] = ()
    """What it does around the runs of some jobs."""
    spans: Sequence[RunSpans] = ()
    """Makes all runs parts of traces."""
    cursors: Callable[[str], CursorStore] | None = None
    """Returns the store of cursors for the capsule whose working list has this owner. One feature at most has it."""
    detached: DetachedRuns | None = None
    """Runs jobs outside of the process. One feature at most has it."""
    check: Callable[[], None] | None = None
    """Raises ConfigurationError if what Redis says forbids the process to run. Raises redis errors."""
    serve: Callable[[], None] | None = None
    """Lets the application's questions be answered from this part, in a process that is there only for jobs."""


class WorkerParts:
    """The parts of one worker process: the ``first`` one of the core, those of all features in their order, then added ones.

    Behind those of the framework stand those of the application.
    """

    def __init__(self, process: ProcessContext, first: WorkerPart) -> None:
        self._process = process
        self._parts = [first, *(one.worker.load()(process) for one in features() if one.worker is not None)]
        self._parts += [own_part(one, one.worker.load()(process)) for one in own_features() if one.worker is not None]
        process.ask_parts(self._parts)

    def add(self, part: WorkerPart) -> None:
        """Add a part, whose periodic work is the last. Call it before the process runs."""
        self._parts.append(part)

    def chain(self, owner: str) -> AdmissionChain:
        """Return the policies of the capsule whose working list has this owner."""
        found = [one for part in self._parts for one in (*part.policies, *(part.of_capsule or _no_policies)(owner))]
        return self._process.add(AdmissionChain.of(found))

    def refresh(self) -> None:
        """Read the state of all parts. Raises redis errors."""
        for part in self._parts:
            if part.refresh is not None:
                part.refresh()

    @property
    def periodic(self) -> list[Callable[[], None]]:
        return [step for part in self._parts for step in part.periodic]

    @property
    def tasks(self) -> list[OwnTask]:
        """The work of all parts that has threads of its own."""
        return [task for part in self._parts for task in part.tasks]

    @property
    def sub_queues(self) -> AbstractSet[str]:
        """The queues of the shard whose jobs may wait in sub-queues."""
        return frozenset(name for part in self._parts for name in part.sub_queues)

    @property
    def around(self) -> Sequence[AroundRun]:
        """What all parts do around the runs of jobs."""
        return [one for part in self._parts for one in part.around]

    @property
    def spans(self) -> Sequence[RunSpans]:
        """What makes the runs parts of traces."""
        return [one for part in self._parts for one in part.spans]

    @property
    def detached(self) -> DetachedRuns | None:
        """The part that runs jobs outside of the process, if there is one."""
        return next((part.detached for part in self._parts if part.detached is not None), None)

    def cursors(self, owner: str) -> CursorStore | None:
        """Return the store of cursors of a capsule, if there is one."""
        return next((part.cursors(owner) for part in self._parts if part.cursors is not None), None)

    def check(self) -> None:
        """Ask, once Redis answers, whether the process may run. Raises ConfigurationError and redis errors."""
        for part in self._parts:
            if part.check is not None:
                part.check()

    def release(self) -> None:
        """Release what the tasks of all parts hold, when the last jobs have ended. Raises redis errors."""
        for task in self.tasks:
            task.release()

    def serve(self) -> None:
        """Answer the application's questions from these parts."""
        for part in self._parts:
            if part.serve is not None:
                part.serve()


def _no_policies(_owner: str) -> Sequence[StagedPolicy]:
    return ()


# --- features of the application: their errors end no job and no process --------------------------------------------


class OwnPolicy:
    """A policy of the application. A job runs if it fails, or gives an outcome that only the framework may."""

    def __init__(self, feature: str, policy: AdmissionPolicy) -> None:
        self._feature = feature
        self._policy = policy
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def applies_to(self, declaration: Declaration) -> bool:
        try:
            return self._policy.applies_to(declaration)
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._log(declaration, error)
            return False

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        try:
            found = self._policy.admit(request)
            if found is None or isinstance(found, Deferred | Discarded):
                return found
            raise TypeError(f"admit returned {found!r}: it may return None, Deferred or Discarded")
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            self._log(request.declaration, error)
            return None

    def _log(self, declaration: Declaration, error: Exception) -> None:
        self._log_limit.error(
            declaration.wire_name,
            f"the policy of the feature {self._feature} has failed for {declaration.wire_name}, so its jobs run. Look at the error",
            "feature.failed",
            error=error,
            **{"class": declaration.wire_name},
        )


def own_part(feature: Feature, part: WorkerPart) -> WorkerPart:
    """Return the part of a feature of the application, whose errors are logged.

    Raises:
        ConfigurationError: it has what only features of the framework may have.
    """
    refused = [name for name, value in part._asdict().items() if value and name not in _OWN_FIELDS]
    refused += [f"a policy of the stage {one.stage}" for one in part.policies if one.stage not in _OWN_STAGES]
    if refused:
        allowed = f"refresh, periodic, and policies of the stages {', '.join(_OWN_STAGES)}"
        message = f"the worker part of {feature.name} has {refused[0]}. Allowed: {allowed}"
        raise ConfigurationError([ConfigurationProblem("features", feature.name, message)])
    return WorkerPart(
        policies=[StagedPolicy(one.stage, OwnPolicy(feature.name, one.policy)) for one in part.policies],
        refresh=None if part.refresh is None else _guarded(feature.name, part.refresh),
        periodic=[_guarded(feature.name, step) for step in part.periodic],
    )


def _guarded(feature: str, step: Callable[[], None]) -> Callable[[], None]:
    log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def run() -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - code of the application may raise anything
            log_limit.error(
                feature,
                f"the periodic work of the feature {feature} has failed; it is tried again. Look at the error",
                "feature.failed",
                error=error,
            )

    return run
