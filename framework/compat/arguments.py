"""Does a method take every list of arguments that another took? What travels is a list of positions."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from framework.compat.accepts import takes_all
from framework.compat.manifest import Parameter, Parameters
from framework.compat.shape import notation, shown

Fault: TypeAlias = Literal[
    "added-without-default", "default-dropped", "removed", "reordered", "type-narrowed", "type-changed"
]


class Misfit(NamedTuple):
    """One reason for which some lists that fitted the old method do not fit the new one, or mean something else there."""

    fault: Fault
    parameter: str
    text: str


def misfits(old: Parameters, new: Parameters) -> list[Misfit]:
    """Every such reason; none means that each list which fits ``old`` fits ``new``, every name at its place."""
    places, others = _positions(old), _positions(new)
    found = [*_required(places, others), *_surplus(old, new)]
    moved = _moved(places, others)
    if moved:
        before, after = (", ".join(one.name for one in side) for side in (places, others))
        text = f"({before}) is ({after}) now, and positions travel, not names: {' and '.join(moved)} would get another's value"
        return [*found, Misfit("reordered", moved[0], text)]
    return [*found, *_types(old, new)]


def harmless(old: Parameters, new: Parameters) -> Iterator[str]:
    """What changed of parameters that fit: names, defaults, wider types."""
    for before, after in zip(_positions(old), _positions(new), strict=False):
        if before.name != after.name:
            yield f"{before.name} is called {after.name} (only positions travel; should it mean something else, raise version)"
        if (
            before.optional
            and after.optional
            and (before.default, type(before.default)) != (after.default, type(after.default))
        ):
            yield f"jobs without {after.name} mean {after.default!r} now, not {before.default!r}"
        if not before.optional and after.optional:
            yield f"{after.name} has a default"
        if not takes_all(before.shape, after.shape):
            yield f"{after.name} takes {shown(after.shape)}, not only {shown(before.shape)}"
    for after in _positions(new)[len(_positions(old)) :]:
        yield f"{after.name} is new"


def declared(method: str, parameters: Parameters) -> str:
    """Return the line that declares a method of these parameters: Python as it stands, whatever they are.

    Each name comes once, and the rest last. Behind the first default every parameter has one, and a default fits its annotation.
    """
    words = {"self": "self"}
    optional = False
    for one in _positions(parameters):
        optional = optional or one.optional
        annotation = notation(one.shape)
        if optional and one.default is None and not takes_all(one.shape, {"type": "null"}):
            annotation += " | None"
        words.setdefault(one.name, f"{one.name}: {annotation}{f' = {one.default!r}' if optional else ''}")
    rest = _rest(parameters)
    if rest is not None:
        words.setdefault(rest.name, f"*{rest.name}: {notation(rest.shape)}")
    return f"def {method}({', '.join(words.values())}) -> None: ..."


def _required(old: Sequence[Parameter], new: Sequence[Parameter]) -> Iterator[Misfit]:
    for index, one in enumerate(new):
        if one.optional:
            continue
        if index >= len(old):
            yield Misfit("added-without-default", one.name, f"{one.name} is new and has no default")
        elif old[index].optional:
            yield Misfit("default-dropped", one.name, f"{one.name} has no default any more")


def _surplus(old: Parameters, new: Parameters) -> Iterator[Misfit]:
    places, others = _positions(old), _positions(new)
    if _rest(new) is not None:
        return
    gone = len(places) - len(others)
    if gone > 0:
        kept = {one.name for one in others}
        last = [one.name for one in places[-gone:]]
        # Where the last ones moved up, others went.
        moved = not kept.isdisjoint(last)
        for name in [one.name for one in places if one.name not in kept][:gone] if moved else last:
            yield Misfit("removed", name, f"{name} is no parameter any more")
    rest = _rest(old)
    if rest is not None:
        yield Misfit("removed", rest.name, f"*{rest.name} is no parameter any more")


def _moved(old: Sequence[Parameter], new: Sequence[Parameter]) -> list[str]:
    after = {one.name: index for index, one in enumerate(new)}
    return [one.name for index, one in enumerate(old) if after.get(one.name, index) != index]


def _types(old: Parameters, new: Parameters) -> Iterator[Misfit]:
    places, others = _positions(old), _positions(new)
    length = len(places) if _rest(old) is None else max(len(places), len(others)) + 1
    for index in range(length):
        before = places[index] if index < len(places) else _rest(old)
        after = others[index] if index < len(others) else _rest(new)
        if before is None or after is None or takes_all(after.shape, before.shape):
            continue
        fault: Fault = "type-narrowed" if takes_all(before.shape, after.shape) else "type-changed"
        yield Misfit(fault, after.name, f"{after.name} takes {shown(after.shape)}, and jobs hold {shown(before.shape)}")


def _positions(parameters: Parameters) -> list[Parameter]:
    return [one for one in parameters if not one.rest]


def _rest(parameters: Parameters) -> Parameter | None:
    return next((one for one in parameters if one.rest), None)
