"""Convert an annotation to the JSON Schema of the values that its strict adapter takes, for the manifest of a release.

``declare.annotations`` limits the annotations. Two keywords are stricter than in JSON Schema, as in the adapter: ``integer``
takes no 1.0, and members of ``enum`` compare types too. A further keyword, ``x-validators``, names the application's own
validators, which this module cannot compare.
"""

import inspect
import json
import types
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import annotated_types as rules
from pydantic import JsonValue, Strict, StringConstraints
from pydantic.fields import FieldInfo
from typing_extensions import ReadOnly, TypeAliasType, is_typeddict

JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
JsonSchema = dict[str, Any]
"""A JSON Schema from this module. The empty one takes every JSON value."""

OWN_VALIDATORS = "x-validators"

_PLAIN: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    None: "null",
    types.NoneType: "null",
}
_ANYTHING: tuple[Any, ...] = (Any, object, JsonValue)
_LISTS: tuple[Any, ...] = (list, Sequence, MutableSequence)
_OBJECTS: tuple[Any, ...] = (dict, Mapping, MutableMapping)
_OPTIONAL: tuple[Any, ...] = (NotRequired, Required, ReadOnly)
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_LENGTHS = {
    "string": {"min_length": "minLength", "max_length": "maxLength"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}


def schema_of(annotation: Any) -> JsonSchema:
    """Return the schema of an annotation; ``$defs`` hold recursive types."""
    reader = _AnnotationReader()
    shape = reader.read(annotation)
    return {**shape, "$defs": reader.definitions} if reader.definitions else shape


class _AnnotationReader:
    """Reads one annotation. A recursive named type becomes a definition."""

    def __init__(self) -> None:
        self.definitions: dict[str, JsonSchema] = {}
        self._open: dict[int, str] = {}
        self._referred: set[str] = set()

    def read(self, annotation: Any) -> JsonSchema:
        if any(annotation is one for one in _ANYTHING):
            return {}
        if annotation is None or (isinstance(annotation, type) and annotation in _PLAIN):
            return {"type": _PLAIN[annotation]}
        if isinstance(annotation, NewType):
            return self.read(annotation.__supertype__)
        if isinstance(annotation, TypeAliasType):
            return self._named(annotation, annotation.__name__, lambda: self.read(annotation.__value__))
        if is_typeddict(annotation):
            return self._named(annotation, annotation.__name__, lambda: self._typed_dict(annotation))
        return self._composed(annotation, get_origin(annotation) or annotation, get_args(annotation))

    def _composed(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> JsonSchema:
        if origin is Annotated:
            return _add_metadata(self.read(arguments[0]), arguments[1:])
        if origin in _OPTIONAL:
            return self.read(arguments[0])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in _LISTS:
            items = self.read(arguments[0]) if arguments else {}
            return {"type": "array", "items": items} if items else {"type": "array"}
        if origin in _OBJECTS:
            return self._object(*(arguments or (str, Any)))
        if origin in (Union, types.UnionType):
            return _union([self.read(one) for one in arguments])
        return _opaque_schema(annotation)

    def _named(self, annotation: Any, name: str, read: Callable[[], JsonSchema]) -> JsonSchema:
        known = self._open.get(id(annotation))
        if known is not None:
            self._referred.add(known)
            return {"$ref": f"#/$defs/{known}"}
        # A second type of the same name in one annotation gets another name.
        while name in self._open.values() or name in self.definitions:
            name += "_"
        self._open[id(annotation)] = name
        shape = read()
        del self._open[id(annotation)]
        if name not in self._referred:
            return shape
        self.definitions[name] = shape
        return {"$ref": f"#/$defs/{name}"}

    def _typed_dict(self, annotation: Any) -> JsonSchema:
        fields = get_type_hints(annotation, include_extras=True)
        shape: JsonSchema = {
            "type": "object",
            "properties": {name: self.read(fields[name]) for name in fields},
            "required": sorted(annotation.__required_keys__),
        }
        configured = dict(getattr(annotation, "__pydantic_config__", {}))
        if configured.pop("extra", None) == "forbid":
            shape["additionalProperties"] = False
        return _add_own_validator(shape, f"{annotation.__name__}.__pydantic_config__") if configured else shape

    def _object(self, key: Any, member: Any) -> JsonSchema:
        keys, members = self.read(key), self.read(member)
        if "enum" in keys:
            words = {str(word): members for word in keys["enum"]}
            return {"type": "object", "properties": words, "required": [], "additionalProperties": False}
        shape: JsonSchema = {"type": "object", "additionalProperties": members or True}
        return {**shape, "propertyNames": keys} if keys not in ({}, {"type": "string"}) else shape


def _union(shapes: list[JsonSchema]) -> JsonSchema:
    if {} in shapes:
        return {}
    flat = [inner for shape in shapes for inner in (shape["anyOf"] if set(shape) == {"anyOf"} else [shape])]
    return {"anyOf": flat}


def _add_metadata(shape: JsonSchema, metadata: Sequence[Any]) -> JsonSchema:
    for rule in _flatten_metadata(metadata):
        words = _keywords_of(shape, rule)
        if words is None:
            shape = _add_own_validator(shape, _stable_name(rule))
        elif any(word in shape for word in words):
            shape = _add_own_validator(shape, f"{_stable_name(rule)} twice")
        else:
            shape = {**shape, **words}
    return shape


def _flatten_metadata(metadata: Sequence[Any]) -> list[Any]:
    """Return single rules: pydantic's Field and annotated_types' groups hold several, a documentation text holds none."""
    found: list[Any] = []
    for rule in metadata:
        if isinstance(rule, FieldInfo):
            found += _flatten_metadata(rule.metadata)
        elif isinstance(rule, StringConstraints | rules.GroupedMetadata):
            found += _flatten_metadata(list(rule))
        elif not isinstance(rule, str | rules.DocInfo):
            found.append(rule)
    return found


def _keywords_of(shape: JsonSchema, rule: Any) -> JsonSchema | None:
    """Return the rule as keywords of ``shape``, which may be empty; None if no keyword expresses it."""
    if isinstance(rule, Strict):
        return {} if rule.strict else None
    facts = {name: value for name, value in getattr(rule, "__dict__", {}).items() if value is not None}
    if isinstance(rule, rules.BaseMetadata):
        facts = {name: getattr(rule, name) for name in getattr(rule, "__slots__", ()) or facts}
    kind = shape.get("type")
    table = _BOUNDS if kind in ("integer", "number") else dict(_LENGTHS.get(str(kind), {}))
    if kind == "string":
        table = {**table, "pattern": "pattern"}
    if (
        not facts
        or not facts.keys() <= table.keys()
        or not all(type(one) in (int, float, str) for one in facts.values())
    ):
        return None
    return {table[name]: value for name, value in facts.items()}


def _add_own_validator(shape: JsonSchema, name: str) -> JsonSchema:
    return {**shape, OWN_VALIDATORS: [*shape.get(OWN_VALIDATORS, []), name]}


def _stable_name(rule: Any) -> str:
    """Return a name that is equal in every process: no repr, which may contain an address."""
    function: Any = getattr(rule, "func", None)
    kind = type(rule).__name__
    return f"{kind}({function.__module__}.{function.__qualname__})" if inspect.isroutine(function) else kind


def _opaque_schema(annotation: Any) -> JsonSchema:
    """Return the schema of an unknown type, which is comparable only with itself."""
    name = annotation.__forward_arg__ if isinstance(annotation, ForwardRef) else str(annotation)
    return {OWN_VALIDATORS: [name]}


def schema_text(shape: JsonSchema) -> str:
    """Return the schema in the form of an annotation, for messages, without constraints."""
    if OWN_VALIDATORS in shape and "type" not in shape:
        return " ".join(shape[OWN_VALIDATORS])
    if "$ref" in shape:
        return str(shape["$ref"]).rpartition("/")[2]
    if "anyOf" in shape:
        return " | ".join(map(schema_text, shape["anyOf"]))
    if "enum" in shape:
        return f"Literal[{', '.join(map(repr, shape['enum']))}]"
    kind = shape.get("type")
    if kind == "array":
        return f"list[{schema_text(shape['items'])}]" if "items" in shape else "list"
    if kind == "object":
        return _object_text(shape)
    return next((str(getattr(one, "__name__", None)) for one, word in _PLAIN.items() if word == kind), "Any")


def annotation_text(shape: JsonSchema) -> str:
    """Return a Python annotation that takes at least the values of the schema, of builtins, ``Any`` and ``Literal`` only.

    It does not name a named type, which may no longer exist.
    """
    if "anyOf" in shape:
        parts = list(dict.fromkeys(map(annotation_text, shape["anyOf"])))
        return "Any" if "Any" in parts else " | ".join(parts)
    if "enum" in shape:
        return schema_text(shape)
    kind = shape.get("type")
    if kind == "array":
        return f"list[{annotation_text(shape['items'])}]" if "items" in shape else "list"
    if kind == "object":
        members: Any = shape.get("additionalProperties", True) if "properties" not in shape else True
        return f"dict[str, {'Any' if isinstance(members, bool) else annotation_text(members)}]"
    return schema_text({"type": kind}) if kind is not None else "Any"


def _object_text(shape: JsonSchema) -> str:
    if "properties" not in shape:
        members = shape["additionalProperties"]
        return f"dict[str, {'Any' if members is True else schema_text(members)}]"
    fields = (
        f"{name}{'' if name in shape['required'] else '?'}: {schema_text(one)}"
        for name, one in shape["properties"].items()
    )
    return f"{{{', '.join(fields)}}}"


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


# A positive answer is reliable: tests compare such answers with the adapters. A negative answer may be wrong (a union of objects
# split among several members), so an error only adds a finding. Two assumptions about jobs in flight: callers put no unknown keys
# into a TypedDict, which type checkers refuse; and a whole number where a float is taken is below 1.8e308.
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
