"""Keep pushes in files of a folder: the calls to the operating system, the form of a file, and its owner."""

import fcntl
import os
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework import private_files
from framework.errors import UnsafeFileError
from framework.features.reliable_push.kept_push import DamagedRecordError, KeptPush, with_checksum, without_checksum
from framework.private_files import check_folder, make_folder
from framework.private_files import read_file as read_private_file
from framework.telemetry import logs


class FileSystem:
    """Make, write and lock files. Each method raises OSError."""

    def create(self, path: Path) -> int:
        """Make a file that does not exist, readable for its owner alone; return its descriptor."""
        return private_files.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, path: Path) -> int:
        """Open a file of this user for reading and writing; return its descriptor."""
        return private_files.open_file(path, os.O_RDWR)

    def lock(self, descriptor: int) -> bool:
        """Lock a file until its descriptor is closed or its process ends; return whether no other process has it locked."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        """Write all of ``data`` at a place of a file."""
        view = memoryview(data)
        while view:
            written = os.pwrite(descriptor, view, offset)
            view, offset = view[written:], offset + written

    def sync(self, descriptor: int) -> None:
        """Wait until what was written to a file is on its disk."""
        os.fsync(descriptor)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def rename(self, path: Path, target: Path) -> None:
        path.rename(target)
        self.sync_folder(path.parent)

    def delete(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names of the files in a folder are on its disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)


VERSION = 1
"""The version of the format. A file of another version is left to the release that wrote it."""

SUFFIX, UNFINISHED, DAMAGED = ".pushes", ".new", ".damaged"

_MARK_SIZE = 10
_UNTRIED, _DONE = b"0" * _MARK_SIZE, b"done------"
_HEADER = b"header----"
# The mark and the space behind it.
_HEAD_SIZE = _MARK_SIZE + 1


@dataclass(slots=True)
class Entry:
    """Hold where one kept push stands in its file, and what is known about its tries."""

    offset: int
    size: int
    jobs: int
    destination: tuple[str, str]
    kept_at: float
    worker: str
    """The wire name of the class."""
    tried_at: float | None = None
    """The epoch second of the first try whose result is not known."""


@dataclass(frozen=True, slots=True)
class FileContent:
    header: dict[str, Any]
    """Empty if the header is damaged."""
    entries: Sequence[Entry]
    damaged: int
    """The number of damaged lines. An unfinished last line is none: its push did not return."""
    unfinished: bool
    size: int

    @property
    def version(self) -> Any:
        """Return the version of the format; ``None`` if the header is damaged."""
        return self.header.get("version")

    @property
    def owner(self) -> str:
        """Return the host and the process that made the file."""
        return f"{self.header.get('host', '?')} {self.header.get('pid', '?')}"


class PushFile:
    """One open and locked file. The caller holds a lock for all methods that change it."""

    def __init__(self, path: Path, descriptor: int, content: FileContent, files: FileSystem) -> None:
        self.path = path
        self.version = content.version
        self.damaged = content.damaged
        self.entries: dict[int, Entry] = {entry.offset: entry for entry in content.entries}
        """The pushes that are not replayed yet, by their places."""
        self.kept_jobs = sum(entry.jobs for entry in content.entries)
        self.kept_bytes = sum(entry.size for entry in content.entries)
        self.size = content.size
        self.broken = False
        """Whether a failed write left bytes at the end of the file; no push may be added behind them."""
        self.owner = content.owner
        self._descriptor = descriptor
        self._files = files

    @classmethod
    def create(cls, folder: Path, files: FileSystem) -> "PushFile":
        """Make and lock a new file of this process. Raises OSError."""
        make_folder(folder)
        host, pid = socket.gethostname(), os.getpid()
        # The names sort by the time of the first push.
        path = folder / f"{time.time_ns():020d}.{host}.{pid}{SUFFIX}"
        header = {"version": VERSION, "host": host, "pid": pid, "created_at": time.time()}
        line = _line(_HEADER, with_checksum(header))
        # Other processes look only for the final name, so they never see the file without its lock.
        unfinished = path.with_suffix(UNFINISHED)
        descriptor = files.create(unfinished)
        try:
            files.lock(descriptor)
            files.write(descriptor, line, 0)
            files.sync(descriptor)
            files.rename(unfinished, path)
        except OSError:
            files.close(descriptor)
            unfinished.unlink(missing_ok=True)
            raise
        return cls(path, descriptor, FileContent(header, (), 0, unfinished=False, size=len(line)), files)

    @classmethod
    def take_over(cls, path: Path, files: FileSystem) -> "PushFile | None":
        """Lock and read the file of an ended process; ``None`` if another process has it. Raises OSError."""
        descriptor = files.open(path)
        try:
            if files.lock(descriptor) and _is_same(path, descriptor):
                return cls(path, descriptor, read_file(path), files)
        except OSError:
            files.close(descriptor)
            raise
        files.close(descriptor)
        return None

    def append(self, record: bytes, push: KeptPush, *, tried: bool) -> None:
        """Write the record of a push and wait until it is on the disk. ``tried``: it may be in Redis under its token.

        Raises:
            OSError: it is not in the file; ``broken`` says that even this is not certain.
        """
        mark = _mark_of(push.kept_at) if tried else _UNTRIED
        line = _line(mark, record)
        try:
            self._files.write(self._descriptor, line, self.size)
            self._files.sync(self._descriptor)
        except OSError:
            self.broken = True
            self._files.truncate(self._descriptor, self.size)
            self.broken = False
            raise
        entry = Entry(self.size, len(line), len(push.batch.jids), push.destination, push.kept_at, push.worker)
        entry.tried_at = push.kept_at if tried else None
        self.entries[self.size] = entry
        self.size += len(line)
        self.kept_jobs += entry.jobs
        self.kept_bytes += entry.size

    def read(self, entry: Entry) -> KeptPush:
        """Return the push of an entry. Raises OSError and DamagedRecordError."""
        data = os.pread(self._descriptor, entry.size - _HEAD_SIZE - 1, entry.offset + _HEAD_SIZE)
        return KeptPush.decode(data)

    def mark_tried(self, entries: Sequence[Entry], now: float) -> None:
        """Note on the disk that these pushes may be in Redis from now on, unless that is noted. Raises OSError."""
        untried = [entry for entry in entries if entry.tried_at is None]
        for entry in untried:
            self._files.write(self._descriptor, _mark_of(now), entry.offset)
            entry.tried_at = now
        if untried:
            self._files.sync(self._descriptor)

    def mark_done(self, entry: Entry) -> None:
        """Note that a push is replayed. Without the note, after a crash, the token tells it. Raises OSError."""
        self.forget(entry)
        self._files.write(self._descriptor, _DONE, entry.offset)

    def forget(self, entry: Entry) -> None:
        """Leave a push to the file alone."""
        del self.entries[entry.offset]
        self.kept_jobs -= entry.jobs
        self.kept_bytes -= entry.size

    def remove(self) -> None:
        """Delete the file; a file with damaged lines is set aside. Raises OSError."""
        if self.damaged:
            self.set_aside()
        else:
            self._files.delete(self.path)
            self.close()

    def set_aside(self) -> None:
        """Rename the file so that no process reads it again. Raises OSError."""
        self._files.rename(self.path, self.path.with_name(self.path.name + DAMAGED))
        self.close()

    def close(self) -> None:
        """Close the file, which another process may then take over."""
        self._files.close(self._descriptor)


def read_file(path: Path) -> FileContent:
    """Read a file of kept pushes. Raises OSError."""
    data = read_private_file(path)
    head, *lines = data.split(b"\n")
    # Behind the last line end is nothing, or a line that was not finished.
    unfinished = bool(lines.pop()) if lines else bool(head)
    header = _header_of(head)
    entries: list[Entry] = []
    damaged, offset = 0, len(head) + 1
    for line in lines if header.get("version") == VERSION else ():
        try:
            entries += _entries_of(line, offset)
        except DamagedRecordError:
            damaged += 1
        offset += len(line) + 1
    return FileContent(header, entries, damaged, unfinished, len(data))


def _header_of(line: bytes) -> dict[str, Any]:
    if not line.startswith(_HEADER):
        return {}
    try:
        return without_checksum(line[_HEAD_SIZE:])
    except DamagedRecordError:
        return {}


def _entries_of(line: bytes, offset: int) -> list[Entry]:
    """Return the entry of a line, none for a replayed push. Raises DamagedRecordError."""
    mark, push = line[:_MARK_SIZE], KeptPush.decode(line[_HEAD_SIZE:])
    if mark == _DONE:
        return []
    # Half a mark: a try may have begun.
    tried_at = float(mark) if mark.isdigit() else push.kept_at
    jobs = len(push.batch.jids)
    return [Entry(offset, len(line) + 1, jobs, push.destination, push.kept_at, push.worker, tried_at or None)]


def _mark_of(seconds: float) -> bytes:
    return b"%010d" % min(max(1, int(seconds)), 10**_MARK_SIZE - 1)


def _line(mark: bytes, record: bytes) -> bytes:
    return b"%b %b\n" % (mark, record)


def _is_same(path: Path, descriptor: int) -> bool:
    """Return whether a path still leads to an open file: its former process may have deleted it meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


