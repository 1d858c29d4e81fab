"""The second of the five jobs: import one batch of rows."""

from datetime import timedelta

from framework import ApplicationWorker, DeferOnHealth
from workers.in_task import push_in_task
from workers.product_import import imports
from workers.product_import.build_import_report_worker import BuildImportReportWorker
from workers.product_import.recalculate_prices_worker import RecalculatePricesWorker
from workers.product_import.review_row_worker import ReviewRowWorker


class ImportProductsWorker(ApplicationWorker):
    """Write the products of one batch, and push jobs for their prices and for rows with a fault; the last one pushes the report."""

    feature_category = "product_catalogue"
    # A shop imports overnight as well as at noon: hundreds of batches must not delay jobs that users wait for.
    urgency = "throttled"
    # Checking 500 rows takes longer than writing them.
    resource_boundary = "cpu"
    data_consistency = "sticky"
    idempotent = True
    # SQLite has one writer: more than a few at a time would only wait for one another.
    concurrency_limit = 4
    # Customers read the same table. An import can wait until the database is healthy; customers would not.
    defer_on_health = DeferOnHealth(tables=("product_import_products",), delay=timedelta(seconds=30))
    retry = 5
    # The user looks at the progress of the import, and reads what became of each batch.
    track = True

    def perform(self, import_id: int, batch: int) -> None:
        imported = imports.import_batch(import_id, batch)
        self.log_extra(**imported.counts)
        self.record("imported", **imported.counts)
        context = {"import_id": import_id}
        task_id = imports.task_of(import_id)
        # After the commit, never before: see the effects of a crash in ``imports``.
        RecalculatePricesWorker.set(context=context).perform_bulk([(category,) for category in imported.categories])
        if imported.review:
            push_in_task(task_id, ReviewRowWorker, [(import_id, line) for line in imported.review], context)
        if imported.report_due:
            push_in_task(task_id, BuildImportReportWorker, [(import_id,)], context)
