"""A payload store for blocks."""

import pytest

from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.stored_blocks import StoredBlocks
from framework.store.block_store import IN_REDIS, attach_store


@pytest.fixture
def stored(redis, tmp_path):
    """Blocks in a folder, which readers of this Redis find there."""
    made = StoredBlocks(PayloadOffload(FolderStore(tmp_path / "payloads"), "file:///payloads", 1_000))
    attach_store(redis, made)
    yield made
    attach_store(redis, IN_REDIS)
