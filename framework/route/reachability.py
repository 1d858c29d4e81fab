"""Can any worker reach a rule? An exact search over what the attributes of a worker may be.

A worker reaches a rule when one alternative of it holds in all its terms, and every alternative of every rule above fails
in one. What a term leaves open is a set of values per attribute, so the search only has to choose, for each alternative
above, the term that fails. Attributes are taken to be free of each other, also ``name``, ``worker_name`` and
``queue_namespace``: what an application's real workers leave unused is a finding of another kind.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from framework.route.query import Term, WorkerQuery

MAX_STEPS = 10_000
"""Choices that are tried for one rule. Real rules take dozens; one that takes more counts as reachable."""

_MULTI_VALUED = "tags"
"""The attribute that may have many values at once, or none; of the others a worker has one, or (some) none."""

_Constraints: TypeAlias = Mapping[str, "_Constraint"]


class _Constraint(NamedTuple):
    """What one attribute may still be: none of ``forbidden``, and of each set in ``wanted`` some value."""

    forbidden: frozenset[str] = frozenset[str]()
    required: tuple[frozenset[str], ...] = ()

    def is_satisfiable(self, attribute: str) -> bool:
        """There is such a value, or such a set of tags."""
        if attribute == _MULTI_VALUED:
            return all(names - self.forbidden for names in self.required)
        return not self.required or bool(self.required[0].intersection(*self.required[1:]) - self.forbidden)


def reachable(
    rule: WorkerQuery, above: Sequence[WorkerQuery], vocabularies: Mapping[str, Collection[str]], steps: int = MAX_STEPS
) -> bool:
    """Some worker could match ``rule`` and none of those ``above``; ``vocabularies`` has the attributes that are closed."""
    if any(not query.alternatives for query in above):
        return False
    # Short ones first: those of one term leave no choice, and what they forbid settles others.
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
    """For an unreachable rule: which of those above it together leave nothing to it, and none of them is needless.

    None at all: the rule contradicts itself.
    """
    needed = list(range(len(above)))
    for index in reversed(range(len(above))):
        others = [one for one in needed if one != index]
        if not reachable(rule, [above[one] for one in others], vocabularies):
            needed = others
    return needed


def _where_one_fails(state: _Constraints, terms: Sequence[Term]) -> list[_Constraints]:
    """What is left of ``state`` where not all terms hold: itself when they cannot, else one state per term that fails."""
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
    """What is left when the term holds, or fails; None when nothing is."""
    before = state.get(term.attribute, _Constraint())
    names = frozenset(term.values)
    if term.negated is holds:
        after = before._replace(forbidden=before.forbidden | names)
    else:
        after = before._replace(required=(*before.required, names))
    return {**state, term.attribute: after} if after.is_satisfiable(term.attribute) else None
