"""Build the fleet of a scenario from an installation: its classes with their routes and limits, its sets of processes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.features.deployment.worker_sets import WorkerSet, plan_installation
from framework.features.simulation.recorded import RecordedJob
from framework.features.simulation.scenario import FleetScenario, JobLoad, ProcessCount
from framework.features.simulation.store_costs import StoreCost, cost_of
from framework.fetch.queues import QueueOrder
from framework.route.router import Router
from framework.route.rule_checks import serves
from framework.route.topology import queues_on
from framework.settings.model import RoutingRule
from framework.terminal.project import Project
from framework.text import did_you_mean
from framework.types import Urgency


class SimulatedClass(NamedTuple):
    """One class: where its jobs go, and what they need."""

    name: str
    urgency: Urgency
    shards: tuple[str, ...]
    """Each of them gets the same part of the jobs."""
    queue: str
    limit: int | None
    """The jobs that may run at a time, on all shards together."""
    load: JobLoad
    cost: StoreCost
    retries: int
    """How often a failed job runs again."""
    is_fair: bool


class SimulatedSet(NamedTuple):
    """Equal processes of one shard, with exact queues."""

    name: str
    group: str
    shard: str
    order: QueueOrder
    slots: int
    timeout_s: float
    processes: ProcessCount


class Model(NamedTuple):
    """Everything that the simulation needs to know."""

    scenario: FleetScenario
    classes: Mapping[str, SimulatedClass]
    sets: Mapping[str, SimulatedSet]
    groups: Mapping[str, Sequence[str]]
    recorded: Sequence[RecordedJob]
    seconds: float
    keeps_pushes: bool
    """Whether pushes to a shard that is away are kept."""


def build_model(
    project: Project, scenario: FleetScenario, recorded: Sequence[RecordedJob], *, keeps_pushes: bool
) -> Model:
    """Return the model of a scenario.

    Raises:
        ConfigurationError: a name is unknown, a rule is wrong, or no class has jobs.
    """
    project = _with_rules(project, scenario)
    plan = plan_installation(project)
    declarations = project.declarations
    recorded_names = {one.name for one in recorded}
    loads = {**dict.fromkeys(recorded_names, JobLoad()), **scenario.classes}
    sets = {one.name: _simulated_set(project, one, scenario) for one in plan.sets}
    shards = {one.shard for one in sets.values()}
    problems = list(_unknown(scenario, loads, declarations, sets, shards))
    if not problems and not any(load.rate or load.burst for load in loads.values()) and not recorded:
        problems.append(
            ConfigurationProblem(_file(scenario), "classes", "no class has jobs: give a rate, a burst, or --logs")
        )
    if problems:
        raise ConfigurationError(problems)
    classes = {name: _simulated_class(project, declarations[name], load, scenario) for name, load in loads.items()}
    # The last recorded jobs get time to start.
    lasting = max([one.at for one in recorded], default=0.0)
    seconds = scenario.seconds if not recorded or "seconds" in scenario.model_fields_set else 1.05 * lasting + 30.0
    return Model(scenario, classes, sets, plan.groups, recorded, seconds, keeps_pushes)


def _with_rules(project: Project, scenario: FleetScenario) -> Project:
    if scenario.routing_rules is None:
        return project
    rules: list[RoutingRule] = []
    for number, parts in enumerate(scenario.routing_rules):
        if not 2 <= len(parts) <= 3:
            message = "must be [query, queue] or [query, queue, shard]"
            raise ConfigurationError([ConfigurationProblem(_file(scenario), f"routing_rules[{number}]", message)])
        rules.append(RoutingRule(*parts))
    settings = project.settings.model_copy(update={"routing_rules": rules})
    router = Router(
        rules,
        settings.shards,
        project.router.categories,
        source=_file(scenario),
        has_fleet_limits=project.router.has_fleet_limits,
    )
    return project._replace(settings=settings, router=router)


def _simulated_set(project: Project, planned: WorkerSet, scenario: FleetScenario) -> SimulatedSet:
    processes = scenario.processes.get(planned.name, ProcessCount())
    weights = list[tuple[str, int]]()
    for queue in queues_on(project.router, list(project.declarations.values()), planned.shard):
        names = [name for name in planned.queues if serves([name], queue)]
        if names:
            # The longest is the nearest: a queue of a namespace may be named itself.
            weights.append((queue, planned.queues[max(names, key=len)]))
    slots = processes.slots or planned.slots
    return SimulatedSet(
        planned.name, planned.group, planned.shard, QueueOrder.of(weights), slots, planned.timeout_s, processes
    )


def _simulated_class(
    project: Project, declaration: Declaration, load: JobLoad, scenario: FleetScenario
) -> SimulatedClass:
    route = project.router.route(declaration)
    name = declaration.wire_name
    limit = scenario.limits[name] if name in scenario.limits else _declared_limit(declaration)
    retries = declaration.retry_limit(project.settings.max_retries)
    fair = declaration.fair_by is not None
    return SimulatedClass(
        name,
        declaration.urgency,
        project.router.shards_of(declaration),
        route.queue,
        limit or None,
        load,
        cost_of(declaration, load.bytes, scenario.push, limited=bool(limit), fair=fair),
        retries or 0,
        fair,
    )


def _declared_limit(declaration: Declaration) -> int | None:
    declared: int | Callable[[], int | None] | None = declaration.facts["concurrency_limit"]
    return declared() if callable(declared) else declared


def _unknown(
    scenario: FleetScenario,
    loads: Mapping[str, JobLoad],
    declarations: Mapping[str, Declaration],
    sets: Mapping[str, SimulatedSet],
    shards: set[str],
) -> Iterator[ConfigurationProblem]:
    """Yield a problem for each name of a class, a set or a shard that does not exist."""
    kinds = {"class": declarations, "set of processes": sets, "shard": dict.fromkeys(shards)}
    named_in = [
        *(("classes", "class", name) for name in loads),
        *(("limits", "class", name) for name in scenario.limits),
        *(("processes", "set of processes", name) for name in scenario.processes),
    ]
    for number, change in enumerate(scenario.changes):
        at = f"changes[{number}]"
        named_in += [
            (f"{at}.{key}", "class", name) for key in ("rate", "limit", "off") for name in getattr(change, key)
        ]
        named_in += [
            (f"{at}.{key}", "set of processes", name) for key in ("count", "restart") for name in getattr(change, key)
        ]
        named_in += [(f"{at}.away", "shard", name) for name in change.away]
    for key, kind, name in named_in:
        if name not in kinds[kind]:
            message = f"there is no {kind} {name!r}{did_you_mean(name, kinds[kind])}"
            yield ConfigurationProblem(_file(scenario), key, message)


def _file(scenario: FleetScenario) -> str:
    return scenario.name or "the scenario"
