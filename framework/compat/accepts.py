"""Does one parameter take every value that another takes? Decided on their schemas (``compat.shape``), without values.

A yes is proven: tests/compat holds it against the adapters themselves. A no may be a yes that only values would show (a
union of objects split among several), so it never lets anything pass. Two things are assumed of what is in flight: callers
put no keys into a TypedDict that it does not have, which type checkers refuse; and a whole number where a float is taken is
below 1.8e308.
"""

import json
from collections.abc import Mapping
from typing import Any

from framework.compat.shape import OWN_RULES, Shape

_EVERYTHING: Shape = {
    "anyOf": [
        *({"type": kind} for kind in ("null", "boolean", "number", "string", "array")),
        {"type": "object", "additionalProperties": True},
    ]
}
_FACTS = {"$defs"}
"""Keywords that narrow nothing."""
_LEAST = ("minLength", "minItems", "minProperties")
_MOST = ("maxLength", "maxItems", "maxProperties")
_SIDES = ((("minimum", "exclusiveMinimum"), 1), (("maximum", "exclusiveMaximum"), -1))
_KINDS: Mapping[type[Any], tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    str: ("string",),
    type(None): ("null",),
}


def takes_all(new: Shape, old: Shape) -> bool:
    """Every value that fits ``old`` fits ``new``."""
    return _Comparison(new.get("$defs", {}), old.get("$defs", {})).covers(new, old)


class _Comparison:
    """``new`` and ``old`` by their own definitions. What refers to itself holds as long as nothing speaks against it."""

    def __init__(self, new: Mapping[str, Shape], old: Mapping[str, Shape]) -> None:
        self._new = new
        self._old = old
        self._assumed: set[tuple[str, str]] = set()

    def covers(self, new: Shape, old: Shape) -> bool:
        """Whether ``new`` takes every value of ``old``."""
        if "$ref" in new or "$ref" in old:
            return self._covers_named(new, old)
        if not _bare(new) or self._same(new, old):
            return True
        if OWN_RULES in new:
            return False
        if OWN_RULES in old:
            return any(self.covers(one, old) for one in new.get("anyOf", ()))
        if not _bare(old):
            return self.covers(new, _EVERYTHING)
        return self._covers_one_of(new, old)

    def _same(self, new: Shape, old: Shape) -> bool:
        return _text(new) == _text(old) and _text(self._new) == _text(self._old)

    def _covers_named(self, new: Shape, old: Shape) -> bool:
        pair = (repr(new), repr(old))
        if pair in self._assumed:
            return True
        before = set(self._assumed)
        self._assumed.add(pair)
        holds = self.covers(_resolved(new, self._new), _resolved(old, self._old))
        if not holds:  # nor does what was found to hold on this assumption
            self._assumed = before
        return holds

    def _covers_one_of(self, new: Shape, old: Shape) -> bool:
        if "anyOf" in old:
            return all(self.covers(new, one) for one in old["anyOf"])
        if "enum" in old:
            return all(self._covers_word(new, word) for word in old["enum"])
        if "anyOf" in new:
            return any(self.covers(one, old) for one in new["anyOf"]) or self._splits(new, old)
        if "enum" in new:
            return self._splits(new, old)
        return self._covers_kind(new, old)

    def _splits(self, new: Shape, old: Shape) -> bool:
        """A bool is one of two words, which different members of a union may take."""
        return old == {"type": "boolean"} and all(self._covers_word(new, word) for word in (True, False))

    def _covers_word(self, new: Shape, word: Any) -> bool:
        new = _resolved(new, self._new)
        if OWN_RULES in new:
            return False
        if "anyOf" in new:
            return any(self._covers_word(one, word) for one in new["anyOf"])
        if "enum" in new:
            return any(type(word) is type(one) and word == one for one in new["enum"])
        if not _bare(new):
            return True
        kinds = _KINDS[type(word)]
        exact: Shape = {"type": kinds[0]}
        if type(word) is int:
            exact |= {"minimum": word, "maximum": word}
        if type(word) is str:
            exact |= {"minLength": len(word), "maxLength": len(word)}
        return new.get("type") in kinds and self._covers_kind(new, exact)

    def _covers_kind(self, new: Shape, old: Shape) -> bool:
        kinds = (new.get("type"), old.get("type"))
        if kinds[0] is None or (kinds[0] != kinds[1] and kinds != ("number", "integer")):
            return False
        if not _covers_bounds(new, old):
            return False
        if kinds[0] == "array":
            return old.get("maxItems") == 0 or self.covers(new.get("items", {}), old.get("items", {}))
        return kinds[0] != "object" or self._covers_object(new, old)

    def _covers_object(self, new: Shape, old: Shape) -> bool:
        if not set(new.get("required", ())) <= set(old.get("required", ())):
            return False
        fields, known = new.get("properties", {}), old.get("properties", {})
        # Of a TypedDict (no word about other keys) only its own keys are in flight; a dict's may be any.
        others = old.get("additionalProperties", False)
        if others is not False:
            unknown: Shape = {} if others is True else others
            if not all(self.covers(one, unknown) for name, one in fields.items() if name not in known):
                return False
            if not self._covers_other(new, unknown) or not self._covers_keys(new, old):
                return False
        return all(
            self.covers(fields[name], one)
            if name in fields
            else self._covers_other(new, one) and self._covers_key(new, name)
            for name, one in known.items()
        )

    def _covers_other(self, new: Shape, member: Shape) -> bool:
        others = new.get("additionalProperties", True)
        return others is True or (others is not False and self.covers(others, member))

    def _covers_keys(self, new: Shape, old: Shape) -> bool:
        return "propertyNames" not in new or self.covers(
            new["propertyNames"], old.get("propertyNames", {"type": "string"})
        )

    def _covers_key(self, new: Shape, name: str) -> bool:
        return "propertyNames" not in new or self._covers_word(new["propertyNames"], name)


def _covers_bounds(new: Shape, old: Shape) -> bool:
    """Each rule of ``new`` about size and form follows from those of ``old``."""
    for word in (*_LEAST, *_MOST):
        given = old.get(word, 0 if word in _LEAST else None)
        if word in new and (given is None or (given < new[word] if word in _LEAST else given > new[word])):
            return False
    for word in ("multipleOf", "pattern"):
        if word in new and new[word] != old.get(word):
            return False
    return all(
        any(held >= limit for held in _limits(old, words, sign))
        for words, sign in _SIDES
        for limit in _limits(new, words, sign)
    )


def _limits(shape: Shape, words: tuple[str, str], sign: int) -> list[tuple[Any, bool]]:
    """The bounds of one side; the larger one is the narrower, also that which excludes its own number."""
    return [
        (shape[word] * sign, excluded) for word, excluded in zip(words, (False, True), strict=True) if word in shape
    ]


def _bare(shape: Shape) -> Shape:
    return {word: value for word, value in shape.items() if word not in _FACTS}


def _resolved(shape: Shape, definitions: Mapping[str, Shape]) -> Shape:
    while "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        shape = definitions.get(name, {OWN_RULES: [name]})
    return shape


def _text(shape: Mapping[str, Any]) -> str:
    return json.dumps({word: value for word, value in shape.items() if word not in _FACTS}, sort_keys=True)
