"""Reading the workers' logs: one JSON object per line."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def count_starts(logs: Iterable[Path]) -> int:
    """How many runs of jobs began, by the workers' own logs."""
    return sum(entry.get("job_status") == "start" for log in logs for entry in _entries(log))


def count_runs(logs: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Of each class how many runs ended well, and how many otherwise."""
    found: dict[str, tuple[int, int]] = {}
    for entry in (entry for log in logs for entry in _entries(log)):
        if entry.get("job_status") in ("done", "fail", "dropped", "rescheduled"):
            done, otherwise = found.get(entry["class"], (0, 0))
            well = entry["job_status"] == "done"
            found[entry["class"]] = (done + well, otherwise + (not well))
    return found


def last_words(log: Path, count: int) -> list[str]:
    """The last warnings and errors of a log, or its last lines when there is none."""
    entries = list(_entries(log))
    serious = [entry for entry in entries if entry.get("severity") not in ("DEBUG", "INFO")]
    return [_said(entry) for entry in (serious or entries)[-count:]]


def _said(entry: dict[str, Any]) -> str:
    error = f" {entry.get('exception.class')}: {entry.get('exception.message')}" if "exception.class" in entry else ""
    return f"{entry.get('severity')} {entry.get('message')}{error}"


def _entries(log: Path) -> Iterator[dict[str, Any]]:
    if not log.exists():
        return
    with log.open("rb") as lines:
        for line in lines:
            try:
                entry: Any = json.loads(line)
            except ValueError:
                continue  # a line that a killed process left unfinished
            if isinstance(entry, dict):
                yield entry
