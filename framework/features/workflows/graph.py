"""Draw a workflow: a box for each step, below the step that it follows. Rows and boxes that are alike are folded into one.

A workflow of a thousand steps is a line of a thousand boxes. The picture shows where it stands; the table beside it has each step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from framework.features.workflows.workflow import StepState, StepStatus

WIDTH, HEIGHT = 208, 44
"""Of a box, in pixels."""
_ACROSS, _DOWN = WIDTH + 24, HEIGHT + 28
_TURN = 10
"""A line to another column turns so far below its box."""

MOST_ACROSS = 5
"""The boxes of a row; the last one stands for all further steps."""
_ALIKE = 4
"""So many rows that are alike become one."""
_MOST_ROWS = 150
"""The rows that are drawn. Further ones are in the table."""
_MOST_LETTERS = 26

_WORST: tuple[StepState, ...] = ("failed", "running", "starting", "cancelled", "waiting", "skipped", "succeeded")
"""The state of a box for many steps is the first of these that one of them has."""


@dataclass(slots=True)
class _Box:
    column: int
    steps: list[StepStatus] = field(default_factory=list[StepStatus])

    @property
    def state(self) -> StepState:
        # A word in Redis that is no state counts as waiting.
        states = {one.state for one in self.steps}
        found: StepState | None = next((state for state in _WORST if state in states), None)
        return found or "waiting"


def draw_steps(steps: Sequence[StepStatus]) -> dict[str, Any]:
    """Return the boxes with their places, and the lines between them."""
    rows = [_folded_across(row) for row in _folded_down(list(_rows(steps)))][:_MOST_ROWS]
    places: dict[str, tuple[int, int]] = {}
    boxes: list[dict[str, Any]] = []
    for level, row in enumerate(rows):
        for box in row:
            place = box.column * _ACROSS + 1, level * _DOWN + 1
            places.update((one.name, place) for one in box.steps)
            boxes.append({"x": place[0], "y": place[1], **_box_facts(box)})
    columns = 1 + max((box.column for row in rows for box in row), default=0)
    return {
        "width": columns * _ACROSS - (_ACROSS - WIDTH) + 2,
        "height": max(0, len(rows) * _DOWN - (_DOWN - HEIGHT)) + 2,
        "boxes": boxes,
        "lines": list(_lines(steps, places)),
    }


def depths(steps: Sequence[StepStatus]) -> Mapping[str, int]:
    """Return the level of each step. A definition that was changed in Redis may name steps that are not there."""
    found: dict[str, int] = {}
    for step in steps:
        found[step.name] = found.get(step.after, -1) + 1
    # The branch of all failures stands behind every step of the main line.
    last = max(found.values(), default=0)
    shift = {step.name for step in steps if step.on == "failure" and not step.after}
    for step in steps:
        if step.after in shift:
            shift.add(step.name)
    return {name: level + last + 1 if name in shift else level for name, level in found.items()}


def done_jobs(step: StepStatus) -> int:
    """Return how many jobs of a step have succeeded. A step that is not written yet has no pending jobs."""
    is_written = step.state not in ("waiting", "skipped") and (step.state != "starting" or step.pending > 0)
    return max(0, (step.jobs or 0) - step.pending) if is_written else 0


def _rows(steps: Sequence[StepStatus]) -> Iterator[list[_Box]]:
    """Yield the levels: a step stands below the one that it follows, and a branch of failures beside it."""
    levels: dict[int, list[StepStatus]] = {}
    for step, level in zip(steps, depths(steps).values(), strict=True):
        levels.setdefault(level, []).append(step)
    columns: dict[str, int] = {}
    for level in sorted(levels):
        taken: set[int] = set()
        for step in sorted(levels[level], key=lambda one: one.on == "failure"):
            wanted = columns.get(step.after, 0) + (step.on == "failure")
            while wanted in taken:
                wanted += 1
            columns[step.name] = wanted
            taken.add(wanted)
        yield [_Box(columns[one.name], [one]) for one in sorted(levels[level], key=lambda one: columns[one.name])]


def _folded_down(rows: Sequence[list[_Box]]) -> list[list[_Box]]:
    """Join rows whose boxes have the same columns and states, where many of them follow each other."""
    found: list[list[_Box]] = []
    at = 0
    while at < len(rows):
        end = at + 1
        while end < len(rows) and _outline(rows[end]) == _outline(rows[at]):
            end += 1
        run = rows[at:end]
        if len(run) <= _ALIKE:
            found += run
        else:
            inner = run[1:-1]
            joined = [_Box(box.column, [row[place].steps[0] for row in inner]) for place, box in enumerate(run[0])]
            found += [run[0], joined, run[-1]]
        at = end
    return found


def _outline(row: Sequence[_Box]) -> list[tuple[int, StepState]]:
    return [(box.column, box.state) for box in row]


def _folded_across(row: list[_Box]) -> list[_Box]:
    """Keep the first boxes of a wide row, and join the others."""
    if len(row) <= MOST_ACROSS and all(box.column < 2 * MOST_ACROSS for box in row):
        return row
    kept, rest = row[: MOST_ACROSS - 1], row[MOST_ACROSS - 1 :]
    shown = [_Box(place, box.steps) for place, box in enumerate(kept)]
    return [*shown, _Box(len(shown), [one for box in rest for one in box.steps])] if rest else shown


def _box_facts(box: _Box) -> dict[str, Any]:
    first, *others = box.steps
    name = first.name if len(first.name) <= _MOST_LETTERS else f"{first.name[: _MOST_LETTERS - 1]}…"
    return {
        "steps": len(box.steps),
        "first": first.name,
        "last": others[-1].name if others else first.name,
        "name": name,
        "state": box.state,
        "on": first.on,
        "after": first.after,
        "bid": first.bid if not others and first.started_at is not None and first.state != "succeeded" else "",
        "jobs": None if any(one.jobs is None for one in box.steps) else sum(one.jobs or 0 for one in box.steps),
        "done": sum(map(done_jobs, box.steps)),
        "dead": sum(one.dead for one in box.steps),
    }


def _lines(steps: Sequence[StepStatus], places: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    seen: set[tuple[tuple[int, int], tuple[int, int]]] = set()
    for step in steps:
        above, below = places.get(step.after), places.get(step.name)
        if above is None or below is None or above[1] >= below[1] or (above, below) in seen:
            continue
        seen.add((above, below))
        x, y, to_x, to_y = above[0] + WIDTH // 2, above[1] + HEIGHT, below[0] + WIDTH // 2, below[1]
        path = f"M{x} {y}V{to_y}" if x == to_x else f"M{x} {y}V{y + _TURN}H{to_x}V{to_y}"
        yield {"path": path, "is_failure": step.on == "failure"}
