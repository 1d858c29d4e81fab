"""Read the append-only file of Redis 7 and Valkey: the commands of the server in their order, group by group.

The file is a folder (``appendonlydir``): a manifest, a base (the data of the last rewrite), and the commands since
then. A script or a transaction is one group between MULTI and EXEC; any other command is a group of its own. Clients
may see the state between two groups, and a crash may leave it behind.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

Command = list[bytes]

_CHUNK = 1 << 20
_TIMESTAMP = b"#TS:"


class HistoryError(Exception):
    """The files are no complete history; the text names the reason."""


class Group(NamedTuple):
    """The writes of one step: its number from 1 on, its position, and its time (0 without timestamps)."""

    number: int
    path: Path
    offset: int
    end: int
    at: int
    commands: list[Command]


class Torn(NamedTuple):
    """The end of the last file that a server drops at its start: half a command, or a MULTI without its EXEC."""

    path: Path
    offset: int
    reason: str


class History:
    """The groups of one server, oldest first. Raises HistoryError when commands are missing from its beginning."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.torn: Torn | None = None
        """The torn end, known when all groups were read."""
        self.files = _files(place)

    @property
    def size(self) -> int:
        """Return the number of bytes of the files now."""
        return sum(path.stat().st_size for path in self.files)

    def groups(self) -> Iterator[Group]:
        """Read on until the end, or until the torn end of the last file."""
        number, self.torn = 0, None
        for path in self.files:
            if self.torn:
                message = (
                    f"{self.torn.path} ends amid a command, and {path.name} follows: what was between them is missing"
                )
                raise HistoryError(message)
            for offset, end, at, commands in self._grouped(path):
                number += 1
                yield Group(number, path, offset, end, at, commands)

    def _grouped(self, path: Path) -> Iterator[tuple[int, int, int, list[Command]]]:
        held: list[Command] = []
        at = start = 0
        inside = False
        for offset, end, command in self._commands(path):
            if isinstance(command, int):
                at = command
                continue
            if not held:
                start = offset
            name = command[0]
            if name in _MULTI:
                inside = True
            elif name in _EXEC:
                inside = False
                if held:
                    yield start, end, at, held
                held = []
            else:
                held.append(command)
                # A SELECT belongs to the group of the next command.
                if not inside and name not in _SELECT:
                    yield start, end, at, held
                    held = []
        if inside:
            self.torn = Torn(path, start, "a MULTI without its EXEC")

    def _commands(self, path: Path) -> Iterator[tuple[int, int, Command | int]]:
        """Yield offset and end of each command, or of a time."""
        with path.open("rb") as file:
            data, base, at = b"", 0, 0
            while True:
                fresh = file.read(_CHUNK)
                data, base, at = data[at:] + fresh, base + at, 0
                while found := _parse(data, at, path, base):
                    yield base + at, base + found[1], found[0]
                    at = found[1]
                if not fresh:
                    break
            if at < len(data):
                self.torn = Torn(path, base + at, "half a command")


_MULTI, _EXEC, _SELECT = ({word, word.lower()} for word in (b"MULTI", b"EXEC", b"SELECT"))


def _parse(data: bytes, at: int, path: Path, base: int) -> tuple[Command | int, int] | None:
    """Return the command (or time) at ``at`` and its end; None when it is incomplete."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    begun = at
    try:
        if data[at] != 42:  # *
            return _annotation(data[at:end]), end + 2
        command: Command = []
        for _ in range(int(data[at + 1 : end])):
            at = end + 2
            end = data.find(b"\r\n", at)
            if end < 0:
                return None
            start = end + 2
            end = start + int(data[at + 1 : end])
            command.append(data[start:end])
    except ValueError:
        message = f"{path}: no command at byte {base + begun}: {data[begun : begun + 40]!r}"
        raise HistoryError(message) from None
    return (command, end + 2) if end + 2 <= len(data) else None


def _annotation(line: bytes) -> int:
    if not line.startswith(_TIMESTAMP):
        raise ValueError
    return int(line[len(_TIMESTAMP) :])


def _files(place: Path) -> list[Path]:
    """Return the files of commands in their order, for a file, an ``appendonlydir``, or the data folder that has one."""
    if place.is_file():
        return [place]
    manifests = sorted([*place.glob("*.manifest"), *place.glob("appendonlydir/*.manifest")])
    if not manifests:
        message = f"{place}: no append-only file (no manifest here or in appendonlydir)"
        raise HistoryError(message)
    folder = manifests[0].parent
    files: list[Path] = []
    for line in manifests[0].read_text().splitlines():
        words = line.split()
        entry = dict(zip(words[::2], words[1::2], strict=False))
        path = folder / entry["file"]
        if entry["type"] == "b" and not _empty(path):
            message = (
                f"{path}: this history is not whole: the file was rewritten (BGREWRITEAOF, auto-aof-rewrite-percentage, or the "
                "server began with data), so the commands before are gone. Keep it whole with auto-aof-rewrite-percentage 0"
            )
            raise HistoryError(message)
        if entry["type"] == "i":
            files.append(path)
    return files


def _empty(path: Path) -> bool:
    """Return whether a base holds no key: only metadata is between its magic bytes and its end."""
    data = path.read_bytes()
    if not data.startswith((b"REDIS", b"VALKEY")):
        return not data
    at = 9
    while data[at] == 0xFA:
        for _ in range(2):
            at = _after_text(data, at + 1) - 1
        at += 1
    return data[at] == 0xFF


def _after_text(data: bytes, at: int) -> int:
    """Return the end of the text at ``at``, in the encodings of lengths that a snapshot uses."""
    first = data[at]
    if first < 0x40:
        return at + 1 + first
    if first < 0x80:
        return at + 2 + ((first & 0x3F) << 8) + data[at + 1]
    return at + {0xC0: 2, 0xC1: 3, 0xC2: 5}[first]