# A process makes a file in far less time.
_CREATION_S = 60.0


def push_files(folder: Path) -> list[Path]:
    """Return the files of kept pushes in a folder, the oldest first; none if there is no such folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def set_aside_files(folder: Path) -> list[Path]:
    """Return the files that were set aside because of damage."""
    return sorted(folder.glob(f"*{SUFFIX}{DAMAGED}"))


def is_locked(path: Path) -> bool:
    """Return whether a running process has a file of kept pushes. Raises OSError."""
    files = FileSystem()
    descriptor = files.open(path)
    try:
        return not files.lock(descriptor)
    finally:
        files.close(descriptor)


def take_over_files(folder: Path, files: FileSystem, own: Collection[Path]) -> Sequence[PushFile]:
    """Lock and return the files of ended processes; ``own`` are files of this process.

    A file without a readable header is set aside. A file of another version, or one that cannot be opened, stays as it is. Both are
    logged. So is a folder into which other users may write: none of its files is read.
    """
    try:
        check_folder(folder)
    except OSError as error:
        _log_unsafe(error)
        return []
    _delete_unfinished(folder, files)
    taken: list[PushFile] = []
    for path in push_files(folder):
        if path in own:
            continue
        try:
            found = PushFile.take_over(path, files)
            if found is not None and _is_usable(found):
                taken.append(found)
        except FileNotFoundError:
            # Its process has replayed it meanwhile.
            continue
        except UnsafeFileError as error:
            _log_unsafe(error)
        except OSError as error:
            _log_unreadable(path, "it cannot be opened. Give this user the right to read and write it", error)
    return taken


def remove_file(file: PushFile) -> None:
    """Delete a file without pushes; set it aside if lines of it are damaged."""
    damaged = file.damaged
    try:
        file.remove()
    except OSError as error:
        file.close()
        _log_unreadable(file.path, "all of its pushes are replayed, but it cannot be deleted. Delete it", error)
        return
    if damaged:
        count = f"{damaged:,} of its pushes are damaged and were not replayed"
        _log_set_aside(file.path, f"{count}. Look for their jobs in the file {file.path}{DAMAGED}")


def _is_usable(file: PushFile) -> bool:
    if file.version == VERSION:
        logs.logger().info(
            "pushes that an ended process kept are taken over",
            event_name="push.file_taken_over",
            file=str(file.path),
            owner=file.owner,
            jobs=file.kept_jobs,
        )
        return True
    if file.version is None:
        file.set_aside()
        _log_set_aside(file.path, f"it has no readable header. Look for its jobs in the file {file.path}{DAMAGED}")
        return False
    file.close()
    _log_unreadable(file.path, f"its format is version {file.version!r}. Start the release that wrote it", None)
    return False


def _delete_unfinished(folder: Path, files: FileSystem) -> None:
    """Delete files whose process ended before it gave them their final name: they have no push."""
    for path in folder.glob(f"*{UNFINISHED}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _CREATION_S and not is_locked(path):
                files.delete(path)


def _log_set_aside(path: Path, reason: str) -> None:
    logs.logger().error(
        f"a file of kept pushes was set aside: {reason}", event_name="push.file_set_aside", file=str(path)
    )


def _log_unsafe(error: OSError) -> None:
    logs.logger().error(f"kept pushes are not replayed: {error}", event_name="push.file_left", error=error)


def _log_unreadable(path: Path, reason: str, error: OSError | None) -> None:
    logs.logger().error(
        f"a file of kept pushes stays as it is: {reason}", event_name="push.file_left", file=str(path), error=error
    )
