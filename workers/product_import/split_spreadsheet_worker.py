"""The first of the four jobs: split a file into batches of rows."""

from framework import ApplicationWorker
from framework.types import Payload
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

    def perform(self, import_id: int) -> None:
        path = imports.path_to_stage(import_id)
        if path is not None:
            imports.stage(import_id, read_spreadsheet(path))
        pending = imports.pending_batches(import_id)
        ImportProductsWorker.perform_bulk_for(
            pending,
            arguments=lambda batch: ImportProductsWorker.arguments(import_id, batch.number),
            # The support team needs both to answer a customer: the import and the lines of the file.
            context=lambda batch: {"import_id": import_id, "lines": f"{batch.first_line}-{batch.last_line}"},
        )
        self.log_extra(pushed=len(pending))
        # No batch asks for the report of a file of one row, or of a second run after the last batch.
        if not pending and imports.report_due(import_id):
            BuildImportReportWorker.perform_async(import_id)

    @classmethod
    def retries_exhausted(cls, job: Payload, error: Exception) -> None:
        # Also called for a BusinessError: the user who waits for the import sees the reason.
        imports.fail(job["args"][0], str(error))
