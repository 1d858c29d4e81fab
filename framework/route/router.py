"""Match workers with routing rules (the first that matches decides queue and shard), and check the rules against loaded classes."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare import queue_facts, registry
from framework.declare.declaration import NOT_OWNED, Declaration, PerClass
from framework.declare.request import Route
from framework.errors import ArgumentsError, ConfigurationError, ConfigurationProblem, QueryError
from framework.feature import all_features
from framework.route.job_places import JobPlaces
from framework.route.query import Term, WorkerAttributes, WorkerQuery, closed_vocabularies, parse, worker_attributes
from framework.route.route_moves import MovableJob, RouteMoves
from framework.settings.base import ENV_PREFIX
from framework.settings.model import CoreSettings, RoutingRule
from framework.text import Sentence, did_you_mean, join_names
from framework.typeguards import short_repr
from framework.types import QUEUE_NAME, Payload
from framework.wire.resources import IDEMPOTENCY_KEY

MAIN = "main"
"""The default shard."""


class CompiledRule(NamedTuple):
    """Hold a rule with its parsed query."""

    rule: RoutingRule
    query: WorkerQuery


class RuleMatch(NamedTuple):
    """Hold the result of one rule for a worker, for ``application-worker route``."""

    rule: RoutingRule
    matches: bool
    decides: bool
    reason: str


class Router:
    """Route workers' jobs to queues and shards. Built once; each route is computed once per class.

    ``source`` is the file of the rules, for messages. Without ``categories`` every feature category is allowed. ``retired`` are
    wire names whose jobs are dropped: no existing class may have one. ``has_fleet_limits``: a ``concurrency_limit`` holds on all
    shards together.

    Raises:
        ConfigurationError: lists every wrong rule with a caret under the character. There is no fallback without rules,
            because jobs would wait in queues that no process serves.
    """

    def __init__(
        self,
        rules: Sequence[RoutingRule],
        shards: Collection[str],
        categories: Collection[str] = (),
        *,
        source: str = "config/routing.yml",
        folder: str = "config",
        retired: Collection[str] = (),
        has_fleet_limits: bool = False,
    ) -> None:
        self._shards = frozenset(shards) | {MAIN}
        self.source = source
        self.folder = folder
        self.has_fleet_limits = has_fleet_limits
        self._retired = frozenset(retired)
        self.categories = sorted(categories)
        self.vocabularies = closed_vocabularies(self.categories)
        self._routes = PerClass(self._compute_route)
        self._places = PerClass(lambda declaration: self.places_of(declaration, self.route(declaration)))
        self._moves = RouteMoves()
        self.compiled_rules: list[CompiledRule] = []
        problems: list[ConfigurationProblem] = []
        for index, rule in enumerate(rules):
            problems += self._compile_rule(ConfigurationProblem(source, f"routing_rules[{index}]", ""), rule)
        if problems:
            raise ConfigurationError(problems)

    @property
    def moves(self) -> RouteMoves:
        """The moves between shards that this process knows. They apply to what rules, classes and pushes choose."""
        return self._moves

    def use_moves(self, moves: RouteMoves) -> None:
        """Route by these moves from now on, but for those to shards that are not known here: their jobs are forwarded.

        Safe from any thread: what is computed meanwhile is discarded.
        """
        self._moves = moves.among(self._shards)
        self._places.clear()

    def route(self, declaration: Declaration) -> Route:
        """Return the queue, shard and deciding rule of a worker. Its own ``queue`` and ``shard`` override the rule.

        Raises:
            ConfigurationError: the worker contradicts the configuration (``validate``).
        """
        return self._moved(declaration, self._routes.get(declaration))

    def home(self, declaration: Declaration) -> str:
        """Return the shard of a worker without moves: what is kept for the class stays there. Raises as ``route``."""
        return self._routes.get(declaration).shard

    def places_of(self, declaration: Declaration, route: Route) -> JobPlaces:
        """Return what chooses the shards of the jobs of a class with this route."""
        job = MovableJob(declaration.wire_name, route.queue, declaration.queue_namespace or "")
        return JobPlaces(self._moves, job, route.shard, declaration.several_shards)

    def former_shards(self, declaration: Declaration, route: Route, options: Mapping[str, Any]) -> list[str]:
        """Return the shards from which jobs of such a push move to the shard of ``route``: equal jobs may wait or run there."""
        if not self._moves:
            return []
        several = declaration.several_shards
        first = (self._routes.get(declaration).shard,) if several is None else several.shards
        job = MovableJob(declaration.wire_name, route.queue, declaration.queue_namespace or "")
        return self._moves.former_shards(job, (options["shard"],) if "shard" in options else first, route.shard)

    def shards_of(self, declaration: Declaration) -> tuple[str, ...]:
        """Return the shards that get jobs of a class. Raises as ``route``."""
        return self._places.get(declaration).shards

    def shard_of(self, declaration: Declaration, payload: Payload) -> str:
        """Return the shard of one job of a class. Raises as ``route``."""
        places = self._places.get(declaration)
        return places.shards[0] if len(places.shards) == 1 else places.shard_of(deciding_key(payload) or "")

    def route_of(self, entry: Mapping[str, Any]) -> Route:
        """Return the route of a worker known only by its entry of all_queues.yml, without validation."""
        facts = worker_attributes(entry)
        rule = next((compiled.rule for compiled in self.compiled_rules if compiled.query.matches(facts)), None)
        queue = entry.get("queue") or (rule.queue if rule else None) or entry["name"]
        shard = entry.get("shard") or (rule.shard if rule else None) or MAIN
        return Route(queue, shard, rule.query if rule else None)

    def queues_of(self, declaration: Declaration) -> list[str]:
        """Return every queue in which its jobs may wait: routed, generated, retry, chosen, and those of its aliases.

        The generated queue may hold jobs from before or after a rule. A renamed class has jobs in the queues of its former name.
        """
        queues = [self.route(declaration).queue, declaration.generated_queue, declaration.retry_queue]
        queues += declaration.chosen_queues
        for alias in declaration.aliases:
            queues += self.queues_of_alias(declaration, alias)
        return list(dict.fromkeys(queue for queue in queues if queue is not None))

    def queues_of_alias(self, declaration: Declaration, alias: str) -> list[str]:
        """Return the queues of jobs pushed when the class was named ``alias``."""
        return [self.route_of_alias(declaration, alias).queue, declaration.with_wire_name(alias).generated_queue]

    def route_of_alias(self, declaration: Declaration, alias: str) -> Route:
        """Return the route of jobs pushed by a release in which the class was named ``alias``."""
        former = declaration.with_wire_name(alias)
        return self._moved(former, self._compute_route(former))

    def validate(self, declaration: Declaration) -> list[ConfigurationProblem]:
        """Return the errors of a worker against the configuration: unknown feature category or shard, retired names."""
        problems: list[ConfigurationProblem] = []
        category, shard = declaration.feature_category, declaration.shard
        allowed = f"allowed: {NOT_OWNED}, {join_names(self.categories)}"
        if self.categories and not declaration.has_category:
            message = f"is missing, and {self.folder}/feature_categories.yml has categories; {allowed}"
            problems.append(ConfigurationProblem(declaration.qualified_name, "feature_category", message))
        elif self.categories and category not in (*self.categories, NOT_OWNED):
            hint = did_you_mean(category, (*self.categories, NOT_OWNED))
            message = f"{category!r} is not in {self.folder}/feature_categories.yml{hint}; {allowed}"
            problems.append(ConfigurationProblem(declaration.qualified_name, "feature_category", message))
        several = declaration.several_shards
        for name in (shard,) if several is None else several.shards:
            if name is not None and name not in self._shards:
                message = self.unknown_shard_message(name)
                problems.append(ConfigurationProblem(declaration.qualified_name, "shard", message))
        if several is not None and not self.has_fleet_limits and declaration.facts.get("concurrency_limit") is not None:
            message = (
                f"{several} with concurrency_limit needs roles: {{meta: NAME}} in {self.folder}/redis.yml: else each shard has the "
                "whole limit"
            )
            problems.append(ConfigurationProblem(declaration.qualified_name, "shard", message))
        for name in (declaration.wire_name, *declaration.aliases):
            if name in self._retired:
                own = name == declaration.wire_name
                way_out = "the class" if own else "this alias"
                message = f"{name!r} is also in the setting retired_workers: remove that entry, or {way_out}"
                problems.append(
                    ConfigurationProblem(declaration.qualified_name, "wire_name" if own else "aliases", message)
                )
        return problems

    def route_push(self, declaration: Declaration, options: Mapping[str, Any]) -> Route:
        """Return the route of one push: ``queue`` and ``shard`` of ``set`` override the rules and the class.

        Raises:
            ArgumentsError: ``set`` names an unknown shard.
            ConfigurationError: as ``route``.
        """
        route = self.route(declaration)
        if not options:
            return route
        shard = options.get("shard", route.shard)
        if not self.has_shard(shard):
            raise ArgumentsError(
                declaration.qualified_name,
                f"set(shard={short_repr(shard)}) is not allowed: {self.unknown_shard_message(shard)}",
            )
        return self._moved(declaration, Route(options.get("queue", route.queue), shard, route.rule))

    def has_shard(self, shard: object) -> bool:
        return isinstance(shard, str) and shard in self._shards

    def worker_attributes(self, declaration: Declaration) -> WorkerAttributes:
        """Return the attributes of a worker that rules can match."""
        # No rule can ask for a weight.
        return worker_attributes(queue_facts.queue_facts(declaration, {}))

    def explain(self, declaration: Declaration) -> list[RuleMatch]:
        """Return the result of each rule for a worker, in order. The first match decides."""
        facts = self.worker_attributes(declaration)
        results: list[RuleMatch] = []
        decided = False
        for compiled in self.compiled_rules:
            matches = compiled.query.matches(facts)
            reason = _reason(compiled.query, facts)
            results.append(RuleMatch(compiled.rule, matches, matches and not decided, reason))
            decided = decided or matches
        return results

    def _compute_route(self, declaration: Declaration) -> Route:
        problems = self.validate(declaration)
        if problems:
            raise ConfigurationError(problems)
        return self.route_of(queue_facts.queue_facts(declaration, {}))

    def _moved(self, declaration: Declaration, route: Route) -> Route:
        """Return the route with the shard to which moves send the jobs of the class."""
        if not self._moves:
            return route
        job = MovableJob(declaration.wire_name, route.queue, declaration.queue_namespace or "")
        return route._replace(shard=self._moves.shard_of(job, route.shard))

    def _compile_rule(self, place: ConfigurationProblem, rule: RoutingRule) -> Iterator[ConfigurationProblem]:
        """Add the compiled rule, and yield its errors, each with the file and key of ``place``."""
        try:
            self.compiled_rules.append(CompiledRule(rule, parse(rule.query, self.categories)))
        except QueryError as error:
            for message in error.messages:
                yield place._replace(message=message)
        if rule.queue and QUEUE_NAME.fullmatch(rule.queue) is None:
            yield place._replace(
                message=Sentence(
                    "queue {queue} is not allowed: a queue name is made of letters, digits and _ . : -, without a - in front",
                    queue=short_repr(rule.queue),
                )
            )
        if rule.shard and rule.shard not in self._shards:
            yield place._replace(message=self.unknown_shard_message(rule.shard))

    def unknown_shard_message(self, shard: object) -> str:
        known = sorted(self._shards)
        return Sentence(
            "unknown shard {shard}{hint}; {folder}/redis.yml has: {names}",
            shard=short_repr(shard),
            hint=did_you_mean(shard, known),
            folder=self.folder,
            names=join_names(known),
        )


def movable_job(payload: Payload, queue: str) -> MovableJob:
    """Return what decides whether a move covers a job, by today's name of its class."""
    name, key = payload["class"], deciding_key(payload)
    worker: Any = registry.find(name)
    if worker is None:
        return MovableJob(name, queue, None, key)
    declaration: Declaration = worker.declaration()
    return MovableJob(declaration.wire_name, queue, declaration.queue_namespace or "", key)


