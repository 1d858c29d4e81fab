"""What the append-only files of a server say: which jobs were pushed, and how much it may forget."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hiredis

_SERIAL = re.compile(rb'"args":\[(\d+),')
_NUMBER = re.compile(r"\.(\d+)\.")


class History:
    """The append-only files of one server; ``folder`` is its data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "appendonlydir"

    @property
    def files(self) -> list[Path]:
        """The files of commands, oldest first; the last one is being written."""
        found = [path for path in self._folder.glob("*.aof") if _NUMBER.search(path.name)]
        return sorted(found, key=lambda path: (int(_NUMBER.findall(path.name)[-1]), ".incr." in path.name))

    def pushed(self) -> frozenset[int]:
        """Serials of all jobs that were ever pushed, as far as the files go back."""
        return pushed_in(path.read_bytes() for path in self.files)

    def cut_back(self, mark: bytes) -> frozenset[int]:
        """Forget what was written after the command whose last word is ``mark``; return the serials pushed in that."""
        newest = self.files[-1]
        data = newest.read_bytes()
        end = data.rindex(mark) + len(mark) + len(b"\r\n")
        with newest.open("r+b") as file:
            file.truncate(end)
        return pushed_in([data[end:]])


def pushed_in(parts: Iterable[bytes]) -> frozenset[int]:
    """Return the serials of the jobs that commands append to queues; half a command at the end does not count."""
    found: set[int] = set()
    for data in parts:
        reader: Any = hiredis.Reader()
        reader.feed(data)
        while command := reader.gets():
            if command[0].upper() == b"LPUSH" and command[1].startswith(b"queue:"):
                found.update(int(serial) for job in command[2:] for serial in _SERIAL.findall(job)[:1])
    return frozenset(found)
