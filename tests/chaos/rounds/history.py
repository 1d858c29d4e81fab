"""What the append-only files of a server say: which jobs were pushed, and how much of that it forgets."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tests.proofs.aof import History

_SERIAL = re.compile(rb'"args":\[(\d+),')
_NUMBER = re.compile(r"\.(\d+)\.incr\.")

Moment: TypeAlias = Mapping[Path, int]
"""How long each file was at some moment."""


class Files:
    """The files of commands of one server; ``folder`` is its data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tails = 0

    @property
    def paths(self) -> list[Path]:
        """The files, oldest first; the last one is being written."""
        found = [path for path in self._folder.glob("appendonlydir/*.aof") if _NUMBER.search(path.name)]
        return sorted(found, key=lambda path: int(_NUMBER.findall(path.name)[-1]))

    @property
    def now(self) -> Moment:
        """What is written now."""
        return {path: path.stat().st_size for path in self.paths}

    def pushed_since(self, moment: Moment) -> frozenset[int]:
        """Return the serials of the jobs whose push was written after ``moment``."""
        found: set[int] = set()
        for path in self.paths:
            data = path.read_bytes()[moment.get(path, 0) :]
            found |= self._pushed(data)
        return frozenset(found)

    def cut_back(self, mark: bytes) -> frozenset[int]:
        """Forget what was written after the command whose last word is ``mark``; return the serials pushed in that.

        For a server that does not run. What is cut off stays beside the data, as a file of its own.
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
