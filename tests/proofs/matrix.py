"""``scripts/prove matrix``: write the tables of the reliability page, each row with what no test shows, and why.
``--tests`` prints the tests of each row.

The rows are in ``matrix.yml``; the tests name their rows by ``@pytest.mark.proves("F7", "I1")``.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from demo.stop import StopSignal
from tests.proofs.proves_marks import Shown, UnreadableMarkError, names, shown_by

PAGE = Path("docs") / "internals" / "reliability.md"
_PART = re.compile(r"(?<=^<!-- matrix: )(?P<name>\w+)( -->\n).*?(?=^<!-- /matrix -->$)", re.MULTILINE | re.DOTALL)
_TEST_NAME = re.compile(r"\btest_\w+")
_WHOLE = ("faults", "invariants")
"""Tables with all of their rows; the others have those of which a part is left."""
_HEADS = {
    "faults": ("Fault", "Second runs, at most", "Until work continues, at most"),
    "requirements": ("Requirement",),
    "invariants": ("Invariant",),
    "mutants": ("Deliberate mistake",),
}


class Row(NamedTuple):
    """One promise: ``cells`` are the columns of its table, ``left`` is the part without a test (empty: none)."""

    name: str
    cells: tuple[str, ...]
    left: str
    tests: tuple[Shown, ...]

    @property
    def state(self) -> str:
        """Return whether tests show it: ``shown``, ``in part``, ``left``, or ``nowhere``, which fails the suite."""
        if self.tests:
            return "in part" if self.left else "shown"
        return "left" if self.left else "nowhere"


Matrix = Mapping[str, Sequence[Row]]


def read(root: Path) -> tuple[Matrix, list[str]]:
    """Return the rows of each table, and the errors in them. Raises UnreadableMarkError."""
    tables: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
    shown: dict[str, list[Shown]] = defaultdict(list)
    for one in shown_by(root / "tests"):
        shown[one.row].append(one)
    matrix = {
        table: [
            Row(
                name,
                tuple(v for k, v in cells.items() if k != "left"),
                cells.get("left", ""),
                tuple(shown.pop(name, ())),
            )
            for name, cells in rows.items()
        ]
        for table, rows in tables.items()
    }
    wrong = [f"tests/{one.path}:{one.line}: there is no row {name}" for name, all_ in shown.items() for one in all_]
    wrong += [
        f"{row.name}: no test shows it and nothing says why ({row.cells[0]})"
        for rows in matrix.values()
        for row in rows
        if row.state == "nowhere"
    ]
    return matrix, wrong


def filled(page: str, matrix: Matrix) -> str:
    """Return the text of the page with its generated parts up to date."""
    parts = {**{table: _table(table, rows) for table, rows in matrix.items()}, "summary": _summary(matrix)}
    return _PART.sub(lambda found: f"{found['name']}{found[2]}{parts[found['name']]}\n", page)


def unknown_tests(page: str, root: Path) -> set[str]:
    """Return the tests that the page names and that do not exist."""
    return set(_TEST_NAME.findall(page)) - names(root / "tests")


def run(root: Path, options: argparse.Namespace, _stop: StopSignal) -> int:
    """Write the page, or check it, or print how much is shown; return 1 after an error."""
    try:
        matrix, wrong = read(root)
    except UnreadableMarkError as error:
        print(f"prove: tests/{error}", file=sys.stderr)
        return 1
    page = (root / PAGE).read_text()
    fresh = filled(page, matrix)
    if options.write and fresh != page:
        (root / PAGE).write_text(fresh)
    if options.check and fresh != page:
        wrong.append(f"{PAGE} is out of date: scripts/prove matrix --write")
    wrong += [f"{PAGE}: there is no {name}" for name in sorted(unknown_tests(fresh, root))]
    if getattr(options, "tests", False):
        print("\n".join(_tests(row) for rows in matrix.values() for row in rows))
    print(_summary(matrix))
    for line in wrong:
        print(f"prove: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _table(table: str, rows: Sequence[Row]) -> str:
    heads = ("", *_HEADS[table], "Left")
    lines = [heads, ("---",) * len(heads)]
    lines += [(f"**{row.name}**", *row.cells, row.left) for row in rows if table in _WHOLE or row.left]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _tests(row: Row) -> str:
    """Return the row with the files of its tests, a line each."""
    by_file: dict[Path, list[str]] = defaultdict(list)
    for one in row.tests:
        by_file[one.path].append(one.test)
    return "\n".join(
        [f"{row.name}: {row.cells[0]}", *(f"    tests/{path}: {', '.join(found)}" for path, found in by_file.items())]
    )


def _summary(matrix: Matrix) -> str:
    lines = ["| | Rows | Shown | In part | Left |", "|---|---|---|---|---|"]
    for table, rows in matrix.items():
        states = [row.state for row in rows]
        counts = " | ".join(str(states.count(state)) for state in ("shown", "in part", "left"))
        lines.append(f"| {table} {rows[0].name} to {rows[-1].name} | {len(rows)} | {counts} |")
    return "\n".join(lines)
