"""Routing rules: the first that matches a worker says its queue and shard (GitLab's routing rules)."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from framework.declare import catalog, values
from framework.declare.declaration import Declaration
from framework.declare.request import Route
from framework.errors import ConfigurationError, Problem
from framework.route.query import Facts, Query, QueryError, Term, facts_of, parse
from framework.settings.model import RoutingRule
from framework.settings.suggest import did_you_mean

MAIN = "main"
"""The shard of every job that nothing sends elsewhere."""

_RULES_FILE = "config/routing.yml"


class _Line(NamedTuple):
    rule: RoutingRule
    query: Query


class Verdict(NamedTuple):
    """What one rule says about a worker, for ``scripts/route``."""

    rule: RoutingRule
    matches: bool
    decides: bool
    reason: str


class Router:
    """Answers where a worker's jobs go. Made once; answers are kept per wire name.

    Raises ConfigurationError listing every rule that is wrong, with a caret under the character: there is no running on
    without rules, as jobs would wait on queues nobody reads.
    """

    def __init__(self, rules: Sequence[RoutingRule], shards: Collection[str], categories: Collection[str] = ()) -> None:
        self._shards = frozenset(shards) | {MAIN}
        self._routes: dict[str, tuple[Declaration, Route]] = {}
        self._lines: list[_Line] = []
        problems: list[Problem] = []
        for index, rule in enumerate(rules):
            self._read(f"routing_rules[{index}]", rule, categories, problems)
        if problems:
            raise ConfigurationError(problems)

    def route(self, declaration: Declaration) -> Route:
        """Queue, shard and deciding rule of a worker; its own ``queue`` and ``shard`` stand over what the rule says.

        Raises ConfigurationError when the worker names a shard that does not exist.
        """
        known = self._routes.get(declaration.wire_name)
        # A reloaded class has a new declaration under its old name.
        if known is None or known[0] is not declaration:
            known = self._routes[declaration.wire_name] = (declaration, self._decide(declaration))
        return known[1]

    def explain(self, declaration: Declaration) -> list[Verdict]:
        """What each rule says about a worker, in order; the first that matches decides."""
        facts = facts_of(catalog.entry(declaration))
        verdicts: list[Verdict] = []
        decided = False
        for line in self._lines:
            matches = line.query.matches(facts)
            reason = _reason(line.query, facts)
            verdicts.append(Verdict(line.rule, matches, matches and not decided, reason))
            decided = decided or matches
        return verdicts

    def _decide(self, declaration: Declaration) -> Route:
        facts = facts_of(catalog.entry(declaration))
        rule = next((line.rule for line in self._lines if line.query.matches(facts)), None)
        queue = declaration.queue or (rule.queue if rule else None) or declaration.generated_queue
        shard = declaration.shard or (rule.shard if rule else None) or MAIN
        if shard not in self._shards:
            raise ConfigurationError([Problem(declaration.place, "shard", self._unknown(shard))])
        return Route(queue, shard, rule.query if rule else None)

    def _read(self, key: str, rule: RoutingRule, categories: Collection[str], problems: list[Problem]) -> None:
        try:
            self._lines.append(_Line(rule, parse(rule.query, categories)))
        except QueryError as error:
            problems.append(Problem(_RULES_FILE, key, str(error)))
        if rule.queue and values.QUEUE_NAME.fullmatch(rule.queue) is None:
            allowed = "a queue name is made of letters, digits and _ . : -"
            problems.append(Problem(_RULES_FILE, key, f"queue {rule.queue!r} is not allowed: {allowed}"))
        if rule.shard and rule.shard not in self._shards:
            problems.append(Problem(_RULES_FILE, key, self._unknown(rule.shard)))

    def _unknown(self, shard: str) -> str:
        known = sorted(self._shards)
        return f"unknown shard {shard!r}{did_you_mean(shard, known)}; config/redis.yml has: {', '.join(known)}"


def _reason(query: Query, facts: Facts) -> str:
    """Why a query matches or not: the first alternative that holds, else the first term that fails in each."""
    if not query.alternatives:
        return "matches every worker"
    failures: list[str] = []
    for terms in query.alternatives:
        failed = next((term for term in terms if not term.matches(facts)), None)
        if failed is None:
            return " and ".join(f"{term.attribute} is {_show(facts, term)}" for term in terms)
        failures.append(f"not {failed}: {failed.attribute} is {_show(facts, failed)}")
    return "; ".join(failures)


def _show(facts: Facts, term: Term) -> str:
    return ",".join(sorted(facts[term.attribute])) or "not set"
