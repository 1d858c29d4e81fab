"""Check routing rules for legal mistakes, as rules that no worker reaches. Pure: from rules, workers and queues to findings."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from framework.command_line import command, worker_command
from framework.declare.declaration import Declaration
from framework.route.query import Term, WorkerAttributes, WorkerQuery
from framework.route.router import CompiledRule, Router
from framework.text import did_you_mean, join_names

RuleFindingKind: TypeAlias = Literal["unreachable", "unknown-name", "unused", "unserved", "split", "override"]

INFORMATION = frozenset({"override"})
"""Kinds that are information and no errors."""

_FREE_ATTRIBUTES = ("worker_name", "name", "tags", "queue_namespace", "feature_category")
"""Attributes with values chosen by the application, so that a rule may name a value that no worker has."""


class RuleFinding(NamedTuple):
    """Hold one finding: its kind, its place (file and key, or a class), and a message with the remedy."""

    kind: RuleFindingKind
    place: str
    message: str

    @property
    def is_error(self) -> bool:
        """Return whether the finding must be corrected."""
        return self.kind not in INFORMATION

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.kind}]"


class RuleChecks:
    """Check the rules of ``router`` against all ``declarations``; ``served`` are the queue names in config/queues.yml."""

    def __init__(self, router: Router, declarations: Sequence[Declaration], served: Collection[str]) -> None:
        self._router = router
        self._compiled_rules: Sequence[CompiledRule] = router.compiled_rules
        self._attributes: dict[str, WorkerAttributes] = {
            one.wire_name: router.worker_attributes(one) for one in declarations
        }
        self._declarations = {one.wire_name: one for one in declarations}
        self._deciding_rule = {name: self._first_match(facts) for name, facts in self._attributes.items()}
        self._known_values = {
            attribute: {value for facts in self._attributes.values() for value in facts[attribute]}
            for attribute in _FREE_ATTRIBUTES
        }
        self._served = served

    def findings(self, namespace_weights: Collection[str] = ()) -> list[RuleFinding]:
        """Return all findings: rules in order, then the setting, then queues and workers by name."""
        found = [finding for index in range(len(self._compiled_rules)) for finding in self._check_rule(index)]
        found += self._unknown_namespaces(namespace_weights)
        found += self._unserved()
        found += (one for declaration in self._declarations.values() for one in self._overrides(declaration))
        return found

    def _check_rule(self, index: int) -> Iterator[RuleFinding]:
        yield from self._unknown_names(index)
        blocked = self._unreachable(index)
        if blocked is not None:
            yield blocked
        else:
            yield from self._unused(index)

    def _unreachable(self, index: int) -> RuleFinding | None:
        query = self._compiled_rules[index].query
        above = [line.query for line in self._compiled_rules[:index]]
        if reachable(query, above, self._router.vocabularies):
            return None
        needed = shadowing_rules(query, above, self._router.vocabularies)
        if not needed:
            message = f"no worker can match {query}, which contradicts itself: correct it, or delete the rule"
        else:
            others = " and ".join(map(self._describe_rule, needed))
            verb = "takes" if len(needed) == 1 else "together take"
            message = (
                f"can never decide, as {others} {verb} every worker that {query} could match: move it up, or delete it"
            )
        return RuleFinding("unreachable", self._place(index), message)

    def _unknown_names(self, index: int) -> Iterator[RuleFinding]:
        terms = (term for terms in self._compiled_rules[index].query.alternatives for term in terms)
        asked = dict.fromkeys((term.attribute, value) for term in terms for value in term.values)
        for attribute, value in asked:
            known = self._known_values.get(attribute)
            if known is not None and value not in known:
                hint = self._former_name_hint(attribute, value) or did_you_mean(value, sorted(known))
                message = f"no worker has {attribute} {value}{hint}: correct it, or take it out of the rule"
                yield RuleFinding("unknown-name", self._place(index), message)

    def _former_name_hint(self, attribute: str, value: str) -> str:
        holder = next((name for name, one in self._declarations.items() if value in one.aliases), None)
        return f" (a former name of {holder})" if attribute == "worker_name" and holder is not None else ""

    def _unused(self, index: int) -> Iterator[RuleFinding]:
        query = self._compiled_rules[index].query
        if not query.alternatives:
            # A last rule for all workers is meant for future classes.
            return
        matching = [name for name, facts in self._attributes.items() if query.matches(facts)]
        if not matching:
            message = f"no worker matches {query}: correct it, or delete the rule"
            yield RuleFinding("unused", self._place(index), message)
            return
        taken: dict[str, str] = {}
        for name in matching:
            decides = self._deciding_rule[name]
            own = self._declarations[name].queue is not None and self._declarations[name].shard is not None
            if decides == index and not own:
                return
            taken[name] = "queue and shard of its own" if decides == index else f"routing_rules[{decides}]"
        whose = join_names((f"{name} by {taker}" for name, taker in taken.items()), max_names=5)
        message = f"every worker that it matches gets its queue elsewhere: {whose}. Move the rule up, or delete it"
        yield RuleFinding("unused", self._place(index), message)

    def _unknown_namespaces(self, namespaces: Collection[str]) -> Iterator[RuleFinding]:
        known = self._known_values["queue_namespace"]
        for name in namespaces:
            if name not in known:
                hint = did_you_mean(name, sorted(known))
                message = f"no worker has the queue_namespace {name}{hint}: correct it, or delete the entry"
                yield RuleFinding(
                    "unknown-name", f"{self._router.folder}/application.yml: namespace_weights.{name}", message
                )

    def _unserved(self) -> Iterator[RuleFinding]:
        users: dict[tuple[str, str], list[str]] = {}
        for name, declaration in self._declarations.items():
            for place, queue in self._queues_of(declaration):
                if not serves(self._served, queue):
                    users.setdefault((place, queue), []).append(name)
        for (place, queue), names in sorted(users.items()):
            message = (
                f"no line of {self._router.folder}/queues.yml serves the queue {queue}, to which jobs of "
                f"{join_names(names, max_names=5)} go: "
                f"run {command('generate-queues')}, or name a queue that is served"
            )
            yield RuleFinding("unserved", place, message)

    def _queues_of(self, declaration: Declaration) -> Iterator[tuple[str, str]]:
        """Yield each queue of a worker's jobs with the file and key, or attribute, that names it."""
        index = self._deciding_rule[declaration.wire_name]
        if declaration.queue is not None:
            place = f"{declaration.qualified_name}: queue"
        else:
            place = self._place(index) if index is not None else f"{declaration.qualified_name}: its generated name"
        yield place, self._router.route(declaration).queue
        if declaration.retry_queue is not None:
            yield f"{declaration.qualified_name}: retry_queue", declaration.retry_queue
        yield from ((f"{declaration.qualified_name}: set(queue=...)", queue) for queue in declaration.chosen_queues)

    def _overrides(self, declaration: Declaration) -> Iterator[RuleFinding]:
        index = self._deciding_rule[declaration.wire_name]
        if index is None:
            return
        rule = self._compiled_rules[index].rule
        offered = {"queue": rule.queue or declaration.generated_queue, "shard": rule.shard or "main"}
        for attribute, value in offered.items():
            own = getattr(declaration, attribute)
            if own is not None and own != value:
                message = f"{own!r} overrides {value!r} of {self._describe_rule(index)}"
                yield RuleFinding("override", f"{declaration.qualified_name}: {attribute}", message)

    def _first_match(self, attributes: WorkerAttributes) -> int | None:
        return next((index for index, line in enumerate(self._compiled_rules) if line.query.matches(attributes)), None)

    def _place(self, index: int) -> str:
        return f"{self._router.source}: routing_rules[{index}]"

    def _describe_rule(self, index: int) -> str:
        return f"routing_rules[{index}] ({self._compiled_rules[index].query})"


