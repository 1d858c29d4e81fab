"""Profile runs in a worker process, and keep the profiles on its shard."""

from collections.abc import Callable

from framework.feature import Late
from framework.features.profiling.profiler import Profiles, RedisProfiles
from framework.process.worker_parts import ProcessContext, WorkerPart


def open_profiles(process: ProcessContext) -> Profiles:
    return RedisProfiles(process.shard.client)


PROFILES: "Late[Callable[[ProcessContext], Profiles]]" = Late("framework.features.profiling.worker:open_profiles")


def worker_part(process: ProcessContext) -> WorkerPart:
    return WorkerPart(around=(process.service(PROFILES),))
