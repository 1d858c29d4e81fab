"""Parse GitLab's worker matching query: ``urgency=high&resource_boundary!=cpu|tags=special``.

``&`` binds tighter than ``|``.

    query := "*" | or        or := and ("|" and)*        and := term ("&" term)*
    term := attribute ("=" | "!=") value ("," value)*

An attribute is a set of values: ``=`` holds if the set contains one of the given values, ``!=`` if it contains none.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias, get_args

from framework.declare.declaration import NOT_OWNED
from framework.errors import QueryError
from framework.text import Sentence, did_you_mean, join_names
from framework.typeguards import is_list, short_repr
from framework.types import ResourceBoundary, Urgency

WorkerAttributes: TypeAlias = Mapping[str, frozenset[str]]
"""The values of each attribute of a worker; the empty set for an attribute that is not set."""

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
_CLOSED_VOCABULARIES: Mapping[str, tuple[str, ...]] = {
    "urgency": get_args(Urgency),
    "resource_boundary": get_args(ResourceBoundary),
    "has_external_dependencies": ("true", "false"),
}
_BEFORE, _AFTER = 60, 40
"""The characters of a query that a message shows before the wrong character, and from it on."""

_WORD = re.compile(r"\w+", re.ASCII)
_VALUE = re.compile(r"[\w:]+", re.ASCII)
_SEPARATOR = re.compile(r"[&|]")
_MAX_FAULTS = 20


class QueryFault(NamedTuple):
    """Hold one error in a query: its character (from 0) and the reason."""

    position: int
    reason: str


def _messages(query: str, faults: Sequence[QueryFault]) -> list[str]:
    """Return each fault as a message with a caret under its character; of more than ``_MAX_FAULTS`` the first ones."""
    shown = [_with_caret(query, fault) for fault in faults[:_MAX_FAULTS]]
    more = len(faults) - len(shown)
    return [*shown, Sentence("and {more} more in the same query", more=more)] if more else shown


def _with_caret(query: str, fault: QueryFault) -> str:
    start = max(0, fault.position - _BEFORE)
    before, after = "..." if start else "", "..." if len(query) > fault.position + _AFTER else ""
    # A character outside of ASCII may be wider or narrower than one column and would move the caret; the reason names it.
    shown = query[start : fault.position + _AFTER]
    plain = "".join(one if one.isascii() and one.isprintable() else "?" for one in shown)
    caret = " " * (len(before) + fault.position - start)
    return Sentence(
        "{reason}\n      {query}\n      {caret}^ character {position}",
        reason=fault.reason,
        query=f"{before}{plain}{after}",
        caret=caret,
        position=fault.position + 1,
    )


@dataclass(frozen=True, slots=True)
class Term:
    """Compare one attribute with values."""

    attribute: str
    negated: bool
    values: tuple[str, ...]

    def matches(self, attributes: WorkerAttributes) -> bool:
        """Return whether the worker has one of the values, or (negated) none."""
        return attributes[self.attribute].isdisjoint(self.values) is self.negated

    def __str__(self) -> str:
        return f"{self.attribute}{'!=' if self.negated else '='}{','.join(self.values)}"


@dataclass(frozen=True, slots=True)
class WorkerQuery:
    """Hold a parsed query: alternatives of terms that must all hold. No alternatives means ``*``, which matches every worker."""

    alternatives: tuple[tuple[Term, ...], ...]

    def matches(self, attributes: WorkerAttributes) -> bool:
        """Return whether all terms of one alternative hold."""
        if not self.alternatives:
            return True
        return any(all(term.matches(attributes) for term in terms) for terms in self.alternatives)

    def __str__(self) -> str:
        return "|".join("&".join(map(str, terms)) for terms in self.alternatives) or "*"


def parse(text: str, categories: Collection[str] = ()) -> WorkerQuery:
    """Return the query of a text. If ``categories`` are given, any other feature_category is an error.

    Raises:
        QueryError: lists every fault (stray text, a missing part, an unknown attribute or value) with its character.
    """
    parser = _Parser(text, closed_vocabularies(categories))
    query = parser.query()
    if parser.faults:
        faults = sorted(parser.faults.values())
        raise QueryError(text, faults, _messages(text, faults))
    return query


def closed_vocabularies(categories: Collection[str]) -> dict[str, Collection[str]]:
    """Return the attributes with a fixed set of values; feature_category is one if there are ``categories``."""
    return (
        {**_CLOSED_VOCABULARIES, "feature_category": (*categories, NOT_OWNED)}
        if categories
        else dict(_CLOSED_VOCABULARIES)
    )


def worker_attributes(entry: Mapping[str, Any]) -> WorkerAttributes:
    """Return the attributes of an entry of all_queues.yml, or of a loaded class (``catalog.queue_facts``)."""
    return {attribute: _value_set(entry.get(attribute)) for attribute in ATTRIBUTES}


def _value_set(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset()
    if isinstance(value, bool):
        return frozenset({"true" if value else "false"})
    if is_list(value):
        return frozenset(str(member) for member in value)
    return frozenset({str(value)})


def _unknown(what: str, value: str, hint: str, known: str) -> str:
    return Sentence(
        "unknown {what} {value}{hint}; allowed: {known}", what=what, value=short_repr(value), hint=hint, known=known
    )


class _BrokenTerm(Exception):
    """Signal text that is not a term: the parser continues after the next ``&`` or ``|``."""


class _Parser:
    """Parse the whole text despite errors, and record each fault once, keyed by its kind."""

    def __init__(self, text: str, closed: Mapping[str, Collection[str]]) -> None:
        self.text = text
        self.position = 0
        self.closed = closed
        self.faults: dict[object, QueryFault] = {}

    def query(self) -> WorkerQuery:
        if self.text.strip() == "*":
            self.skip_spaces()
            self.position += 1
            self.skip_spaces()
            return WorkerQuery(())
        return WorkerQuery(self.alternatives())

    def alternatives(self) -> tuple[tuple[Term, ...], ...]:
        found = [self.conjunction()]
        while self.accept("|"):
            found.append(self.conjunction())
        return tuple(found)

    def conjunction(self) -> tuple[Term, ...]:
        terms = [self.term()]
        while self.accept("&"):
            terms.append(self.term())
        return tuple(terms)

    def term(self) -> Term:
        try:
            return self.complete_term()
        except _BrokenTerm:
            behind = _SEPARATOR.search(self.text, self.position)
            self.position = behind.start() if behind else len(self.text)
            return Term("", negated=False, values=())

    def complete_term(self) -> Term:
        start, attribute = self.expect(
            _WORD, Sentence("an attribute is missing here, one of {names}", names=", ".join(ATTRIBUTES))
        )
        if attribute not in ATTRIBUTES:
            hint = did_you_mean(attribute, ATTRIBUTES)
            self.record_fault(start, _unknown("attribute", attribute, hint, ", ".join(ATTRIBUTES)))
        negated = self.accept("!=")
        if not negated and not self.accept("="):
            self.fail_term(Sentence("'=' or '!=' is missing after {attribute}", attribute=attribute))
        values = [self.value(attribute)]
        while self.accept(","):
            values.append(self.value(attribute))
        if self.position < len(self.text) and self.text[self.position] not in "&|":
            self.fail_term(
                Sentence(
                    "{character!r} is not allowed here; expected ',', '&', '|' or the end",
                    character=self.text[self.position],
                )
            )
        return Term(attribute, negated, tuple(values))

    def value(self, attribute: str) -> str:
        start, value = self.expect(_VALUE, Sentence("a value of {attribute} is missing here", attribute=attribute))
        known = self.closed.get(attribute)
        if known is not None and value not in known:
            hint = did_you_mean(value, known)
            self.record_fault(start, _unknown(attribute, value, hint, join_names(known)))
        return value

    def expect(self, pattern: re.Pattern[str], missing: str) -> tuple[int, str]:
        self.skip_spaces()
        match = pattern.match(self.text, self.position)
        if match is None:
            self.fail_term(missing)
        self.position = match.end()
        following = self.text[self.position : self.position + 1]
        if not following.isascii() and not following.isspace():
            self.fail_term(missing)
        return match.start(), match[0]

    def accept(self, token: str) -> bool:
        self.skip_spaces()
        if not self.text.startswith(token, self.position):
            return False
        self.position += len(token)
        return True

    def skip_spaces(self) -> None:
        """Skip spaces as if they were not there. The first space of a query is recorded as a fault."""
        start = self.position
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1
        if start == self.position:
            return
        code = "" if self.text[start] == " " else f" (U+{ord(self.text[start]):04X})"
        reason = Sentence("a query has no spaces{code}", code=code)
        if start == 0:
            reason = Sentence("a query has no spaces: remove the one before it{code}", code=code)
        elif self.position == len(self.text):
            reason = Sentence("a query has no spaces: remove the one at its end{code}", code=code)
        self.faults.setdefault("space", QueryFault(start, reason))

    def record_fault(self, position: int, reason: str) -> None:
        self.faults[position] = QueryFault(position, reason)

    def fail_term(self, reason: str) -> NoReturn:
        character = self.text[self.position : self.position + 1]
        if character and character in "()":
            reason = Sentence("a query has no parentheses; '&' binds tighter than '|'")
        elif not character.isascii():
            name = unicodedata.name(character, "a character without a name")
            reason = Sentence(
                "{character!r} (U+{code} {name}) is not allowed here: queries are written in ASCII",
                character=character,
                code=f"{ord(character):04X}",
                name=name,
            )
        self.record_fault(self.position, reason)
        raise _BrokenTerm
