"""Check whether one parameter accepts every value of another, by their schemas (``compat.json_schema``), without values.

A positive answer is reliable: tests compare such answers with the adapters. A negative answer may be wrong (a union of objects
split among several members), so an error only adds a finding. Two assumptions about jobs in flight: callers put no unknown keys
into a TypedDict, which type checkers refuse; and a whole number where a float is taken is below 1.8e308.
"""

import json
from collections.abc import Mapping
from typing import Any

from framework.devtools.compat.json_schema import OWN_VALIDATORS, JsonSchema

_ANY_VALUE: JsonSchema = {
    "anyOf": [
        *({"type": kind} for kind in ("null", "boolean", "number", "string", "array")),
        {"type": "object", "additionalProperties": True},
    ]
}
_NON_CONSTRAINTS = {"$defs"}
"""Keywords that are no constraint."""
_MINIMUM_KEYWORDS = ("minLength", "minItems", "minProperties")
_MAXIMUM_KEYWORDS = ("maxLength", "maxItems", "maxProperties")
_NUMBER_BOUNDS = ((("minimum", "exclusiveMinimum"), 1), (("maximum", "exclusiveMaximum"), -1))
_KINDS: Mapping[type[Any], tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    str: ("string",),
    type(None): ("null",),
}


def is_superset(new: JsonSchema, old: JsonSchema) -> bool:
    """Return whether every value that fits ``old`` fits ``new``."""
    return _SupersetCheck(new.get("$defs", {}), old.get("$defs", {})).covers(new, old)


class _SupersetCheck:
    """Compare two schemas with their own definitions. A recursive type is assumed to hold until a part contradicts it."""

    def __init__(self, new: Mapping[str, JsonSchema], old: Mapping[str, JsonSchema]) -> None:
        self._new = new
        self._old = old
        self._assumed: set[tuple[str, str]] = set()

    def covers(self, new: JsonSchema, old: JsonSchema) -> bool:
        """Return whether ``new`` takes every value of ``old``."""
        if "$ref" in new or "$ref" in old:
            return self._covers_named(new, old)
        if not _constraints_of(new) or self._same(new, old):
            return True
        if OWN_VALIDATORS in new:
            return False
        if OWN_VALIDATORS in old:
            return any(self.covers(one, old) for one in new.get("anyOf", ()))
        if not _constraints_of(old):
            return self.covers(new, _ANY_VALUE)
        return self._covers_one_of(new, old)

    def _same(self, new: JsonSchema, old: JsonSchema) -> bool:
        return _canonical_json(new) == _canonical_json(old) and _canonical_json(self._new) == _canonical_json(self._old)

    def _covers_named(self, new: JsonSchema, old: JsonSchema) -> bool:
        pair = (repr(new), repr(old))
        if pair in self._assumed:
            return True
        before = set(self._assumed)
        self._assumed.add(pair)
        holds = self.covers(_resolve_ref(new, self._new), _resolve_ref(old, self._old))
        # Results that depend on a refuted assumption are refuted too.
        if not holds:
            self._assumed = before
        return holds

    def _covers_one_of(self, new: JsonSchema, old: JsonSchema) -> bool:
        if "anyOf" in old:
            return all(self.covers(new, one) for one in old["anyOf"])
        if "enum" in old:
            return all(self._covers_value(new, word) for word in old["enum"])
        if "anyOf" in new:
            return any(self.covers(one, old) for one in new["anyOf"]) or self._splits(new, old)
        if "enum" in new:
            return self._splits(new, old)
        return self._covers_kind(new, old)

    def _splits(self, new: JsonSchema, old: JsonSchema) -> bool:
        """Return whether the members of a union take True and False separately."""
        return old == {"type": "boolean"} and all(self._covers_value(new, word) for word in (True, False))

    def _covers_value(self, new: JsonSchema, value: Any) -> bool:
        new = _resolve_ref(new, self._new)
        if OWN_VALIDATORS in new:
            return False
        if "anyOf" in new:
            return any(self._covers_value(one, value) for one in new["anyOf"])
        if "enum" in new:
            return any(type(value) is type(one) and value == one for one in new["enum"])
        if not _constraints_of(new):
            return True
        kinds = _KINDS[type(value)]
        exact: JsonSchema = {"type": kinds[0]}
        if type(value) is int:
            exact |= {"minimum": value, "maximum": value}
        if type(value) is str:
            exact |= {"minLength": len(value), "maxLength": len(value)}
        return new.get("type") in kinds and self._covers_kind(new, exact)

    def _covers_kind(self, new: JsonSchema, old: JsonSchema) -> bool:
        kinds = (new.get("type"), old.get("type"))
        if kinds[0] is None or (kinds[0] != kinds[1] and kinds != ("number", "integer")):
            return False
        if not _covers_bounds(new, old):
            return False
        if kinds[0] == "array":
            return old.get("maxItems") == 0 or self.covers(new.get("items", {}), old.get("items", {}))
        return kinds[0] != "object" or self._covers_object(new, old)

    def _covers_object(self, new: JsonSchema, old: JsonSchema) -> bool:
        if not set(new.get("required", ())) <= set(old.get("required", ())):
            return False
        fields, known = new.get("properties", {}), old.get("properties", {})
        # A TypedDict (without additionalProperties) has only its own keys in flight; a dict has any.
        others = old.get("additionalProperties", False)
        if others is not False:
            unknown: JsonSchema = {} if others is True else others
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

    def _covers_other(self, new: JsonSchema, member: JsonSchema) -> bool:
        others = new.get("additionalProperties", True)
        return others is True or (others is not False and self.covers(others, member))

    def _covers_keys(self, new: JsonSchema, old: JsonSchema) -> bool:
        return "propertyNames" not in new or self.covers(
            new["propertyNames"], old.get("propertyNames", {"type": "string"})
        )

    def _covers_key(self, new: JsonSchema, name: str) -> bool:
        return "propertyNames" not in new or self._covers_value(new["propertyNames"], name)


def _covers_bounds(new: JsonSchema, old: JsonSchema) -> bool:
    """Return whether the constraints of ``old`` imply each constraint of ``new`` on size and form."""
    for word in (*_MINIMUM_KEYWORDS, *_MAXIMUM_KEYWORDS):
        given = old.get(word, 0 if word in _MINIMUM_KEYWORDS else None)
        if word in new and (given is None or (given < new[word] if word in _MINIMUM_KEYWORDS else given > new[word])):
            return False
    for word in ("multipleOf", "pattern"):
        if word in new and new[word] != old.get(word):
            return False
    return all(
        any(held >= limit for held in _limits(old, words, sign))
        for words, sign in _NUMBER_BOUNDS
        for limit in _limits(new, words, sign)
    )


def _limits(shape: JsonSchema, words: tuple[str, str], sign: int) -> list[tuple[Any, bool]]:
    """Return the bounds of one side. The larger pair is narrower: also an exclusive bound is larger than an inclusive one."""
    return [
        (shape[word] * sign, excluded) for word, excluded in zip(words, (False, True), strict=True) if word in shape
    ]


def _constraints_of(shape: JsonSchema) -> JsonSchema:
    return {word: value for word, value in shape.items() if word not in _NON_CONSTRAINTS}


def _resolve_ref(shape: JsonSchema, definitions: Mapping[str, JsonSchema]) -> JsonSchema:
    while "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        shape = definitions.get(name, {OWN_VALIDATORS: [name]})
    return shape


def _canonical_json(shape: Mapping[str, Any]) -> str:
    return json.dumps({word: value for word, value in shape.items() if word not in _NON_CONSTRAINTS}, sort_keys=True)
