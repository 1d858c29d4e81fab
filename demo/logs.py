"""Read the JSON logs of a run: one object per line."""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

Entry: TypeAlias = dict[str, Any]

_BEGUN = ("start", "running")
RAN = ("done", "fail", "dropped", "snoozed")
"""The ends of runs; other ends are of jobs that were deferred, held or dropped before they ran."""

_FIRST_FIELD = b'{"severity"'
"""The start of every line of a worker process."""


def in_order(logs: Iterable[Path]) -> Iterator[Entry]:
    """Return the lines of all logs by their time."""
    return heapq.merge(*map(_entries, logs), key=lambda entry: str(entry.get("time", "")))


def count_ends(logs: Iterable[Path]) -> dict[str, Counter[str]]:
    """Return for each class how many of its lines have which `job_status`, without those of jobs that only started."""
    found: dict[str, Counter[str]] = {}
    for entry in (entry for log in logs for entry in _entries(log)):
        status = entry.get("job_status")
        if "class" in entry and status is not None and status not in _BEGUN:
            found.setdefault(entry["class"], Counter())[status] += 1
    return found


def otherwise(ends: Counter[str]) -> str:
    """Return the ends of jobs other than done. Only ``fail`` is a failure: deferred and dropped jobs are intended."""
    failed = [f"{ends['fail']} failed, as this input makes them"] if ends["fail"] else []
    others = (f"{count} {status}" for status, count in sorted(ends.items()) if status not in ("done", "fail"))
    return "; ".join([*failed, *others])


def last_words(log: Path, count: int) -> list[str]:
    """Return the last warnings and errors of a log, or its last lines when there is none."""
    entries = list(_entries(log))
    serious = [entry for entry in entries if entry.get("severity") not in ("DEBUG", "INFO")]
    return [_said(entry) for entry in (serious or entries)[-count:]]


def _said(entry: Entry) -> str:
    error = f" {entry.get('exception.class')}: {entry.get('exception.message')}" if "exception.class" in entry else ""
    return f"{entry.get('severity')} {entry.get('message')}{error}"


def _entries(log: Path) -> Iterator[Entry]:
    if not log.exists():
        return
    with log.open("rb") as lines:
        for line in lines:
            entry = _parsed(line)
            if entry is None:
                # A killed process may leave a line unfinished; the first line of its successor follows in the same
                # line.
                entry = _parsed(line[line.rfind(_FIRST_FIELD) :])
            if entry is not None:
                yield entry


def _parsed(line: bytes) -> Entry | None:
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
