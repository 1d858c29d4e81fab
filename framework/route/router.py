"""Routing rules: the first that matches a worker says its queue and shard (GitLab's routing rules)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from framework.declare import queue_facts
from framework.declare.declaration import NOT_OWNED, Declaration
from framework.declare.request import Route
from framework.errors import ArgumentsError, ConfigurationError, ConfigurationProblem, QueryError
from framework.messages import did_you_mean, join_names
from framework.route.query import Term, WorkerAttributes, WorkerQuery, closed_vocabularies, parse, worker_attributes
from framework.settings.model import RoutingRule
from framework.typeguards import short_repr
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT

MAIN = "main"
"""The shard of every job that nothing sends elsewhere."""


class CompiledRule(NamedTuple):
    """One rule and its query, read."""

    rule: RoutingRule
    query: WorkerQuery


class RuleMatch(NamedTuple):
    """What one rule says about a worker, for ``application-worker route``."""

    rule: RoutingRule
    matches: bool
    decides: bool
    reason: str


class Router:
    """Answers where a worker's jobs go. Made once; answers are kept per wire name.

    ``source`` is where the rules stand, for messages. Without ``categories`` every feature category is allowed. ``retired`` are
    the names whose jobs are dropped: no class that lives may have one.

    Raises ConfigurationError listing every rule that is wrong, with a caret under the character: there is no running on
    without rules, as jobs would wait on queues nobody reads.
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
    ) -> None:
        self._shards = frozenset(shards) | {MAIN}
        self.source = source
        self.folder = folder
        self._retired = frozenset(retired)
        self.categories = sorted(categories)
        self.vocabularies = closed_vocabularies(self.categories)
        self._routes: dict[str, tuple[Declaration, Route]] = {}
        self.compiled_rules: list[CompiledRule] = []
        problems: list[ConfigurationProblem] = []
        for index, rule in enumerate(rules):
            problems += self._compile_rule(ConfigurationProblem(source, f"routing_rules[{index}]", ""), rule)
        if problems:
            raise ConfigurationError(problems)

    def route(self, declaration: Declaration) -> Route:
        """Queue, shard and deciding rule of a worker; its own ``queue`` and ``shard`` stand over what the rule says.

        Worked out once per class. Raises ConfigurationError when the worker contradicts the configuration (``refusals``).
        """
        known = self._routes.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if known is None or known[0] is not declaration:
            known = self._routes[declaration.wire_name] = (declaration, self._compute_route(declaration))
        return known[1]

    def route_of(self, entry: Mapping[str, Any]) -> Route:
        """As ``route``, for a worker of whom no more is known than its entry of all_queues.yml, which is not checked."""
        facts = worker_attributes(entry)
        rule = next((line.rule for line in self.compiled_rules if line.query.matches(facts)), None)
        queue = entry.get("queue") or (rule.queue if rule else None) or entry["name"]
        shard = entry.get("shard") or (rule.shard if rule else None) or MAIN
        return Route(queue, shard, rule.query if rule else None)

    def queues_of(self, declaration: Declaration) -> list[str]:
        """Every queue its jobs may wait in: where it is routed, the generated one (no rule yet, or no longer), its retries',
        and those of its aliases: a renamed class has jobs in the queue of its former name.
        """
        queues = [self.route(declaration).queue, declaration.generated_queue, declaration.retry_queue]
        for alias in declaration.aliases:
            queues += self.queues_of_alias(declaration, alias)
        return list(dict.fromkeys(queue for queue in queues if queue is not None))

    def queues_of_alias(self, declaration: Declaration, alias: str) -> list[str]:
        """The queues in which jobs may wait that were pushed when the class was called ``alias``."""
        return [self.route_of_alias(declaration, alias).queue, declaration.with_wire_name(alias).generated_queue]

    def route_of_alias(self, declaration: Declaration, alias: str) -> Route:
        """Where jobs go that are pushed by a release in which the class was called ``alias``."""
        return self._compute_route(declaration.with_wire_name(alias))

    def validate(self, declaration: Declaration) -> list[ConfigurationProblem]:
        """What the worker says that the configuration does not know, a feature category or a shard, and names that are retired."""
        problems: list[ConfigurationProblem] = []
        category, shard = declaration.feature_category, declaration.shard
        if self.categories and category not in (*self.categories, NOT_OWNED):
            hint = did_you_mean(category, (*self.categories, NOT_OWNED))
            allowed = f"{NOT_OWNED}, {join_names(self.categories)}"
            message = f"{category!r} is not in {self.folder}/feature_categories.yml{hint}; allowed: {allowed}"
            problems.append(ConfigurationProblem(declaration.qualified_name, "feature_category", message))
        if shard is not None and shard not in self._shards:
            problems.append(
                ConfigurationProblem(declaration.qualified_name, "shard", self.unknown_shard_message(shard))
            )
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
        """Where one push goes: the ``queue`` and ``shard`` of ``set`` stand over what rules and class say.

        Raises ArgumentsError when ``set`` names a shard that does not exist, otherwise as ``route``.
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
        return Route(options.get("queue", route.queue), shard, route.rule)

    def has_shard(self, shard: object) -> bool:
        """Whether a shard of this name exists."""
        return isinstance(shard, str) and shard in self._shards

    def worker_attributes(self, declaration: Declaration) -> WorkerAttributes:
        """What rules can see of a worker."""
        return worker_attributes(queue_facts.queue_facts(declaration, {}))  # no rule can ask for a weight

    def explain(self, declaration: Declaration) -> list[RuleMatch]:
        """What each rule says about a worker, in order; the first that matches decides."""
        facts = self.worker_attributes(declaration)
        verdicts: list[RuleMatch] = []
        decided = False
        for line in self.compiled_rules:
            matches = line.query.matches(facts)
            reason = _reason(line.query, facts)
            verdicts.append(RuleMatch(line.rule, matches, matches and not decided, reason))
            decided = decided or matches
        return verdicts

    def _compute_route(self, declaration: Declaration) -> Route:
        problems = self.validate(declaration)
        if problems:
            raise ConfigurationError(problems)
        return self.route_of(queue_facts.queue_facts(declaration, {}))

    def _compile_rule(self, place: ConfigurationProblem, rule: RoutingRule) -> Iterator[ConfigurationProblem]:
        """The rule is among the lines, or what is wrong with it is told, each with the file and key of ``place``."""
        try:
            self.compiled_rules.append(CompiledRule(rule, parse(rule.query, self.categories)))
        except QueryError as error:
            for message in error.messages:
                yield place._replace(message=message)
        if rule.queue and QUEUE_NAME.fullmatch(rule.queue) is None:
            yield place._replace(message=f"queue {short_repr(rule.queue)} is not allowed: {QUEUE_NAME_FORMAT}")
        if rule.shard and rule.shard not in self._shards:
            yield place._replace(message=self.unknown_shard_message(rule.shard))

    def unknown_shard_message(self, shard: object) -> str:
        """What to say of a shard that does not exist."""
        known = sorted(self._shards)
        return f"unknown shard {short_repr(shard)}{did_you_mean(shard, known)}; {self.folder}/redis.yml has: {join_names(known)}"


def _reason(query: WorkerQuery, attributes: WorkerAttributes) -> str:
    """Why a query matches or not: the first alternative that holds, else the first term that fails in each."""
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
