"""Read the state of the policies, for the data API: concurrency limits, rate limiters, locks, pauses and operators' flags, by shard.

``by_shard`` of an answer has the values of each shard that answered, by its name.
"""

from framework.admin.access import Answers, ask
from framework.admin.job_counts import ignore_progress
from framework.admin.limit_reader import LimitReport, read_limits
from framework.admin.limiter_reader import LimiterState, read_limiters
from framework.admin.lock_reader import HeldLock, scan_locks
from framework.admin.pauses import PauseSummary, read_pauses
from framework.async_twin import async_twin
from framework.feature_flags.flag import Flag
from framework.feature_flags.redis_flags import read_flags
from framework.store.clock import server_time


def limits(shard: str | None = None) -> Answers[list[LimitReport]]:
    """Return the concurrency limits with their slots and waiting jobs: the limit with the job that waits longest first.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_limits(one.client, server_time(one.client)))


alimits = async_twin(limits)


def limiters(shard: str | None = None) -> Answers[list[LimiterState]]:
    """Return the rate limiters in use, by name, with what is used and their counts.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_limiters(one.client))


alimiters = async_twin(limiters)


def locks(shard: str | None = None, *, cls: str | None = None) -> Answers[list[HeldLock]]:
    """Return the deduplication locks, or those of one class by its wire name. Reads every lock of a shard, in pages.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(
        shard,
        lambda one: [held for held in scan_locks(one.client, ignore_progress) if cls is None or held.worker == cls],
    )


alocks = async_twin(locks)


def paused(shard: str | None = None) -> Answers[list[PauseSummary]]:
    """Return the paused queues and classes with the number of their jobs.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_pauses(one.client))


apaused = async_twin(paused)


def flags(shard: str | None = None) -> Answers[dict[str, Flag]]:
    """Return the flags that operators have set, by name; those that have expired too.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_flags(one.client))


aflags = async_twin(flags)