def serves(names: Collection[str], queue: str) -> bool:
    """Return whether ``names`` contain the queue or one of its namespaces."""
    parts = queue.split(":")
    return any(":".join(parts[:count]) in names for count in range(1, len(parts) + 1))


def unserved_queues(
    shard: str, served: Collection[str], waiting: Mapping[str, int], routed: Mapping[str, Sequence[str]]
) -> Iterator[RuleFinding]:
    """Yield the queues of a shard that no running process serves: with waiting jobs, or with workers ``routed`` to them."""
    for queue in sorted({*waiting, *routed} - set(served)):
        jobs = f"waiting jobs: {waiting.get(queue, 0):,}"
        users = f", to which jobs of {join_names(routed[queue], max_names=5)} go" if queue in routed else ""
        remedy = f"start one with `{worker_command('--shard', shard, '-q', queue)}`"
        message = f"no running process serves the queue {queue}{users} ({jobs}): {remedy}"
        yield RuleFinding("unserved", f"shard {shard}", message)


MAX_STEPS = 10_000
"""The most choices tried for one rule. Real rules need dozens; a rule that needs more counts as reachable."""

_MULTI_VALUED = "tags"
"""The attribute with any number of values per worker. The others have one value, or none."""

_Constraints: TypeAlias = Mapping[str, "_Constraint"]


