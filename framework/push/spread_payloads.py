"""Choose a shard for each job of a class that has several."""

from collections.abc import Sequence

from framework.push.job_batch import JobBatch, PayloadBuilder
from framework.push.protection import WrappedPayloads
from framework.route.job_places import JobPlaces


class SpreadPayloads(WrappedPayloads):
    """Choose the shards of the jobs of another builder. Shared between threads."""

    def __init__(self, builder: PayloadBuilder, places: JobPlaces) -> None:
        super().__init__(builder)
        self._places = places

    def _changed(self, batch: JobBatch) -> Sequence[JobBatch]:
        return batch.by_shard(self._places)
