"""Run jobs whose common end matters: ``Batch`` counts them, and enqueues callbacks.

    from framework.batches import Batch

    batch = Batch(description="Import of products.csv")
    batch.on_success(PublishWorker, import_id)
    batch.on_death(AlarmWorker, import_id)
    with batch.jobs():
        ImportRowWorker.perform_bulk([(import_id, row) for row in rows])

    batch.status.pending
    Batch(bid).cancel()

In a job, ``self.batch`` is its batch: ``self.batch.valid``, ``with self.batch.jobs(): ...``. A callback is a job of its own, with
retries; ``self.batch_event`` says which event of which batch it is called for.

A batch needs Redis alone. It is on the shard of its jobs, and counts each job in the step that ends the job.
"""

from framework.errors import BatchCancelledError, BatchError, UnknownBatchError
from framework.features.batches.batch import Batch, BatchEvent, BatchStatus, JobsBlock

__all__ = ["Batch", "BatchCancelledError", "BatchError", "BatchEvent", "BatchStatus", "JobsBlock", "UnknownBatchError"]
