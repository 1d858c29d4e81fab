"""Read the append-only files of a server: which jobs were pushed, and which of them a cut removes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tests.proofs.aof import History

_SERIAL = re.compile(rb'"args":\[(\d+),')
_NUMBER = re.compile(r"\.(\d+)\.incr\.")

Moment: TypeAlias = Mapping[Path, int]
"""The length of each file at one moment."""


class Files:
    """The files of commands of one server; ``folder`` is its data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails = 0

    @property
    def paths(self) -> list[Path]:
        """Return the files, oldest first; the last one is being written."""
        found = [path for path in self._folder.glob("appendonlydir/*.aof") if _NUMBER.search(path.name)]
        return sorted(found, key=lambda path: int(_NUMBER.findall(path.name)[-1]))

    @property
    def now(self) -> Moment:
        """Return the current lengths."""
        return {path: path.stat().st_size for path in self.paths}

    def pushed_since(self, moment: Moment) -> frozenset[int]:
        """Return the serials of the jobs whose push was written after ``moment``."""
        found: set[int] = set()
        for path in self.paths:
            data = path.read_bytes()[moment.get(path, 0) :]
            found |= self._pushed(data)
        return frozenset(found)

    def cut_back(self, mark: bytes) -> frozenset[int]:
        """Remove everything after the command whose last word is ``mark``; return the serials pushed there.

        The server must not run. The removed part stays in the same folder, as a file of its own.
        """
        newest = self.paths[-1]
        data = newest.read_bytes()
        end = data.rindex(mark) + len(mark) + len(b"\r\n")
        with newest.open("r+b") as file:
            file.truncate(end)
        return self._pushed(data[end:])

    def _pushed(self, data: bytes) -> frozenset[int]:
        self._tails += 1
        tail = self._folder / f"tail-{self._tails}.aof"
        tail.write_bytes(data)
        return frozenset(
            int(serial)
            for group in History(tail).groups()
            for command in group.commands
            if command[0].upper() == b"LPUSH" and command[1].startswith(b"queue:")
            for payload in command[2:]
            for serial in _SERIAL.findall(payload)[:1]
        )
