"""Read the figures of kept pushes for Prometheus: those of this host."""

import time
from collections.abc import Iterator
from pathlib import Path

from framework.admin.figures import Figure, FigureReader
from framework.features.reliable_push.push_file import push_files, read_file
from framework.features.reliable_push.settings import ReliablePushSettings
from framework.settings.base import SettingsBase


class KeptPushFigures(FigureReader):
    """Yield the jobs in the folder of kept pushes, and the age of the oldest. A file is read again when it has changed."""

    def __init__(self, settings: SettingsBase) -> None:
        super().__init__(settings)
        self._read: dict[Path, tuple[tuple[int, int], int, float | None]] = {}

    def of_host(self) -> Iterator[Figure]:
        found = [
            one for path in push_files(ReliablePushSettings.of(self.settings).pushes_dir) if (one := self._kept(path))
        ]
        self._read = {path: one for path, one in self._read.items() if path.exists()}
        oldest = min((since for _, _, since in found if since is not None), default=None)
        oldest_s = 0.0 if oldest is None else max(0.0, time.time() - oldest)
        yield Figure("application_worker_kept_pushes", {}, sum(jobs for _, jobs, _ in found))
        yield Figure("application_worker_kept_pushes_oldest_age_seconds", {}, round(oldest_s, 3))

    def _kept(self, path: Path) -> tuple[tuple[int, int], int, float | None] | None:
        """Return the version of a file, its jobs, and when the oldest was kept."""
        try:
            stat = path.stat()
            version, known = (stat.st_mtime_ns, stat.st_size), self._read.get(path)
            if known is None or known[0] != version:
                entries = read_file(path).entries
                oldest = min((one.kept_at for one in entries), default=None)
                known = self._read[path] = version, sum(one.jobs for one in entries), oldest
        # The process that owns the file has just removed it, or the file belongs to another user.
        except OSError:
            return None
        return known
