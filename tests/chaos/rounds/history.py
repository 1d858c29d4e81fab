"""Read the append-only files of a server: which jobs were pushed, which ended, and which of them a cut removes."""

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.proofs.aof import Command, Group, History

_SERIAL = re.compile(rb'"args":\[(\d+),')
_NUMBER = re.compile(r"\.(\d+)\.incr\.")
_QUEUE, _TOKEN, _WORKING = b"queue:", b"aw:push:", b"aw:working:"

Moment: TypeAlias = Mapping[Path, int]
"""The length of each file at one moment."""


class End(NamedTuple):
    """The acknowledgement of a job: the working list that the job left, and its serial."""

    working: bytes
    serial: int


class Writes(NamedTuple):
    """The serials whose push is in a part of the files, and the ends of jobs there, in their order."""

    pushed: frozenset[int]
    ends: tuple[End, ...]

    @property
    def ended(self) -> frozenset[int]:
        """Return the serials of the ends."""
        return frozenset(end.serial for end in self.ends)


class FetchingProcess(NamedTuple):
    """A process that fetched a job, and the whole second in which the job left its working list.

    ``until`` is in monotonic seconds; it is 0 where the file has no time.
    """

    pid: int
    until: float


Fetchers: TypeAlias = Mapping[int, Sequence[FetchingProcess]]
"""The fetchers of each serial, in the order in which the job left their working lists."""


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
            found |= self._read(path.read_bytes()[moment.get(path, 0) :]).pushed
        return frozenset(found)

    def ends_between(self, since: Moment, until: Moment) -> frozenset[End]:
        """Return the ends between the two moments, in the file that was the last one at the first moment.

        A server that becomes a replica begins another file, with the writes of its master.
        """
        path = list(since)[-1]
        return frozenset(self._read(path.read_bytes()[since[path] : until[path]]).ends)

    def cut_back(self, mark: bytes) -> Writes:
        """Remove everything after the command whose last word is ``mark``; return the removed writes.

        The server must not run. The removed part stays in the same folder, as a file of its own.
        """
        newest = self.paths[-1]
        data = newest.read_bytes()
        end = data.rindex(mark) + len(mark) + len(b"\r\n")
        with newest.open("r+b") as file:
            file.truncate(end)
        return self._read(data[end:])

    def fetchers(self) -> Fetchers:
        """Return the fetchers of each job."""
        found: dict[int, list[FetchingProcess]] = defaultdict(list)
        ahead_s = time.time() - time.monotonic()
        for path in self.paths:
            for group in History(path).groups():
                for end in _left(group):
                    until = group.at - ahead_s if group.at else 0.0
                    found[end.serial].append(FetchingProcess(_pid(end.working), until))
        return found

    def _read(self, data: bytes) -> Writes:
        self._tails += 1
        tail = self._folder / f"tail-{self._tails}.aof"
        tail.write_bytes(_whole(data))
        pushed: set[int] = set()
        ends: list[End] = []
        for group in History(tail).groups():
            pushed.update(_pushed(group))
            placed = {serial for command in group.commands for serial in _placed(command)}
            ends += [end for end in _left(group) if end.serial not in placed]
        return Writes(frozenset(pushed), tuple(ends))


def _whole(data: bytes) -> bytes:
    """Return the data from its first whole command on: the length of a file may be read amid a write of the server."""
    if data[:1] in (b"*", b"#"):
        return data
    start = data.find(b"\r\n*")
    return data[start + 2 :] if start >= 0 else b""


def _pushed(group: Group) -> Iterator[int]:
    """Yield the serials of the pushed jobs. The last job of a bulk push passes through the key of its token."""
    moved = {command[1] for command in group.commands if command[0].upper() == b"LMOVE"}
    for command in group.commands:
        name = command[0].upper()
        if (name == b"LPUSH" and command[1].startswith(_QUEUE)) or (
            name == b"RPUSH" and command[1].startswith(_TOKEN) and command[1] in moved
        ):
            yield from _serials(command)


def _left(group: Group) -> Iterator[End]:
    """Yield the working lists that jobs left, with the serial of each job."""
    for command in group.commands:
        if command[0].upper() == b"LREM" and command[1].startswith(_WORKING):
            for serial in _serials(command):
                yield End(command[1], serial)


def _placed(command: Command) -> Iterator[int]:
    """Yield the serials of the jobs that a command writes to a key: such a job was moved, and has not ended."""
    if command[0].upper() in (b"LPUSH", b"RPUSH", b"ZADD"):
        yield from _serials(command)


def _serials(command: Command) -> Iterator[int]:
    for payload in command[2:]:
        yield from map(int, _SERIAL.findall(payload)[:1])


def _pid(working: bytes) -> int:
    """Return the process of a working list, ``aw:working:HOST:PID:NONCE``, with a capsule's name behind it; 0: none."""
    words = working.partition(b"/")[0].split(b":")
    return int(words[-2]) if words[-2].isdigit() else 0
