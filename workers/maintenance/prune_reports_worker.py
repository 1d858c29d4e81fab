"""Push jobs that delete old files; the retention time of each folder is here."""

from collections.abc import Mapping
from typing import Final

from workers.cronjob import CronjobWorker
from workers.maintenance.prune_folder_worker import PruneFolderWorker

RETENTION_DAYS: Final[Mapping[str, int]] = {"reports": 30, "uploads": 7}
"""Folders below the var directory, and the age at which their files go."""


class PruneReportsWorker(CronjobWorker):
    """Push a job for every folder that would otherwise only grow."""

    feature_category = "platform_maintenance"
    urgency = "throttled"

    def perform(self) -> None:
        PruneFolderWorker.perform_bulk_for(
            RETENTION_DAYS.items(),
            arguments=lambda kept: PruneFolderWorker.arguments(*kept),
            context=lambda kept: {"folder": kept[0]},
        )
