import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from framework.store.absent_keys import AbsentKeys

NAMES = ("aw:flags", "aw:limits")


@pytest.fixture
def absent(set_clock):
    """The keys after their readers have found none."""
    keys = AbsentKeys(NAMES, 6.0)
    for name in NAMES:
        keys.note(name, found=False)
    return keys


def may_exist(absent):
    return [name for name in NAMES if absent.may_exist(name)]


def test_absent_keys_before_a_check_may_exist(absent, redis):
    assert may_exist(absent) == list(NAMES)
    assert not absent.check(redis)
    assert may_exist(absent) == []
    assert absent.may_exist("another")


def test_absent_keys_unread_keys_are_not_asked_for(redis, set_clock):
    keys = AbsentKeys(NAMES, 6.0)
    redis.set(NAMES[0], "")
    keys.note(NAMES[1], found=False)
    assert not keys.check(redis)
    assert may_exist(keys) == [NAMES[0]]


def test_absent_keys_old_answer_does_not_count(absent, redis, set_clock):
    absent.check(redis)
    set_clock.advance(6.1)
    assert may_exist(absent) == list(NAMES)


def test_absent_keys_after_a_find_all_are_read_once(absent, redis):
    absent.check(redis)
    redis.set(NAMES[0], "")
    assert absent.check(redis)
    assert may_exist(absent) == list(NAMES)
    # Not asked for again before a reader has found it missing.
    assert not absent.check(redis)
    absent.note(NAMES[0], found=True)
    absent.note(NAMES[1], found=False)
    assert not absent.check(redis)
    assert may_exist(absent) == [NAMES[0]]


def test_absent_keys_found_by_a_reader_may_exist_at_once(absent, redis):
    absent.check(redis)
    absent.note(NAMES[0], found=True)
    assert may_exist(absent) == [NAMES[0]]


def test_absent_keys_found_by_a_reader_during_a_check_stay(absent):
    class Client:
        def exists(self, *_names):
            absent.note(NAMES[1], found=True)
            return 0

    assert not absent.check(Client())
    assert may_exist(absent) == [NAMES[1]]


class FailingClient:
    def __init__(self, error):
        self.error = error

    def exists(self, *_names):
        raise self.error


def test_absent_keys_failed_check_leaves_no_old_answer(absent, redis):
    absent.check(redis)
    with pytest.raises(RedisConnectionError):
        absent.check(FailingClient(RedisConnectionError()))
    assert may_exist(absent) == list(NAMES)


def test_absent_keys_refused_check_lets_readers_read(absent, redis):
    absent.check(redis)
    assert not absent.check(FailingClient(NoPermissionError()))
    assert may_exist(absent) == list(NAMES)
    absent.check(redis)
    assert may_exist(absent) == []


def test_absent_keys_watches_more_keys_while_built(redis):
    keys = AbsentKeys(NAMES, 6.0)
    keys.watch("later")
    assert keys.may_exist("later")
    keys.note("later", found=False)
    assert not keys.check(redis)
    assert not keys.may_exist("later")
    redis.set("later", 1)
    assert keys.check(redis)
    assert keys.may_exist("later")
