"""Read the workers' meters: see ``jobs/meter.py`` for the cells."""

from array import array
from dataclasses import dataclass
from pathlib import Path

from tests.bench.jobs.meter import COUNT, FIRST, HEAD, LAST, NOTED

DOUBLE = 8


@dataclass(frozen=True)
class Reading:
    """All processes together: jobs done, first and last stamp (seconds of the monotonic clock; 0 while there is none)."""

    count: int
    first: float
    last: float


class Meters:
    """The meters of one worker's processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def read(self) -> Reading:
        """Return the current values."""
        heads = [cells for file in self._files() if (cells := _doubles(file, HEAD))]
        firsts = [cells[FIRST] for cells in heads if cells[FIRST]]
        return Reading(
            count=int(sum(cells[COUNT] for cells in heads)),
            first=min(firsts, default=0.0),
            last=max((cells[LAST] for cells in heads), default=0.0),
        )

    def notes(self) -> list[list[float]]:
        """Return the notes of each process's jobs."""
        read = [_doubles(file, HEAD + int(cells[NOTED])) for file in self._files() if (cells := _doubles(file, HEAD))]
        return [list(cells[HEAD:]) for cells in read]

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.meter"))


def _doubles(file: Path, count: int) -> "array[float]":
    """Return the first cells of a file; none while it is being created."""
    with file.open("rb") as opened:
        data = opened.read(count * DOUBLE)
    cells: array[float] = array("d")
    if len(data) >= HEAD * DOUBLE:
        cells.frombytes(data[: len(data) // DOUBLE * DOUBLE])
    return cells
