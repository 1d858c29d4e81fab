from tests.admin.conftest import both_shards, shard

__all__ = ["both_shards", "shard"]
