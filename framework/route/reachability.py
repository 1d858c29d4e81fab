"""Decide whether any worker can reach a rule, by an exact search over possible attribute values.

A worker reaches a rule if all terms of one of its alternatives hold, and in every alternative of every rule above one term
fails. Open terms leave a set of values per attribute, so the search only chooses, for each alternative above, the term that
fails. Attributes are assumed independent, also ``name``, ``worker_name`` and ``queue_namespace``: values that no real
worker has are a finding of another kind.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from framework.route.query import Term, WorkerQuery

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
