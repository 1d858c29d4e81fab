"""What a run tells its workers while they are at work, by a file beside their effects: how many limited jobs may run at a time."""

from pathlib import Path

_NAME = "limit"


def write_limit(folder: Path, limit: int) -> None:
    """From now on so many may."""
    new = folder / f"{_NAME}.new"
    new.write_text(str(limit))
    new.replace(folder / _NAME)


def read_limit(folder: Path) -> int:
    """Return how many may."""
    return int((folder / _NAME).read_text())
