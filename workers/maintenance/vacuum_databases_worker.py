"""Find the databases to vacuum."""

from workers.cronjob import CronjobWorker
from workers.database import var_dir
from workers.maintenance.vacuum_database_worker import VacuumDatabaseWorker


class VacuumDatabasesWorker(CronjobWorker):
    """Push a job for every SQLite database of the var directory."""

    feature_category = "platform_maintenance"
    urgency = "throttled"

    def perform(self) -> None:
        # Names, not paths: the job may run on another machine, whose var directory has another path.
        names = sorted(path.name for path in var_dir().glob("*.sqlite3"))
        VacuumDatabaseWorker.perform_bulk_for(
            names,
            arguments=VacuumDatabaseWorker.arguments,
            context=lambda name: {"database": name},
        )
        self.log_extra(databases=len(names))
