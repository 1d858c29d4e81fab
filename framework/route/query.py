"""GitLab's worker matching query: ``urgency=high&resource_boundary!=cpu|tags=special``. ``&`` binds tighter than ``|``.

    query := "*" | or        or := and ("|" and)*        and := term ("&" term)*
    term := attribute ("=" | "!=") value ("," value)*

An attribute is a set of values: ``=`` holds when one of the given values is in it, ``!=`` when none is.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from framework.declare.declaration import NOT_OWNED
from framework.errors import FrameworkError
from framework.settings.shapes import is_list, short_repr
from framework.settings.suggest import did_you_mean, listed
from framework.types import ResourceBoundary, Urgency

Facts: TypeAlias = Mapping[str, frozenset[str]]
"""What is known about a worker: each attribute's values, the empty set for one that is not set."""

ATTRIBUTES = (
    "worker_name",
    "name",
    "feature_category",
    "has_external_dependencies",
    "urgency",
    "resource_boundary",
    "tags",
    "queue_namespace",
)
_CLOSED: Mapping[str, tuple[str, ...]] = {
    "urgency": get_args(Urgency),
    "resource_boundary": get_args(ResourceBoundary),
    "has_external_dependencies": ("true", "false"),
}
_BEFORE, _AFTER = 60, 40
"""Characters of a query that are shown before the wrong one, and from there on."""

_WORD = re.compile(r"\w+", re.ASCII)
_VALUE = re.compile(r"[\w:]+", re.ASCII)


class QueryError(FrameworkError):
    """A query does not hold; the message shows it with a caret under the character at ``position``."""

    def __init__(self, query: str, position: int, reason: str) -> None:
        self.query = query
        self.position = position
        self.reason = reason
        start = max(0, position - _BEFORE)
        before, after = "..." if start else "", "..." if len(query) > position + _AFTER else ""
        # Anything but ASCII may be wider or narrower than one column and move the caret; the reason names the character.
        plain = "".join(one if one.isascii() and one.isprintable() else "?" for one in query[start : position + _AFTER])
        caret = " " * (len(before) + position - start)
        super().__init__(f"{reason}\n      {before}{plain}{after}\n      {caret}^ character {position + 1}")


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison."""

    attribute: str
    negated: bool
    values: tuple[str, ...]

    def matches(self, facts: Facts) -> bool:
        """The worker's values meet the given ones, or (negated) do not."""
        return facts[self.attribute].isdisjoint(self.values) is self.negated

    def __str__(self) -> str:
        return f"{self.attribute}{'!=' if self.negated else '='}{','.join(self.values)}"


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query: alternatives of terms that must all hold. No alternatives means ``*``, which matches everything."""

    alternatives: tuple[tuple[Term, ...], ...]

    def matches(self, facts: Facts) -> bool:
        """One alternative holds in all its terms."""
        if not self.alternatives:
            return True
        return any(all(term.matches(facts) for term in terms) for terms in self.alternatives)

    def __str__(self) -> str:
        return "|".join("&".join(map(str, terms)) for terms in self.alternatives) or "*"


def parse(text: str, categories: Collection[str] = ()) -> Query:
    """The query of a text; with ``categories`` known, a feature_category outside of them is refused.

    Raises QueryError pointing at the character: stray text, a missing part, an unknown attribute or value.
    """
    if text == "*":
        return Query(())
    parser = _Parser(text, closed_vocabularies(categories))
    return Query(parser.alternatives())


def closed_vocabularies(categories: Collection[str]) -> dict[str, Collection[str]]:
    """The attributes whose every value is known; feature_category is among them when there are ``categories``."""
    return {**_CLOSED, "feature_category": (*categories, NOT_OWNED)} if categories else dict(_CLOSED)


def facts_of(entry: Mapping[str, Any]) -> Facts:
    """The facts of one entry of all_queues.yml, or of a live worker's (``catalog.entry``): matching sees nothing else."""
    return {attribute: _value_set(entry.get(attribute)) for attribute in ATTRIBUTES}


def _value_set(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    if isinstance(value, bool):
        return frozenset({"true" if value else "false"})
    if is_list(value):
        return frozenset(str(member) for member in value)
    return frozenset({str(value)})


class _Parser:
    def __init__(self, text: str, closed: Mapping[str, Collection[str]]) -> None:
        self.text = text
        self.position = 0
        self.closed = closed

    def alternatives(self) -> tuple[tuple[Term, ...], ...]:
        found = [self.conjunction()]
        while self.take("|"):
            found.append(self.conjunction())
        if self.position < len(self.text):
            raise self.stray()
        return tuple(found)

    def conjunction(self) -> tuple[Term, ...]:
        terms = [self.term()]
        while self.take("&"):
            terms.append(self.term())
        return tuple(terms)

    def term(self) -> Term:
        start = self.position
        attribute = self.read(_WORD, f"an attribute is missing here, one of {', '.join(ATTRIBUTES)}")
        if attribute not in ATTRIBUTES:
            hint = did_you_mean(attribute, ATTRIBUTES)
            raise self.error(
                f"unknown attribute {short_repr(attribute)}{hint}; allowed: {', '.join(ATTRIBUTES)}", start
            )
        negated = self.take("!=")
        if not negated and not self.take("="):
            raise self.error(f"'=' or '!=' is missing after {attribute}")
        values = [self.value(attribute)]
        while self.take(","):
            values.append(self.value(attribute))
        return Term(attribute, negated, tuple(values))

    def value(self, attribute: str) -> str:
        start = self.position
        value = self.read(_VALUE, f"a value of {attribute} is missing here")
        known = self.closed.get(attribute)
        if known is not None and value not in known:
            hint = did_you_mean(value, known)
            raise self.error(f"unknown {attribute} {short_repr(value)}{hint}; allowed: {listed(known)}", start)
        return value

    def read(self, pattern: re.Pattern[str], missing: str) -> str:
        match = pattern.match(self.text, self.position)
        if match is None:
            raise self.error(missing)
        self.position = match.end()
        if not self.text[self.position : self.position + 1].isascii():
            raise self.error(missing)
        return match[0]

    def take(self, token: str) -> bool:
        if not self.text.startswith(token, self.position):
            return False
        self.position += len(token)
        return True

    def stray(self) -> QueryError:
        return self.error(f"{self.text[self.position]!r} cannot stand here; expected ',', '&', '|' or the end")

    def error(self, reason: str, position: int | None = None) -> QueryError:
        where = self.position if position is None else position
        character = self.text[where : where + 1]
        if character.isspace():
            reason = "a query has no spaces"
        elif character and character in "()":
            reason = "a query has no parentheses; '&' binds tighter than '|'"
        elif not character.isascii():
            name = unicodedata.name(character, "a character without a name")
            reason = f"{character!r} (U+{ord(character):04X} {name}) cannot stand here: queries are written in ASCII"
        return QueryError(self.text, where, reason)
