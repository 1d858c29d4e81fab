"""The first of the two jobs: write one part of an export."""

from framework import ApplicationWorker
from workers.in_task import push_in_task
from workers.order_export import exports
from workers.order_export.join_parts_worker import JoinPartsWorker


class ExportPartWorker(ApplicationWorker):
    """Write 10,000 orders to a file of their own; the last part pushes the join."""

    feature_category = "order_management"
    # Nights of exports must not delay jobs that users wait for.
    urgency = "throttled"
    # Reading and formatting rows uses the processor: the parts run in parallel processes.
    resource_boundary = "cpu"
    # The user looks at the progress of the task.
    track = True
    data_consistency = "sticky"
    idempotent = True
    # An export may read, and must not take every slot of the queue.
    concurrency_limit = 8
    defer_on_health = None  # SEW007: it reads, and writes one row
    retry = 5

    def perform(self, export_id: int, number: int) -> None:
        written = exports.write_orders(export_id, number)
        self.record("written", rows=written.rows)
        # After the commit, never before: see the effects of a crash in ``exports``.
        if written.join_due:
            push_in_task(written.task_id, JoinPartsWorker, [(export_id,)], {"export_id": export_id})
