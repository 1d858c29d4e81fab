from tests.admin.conftest import shard

__all__ = ["shard"]
