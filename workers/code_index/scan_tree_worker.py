"""The first of the three jobs: list the files and fan out."""

from framework import ApplicationWorker
from workers.code_index.build_report_worker import BuildReportWorker
from workers.code_index.index import this_process_index
from workers.code_index.index_file_worker import IndexFileWorker
from workers.code_index.source_files import find_files


class ScanTreeWorker(ApplicationWorker):
    """Record every Python file below some folders as one run, and push one job per file."""

    feature_category = "source_code_analysis"
    data_consistency = "sticky"
    idempotent = True
    defer_on_health = None  # SEW007: the index has a database of its own, on which no user waits
    retry = 5
    loggable_arguments = ("run_id", "roots")

    def perform(self, run_id: str, roots: list[str]) -> None:
        # The caller makes the run id: a second run of this job continues the first one's run instead of beginning
        # another. The list is recorded in one transaction before the first push, so a job never meets an unknown file;
        # dying in the middle of the pushes costs a second run of this job, which pushes the files without a result.
        index = this_process_index()
        if index.begin(run_id, roots):
            index.record_files(run_id, find_files(roots))
        pending = index.pending(run_id)
        IndexFileWorker.set(context={"run": run_id}).perform_bulk([(run_id, number) for number in pending])
        self.log_extra(pushed=len(pending))
        # No file job asks for the report of an empty tree, or of a second run after the last file.
        if not pending and index.report_due(run_id):
            BuildReportWorker.perform_async(run_id)
