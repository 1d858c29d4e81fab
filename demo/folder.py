"""Create a folder for each run, so that no two runs share files, not even with processes of a killed run."""

import fcntl
import secrets
import shutil
from datetime import datetime
from pathlib import Path
from typing import Self


class RunFolder:
    """``var/demo/RUN``: stores, logs, database, report. It is created; the folders of finished runs are removed."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.iterdir():
            if old.is_dir() and not old.is_symlink():
                _remove_if_over(old)
        self.run_id = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        self.path = parent / self.run_id
        self.path.mkdir()
        # Held until this process ends, in any way: a free lock means that the run is over.
        self._lock = (self.path / "lock").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @classmethod
    def under(cls, var_dir: Path) -> Self:
        """Create a folder under ``var_dir/demo``."""
        return cls(var_dir / "demo")


def _remove_if_over(folder: Path) -> None:
    lock = folder / "lock"
    if not lock.exists():
        return
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder, ignore_errors=True)
