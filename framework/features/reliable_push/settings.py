"""Settings of the reliable push."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from framework.settings import validators
from framework.settings.base import Section, SettingsBase


class ReliablePushSection(Section):
    """Keep pushes in a file of the process while Redis is down (Sidekiq's ``reliable_push``, on a disk)."""

    enabled: bool = False
    folder: Annotated[Path, BeforeValidator(validators.folder_path)] | None = None
    """The folder of the files; a relative path begins at ``root``. Without one, ``pushes`` in ``var_dir``."""
    max_jobs: Annotated[int, validators.whole_number(1, 1_000_000_000)] = 10_000
    max_bytes: Annotated[int, validators.whole_number(1, 1 << 40)] = 100_000_000
    """The most jobs, and bytes of them, that one process keeps."""


class ReliablePushSettings(SettingsBase):
    """Whether pushes are kept, and where."""

    reliable_push: ReliablePushSection = ReliablePushSection()

    @property
    def pushes_dir(self) -> Path:
        """The folder of kept pushes."""
        named = self.reliable_push.folder
        return self.var_dir / "pushes" if named is None else self.root / named
