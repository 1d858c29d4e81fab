"""The calls to the operating system that keep pushes. Tests replace them, and end the process between any two calls."""

import fcntl
import os
from pathlib import Path

from framework import private_files


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
        """Cut a file to a size."""
        os.ftruncate(descriptor, size)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name in its folder."""
        path.rename(target)
        self.sync_folder(path.parent)

    def delete(self, path: Path) -> None:
        """Delete a file."""
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names of the files in a folder are on its disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)
