"""Clean the var directory in two steps: remove old files, then vacuum the databases."""

from collections.abc import Iterator

from framework.workflows import Workflow, WorkflowRun, computed, computes_arguments
from workers.database import var_dir
from workers.maintenance.prune_folder_worker import PruneFolderWorker
from workers.maintenance.prune_reports_worker import RETENTION_DAYS
from workers.maintenance.vacuum_database_worker import VacuumDatabaseWorker


@computes_arguments
def database_names() -> Iterator[tuple[str]]:
    """Yield the arguments of a job for each SQLite database that the var directory has when its step starts."""
    for path in sorted(var_dir().glob("*.sqlite3")):
        yield (path.name,)


def clean_var_directory() -> WorkflowRun:
    """Start the cleaning; its state is ``run.status``.

    The step ``vacuum`` does not wait for the rest of a folder that a stopping process leaves to another job. It needs no more than
    a disk that is mostly at rest.
    """
    return (
        Workflow("cleaning", description="var directory")
        .step("prune", PruneFolderWorker, RETENTION_DAYS.items())
        .then("vacuum", VacuumDatabaseWorker, computed(database_names))
        .start()
    )
