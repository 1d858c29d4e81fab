"""Find the files of kept pushes in a folder, take over those of ended processes, and set damaged ones aside."""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from framework.errors import UnsafeFileError
from framework.features.reliable_push.file_system import FileSystem
from framework.features.reliable_push.push_file import DAMAGED, SUFFIX, UNFINISHED, VERSION, PushFile
from framework.private_files import check_folder
from framework.telemetry import logs

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
