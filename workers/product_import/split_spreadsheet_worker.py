"""The first of the five jobs: split a file into batches of rows."""

from framework import ApplicationWorker
from framework.types import Payload
from workers.in_task import push_in_task
from workers.product_import import imports
from workers.product_import.build_import_report_worker import BuildImportReportWorker
from workers.product_import.import_products_worker import ImportProductsWorker
from workers.product_import.spreadsheet import read_spreadsheet


class SplitSpreadsheetWorker(ApplicationWorker):
    """Record every row of an uploaded file, and push one job per batch."""

    feature_category = "product_catalogue"
    # The whole file is in memory while its rows are recorded.
    resource_boundary = "memory"
    data_consistency = "sticky"
    idempotent = True
    # 200,000 rows are some 200 MB: three such files at once would be as much as a small machine has.
    concurrency_limit = 2
    defer_on_health = None  # SEW007: the page of the upload waits for it, and it writes once
    # Retries are for temporary errors, like an upload that has not reached this machine; an invalid file is not retried.
    retry = 3
    # The page of the upload shows its end: how many batches there are, or why the file cannot be imported.
    track = True

    def perform(self, import_id: int) -> None:
        path = imports.path_to_stage(import_id)
        if path is not None:
            imports.stage(import_id, read_spreadsheet(path))
        pending = imports.pending_batches(import_id)
        task_id = imports.task_of(import_id)
        for batch in pending:
            # The support team needs both to answer a customer: the import and the lines of the file.
            context = {"import_id": import_id, "lines": f"{batch.first_line}-{batch.last_line}"}
            push_in_task(task_id, ImportProductsWorker, [(import_id, batch.number)], context)
        self.log_extra(pushed=len(pending))
        self.record("split", batches=len(pending))
        # No batch asks for the report of a file of one row, or of a second run after the last batch.
        if not pending and imports.report_due(import_id):
            push_in_task(task_id, BuildImportReportWorker, [(import_id,)], {"import_id": import_id})

    @classmethod
    def retries_exhausted(cls, job: Payload, error: Exception) -> None:
        # Also called for a BusinessError: the user who waits for the import sees the reason.
        imports.fail(job["args"][0], str(error))
