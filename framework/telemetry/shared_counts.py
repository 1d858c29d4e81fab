"""Count in memory that other processes can read: what a process has counted survives its death.

A row is a key with some numbers. One thread adds to a row; readers, in any process, sum up rows of the same key. The memory grows by
blocks, which never move. The use of a block is written after the row that it announces, so a reader sees whole rows, and after a
kill at most the last addition is missing.
"""

import fcntl
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeAlias

from framework.wire.json import dumps

SHARED_COUNTS_VARIABLE = "FRAMEWORK_SHARED_COUNTS"
"""Set by a supervisor to the descriptor of the memory in which its child counts."""

BLOCK_BYTES = 256 * 1024
_HEADER = struct.Struct("<II")
_START = 8
"""The first bytes of a block say how many of its bytes are used."""

Rows: TypeAlias = dict[bytes, list[float]]
"""Keys with their sums."""
Row: TypeAlias = "memoryview[float]"
"""The numbers of a row, in the shared memory."""


class SharedCounts:
    """The counts of one process. Safe from any thread; numbers of a row are added to by one thread only."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Count behind a descriptor, which stays open with the object, or in private memory."""
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._blocks: list[memoryview] = []

    @classmethod
    def create(cls) -> "tuple[CountsReader, int]":
        """Return a reader of new counts, and the descriptor for the process that will write them. Raises OSError."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("shared-counts")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        return CountsReader(os.dup(descriptor)), descriptor

    @classmethod
    def from_environment(cls) -> "Self | None":
        """Return the counts that a supervisor reads; ``None`` if none does. Call it once, before any job runs."""
        with suppress(OSError, ValueError):
            descriptor = int(os.environ.pop(SHARED_COUNTS_VARIABLE, ""))
            os.set_inheritable(descriptor, False)
            return cls(descriptor)
        return None

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """Return counts in a new file of the folder; it is locked as long as this process lives. Raises OSError."""
        # A reader must not find the file before it is locked.
        with _locked(folder):
            descriptor, _ = tempfile.mkstemp(suffix=FILE_SUFFIX, prefix=f"{os.getpid()}-", dir=folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(descriptor)

    def row(self, key: bytes, numbers: int) -> Row:
        """Return a new row of zeros. Raises OSError: there is no memory for it."""
        padded = -(-len(key) // 8) * 8
        size = _HEADER.size + padded + 8 * numbers
        with self._lock:
            block = self._blocks[-1] if self._blocks else self._grow()
            used: int = block[:_START].cast("Q")[0]
            if used + size > BLOCK_BYTES:
                block = self._grow()
                used = _START
            _HEADER.pack_into(block, used, len(key), numbers)
            at = used + _HEADER.size
            block[at : at + len(key)] = key
            block[:_START].cast("Q")[0] = used + size
            return block[at + padded : used + size].cast("d")

    def rows(self) -> Iterator[tuple[bytes, Sequence[float]]]:
        """Yield all rows; of one key there may be several."""
        with self._lock:
            blocks = list(self._blocks)
        for block in blocks:
            yield from _rows_of(block)

    def _grow(self) -> memoryview:
        start = len(self._blocks) * BLOCK_BYTES
        if self._descriptor is None:
            mapped = mmap.mmap(-1, BLOCK_BYTES)
        else:
            # Without its place on the disk a write to the memory would kill the process.
            os.posix_fallocate(self._descriptor, start, BLOCK_BYTES)
            mapped = mmap.mmap(self._descriptor, BLOCK_BYTES, offset=start)
        block = memoryview(mapped)
        block[:_START].cast("Q")[0] = _START
        self._blocks.append(block)
        return block


class CountsReader:
    """Read the counts of another process, also after its death."""

    def __init__(self, descriptor: int) -> None:
        """Own the descriptor."""
        self._descriptor = descriptor
        self._blocks: list[memoryview] = []

    def rows(self) -> Iterator[tuple[bytes, Sequence[float]]]:
        """Yield all rows; of one key there may be several. One thread at a time."""
        size = os.fstat(self._descriptor).st_size
        while (len(self._blocks) + 1) * BLOCK_BYTES <= size:
            start = len(self._blocks) * BLOCK_BYTES
            mapped = mmap.mmap(self._descriptor, BLOCK_BYTES, offset=start, access=mmap.ACCESS_READ)
            self._blocks.append(memoryview(mapped))
        for block in self._blocks:
            yield from _rows_of(block)

    def close(self) -> None:
        self._blocks = []
        os.close(self._descriptor)


def _rows_of(block: memoryview) -> Iterator[tuple[bytes, Sequence[float]]]:
    # 0 between the growth of the file and the first write.
    used: int = min(block[:_START].cast("Q")[0], BLOCK_BYTES)
    at = _START
    while at < used:
        length, numbers = _HEADER.unpack_from(block, at)
        key_at = at + _HEADER.size
        values_at = key_at + -(-length // 8) * 8
        at = values_at + 8 * numbers
        yield bytes(block[key_at : key_at + length]), block[values_at:at].cast("d").tolist()


def add_rows(sums: Rows, rows: Iterable[tuple[bytes, Sequence[float]]]) -> None:
    """Add rows to the sums of their keys."""
    for key, values in rows:
        known = sums.get(key)
        sums[key] = list(values) if known is None else [one + more for one, more in zip(known, values, strict=True)]


GAUGE = b"g"
"""The first byte of the key of numbers that end with their process; all others are summed up for ever."""


def counter_key(metric: str, labels: Sequence[str]) -> bytes:
    """Return the key of a counter: its name and the values of its labels."""
    return b"c" + dumps([metric, *labels])


class GroupCounts:
    """The counts of the processes of a group: those that run, and the sums of those that have ended. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: Rows = {}
        self._readers: list[CountsReader] = []

    def open(self) -> tuple[CountsReader, int]:
        """Return a reader for a new process, for ``end``, and the descriptor for the process. Raises OSError."""
        reader, descriptor = SharedCounts.create()
        with self._lock:
            self._readers.append(reader)
        return reader, descriptor

    def end(self, reader: CountsReader) -> None:
        """Keep the sums of a process that has ended, however it did."""
        with self._lock:
            if reader in self._readers:
                self._readers.remove(reader)
                add_rows(self._ended, _lasting(reader.rows()))
                reader.close()

    def add(self, metric: str, label: str, amount: float) -> None:
        """Add to a counter of the supervisor itself, which has one label."""
        with self._lock:
            add_rows(self._ended, [(counter_key(metric, (label,)), [amount])])

    def sums(self) -> Mapping[bytes, Sequence[float]]:
        """Return the sums by key."""
        with self._lock:
            sums = {key: list(values) for key, values in self._ended.items()}
            for reader in self._readers:
                add_rows(sums, reader.rows())
        return sums


