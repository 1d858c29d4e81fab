"""The third of the three jobs: write the report page."""

from framework import ApplicationWorker, Discard
from workers.atomic_write import write_atomically
from workers.code_index.database import process_engine
from workers.code_index.index import this_process_index
from workers.code_index.report.page import render
from workers.code_index.run_statistics import read_run_statistics
from workers.database import var_dir


class BuildReportWorker(ApplicationWorker):
    """Write the report page of a run whose files are all done."""

    feature_category = "source_code_analysis"
    data_consistency = "sticky"
    resource_boundary = "memory"
    idempotent = True
    concurrency_limit = 4
    defer_on_health = None  # SEW007: the index has a database of its own, on which no user waits
    retry = 5
    loggable_arguments = ("run_id",)

    def perform(self, run_id: str) -> None:
        index = this_process_index()
        if not index.complete(run_id):
            # Pushed by hand, too early. The job that records the last result pushes this job again.
            raise Discard(f"run {run_id!r} has files that are not done yet")
        page = var_dir() / "reports" / f"code-index-{run_id}.html"
        # The page before the row: dying in between writes the same page again, whereas the other order could leave a
        # finished run without its page.
        write_atomically(page, render(read_run_statistics(process_engine(), run_id)))
        index.finish(run_id, str(page))
