from tests.admin.conftest import both_shards, shard, silent_second

__all__ = ["both_shards", "shard", "silent_second"]
