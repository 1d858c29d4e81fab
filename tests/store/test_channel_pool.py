"""Check the scripts that run over the channels of a pool: each reply, each error, and the channel afterwards."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from framework.store.channel import ChannelPool
from framework.store.connect import Endpoint, open_client
from framework.store.script import Script
from tests.servers.guarded import with_all_rights
from tests.store.scripted import CLOSE, scripted


@pytest.fixture
def script():
    one = Script("search")
    one.source = (
        b"if ARGV[1] == 'fail' then return redis.error_reply('WRONGTYPE as asked') end return {KEYS[1], ARGV[1]}"
    )
    one.digest = "0" * 40
    return one


@pytest.fixture
def channels(redis, redis_url):
    pool = ChannelPool(open_client(Endpoint(with_all_rights(redis_url)), name="channels"), read_timeout_s=5.0)
    yield pool
    pool.close()


def clients(redis):
    return [one["id"] for one in redis.client_list() if one["name"] == "channels"]


def test_script_that_the_server_does_not_know_runs_by_its_source(channels, script):
    assert channels.run_script(script, ["key"], ["a"]) == [b"key", b"a"]


def test_channel_is_used_again_after_a_reply_and_an_error(channels, script, redis):
    channels.run_script(script, ["key"], ["a"])
    first = clients(redis)
    with pytest.raises(ResponseError, match="as asked"):
        channels.run_script(script, ["key"], ["fail"])
    assert channels.run_script(script, ["key"], ["b"]) == [b"key", b"b"]
    assert clients(redis) == first
    assert len(first) == 1


def test_channel_without_a_reply_is_not_used_again(script):
    with scripted(lambda packet: CLOSE) as server:
        pool = ChannelPool(open_client(Endpoint(server.url), name="channels"), read_timeout_s=5.0)
        for _ in range(2):
            with pytest.raises(RedisConnectionError):
                pool.run_script(script, ["key"], ["a"])
        assert server.connections == 2
