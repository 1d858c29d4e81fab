"""The clock of a Redis server."""

from framework.store.clock import epoch_s, server_time


def test_epoch_s_of_a_time_reply_has_microseconds():
    assert epoch_s((1_700_000_000, 250_000)) == 1_700_000_000.25


def test_server_time_lies_between_two_time_replies(redis):
    before = redis.time()
    assert epoch_s(before) <= server_time(redis) <= epoch_s(redis.time())
