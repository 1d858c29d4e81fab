"""Hold the options of one worker process, and refuse those that cannot work."""

from dataclasses import dataclass

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.process.descriptors import check_worker
from framework.process.health_address import HealthAddress
from framework.process.own_queues import CapsuleOptions, CapsulePlan, known_queues, plan_capsules
from framework.route.router import Router
from framework.settings.model import CoreSettings


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of one process."""

    shard: str
    queues: tuple[tuple[str, int], ...]
    slots: int
    timeout_s: float
    no_namespaces: bool = False
    """Whether names are queues only, and no namespaces."""
    tag: str | None = None
    labels: tuple[str, ...] = ()
    queues_from: str = "-q"
    """The source of the queues: an option, a file, the environment, or the loaded classes."""
    newer_queues: tuple[str, ...] = ()
    """The queues that the generated file lacks."""
    isolates: bool = True
    """Whether isolated jobs run in processes of their own."""
    health: HealthAddress | None = None
    """The address of the health checks, ``None`` for none. The child of a supervisor has none: the supervisor answers."""
    capsules: tuple[CapsuleOptions, ...] = ()
    """The further capsules. Without ``queues`` the process has only these."""

    @property
    def total_slots(self) -> int:
        """The slots of all capsules."""
        return (self.slots if self.queues else 0) + sum(one.slots for one in self.capsules)

    @property
    def all_queues(self) -> list[str]:
        """The queues and namespaces of all capsules, as they were given."""
        return [name for queues in (self.queues, *(one.queues for one in self.capsules)) for name, _ in queues]

    def plan(self, router: Router) -> list[CapsulePlan]:
        """Return the capsules with the queues that their namespaces stand for."""
        known = known_queues(router)
        return plan_capsules(self.queues, self.slots, self.capsules, known, no_namespaces=self.no_namespaces)


def check_options(options: WorkerOptions, settings: CoreSettings) -> None:
    """Raise ConfigurationError when the limit of open files is too low for these capsules, or when a queue's limit is ambiguous."""
    seen: set[str] = set()
    for queues in (options.queues, *(one.queues for one in options.capsules)):
        names = {name for name, _ in queues}
        for name in sorted(names & seen & settings.process_limits.keys()):
            problem = f"{name}: more than one capsule serves this queue, so a limit per process cannot hold: give it to one capsule"
            raise ConfigurationError([ConfigurationProblem("this process", "process_limits", problem)])
        seen |= names
    counts = [len(queues) for queues in (options.queues, *(one.queues for one in options.capsules)) if queues]
    check_worker(options.total_slots, counts, len(settings.shards))
