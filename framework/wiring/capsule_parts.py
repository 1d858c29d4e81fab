"""Build the capsules of a worker process: the fetcher, the threads and the policies of each."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import redis

from framework import middleware
from framework.all_settings import Settings
from framework.execute.decoding import open_decoder
from framework.execute.execution import Executor
from framework.execute.outcomes import UnknownClassDelays
from framework.execute.policy_decision import GroupAdmission
from framework.execute.processor import Processor
from framework.execute.threads import WorkerThreads
from framework.fetch.fetcher import Fetcher
from framework.finish.retry import RetryPolicy
from framework.finish.settle import Settler
from framework.process.components import Capsule, Capsules, Closeable
from framework.process.own_queues import DEFAULT_CAPSULE, CapsulePlan
from framework.process.push_back import PushBack
from framework.process.signals import at_terminal
from framework.process.worker_parts import ProcessContext, WorkerParts
from framework.push.argument_checks import StrictArgumentsCheck
from framework.recover.suspects import SuspectRunner
from framework.store.channel import ChannelPool
from framework.store.connect import COMMAND_TIMEOUT_S


class CapsuleBuilder:
    """Build the capsules of one process, which share everything but their fetchers and threads. Opens no socket."""

    def __init__(self, settings: Settings, process: ProcessContext) -> None:
        shard, waits = process.shard, process.timings
        self._settings = settings
        self._process = process
        self._fetching = shard.open_client("fetch", read_timeout_s=COMMAND_TIMEOUT_S)
        self._fetchers: Sequence[Fetcher] = ()
        self._pool = ChannelPool(shard.client, read_timeout_s=COMMAND_TIMEOUT_S)
        self._decoding = open_decoder(settings.size_limit, process.protection, process.runs, process.budget)
        slots = sum(one.slots for one in process.plans)
        self._suspects = SuspectRunner(shard.client, process.identity, slots, waits)

    @property
    def connections(self) -> Sequence[Closeable]:
        """What the capsules share and do not close themselves."""
        return self._fetching, self._pool

    def build(self, parts: WorkerParts) -> Capsules:
        """Return the capsules with the policies of these parts."""
        process = self._process
        self._fetchers = _open_fetchers(process, self._fetching, parts.sub_queues)
        for fetcher in self._fetchers:
            process.runs.show(fetcher.in_flight)
        return Capsules(
            [self._capsule(parts, *one) for one in zip(process.plans, process.owners, self._fetchers, strict=True)]
        )

    def push_back(self) -> PushBack:
        """Return the push-back of the jobs of all capsules."""
        process = self._process
        jobs = {owner: one.in_flight for owner, one in zip(process.owners, self._fetchers, strict=True)}
        limit = None if at_terminal() else process.interruptions
        return PushBack(process.shard.client, jobs, process.events, limit)

    def _capsule(self, parts: WorkerParts, plan: CapsulePlan, owner: str, fetcher: Fetcher) -> Capsule:
        process = self._process
        own_name = "" if plan.name == DEFAULT_CAPSULE else plan.name
        threads = WorkerThreads(fetcher, own_name)
        executor = self._executor(own_name, owner, fetcher, threads, parts)
        processor = Processor(
            fetcher,
            threads,
            executor,
            self._settler(owner),
            process.job_log,
            process.runs,
            process.loop,
            process.events,
        )
        return Capsule(plan, fetcher, processor)

    def _executor(
        self, own_name: str, owner: str, fetcher: Fetcher, threads: WorkerThreads, parts: WorkerParts
    ) -> Executor:
        process, settings, admission = self._process, self._settings, parts.chain(owner)
        together = GroupAdmission(self._pool, owner, fetcher, self._decoding, admission, process.states)
        chain = middleware.capsule(own_name) if own_name else middleware.server
        return Executor(
            chain.compile(),
            process.job_log,
            process.runs,
            self._decoding,
            threads,
            self._suspects,
            StrictArgumentsCheck(settings.strict_arguments),
            process.states,
            settings.retired_workers,
            admission,
            UnknownClassDelays(settings.foreign_classes, settings.unknown_class_max_wait),
            together,
            process.events.moved_jobs.recorder,
            around=parts.around,
            cursors=parts.cursors(owner),
            detached=parts.detached,
            capsule=own_name,
        )

    def _settler(self, owner: str) -> Settler:
        process, settings = self._process, self._settings
        return Settler(
            process.shard.client,
            owner,
            process.events,
            RetryPolicy(settings.max_retries, keeps_business_failures=settings.dead.business),
            process.dead_set,
            process.poll_timing.expect_retry,
            process.states,
            process.timings,
            process.protection.state,
        )


def _open_fetchers(process: ProcessContext, client: "redis.Redis", sub_queues: AbstractSet[str]) -> list[Fetcher]:
    """Return the fetcher of each capsule; running jobs have different places in all of them."""
    settings, fetchers, first = process.settings, list[Fetcher](), 0
    for owner, plan in zip(process.owners, process.plans, strict=True):
        fetchers.append(
            Fetcher(
                client,
                owner,
                plan.order,
                plan.slots,
                process.events,
                process.dead_set,
                settings.size_limit.decoded_limit,
                process.absent,
                settings.process_limits,
                process.timings,
                first,
                sub_queues,
            )
        )
        first += plan.slots
    return fetchers
