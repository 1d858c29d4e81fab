"""Remove old files of one folder."""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from framework import ApplicationWorker, BusinessError
from workers.database import var_dir


class PruneFolderWorker(ApplicationWorker):
    """Remove the files below a folder that have not been written to for so many days."""

    feature_category = "platform_maintenance"
    urgency = "throttled"
    # Only ticks push it: rules and dashboards can separate it from work that users cause (GitLab's ``CronjobChildWorker``).
    tags = ("cronjob_child",)
    data_consistency = "sticky"
    idempotent = True
    # A disk serves readers while it removes files, if it is left room to.
    concurrency_limit = 2
    defer_on_health = None  # SEW007: files only, no database
    retry = 3
    # Every log line shows the folder; its name holds no personal data.
    loggable_arguments = ("folder",)

    def perform(self, folder: str, days: int) -> None:
        limit = time.time() - timedelta(days=days).total_seconds()
        removed = 0
        for path in _files_below(_resolve_folder(folder)):
            if self.interrupted:
                # The process is stopping. The removed files are gone; a new job, which another process runs, removes the rest.
                PruneFolderWorker.perform_async(folder, days)
                break
            removed += _remove_if_older(path, limit)
        self.log_extra(removed=removed)


def _resolve_folder(folder: str) -> Path:
    """Return the folder, which lies in the var directory. Raises ``BusinessError`` when it does not."""
    # Arguments lie in Redis: a client that can write there must not be able to remove any file of this machine.
    root = var_dir().resolve()
    path = (root / folder).resolve()
    if root not in path.parents:
        raise BusinessError(f"{folder!r} is no folder below the var directory")
    return path


def _files_below(folder: Path) -> Iterator[Path]:
    """Return every file; links to folders are not followed. A missing folder has none."""
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _remove_if_older(path: Path, limit: float) -> bool:
    try:
        if path.lstat().st_mtime >= limit:
            return False
        path.unlink()
    except FileNotFoundError:
        return False  # Another process removed it, which is the wanted state.
    return True