def deciding_key(payload: Payload) -> str | None:
    """Return what chooses one of several shards: the lock key of a job, else its id; ``None`` if it has neither."""
    found = (payload.get(IDEMPOTENCY_KEY), payload.get("jid"))
    return next((key for key in found if isinstance(key, str) and key), None)


def _reason(query: WorkerQuery, attributes: WorkerAttributes) -> str:
    """Return why a query matches or not: its first alternative that holds, else the first failing term of each."""
    if not query.alternatives:
        return "matches every worker"
    failures: list[str] = []
    for terms in query.alternatives:
        failed = next((term for term in terms if not term.matches(attributes)), None)
        if failed is None:
            return " and ".join(f"{term.attribute} is {_values_text(attributes, term)}" for term in terms)
        failures.append(f"not {failed}: {failed.attribute} is {_values_text(attributes, failed)}")
    return "; ".join(failures)


def _values_text(attributes: WorkerAttributes, term: Term) -> str:
    return ",".join(sorted(attributes[term.attribute])) or "not set"


class LoadedWorkers(NamedTuple):
    """What a feature checks, in its part ``problems``: the settings, and the classes of the workers."""

    settings: CoreSettings
    declarations: Sequence[Declaration]
    from_modules: bool
    """Whether this process loads the modules of its workers, as worker processes and commands do."""
    whole: bool
    """Whether every module of the application is loaded."""


