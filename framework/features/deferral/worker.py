"""Drop and defer jobs of a worker process by flags, and warn of flags that may be forgotten."""

from framework.execute.admission import StagedPolicy
from framework.features.deferral.admission import DeferFlag, DropFlag
from framework.features.deferral.skip_tracker import SkipTracker
from framework.features.flags.settings import FlagSettings
from framework.features.flags.worker import WORKER_FLAGS
from framework.process.worker_parts import ProcessContext, WorkerPart


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of these flags in a worker process. Its policies send nothing to Redis."""
    flags = process.service(WORKER_FLAGS).all
    skips = SkipTracker(flags)
    policies = (
        StagedPolicy("end", DropFlag(flags, skips)),
        StagedPolicy("hold", DeferFlag(flags, skips, FlagSettings.of(process.settings).flags.defer_delay)),
    )
    return WorkerPart(policies, periodic=(skips.warn_stale,))
