import pytest

from framework.all_settings import load
from framework.errors import UnknownShardError
from framework.shard.shards import open_shards


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "redis.yml").write_text('shards: {main: {url: "redis://127.0.0.1:1/0"}}')
    return open_shards(load({"FRAMEWORK_CONFIG_DIR": str(tmp_path)}, tmp_path), role="test")


@pytest.mark.proves("R3", "R17")
def test_clients_neither_retry_nor_check_health(shards):
    """redis-py's own defaults retry each command ten times, which repeats pushes and loses fetched jobs."""
    shard = shards["main"]
    for client in (shard.client, shard.open_client("fetch", read_timeout_s=7.0)):
        options = client.connection_pool.connection_kwargs
        assert options["retry"].get_retries() == 0
        assert options["health_check_interval"] == 0
        assert options["decode_responses"] is False
        assert options["socket_connect_timeout"] == 2.0
    assert client.connection_pool.connection_kwargs["socket_timeout"] == 7.0


def test_unknown_shard_error_lists_the_known_shards(shards):
    with pytest.raises(UnknownShardError, match=r"'mian'.*main"):
        shards["mian"]
