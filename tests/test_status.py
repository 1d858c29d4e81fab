"""Test the look-up of states on two real shards."""

import pytest

from framework import status
from framework.declare import port
from framework.errors import ShardUnavailableError
from framework.shard.shards import Shards
from framework.wire import keys
from tests.harness import opened
from tests.tables import each_row


class LookUpPort:
    """Implement the part of the port that look-ups use."""

    def __init__(self, shards):
        self.shards = Shards(shards)
        self.look_up = self.shards.look_up


@pytest.fixture
def shards(redis_url, second_redis_url):
    bound = LookUpPort({"main": opened(redis_url), "second": opened(second_redis_url, "second")})
    with port.override(bound):
        yield bound.shards
    bound.shards.close()


@pytest.fixture
def say(shards, redis):
    """Write states as workers do: say(jid="state", ...)."""

    def write(client=None, **states):
        for jid, state in states.items():
            (client or redis).set(keys.status(jid), state, ex=60)

    return write


ALL = {"a": "queued", "b": "running", "c": "retrying", "d": "completed", "e": "failed", "f": "discarded"}
ALL.update({"x": "expired", "y": "cancelled"})
JIDS = [*ALL, "g"]


def test_look_up_returns_written_states_else_unknown(say):
    say(**ALL)
    assert status.look_up(JIDS) == {**ALL, "g": "unknown"}
    assert list(status.look_up(reversed(JIDS))) == JIDS[::-1]
    assert {jid: status.of(jid) for jid in JIDS} == status.look_up(JIDS)


def test_function_named_after_a_state_means_that_state(say):
    say(**ALL)
    assert [jid for jid in JIDS if status.running(jid)] == ["b"]
    assert [jid for jid in JIDS if status.completed(jid)] == ["d"]
    assert [jid for jid in JIDS if status.ended(jid)] == ["d", "e", "f", "x", "y"]
    assert (status.num_running(JIDS), status.num_unfinished(JIDS), status.num_completed(JIDS)) == (1, 3, 1)
    assert status.completed_jids(["f", "d", "d", "a"]) == ["d"]


def test_all_completed_and_all_ended_check_every_job(say):
    say(**ALL, d2="completed")
    assert status.all_completed(["d", "d2"])
    assert not status.all_completed(["d", "f"])
    assert not status.all_completed(["d", "g"])
    assert status.all_ended(["d", "e", "f"])
    assert not status.all_ended(["d", "c"])
    assert not status.all_ended(["g"])  # an unknown job is not known to have ended
    assert (status.all_completed([]), status.all_ended([]), status.look_up([])) == (True, True, {})
    assert (status.num_running([]), status.completed_jids([])) == (0, [])


def test_look_up_returns_the_most_advanced_of_all_shards(say, second_redis):
    say(moved="retrying", ended="queued", here="completed")
    say(second_redis, moved="running", ended="completed", there="failed")
    assert status.look_up(["moved", "ended", "here", "there"]) == {
        "moved": "running",
        "ended": "completed",
        "here": "completed",
        "there": "failed",
    }


@pytest.mark.parametrize(("count", "trips"), [(1, 1), (1_000, 1), (1_001, 2), (5_500, 6)])
def test_look_up_takes_one_round_trip_per_thousand(say, redis, second_redis, count, trips):
    jids = [f"{number}" for number in range(count)]
    say(**{jids[-1]: "completed"})
    for client in (redis, second_redis):
        client.config_resetstat()
    found = status.look_up(jid for jid in jids)
    assert (len(found), found[jids[-1]], status.num_completed(jids)) == (count, "completed", 1)
    for client in (redis, second_redis):
        assert client.info("commandstats")["cmdstat_mget"]["calls"] == 2 * trips


def test_look_up_of_a_foreign_value_is_unknown(shards, redis):
    redis.lpush(keys.status("list"), 1)
    redis.set(keys.status("word"), "levitating")
    redis.set(keys.status("bytes"), b"\xff\0")
    assert set(status.look_up(["list", "word", "bytes"]).values()) == {"unknown"}


def test_look_up_accepts_odd_ids(say):
    odd = ["ä ö\n", "*", "x" * 10_000, "aw:status:d"]
    say(**{odd[0]: "running"})
    assert [status.look_up(odd)[jid] for jid in odd] == ["running", "unknown", "unknown", "unknown"]


@each_row(
    ("jids", "error", "words"),
    [
        ("abc", TypeError, r"look_up\('abc'\): give an iterable of ids, such as \[jid\]"),
        (["a", None], TypeError, "id 1 is None: that job was dropped"),
        ([7], TypeError, "id 0 is 7, an int"),
        ([b"a"], TypeError, "a bytes"),
        (["a", "b", ""], ValueError, "id 2 is empty"),
        (["\ud800"], ValueError, "not Unicode text"),
        (7, TypeError, "not iterable"),
    ],
)
@each_row("call", [status.look_up, status.num_running, status.all_completed, status.completed_jids])
def test_look_up_of_invalid_id_is_refused(shards, jids, error, words, call):
    with pytest.raises(error, match=words):
        call(jids)


@pytest.mark.parametrize("call", [status.of, status.running, status.completed, status.ended])
def test_status_functions_with_invalid_id_are_refused(shards, call):
    for wrong, error in (("", ValueError), (None, TypeError), (["a"], TypeError)):
        with pytest.raises(error):
            call(wrong)


def test_look_up_names_a_shard_that_does_not_answer(shards, redis_url, short_path):
    gone = opened(f"unix://{short_path}/gone.sock", "second")
    with port.override(LookUpPort({"main": opened(redis_url), "second": gone})):
        with pytest.raises(ShardUnavailableError, match="shard 'second' is unavailable") as caught:
            status.of("a")
        assert (caught.value.shard, caught.value.maybe_written) == ("second", False)


def test_look_up_after_a_restart_of_the_server_works(make_server):
    own = make_server()
    bound = LookUpPort({"main": opened(own.url)})
    with port.override(bound):
        assert status.of("a") == "unknown"
        own.kill()
        with pytest.raises(ShardUnavailableError):
            status.of("a")
        own.start()
        assert status.of("a") == "unknown"
        own.stop()
        own.start()
        assert status.of("a") == "unknown"
    bound.shards.close()
