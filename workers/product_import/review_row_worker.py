"""The third of the five jobs: decide about one row with a fault."""

from framework import ApplicationWorker, BusinessError
from workers.in_task import push_in_task
from workers.product_import import imports
from workers.product_import.build_import_report_worker import BuildImportReportWorker
from workers.product_import.recalculate_prices_worker import RecalculatePricesWorker


class ReviewRowWorker(ApplicationWorker):
    """Import a row after corrections that are beyond doubt, or reject it with a reason."""

    feature_category = "product_catalogue"
    urgency = "throttled"
    # One event for each row with a fault: the page of the import shows which rows were rejected, and why.
    track = True
    data_consistency = "sticky"
    idempotent = True
    # A file full of faults must not take every slot; each job writes one row, so more may run than of the batches.
    concurrency_limit = 8
    defer_on_health = None  # SEW007: it writes one row
    retry = 5

    def perform(self, import_id: int, line: int) -> None:
        reviewed = imports.review_row(import_id, line)
        for correction in reviewed.corrections:
            self.record(correction)
        context = {"import_id": import_id}
        # After the commit, never before: see the effects of a crash in ``imports``.
        if reviewed.category is not None:
            RecalculatePricesWorker.set(context=context).perform_async(reviewed.category)
        if reviewed.report_due:
            push_in_task(imports.task_of(import_id), BuildImportReportWorker, [(import_id,)], context)
        if reviewed.outcome == "rejected":
            raise BusinessError(f"line {line}: {reviewed.reason}")
        self.record(reviewed.outcome)