def open_router(settings: CoreSettings) -> Router:
    """Return the router of the configured rules. Raises ConfigurationError for invalid ones."""
    source = settings.config_file_label("routing.yml")
    if f"{ENV_PREFIX}ROUTING_RULES" in os.environ:
        source = f"environment: {ENV_PREFIX}ROUTING_RULES"
    return Router(
        settings.routing_rules,
        settings.shards,
        settings.feature_categories,
        source=source,
        folder=settings.config_label,
        retired=settings.retired_workers,
        has_fleet_limits=settings.roles.meta is not None,
    )


def load_workers(settings: CoreSettings, modules: Sequence[str]) -> Router:
    """Import the modules and return the router, checked against their workers.

    Raises:
        ConfigurationError: with every problem of the modules, their classes and the rules at once.
    """
    problems: list[ConfigurationProblem] = []
    try:
        registry.load(modules)
    except ConfigurationError as error:
        problems += error.problems
    whole = not problems and registry.loaded().issuperset(settings.workers_module)
    return _checked_router(LoadedWorkers(settings, _declarations(), from_modules=True, whole=whole), problems)


def checked_router(settings: CoreSettings) -> Router:
    """Return the router, checked against every registered worker.

    Raises:
        ConfigurationError: with every invalid rule and every worker that contradicts the configuration.
    """
    return _checked_router(LoadedWorkers(settings, _declarations(), from_modules=False, whole=False), [])


def _declarations() -> list[Declaration]:
    return [worker.declaration() for worker in registry.workers()]


def _checked_router(workers: LoadedWorkers, problems: list[ConfigurationProblem]) -> Router:
    settings = workers.settings
    try:
        router = open_router(settings)
    except ConfigurationError as error:
        problems += error.problems
        router = Router(
            (),
            settings.shards,
            settings.feature_categories,
            folder=settings.config_label,
            retired=settings.retired_workers,
            has_fleet_limits=settings.roles.meta is not None,
        )
    for declaration in workers.declarations:
        problems += router.validate(declaration)
    for feature in all_features():
        if feature.problems is not None:
            problems += feature.problems.load()(workers)
    if problems:
        raise ConfigurationError(problems)
    return router
