"""Make and open files that no other user of the machine can have written: kept pushes, stored arguments, servers, databases.

A process acts on the content of these files, so a file of another user would be an order from that user. A folder must belong to
the user of the process, and other users may not write into it: then they cannot put, replace or rename a file in it. A file must be a
regular file of the same user, because a FIFO or a link in its place would block the process or lead it elsewhere.
"""

import os
import stat
from pathlib import Path

from framework.errors import UnsafeFileError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone (0700); check a folder that exists.

    Raises:
        UnsafeFileError: another user owns it, or may write into it.
        OSError: it cannot be made.
    """
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        # Another process may make it at the same time.
        missing.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder)


def check_folder(folder: Path) -> None:
    """Check that only this user can put files into a folder. A missing folder has none.

    Raises:
        UnsafeFileError: another user owns it, or may write into it.
        OSError: it cannot be read.
    """
    try:
        found = folder.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFileError(folder, "it is not a folder", "give another name, or remove it")
    _check_owner(folder, found)
    if found.st_mode & _OTHERS_WRITE:
        raise UnsafeFileError(folder, "other users may write into the folder", f"run `chmod go-w {folder}`")


def open_file(path: Path, flags: int) -> int:
    """Open or make a regular file of this user; return its descriptor. A file that is made is readable for this user alone (0600).

    Raises:
        UnsafeFileError: it is a link or no regular file, another user owns it, or may write it.
        OSError: it cannot be opened.
    """
    # Without O_NONBLOCK the opening of a FIFO waits for its other end; for a regular file the flag has no effect.
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise _irregular(path) from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _irregular(path)
        _check_owner(path, found)
        if found.st_mode & _OTHERS_WRITE:
            raise UnsafeFileError(path, "other users may write it", f"look at its content, then run `chmod 600 {path}`")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path) -> bytes:
    """Return the content of a file. Raises as ``open_file``."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def make_file(path: Path) -> None:
    """Make a file unless it exists, and let no other user read it. Raises as ``open_file``."""
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        reason = f"it belongs to the user {found.st_uid}, and this process runs as the user {os.geteuid()}"
        raise UnsafeFileError(path, reason, "run the process as its owner, or give the process a path of its own")


def _irregular(path: Path) -> UnsafeFileError:
    return UnsafeFileError(path, "it is no regular file", "remove it: this program did not make it")
