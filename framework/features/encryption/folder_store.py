"""Keep blobs as files below one folder: of one host, or of a file system that all hosts share.

A file gets its name when it is whole and on the disk. If the process dies before, an unfinished file is left, which no job names:
the sweep deletes it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from framework import private_files
from framework.features.encryption.blob_store import StoredBlob

_UNFINISHED = ".part"


class FolderStore:
    """See ``BlobStore``. The parent of ``root`` must exist: a file system that is not mounted must not be replaced by a folder."""

    can_vanish = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, data: bytes) -> None:
        path = self._path_of(name)
        self._make_folders(path.parent)
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            _write_whole(unfinished, data)
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def get(self, name: str) -> bytes | None:
        try:
            return private_files.read_file(self._path_of(name))
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        self._path_of(name).unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        for folder, _, names in os.walk(self._path_of(prefix), onerror=_raise_unless_missing):
            for name in names:
                path = Path(folder, name)
                # Another process may delete it meanwhile.
                with suppress(FileNotFoundError):
                    found = path.stat()
                    yield StoredBlob(path.relative_to(self._root).as_posix(), found.st_size, found.st_mtime)

    def _path_of(self, name: str) -> Path:
        """Return the path of a blob. Raises UnsafeFileError if other users may write into the root."""
        private_files.check_folder(self._root)
        return self._root / name

    def _make_folders(self, folder: Path) -> None:
        """Make a folder and those above it up to the root, each durable in its parent."""
        if folder.is_dir():
            return
        if folder != self._root:
            self._make_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


def _write_whole(path: Path, data: bytes) -> None:
    descriptor = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