class _Constraint(NamedTuple):
    """Hold the possible values of one attribute: none of ``forbidden``, and one of each set in ``required``."""

    forbidden: frozenset[str] = frozenset[str]()
    required: tuple[frozenset[str], ...] = ()

    def is_satisfiable(self, attribute: str) -> bool:
        """Return whether a value, or a set of tags, meets the constraint."""
        if attribute == _MULTI_VALUED:
            return all(names - self.forbidden for names in self.required)
        return not self.required or bool(self.required[0].intersection(*self.required[1:]) - self.forbidden)


# An exact search over possible attribute values. A worker reaches a rule if all terms of one of its alternatives hold, and in every
# alternative of every rule above one term fails. Open terms leave a set of values per attribute, so the search only chooses, for each
# alternative above, the term that fails. Attributes are assumed independent, also ``name``, ``worker_name`` and ``queue_namespace``:
# values that no real worker has are a finding of another kind.
def reachable(
    rule: WorkerQuery, above: Sequence[WorkerQuery], vocabularies: Mapping[str, Collection[str]], steps: int = MAX_STEPS
) -> bool:
    """Return whether some worker matches ``rule`` and none of the rules ``above``; ``vocabularies`` has the closed attributes."""
    if any(not query.alternatives for query in above):
        return False
    # Short alternatives first: those with one term leave no choice, and their constraints decide others.
    to_fail = sorted((terms for query in above for terms in query.alternatives), key=len)
    empty: dict[str, _Constraint] = {
        name: _Constraint(required=(frozenset(names),)) for name, names in vocabularies.items()
    }
    waiting: list[tuple[_Constraints, int]] = []
    for terms in rule.alternatives or ((),):
        state = _where_all_hold(empty, terms)
        if state is not None:
            waiting.append((state, 0))
    while waiting:
        state, index = waiting.pop()
        steps -= 1
        if index == len(to_fail) or steps < 0:
            return True
        waiting += [(after, index + 1) for after in _where_one_fails(state, to_fail[index])]
    return False


def shadowing_rules(
    rule: WorkerQuery, above: Sequence[WorkerQuery], vocabularies: Mapping[str, Collection[str]]
) -> list[int]:
    """Return a minimal set of rules above that together make a rule unreachable; empty if the rule contradicts itself."""
    needed = list(range(len(above)))
    for index in reversed(range(len(above))):
        others = [one for one in needed if one != index]
        if not reachable(rule, [above[one] for one in others], vocabularies):
            needed = others
    return needed


def _where_one_fails(state: _Constraints, terms: Sequence[Term]) -> list[_Constraints]:
    """Return the states in which some term fails: ``state`` itself if all cannot hold, else one state per failing term."""
    if _where_all_hold(state, terms) is None:
        return [state]
    left = (_constrained(state, term, holds=False) for term in terms)
    return [after for after in left if after is not None]


def _where_all_hold(state: _Constraints, terms: Sequence[Term]) -> _Constraints | None:
    for term in terms:
        after = _constrained(state, term, holds=True)
        if after is None:
            return None
        state = after
    return state


def _constrained(state: _Constraints, term: Term, *, holds: bool) -> _Constraints | None:
    """Return the state in which the term holds, or fails; ``None`` if that is impossible."""
    before = state.get(term.attribute, _Constraint())
    names = frozenset(term.values)
    if term.negated is holds:
        after = before._replace(forbidden=before.forbidden | names)
    else:
        after = before._replace(required=(*before.required, names))
    return {**state, term.attribute: after} if after.is_satisfiable(term.attribute) else None
