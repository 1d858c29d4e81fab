"""Build the capsules of a worker process: the fetcher, the threads and the policies of each."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import redis

from framework import middleware
from framework.all_settings import Settings
from framework.execute.admission import AdmissionChain
from framework.execute.decoding import PayloadDecoder
from framework.execute.event_loop import EventLoop
from framework.execute.execution import Executor
from framework.execute.group_admission import GroupAdmission
from framework.execute.isolation.runs import IsolatedRuns
from framework.execute.iterations import Iterations
from framework.execute.job_log import JobLog
from framework.execute.processor import Processor
from framework.execute.stats import RunningJobs
from framework.execute.threads import WorkerThreads
from framework.execute.unknown import UnknownClassDelays
from framework.fetch.fetcher import Fetcher
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.retry import RetryPolicy
from framework.finish.settle import Settler
from framework.finish.status_writer import StatusWriter
from framework.payloads.stored_state import state_signatures
from framework.process.capsules import Capsule
from framework.process.events import ProcessEvents
from framework.process.own_queues import DEFAULT_CAPSULE, CapsulePlan
from framework.process.push_back import PushBack
from framework.process.signals import at_terminal
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.recover.interruptions import InterruptionLimit
from framework.recover.suspects import SuspectRunner
from framework.schedule.poll_timing import PollTiming
from framework.settings.model import DeadSettings
from framework.shard.shard import Shard
from framework.store.absent_keys import AbsentKeys
from framework.store.channel import ChannelPool
from framework.timings import Timings
from framework.wire.owners import capsule_owner
from framework.wire.set_limits import SetLimits


def owners_of(identity: str, plans: Sequence[CapsulePlan]) -> list[str]:
    """Return the owner of the working list of each capsule."""
    return [capsule_owner(identity, plan.name if at else "") for at, plan in enumerate(plans)]


def open_fetchers(
    settings: Settings,
    client: "redis.Redis",
    owners: Sequence[str],
    plans: Sequence[CapsulePlan],
    events: ProcessEvents,
    dead_set: SetLimits,
    absent: AbsentKeys,
    waits: Timings,
    fair_queues: AbstractSet[str],
) -> list[Fetcher]:
    """Return the fetcher of each capsule; running jobs have different places in all of them."""
    fetchers: list[Fetcher] = []
    first = 0
    decoded_limit, limits = settings.size_limit.decoded_limit, settings.process_limits
    for owner, plan in zip(owners, plans, strict=True):
        fetchers.append(
            Fetcher(
                client,
                owner,
                plan.order,
                plan.slots,
                events,
                dead_set,
                decoded_limit,
                absent,
                limits,
                waits,
                first,
                fair_queues,
            )
        )
        first += plan.slots
    return fetchers


def running_units(fetchers: Sequence[Fetcher]) -> list[UnitOfWork]:
    """Return the units whose jobs run, by capsule."""
    return [unit for one in fetchers for unit in one.in_flight.running()]


def open_push_back(
    client: "redis.Redis",
    owners: Sequence[str],
    fetchers: Sequence[Fetcher],
    events: ProcessEvents,
    interruptions: InterruptionLimit,
) -> PushBack:
    """Return the push-back of the jobs of all capsules."""
    jobs = {owner: fetcher.in_flight for owner, fetcher in zip(owners, fetchers, strict=True)}
    return PushBack(client, jobs, events, None if at_terminal() else interruptions)


@dataclass(frozen=True, slots=True)
class CapsuleParts:
    """The parts that the capsules of a process share."""

    settings: Settings
    shard: Shard
    pool: ChannelPool
    log: JobLog
    runs: RunningJobs
    loop: EventLoop
    events: ProcessEvents
    decoding: PayloadDecoder
    suspects: SuspectRunner
    states: StatusWriter
    poll_timing: PollTiming
    waits: Timings
    isolated: IsolatedRuns | None
    """One for all capsules: a second process that has loaded the workers would cost as much memory again."""

    def capsule(self, plan: CapsulePlan, owner: str, fetcher: Fetcher, admission: AdmissionChain) -> Capsule:
        """Return a capsule with its parts."""
        settings = self.settings
        own_name = "" if plan.name == DEFAULT_CAPSULE else plan.name
        threads = WorkerThreads(fetcher, own_name)
        together = GroupAdmission(self.pool, owner, fetcher, self.decoding, admission, self.states)
        chain = middleware.capsule(plan.name) if own_name else middleware.server
        executor = Executor(
            chain.compile(),
            self.log,
            self.runs,
            self.decoding,
            threads.ensure_fetching,
            self.suspects,
            StrictArgumentsCheck(settings.strict_arguments),
            self.states,
            settings.retired_workers,
            admission,
            UnknownClassDelays(settings.foreign_classes, settings.unknown_class_max_wait),
            together.admit,
            self.events.moved_jobs.recorder,
            iterations=Iterations(
                self.shard.client,
                owner,
                self.runs,
                settings.max_iteration_runtime,
                state_signatures(settings.signatures),
            ),
            isolated=self.isolated,
            capsule=own_name,
        )
        settler = self._settler(owner)
        return Capsule(
            plan, fetcher, Processor(fetcher, threads, executor, settler, self.log, self.runs, self.loop, self.events)
        )

    def _settler(self, owner: str) -> Settler:
        settings, events = self.settings, self.events
        return Settler(
            self.shard.client,
            owner,
            events.handlers,
            RetryPolicy(settings.max_retries, keeps_business_failures=settings.dead.business),
            dead_set_limits(settings.dead),
            events.trimmed,
            self.poll_timing.expect_retry,
            self.states,
            self.waits,
            state_signatures(settings.signatures),
        )


def dead_set_limits(dead: DeadSettings) -> SetLimits:
    """Return the limits of the dead set."""
    return SetLimits(dead.max_jobs, dead.timeout_days * 86_400.0, dead.business_max_jobs)
