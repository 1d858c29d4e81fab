"""Hold jobs of paused classes in a worker process, and resume those whose pause has ended."""

from collections.abc import Sequence

from framework.declare import registry
from framework.execute.admission import StagedPolicy
from framework.features.flags.worker import WORKER_FLAGS
from framework.features.pause import strategies
from framework.features.pause.admission import PausePolicy
from framework.features.pause.resumer import PauseResumer
from framework.features.pause.state import PauseState
from framework.features.pause.strategies import PauseStrategies
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.wire import keys


def worker_part(process: ProcessContext) -> WorkerPart:
    """Return the part of pauses in a worker process."""
    flags, client = process.service(WORKER_FLAGS), process.shard.client
    polled = PauseStrategies(_named_strategies(), strategies.registered, process.timings)

    def refresh() -> None:
        polled.poll()
        flags.refresh()

    pauses = PauseState(flags.all, flags.stored, polled, refresh)

    def of_capsule(owner: str) -> Sequence[StagedPolicy]:
        return (StagedPolicy("hold", PausePolicy(client, owner, pauses)),)

    process.absent.watch(keys.PAUSED_CLASSES)
    resumer = PauseResumer(process.upkeep, pauses, process.absent)
    return WorkerPart(of_capsule=of_capsule, refresh=polled.poll, periodic=(resumer.resume_ended,))


def _named_strategies() -> list[str]:
    """Return the pause strategies that the classes of this process name."""
    named = (worker.declaration().facts["pause_control"] for worker in registry.workers())
    return [name for name in named if name is not None]
