"""The framework's no-op jobs for an installation of four shards."""

import body

from framework import ApplicationWorker


class ShardWorker(ApplicationWorker, abstract=True):
    """The base of all of them."""

    feature_category = "not_owned"
    queue = "default"

    def perform(self) -> None:
        body.noop()


class FirstShardWorker(ShardWorker):
    shard = "main"


class SecondShardWorker(ShardWorker):
    shard = "shard_2"


class ThirdShardWorker(ShardWorker):
    shard = "shard_3"


class FourthShardWorker(ShardWorker):
    shard = "shard_4"


WORKERS: dict[str, type[ApplicationWorker]] = {
    worker.declaration().shard or "main": worker
    for worker in (FirstShardWorker, SecondShardWorker, ThirdShardWorker, FourthShardWorker)
}
