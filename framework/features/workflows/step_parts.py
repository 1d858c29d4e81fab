"""Split the arguments of a step's jobs into parts, each of which is written at once."""

from collections.abc import Iterable, Iterator

from framework.types import Json
from framework.wire.json import dumps_exact

EMPTY_PART = b"[]"
"""The only part of a step without jobs."""

_MOST_JOBS = 1_000
_MOST_BYTES = 1_000_000


def split_jobs(groups: Iterable[tuple[int, Iterable[list[Json]]]]) -> Iterator[bytes]:
    """Yield the parts of jobs that are given as (index of their class, arguments of each): JSON of a list of the same form.

    Raises:
        PayloadError: arguments are nested too deeply.
    """
    parts: list[bytes] = []
    lines: list[bytes] = []
    count = size = 0
    empty = True
    for index, jobs in groups:
        for args in jobs:
            line = dumps_exact(args, outer_levels=4)
            lines.append(line)
            count, size = count + 1, size + len(line)
            if count >= _MOST_JOBS or size >= _MOST_BYTES:
                parts.append(_group(index, lines))
                yield _part(parts)
                parts, lines, count, size, empty = [], [], 0, 0, False
        if lines:
            parts.append(_group(index, lines))
            lines = []
    if parts or empty:
        yield _part(parts)


def _group(index: int, lines: list[bytes]) -> bytes:
    return b"[%d,[%s]]" % (index, b",".join(lines))


def _part(groups: list[bytes]) -> bytes:
    return b"[%s]" % b",".join(groups) if groups else EMPTY_PART
