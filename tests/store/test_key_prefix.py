"""Put the prefix before the keys of commands and scripts: all keys of a shard are in one place, and no other text changes."""

import re

import hiredis
import pytest
from redis.exceptions import DataError, ResponseError

from framework.store import key_prefix
from framework.store.key_prefix import KeyPrefix
from framework.store.script import FETCH, source_of
from tests.lua import SCRIPTS, part_files, script_files
from tests.tables import each_row

PREFIX = KeyPrefix("{main}:")
_CALL = re.compile(r"redis\.(\w+)\b")
_COMMANDS = re.compile(r"redis\.p?call\(\s*(?:\w+ and )?'([A-Z]+)'(?: or '([A-Z]+)')?")
_OTHERS = re.compile(r"redis\.p?call\((?!\s*(?:\w+ and )?'[A-Z]+')([^\n]*)")


def packed(*command):
    return hiredis.pack_command(command)


def texts():
    for name, path in {**script_files(), **part_files()}.items():
        yield name, re.sub(r"--[^\n]*", "", path.read_text())


@each_row(
    ("given", "expected"),
    [
        (("LPUSH", "queue:a", "queue:b"), ("LPUSH", "{main}:queue:a", "queue:b")),
        (("del", "a", "b"), ("del", "{main}:a", "{main}:b")),
        (("LMOVE", "a", "b", "LEFT", "LEFT"), ("LMOVE", "{main}:a", "{main}:b", "LEFT", "LEFT")),
        (("BLPOP", "a", "b", 3), ("BLPOP", "{main}:a", "{main}:b", 3)),
        (("MSET", "a", "x", "b", "y"), ("MSET", "{main}:a", "x", "{main}:b", "y")),
        (("MEMORY", "USAGE", "a", "SAMPLES", 5), ("MEMORY", "USAGE", "{main}:a", "SAMPLES", 5)),
        (("ZUNIONSTORE", "d", 2, "a", "b"), ("ZUNIONSTORE", "{main}:d", 2, "{main}:a", "{main}:b")),
        (("SCAN", 0, "COUNT", 5), ("SCAN", 0, "COUNT", 5, "MATCH", "{main}:*")),
        (("SCAN", 0, "match", "queue:*"), ("SCAN", 0, "match", "{main}:queue:*")),
        (("HELLO", 3), ("HELLO", 3)),
        (("EVALSHA", "0" * 40, 1, "a", "b"), ("EVALSHA", "0" * 40, 2, "{main}:a", "{main}:aw:push:", "b")),
        (("EVALSHA", "0" * 40, 0, "b"), ("EVALSHA", "0" * 40, 1, "{main}:aw:push:", "b")),
    ],
)
def test_packed_command_has_prefix_before_keys_only(given, expected):
    assert PREFIX.packed(packed(*given)) == packed(*expected)


def test_packed_pipeline_keeps_order():
    assert PREFIX.packed(packed("GET", "a") + packed("TIME")) == packed("GET", "{main}:a") + packed("TIME")


@pytest.mark.parametrize("command", [("FLUSHDB",), ("SORT", "a"), ("PUBLISH", "c", "x"), ("OBJECT", "HELP")])
def test_unknown_command_is_refused_before_it_is_sent(command):
    with pytest.raises(DataError, match="not supported on a shard of a cluster"):
        PREFIX.packed(packed(*command))


def test_known_script_has_digest_of_its_text_with_prefix(each_redis):
    each_redis.flushall()
    assert source_of(FETCH.digest) == FETCH.source
    sent = PREFIX.packed(packed("EVALSHA", FETCH.digest, 0))
    digest = re.search(rb"\$40\r\n([0-9a-f]{40})", sent)[1].decode()
    assert each_redis.script_load(PREFIX.script(FETCH.source)) == digest != FETCH.digest


def test_positions_are_those_of_the_server(each_redis):
    """The names of commands that this server does not know are of newer ones."""
    each_redis.set_response_callback("COMMAND", lambda reply, **_: reply)
    names = list(key_prefix._POSITIONS)
    found = zip(names, each_redis.execute_command("COMMAND", "INFO", *names), strict=True)
    known = {name: tuple(row[3:6]) for name, row in found if row}
    assert len(known) > 150
    assert known == {name: key_prefix._POSITIONS[name] for name in known}


def test_each_script_calls_commands_whose_keys_are_known():
    """A literal key gets its prefix in ``redis.call``; so no script may name another function of Redis, or an unknown command."""
    single = {name.decode() for name in key_prefix._ONE}
    known = single | {*key_prefix.SCRIPTED_ALL, *key_prefix.SCRIPTED_TWO, *key_prefix.SCRIPTED_KEYLESS, "SCAN"}
    functions, unknown, others = set(), [], []
    for name, text in texts():
        functions |= set(_CALL.findall(text))
        unknown += [(name, one) for call in _COMMANDS.findall(text) for one in call if one and one not in known]
        others += [(name, one) for one in _OTHERS.findall(text)]
    assert functions == {"call", "pcall", "error_reply", "sha1hex"}
    assert not unknown, f"add them to framework/store/key_prefix.py: {unknown}"
    # The status of a tracked job, and the mark of a claim: SET, as a value.
    assert all(
        one.startswith(("unpack(claim.mark)", "unpack(status)", "unpack(ARGV", "name", "ARGV[")) for _, one in others
    ), others


def test_each_script_can_be_loaded_with_a_prefix(each_redis):
    for script in SCRIPTS.values():
        each_redis.script_load(PREFIX.script(script.source))


_EACH_SHAPE = b"""
redis.call('SET', KEYS[1], KEYS[1])
redis.call('SET', 'aw:' .. ARGV[1], '{main}:value')
redis.call('RPUSH', 'list', 'x', 'y')
redis.call('LMOVE', 'list', 'other', 'LEFT', 'LEFT')
redis.call('RENAME', 'other', 'renamed')
redis.call('DEL', 'list', 'absent')
local page = redis.call('SCAN', '0', 'MATCH', 'ren*', 'COUNT', 1000)
local missing = redis.pcall('INCR', 'renamed')
return { #KEYS, redis.call('EXISTS', 'list', 'renamed', KEYS[1]), redis.call('MGET', 'aw:x', KEYS[1]), page[2],
  #redis.call('TIME'), redis.sha1hex('x'), missing.err and 1 or 0, redis.call('GET', 'aw:x') }
"""


def test_script_names_keys_without_their_prefix(each_redis):
    text = PREFIX.script(_EACH_SHAPE)
    keys, value = [b"{main}:first", b"{main}:aw:push:"], b"{main}:value"
    reply = each_redis.eval(text, 2, *keys, "x")
    assert reply[:4] == [1, 2, [value, b"first"], [b"renamed"]]
    assert (reply[4], reply[6], reply[7]) == (2, 1, value)
    assert set(each_redis.keys("*")) == {b"{main}:first", b"{main}:aw:x", b"{main}:renamed"}


def test_error_of_a_script_is_that_of_the_server(each_redis):
    with pytest.raises(ResponseError, match="wrong kind of value"):
        each_redis.eval(PREFIX.script(b"redis.call('SET', 'a', 1) redis.call('LPUSH', 'a', 1)"), 1, "{main}:aw:push:")
