"""Read the flags of the shard that a worker process serves."""

from collections.abc import Callable

from framework.feature import Late
from framework.features.flags.process_flags import open_flags, serve_flags
from framework.features.flags.redis_flags import RedisFlags, ShardFlags
from framework.features.flags.settings import FlagSettings
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.wire import keys


class WorkerFlags:
    """The flags that the features of one worker process share. Only its periodic work reads them from Redis."""

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        process.absent.watch(keys.FLAGS)
        self.stored = RedisFlags(process.upkeep, process.shard.name, process.absent)
        self.all = open_flags(FlagSettings.of(process.settings), self.stored)

    def refresh(self) -> None:
        """Read the flags again. Raises redis errors."""
        if self.all.read():
            self._process.invalidate()

    def serve(self) -> None:
        """Answer the application from these flags: no other reader is needed."""
        serve_flags(self._process.shard.name, ShardFlags(self.all, self.stored))


WORKER_FLAGS: "Late[Callable[[ProcessContext], WorkerFlags]]" = Late("framework.features.flags.worker:WorkerFlags")


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of flags in a worker process."""
    flags = process.service(WORKER_FLAGS)
    return WorkerPart(refresh=flags.refresh, serve=flags.serve)