FILE_SUFFIX = ".counts"
_MERGED = "ended.counts"
_LOCK = "lock"


class FolderCounts:
    """The counts of all processes that count in a folder. Those that have ended are summed up in one file, and their files removed.

    At a crash: the file of sums is replaced in one step, and names the files that it holds; what it names is not read again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sums(self) -> Mapping[bytes, Sequence[float]]:
        """Return the sums by key. Raises OSError."""
        with _locked(self._folder):
            return self._sums()

    def _sums(self) -> Rows:
        merged, names = self._read_merged()
        found, gone = Rows(), list[Path]()
        for path in sorted(self._folder.glob(f"*{FILE_SUFFIX}")):
            if path.name == _MERGED:
                continue
            if path.name in names:
                path.unlink(missing_ok=True)
                continue
            descriptor = os.open(path, os.O_RDONLY)
            reader = CountsReader(descriptor)
            try:
                rows = list(reader.rows())
                if _is_locked(descriptor):
                    add_rows(found, rows)
                else:
                    # It may have counted between the read and its end.
                    add_rows(merged, _lasting(reader.rows()))
                    gone.append(path)
            finally:
                reader.close()
        if gone:
            self._write_merged(merged, [one.name for one in gone])
            for path in gone:
                path.unlink(missing_ok=True)
        add_rows(found, merged.items())
        return found

    def _read_merged(self) -> tuple[Rows, frozenset[str]]:
        """Return the sums of ended processes, and the names of the files that they come from."""
        sums, names = Rows(), frozenset[str]()
        with suppress(FileNotFoundError):
            descriptor = os.open(self._folder / _MERGED, os.O_RDONLY)
            reader = CountsReader(descriptor)
            try:
                for key, values in reader.rows():
                    if values:
                        add_rows(sums, [(key, values)])
                    else:
                        names |= {key.decode()}
            finally:
                reader.close()
        return sums, names

    def _write_merged(self, sums: Rows, names: Sequence[str]) -> None:
        descriptor, path = tempfile.mkstemp(suffix=".new", dir=self._folder)
        try:
            written = SharedCounts(descriptor)
            for name in names:
                written.row(name.encode(), 0)
            for key, values in sums.items():
                row = written.row(key, len(values))
                for index, value in enumerate(values):
                    row[index] = value
            Path(path).replace(self._folder / _MERGED)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_locked(descriptor: int) -> bool:
    """Return whether the process that has made the file still lives."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _lasting(rows: Iterable[tuple[bytes, Sequence[float]]]) -> Iterator[tuple[bytes, Sequence[float]]]:
    return ((key, values) for key, values in rows if not key.startswith(GAUGE))
