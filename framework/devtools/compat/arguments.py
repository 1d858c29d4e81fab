"""Check whether a method accepts every argument list that another accepted. Jobs carry positions, not names."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from framework.devtools.compat.json_schema import annotation_text, schema_text
from framework.devtools.compat.manifest import Parameter, Parameters
from framework.devtools.compat.schema_subset import is_superset

IncompatibilityCode: TypeAlias = Literal[
    "added-without-default", "default-dropped", "removed", "reordered", "type-narrowed", "type-changed"
]


class Incompatibility(NamedTuple):
    """One reason why some argument lists of the old method do not fit the new one, or change their meaning."""

    code: IncompatibilityCode
    parameter: str
    text: str


def find_incompatibilities(old: Parameters, new: Parameters) -> list[Incompatibility]:
    """Return every such reason. Without one, each list that fits ``old`` fits ``new``, with every name at its place."""
    places, others = _positions(old), _positions(new)
    found = [*_new_requirements(places, others), *_removed_parameters(old, new)]
    moved = _moved_parameters(places, others)
    if moved:
        before, after = (", ".join(one.name for one in side) for side in (places, others))
        text = f"({before}) is ({after}) now, and jobs carry positions, not names: {' and '.join(moved)} would get another's value"
        return [*found, Incompatibility("reordered", moved[0], text)]
    return [*found, *_type_changes(old, new)]


def safe_changes(old: Parameters, new: Parameters) -> Iterator[str]:
    """Yield the changes of parameters that fit: names, defaults, wider types."""
    for before, after in zip(_positions(old), _positions(new), strict=False):
        if before.name != after.name:
            yield f"{before.name} is called {after.name} (jobs carry positions only; if its meaning changed, raise version)"
        if (
            before.optional
            and after.optional
            and (before.default, type(before.default)) != (after.default, type(after.default))
        ):
            yield f"jobs without {after.name} mean {after.default!r} now, not {before.default!r}"
        if not before.optional and after.optional:
            yield f"{after.name} has a default"
        if not is_superset(before.json_schema, after.json_schema):
            yield f"{after.name} takes {schema_text(after.json_schema)}, not only {schema_text(before.json_schema)}"
    for after in _positions(new)[len(_positions(old)) :]:
        yield f"{after.name} is new"


def declaration_line(method: str, parameters: Parameters) -> str:
    """Return the line that declares a method of these parameters, always valid Python.

    Each name comes once, and the rest last. After the first default every parameter has one, and a default fits its annotation.
    """
    words = {"self": "self"}
    optional = False
    for one in _positions(parameters):
        optional = optional or one.optional
        annotation = annotation_text(one.json_schema)
        if optional and one.default is None and not is_superset(one.json_schema, {"type": "null"}):
            annotation += " | None"
        words.setdefault(one.name, f"{one.name}: {annotation}{f' = {one.default!r}' if optional else ''}")
    rest = _rest(parameters)
    if rest is not None:
        words.setdefault(rest.name, f"*{rest.name}: {annotation_text(rest.json_schema)}")
    return f"def {method}({', '.join(words.values())}) -> None: ..."


def _new_requirements(old: Sequence[Parameter], new: Sequence[Parameter]) -> Iterator[Incompatibility]:
    for index, one in enumerate(new):
        if one.optional:
            continue
        if index >= len(old):
            yield Incompatibility("added-without-default", one.name, f"{one.name} is new and has no default")
        elif old[index].optional:
            yield Incompatibility("default-dropped", one.name, f"{one.name} no longer has a default")


def _removed_parameters(old: Parameters, new: Parameters) -> Iterator[Incompatibility]:
    places, others = _positions(old), _positions(new)
    if _rest(new) is not None:
        return
    gone = len(places) - len(others)
    if gone > 0:
        kept = {one.name for one in others}
        last = [one.name for one in places[-gone:]]
        # If the last parameters moved up, earlier ones were removed.
        moved = not kept.isdisjoint(last)
        for name in [one.name for one in places if one.name not in kept][:gone] if moved else last:
            yield Incompatibility("removed", name, f"{name} is no longer a parameter")
    rest = _rest(old)
    if rest is not None:
        yield Incompatibility("removed", rest.name, f"*{rest.name} is no longer a parameter")


def _moved_parameters(old: Sequence[Parameter], new: Sequence[Parameter]) -> list[str]:
    after = {one.name: index for index, one in enumerate(new)}
    return [one.name for index, one in enumerate(old) if after.get(one.name, index) != index]


def _type_changes(old: Parameters, new: Parameters) -> Iterator[Incompatibility]:
    places, others = _positions(old), _positions(new)
    length = len(places) if _rest(old) is None else max(len(places), len(others)) + 1
    for index in range(length):
        before = places[index] if index < len(places) else _rest(old)
        after = others[index] if index < len(others) else _rest(new)
        if before is None or after is None or is_superset(after.json_schema, before.json_schema):
            continue
        fault: IncompatibilityCode = (
            "type-narrowed" if is_superset(before.json_schema, after.json_schema) else "type-changed"
        )
        yield Incompatibility(
            fault,
            after.name,
            f"{after.name} takes {schema_text(after.json_schema)}, and jobs hold {schema_text(before.json_schema)}",
        )


def _positions(parameters: Parameters) -> list[Parameter]:
    return [one for one in parameters if not one.rest]


def _rest(parameters: Parameters) -> Parameter | None:
    return next((one for one in parameters if one.rest), None)
