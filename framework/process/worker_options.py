"""Hold the options of one worker process, and refuse those that cannot work."""

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.fetch.blocking import MAX_BLOCKED_QUEUES
from framework.process.own_queues import CapsuleOptions, CapsulePlan, known_queues, plan_capsules
from framework.route.router import Router
from framework.settings.model import CoreSettings
from framework.text import format_count

_BASE_COUNT = 32
"""Descriptors for standard streams, signals, selectors, the event loop, the log, and files that imports and jobs open briefly."""

_MAX_COUNTED_SLOTS = 64
"""Slots beyond this number run async jobs, which share connections, or need a limit that only the operator knows."""


class HealthAddress(NamedTuple):
    """Where to listen; ``source`` is the option or the setting that says so, for errors."""

    host: str
    port: int
    source: str = "--health-port"


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


def check_worker(slots: int, queues: Sequence[int], shards: int) -> None:
    """Raise ConfigurationError when the limit of open files is too low for a worker; ``queues`` counts those of each capsule."""
    _check(
        {
            format_count(slots, "slot"): min(slots, _MAX_COUNTED_SLOTS),
            f"{format_count(sum(queues), 'queue')} (a blocked connection each, at most {MAX_BLOCKED_QUEUES})": sum(
                min(count, MAX_BLOCKED_QUEUES) for count in queues
            ),
            f"{format_count(shards, 'shard')} (four connections to its own, two to another)": 1
            + len(queues)
            + 2 * shards,
        }
    )


def check_supervisor(children: int, shards: int) -> None:
    """Raise ConfigurationError when the limit of open files is too low for a supervisor."""
    _check({format_count(children, "process"): 4 * children, format_count(shards, "shard"): 2 * shards})


def _check(parts: Mapping[str, int]) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _BASE_COUNT + sum(parts.values())
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return
    counts = ", ".join([f"{_BASE_COUNT} of its own", *(f"{count} for {what}" for what, count in parts.items())])
    hard = (
        "" if most == resource.RLIM_INFINITY or most >= needed else f"; the hard limit is {most}, which root can raise"
    )
    advice = "Set `ulimit -n 1024` or more in the shell, LimitNOFILE= in the systemd unit, or --ulimit nofile= of the container"
    message = f"the limit is {limit}, and this process needs at least {needed} ({counts}). {advice}{hard}"
    raise ConfigurationError([ConfigurationProblem("this process", "open files (ulimit -n)", message)])
