"""Say what each file of kept pushes on this host holds, for ``pushes list`` and the dashboard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from framework.features.reliable_push.push_file import (
    VERSION,
    FileContent,
    is_locked,
    push_files,
    read_file,
    set_aside_files,
)
from framework.private_files import check_folder
from framework.text import Sentence, format_count


class KeptJobs(NamedTuple):
    """The jobs of one class for one shard in a file."""

    jobs: int
    oldest_at: float
    """The epoch second of their oldest push."""


class KeptFile(NamedTuple):
    """One file: its process, and what it keeps."""

    path: Path
    process: str = ""
    """The host and the process that made it."""
    is_running: bool = False
    """Whether that process runs, and so replays the file itself."""
    size: int = 0
    kept: Mapping[tuple[str, str], KeptJobs] = {}
    """Its jobs by shard and class."""
    problem: str = ""
    """Why it is not replayed, or not all of it."""


class KeptFiles:
    """Read the files of a folder. One that has not changed is read once."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[tuple[int, int], FileContent]] = {}

    def read(self, folder: Path, most: int | None = None) -> list[KeptFile]:
        """Return the files, the oldest first, at most ``most``, then those that were set aside. They may change meanwhile.

        Raises:
            UnsafeFileError: other users may write into the folder, so that its files are not used.
            OSError: the folder cannot be read.
        """
        check_folder(folder)
        paths = [*push_files(folder)[:most], *set_aside_files(folder)[:most]]
        before = self._read
        self._read = {path: before[path] for path in paths if path in before}
        return [self._file(path) for path in paths]

    def _file(self, path: Path) -> KeptFile:
        try:
            stat = path.stat()
            version, known = (stat.st_mtime_ns, stat.st_size), self._read.get(path)
            if known is None or known[0] != version:
                known = self._read[path] = version, read_file(path)
            content, is_running = known[1], is_locked(path)
        except OSError as error:
            return KeptFile(path, problem=Sentence("cannot be read: {reason}", reason=error.strerror or error))
        return KeptFile(path, content.owner, is_running, content.size, _kept(content), _problem(content))


def _kept(content: FileContent) -> dict[tuple[str, str], KeptJobs]:
    found: dict[tuple[str, str], KeptJobs] = {}
    for entry in content.entries:
        key = entry.destination[0], entry.worker
        jobs, oldest_at = found.get(key, KeptJobs(0, entry.kept_at))
        found[key] = KeptJobs(jobs + entry.jobs, min(oldest_at, entry.kept_at))
    return found


def _problem(content: FileContent) -> str:
    version: Any = content.version
    if version is None:
        return Sentence("no readable header")
    if version != VERSION:
        return Sentence("format version {version}", version=version)
    return format_count(content.damaged, "damaged push") if content.damaged else ""
