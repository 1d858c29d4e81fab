"""The second of the two jobs: join the parts of an export."""

from framework import ApplicationWorker
from workers.order_export import exports


class JoinPartsWorker(ApplicationWorker):
    """Join the parts of an export to one file, and remove them."""

    feature_category = "order_management"
    # The user waits for the file; the parts before it do not.
    urgency = "low"
    track = True
    data_consistency = "sticky"
    idempotent = True
    # It copies files: two at a time use the disk well.
    concurrency_limit = 2
    defer_on_health = None  # SEW007: a user waits for it, and it writes one row
    retry = 5

    def perform(self, export_id: int) -> None:
        path, rows = exports.join(export_id)
        self.record("joined", rows=rows, path=str(path))
