"""Share the number of limited jobs with the running workers, by a file in the folder of their effects."""

from pathlib import Path

_NAME = "limit"


def write_limit(folder: Path, limit: int) -> None:
    """Allow so many from now on."""
    new = folder / f"{_NAME}.new"
    new.write_text(str(limit))
    new.replace(folder / _NAME)


def read_limit(folder: Path) -> int:
    """Return the allowed number."""
    return int((folder / _NAME).read_text())
