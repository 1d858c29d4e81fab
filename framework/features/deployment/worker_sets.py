"""Derive the sets of equal processes of an installation from its queues, its classes and its groups of queues."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from framework.all_settings import Settings
from framework.cluster.plan import GroupSize, Planner, Selection
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem, SelectorError
from framework.features.observability.settings import ObservabilitySettings
from framework.route.rule_checks import serves
from framework.route.topology import QueueLocations, open_queue_locations, queues_on, sort_main_first
from framework.terminal.project import Project
from framework.types import Urgency

STOP_MARGIN_S = 15
"""What the platform waits longer than the jobs may take: the start of the stop, and the return of jobs to their queues."""

# A label of DNS has 63 characters, of which the name of the installation and the random end of a pod's name take some.
_MOST_CHARACTERS = 40
_NO_LABEL = re.compile(r"[^a-z0-9]+")
_URGENCIES: Sequence[Urgency] = ("high", "low", "throttled")


class WorkerSet(NamedTuple):
    """Equal processes: they serve one group of queues on one shard."""

    name: str
    group: str
    shard: str
    queues: Mapping[str, int]
    """Queues and namespaces, each with its weight."""
    slots: int
    timeout_s: int
    """The seconds that a stop gives to running jobs."""
    urgency: Urgency
    """The highest of the classes in the queues."""

    @property
    def stop_s(self) -> int:
        """The seconds after which the platform may kill a process that was asked to stop."""
        return self.timeout_s + STOP_MARGIN_S

    def arguments(self) -> list[str]:
        """Return the command that serves the queues, without the options of its platform."""
        options = ["--shard", self.shard, "--max-concurrency", str(self.slots), "--timeout", str(self.timeout_s)]
        # A queue that is named twice has twice the weight.
        unit = math.gcd(*self.queues.values())
        names = [name for name, weight in self.queues.items() for _ in range(weight // unit)]
        return ["application-worker", "cluster", *options, ",".join(names)]


class DeploymentPlan(NamedTuple):
    """What is to run: the sets of processes, the groups of queues that the exporter counts, and remarks for the operator."""

    settings: Settings
    sets: tuple[WorkerSet, ...]
    groups: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...]

    @property
    def shards(self) -> Sequence[str]:
        return sort_main_first(self.settings.shards)


def plan_installation(project: Project) -> DeploymentPlan:
    """Return what runs the jobs of a project.

    The groups are those of the setting ``fleet.queue_groups``; the queues of none are one more group.

    Raises:
        ConfigurationError: two sets of processes would have one name, or a group has a name of no queue.
    """
    settings = project.settings
    locations = open_queue_locations(settings, required=True)
    groups = _groups(settings, locations)
    planner = Planner(locations, Selection())
    declarations = list(project.declarations.values())
    sets: list[WorkerSet] = []
    warnings: list[str] = []
    exact: dict[str, tuple[str, ...]] = {}
    for group, names in groups.items():
        try:
            planned = {name: planner.plan([name], GroupSize(settings.concurrency)) for name in names}
        except SelectorError as error:
            raise _problem(settings, f"fleet.queue_groups.{group}", str(error)) from None
        processes = [one for each in planned.values() for one in each]
        warnings += planner.warnings(processes)
        # A namespace stands for its queues. The exporter counts queues only, so it gets their names.
        exact[group] = tuple(dict.fromkeys(queue for one in processes for queue in one.all_queues))
        for shard in sort_main_first({one.shard for one in processes}):
            # A name without a queue on the shard would be served there because it is given.
            here = [name for name, found in planned.items() if shard in {one.shard for one in found}]
            queues = {queue for one in processes if one.shard == shard for queue in one.all_queues}
            users = queues_on(project.router, declarations, shard)
            classes = [one for queue, found in users.items() if queue in queues for one in found]
            sets.append(_worker_set(settings, group, shard, here, classes))
    for name, count in Counter(one.name for one in sets).items():
        if count > 1:
            raise _problem(
                settings, "fleet.queue_groups", f"{count} groups and shards would be called {name}: rename one"
            )
    return DeploymentPlan(settings, tuple(sets), exact, tuple(dict.fromkeys(warnings)))


def _groups(settings: Settings, locations: QueueLocations) -> dict[str, tuple[str, ...]]:
    groups = dict(ObservabilitySettings.of(settings).fleet.queue_groups)
    named = {queue for queues in groups.values() for queue in queues}
    left = [queue for queue in locations.served if not serves(named, queue)]
    # A queue that is the namespace of others stands for them too.
    left = [queue for queue in left if not serves(set(left) - {queue}, queue)]
    if left:
        name = "rest" if groups else "all"
        groups[name] = (*groups.get(name, ()), *left)
    return groups


def _worker_set(
    settings: Settings, group: str, shard: str, names: Sequence[str], classes: Sequence[Declaration]
) -> WorkerSet:
    weights = dict(settings.queues)
    return WorkerSet(
        _label(f"{shard}-{group}"),
        group,
        shard,
        {name: weights.get(name, 1) for name in names},
        settings.concurrency,
        _timeout_s(settings, classes),
        _urgency(classes),
    )


def _timeout_s(settings: Settings, classes: Sequence[Declaration]) -> int:
    """Return the longest time that a running job may need: the timeout of its class, or the setting for a class without one."""
    longest = (one.timeout.total_seconds() for one in classes if one.timeout is not None)
    return math.ceil(max([settings.timeout, *longest]))


def _urgency(classes: Sequence[Declaration]) -> Urgency:
    found = {one.urgency for one in classes}
    for urgency in _URGENCIES:
        if urgency in found:
            return urgency
    return "low"


def _label(name: str) -> str:
    """Return the name as a label of DNS."""
    return _NO_LABEL.sub("-", name.lower()).strip("-")[:_MOST_CHARACTERS].strip("-")


def _problem(settings: Settings, key: str, message: str) -> ConfigurationError:
    return ConfigurationError([ConfigurationProblem(settings.config_file_label("application.yml"), key, message)])
