"""Put a prefix before each key of a shard, in the one place that all commands of the shard pass: the packed bytes.

The shards of a cluster need it: ``{main}:`` is a hash tag, so all keys of the shard ``main`` are in one slot, where scripts are
atomic. The rest of the framework, its scripts included, names keys without a prefix. So a name that is a value (a member of
``aw:limits``, a field, an argument of a script) has no prefix, and is the same on every shard. Only what Redis takes for a key has
one. A shard without a cluster has no prefix, and this module has no part in its commands.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import hiredis
from redis.exceptions import DataError

from framework.store.script import source_of
from framework.wire import keys

SLOT = "slot"
"""The option of redis-py's connections that such a shard has (``cluster_slot.py``)."""

_Positions: TypeAlias = tuple[int, int, int]
"""The first key of a command, the last one (from the end, if below 0), and the step: as Redis describes its commands."""

_KEYLESS = frozenset(
    b"ACL AUTH CLIENT CLUSTER COMMAND CONFIG DBSIZE DISCARD ECHO EXEC HELLO INFO LASTSAVE LATENCY LOLWUT MEMORY|DOCTOR "
    b"MEMORY|STATS MODULE MULTI PING QUIT RANDOMKEY RESET ROLE SCRIPT SELECT SLOWLOG TIME UNWATCH WAIT WAITAOF".split()
)
_ONE_KEY: _Positions = (1, 1, 1)
_ONE = (
    b"APPEND BITCOUNT BITFIELD BITFIELD_RO BITPOS DECR DECRBY DUMP EXPIRE EXPIREAT EXPIRETIME GEOADD GEODIST GEOHASH GEOPOS "
    b"GEOSEARCH GET GETBIT GETDEL GETEX GETRANGE GETSET HDEL HEXISTS HEXPIRE HEXPIREAT HGET HGETALL HINCRBY HINCRBYFLOAT HKEYS "
    b"HLEN HMGET HMSET HPERSIST HPEXPIRE HPTTL HRANDFIELD HSCAN HSET HSETNX HSTRLEN HTTL HVALS INCR INCRBY INCRBYFLOAT LINDEX "
    b"LINSERT LLEN LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM PERSIST PEXPIRE PEXPIREAT PEXPIRETIME PFADD PSETEX PTTL "
    b"RESTORE RPOP RPUSH RPUSHX SADD SCARD SET SETBIT SETEX SETNX SETRANGE SISMEMBER SMEMBERS SMISMEMBER SPOP SRANDMEMBER SREM "
    b"SSCAN STRLEN SUBSTR TTL TYPE XACK XADD XAUTOCLAIM XCLAIM XDEL XLEN XPENDING XRANGE XREVRANGE XSETID XTRIM ZADD ZCARD "
    b"ZCOUNT ZINCRBY ZLEXCOUNT ZMSCORE ZPOPMAX ZPOPMIN ZRANDMEMBER ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZRANK ZREM "
    b"ZREMRANGEBYLEX ZREMRANGEBYRANK ZREMRANGEBYSCORE ZREVRANGE ZREVRANGEBYLEX ZREVRANGEBYSCORE ZREVRANK ZSCAN ZSCORE"
).split()
_TWO = b"BLMOVE BRPOPLPUSH COPY GEOSEARCHSTORE LCS LMOVE RENAME RENAMENX RPOPLPUSH SMOVE ZRANGESTORE".split()
_ALL = (
    b"DEL EXISTS MGET PFCOUNT PFMERGE SDIFF SDIFFSTORE SINTER SINTERSTORE SUNION SUNIONSTORE TOUCH UNLINK WATCH".split()
)
_TIMED = b"BLPOP BRPOP BZPOPMAX BZPOPMIN".split()
NAMED_IN_REPLY = (*_TIMED, *b"LMPOP BLMPOP ZMPOP BZMPOP".split())
"""The commands whose reply begins with the key of their member."""

_SUBCOMMANDS = (
    b"MEMORY|USAGE OBJECT|ENCODING OBJECT|FREQ OBJECT|IDLETIME OBJECT|REFCOUNT XGROUP|CREATE XGROUP|CREATECONSUMER "
    b"XGROUP|DELCONSUMER XGROUP|DESTROY XGROUP|SETID XINFO|CONSUMERS XINFO|GROUPS XINFO|STREAM"
).split()
_POSITIONS: Mapping[bytes, _Positions] = {
    **dict.fromkeys(_ONE, _ONE_KEY),
    **dict.fromkeys(_TWO, (1, 2, 1)),
    **dict.fromkeys(_ALL, (1, -1, 1)),
    **dict.fromkeys(_TIMED, (1, -2, 1)),
    **dict.fromkeys(_SUBCOMMANDS, (2, 2, 1)),
    b"MSET": (1, -1, 2),
    b"MSETNX": (1, -1, 2),
}
_COUNTED: Mapping[bytes, int] = {
    **dict.fromkeys(b"LMPOP SINTERCARD ZDIFF ZINTER ZINTERCARD ZMPOP ZUNION".split(), 1),
    **dict.fromkeys(b"BLMPOP BZMPOP EVAL EVALSHA EVALSHA_RO EVAL_RO ZDIFFSTORE ZINTERSTORE ZUNIONSTORE".split(), 2),
}
"""The position of the number of keys, behind which they are. A key of the result is the first argument."""
_STORING = frozenset(b"ZDIFFSTORE ZINTERSTORE ZUNIONSTORE".split())
_SCRIPTS = frozenset(b"EVAL EVALSHA EVALSHA_RO EVAL_RO".split())
_WITH_SOURCE = frozenset(b"EVAL EVAL_RO".split())
_WITH_SUBCOMMAND = frozenset(b"MEMORY OBJECT XGROUP XINFO".split())

SCRIPTED_ALL = ("DEL", "EXISTS", "MGET", "UNLINK")
SCRIPTED_TWO = ("LMOVE", "RENAME", "SMOVE")
SCRIPTED_KEYLESS = ("DBSIZE", "TIME")
"""The commands of the scripts whose keys are not just the first argument. The prologue of scripts knows these, and SCAN."""

# Decision 280: the prefix is put on in one place.
_GUARD = keys.pushed("")
"""The last key of each script: it never exists, and every role may use it. While a slot is moved key by key (CLUSTER SETSLOT), a
script could begin with its keys here, and end with an error at a key that is gone, after half of its writes. Redis refuses a script
in a moving slot before it begins if one of its keys does not exist. So no script runs then. It also routes a script without keys.
"""

_PROLOGUE = """\
local redis, KEYS = (function(redis, KEYS)
  local SHAPES = { %(all)s, %(two)s, %(keyless)s, SCAN = 4 }
  local function prefixed_all(key, ...)
    if key then return '%(prefix)s' .. key, prefixed_all(...) end
  end
  local function scanned(run, name, cursor, word, pattern, ...)
    local page = run(name, cursor, word, '%(prefix)s' .. pattern, ...)
    if page[2] then for i, key in ipairs(page[2]) do page[2][i] = string.sub(key, %(after)d) end end
    return page
  end
  local function with_prefix(run)
    return function(name, key, other, ...)
      local shape = SHAPES[name]
      if not shape then
        if other == nil then return run(name, '%(prefix)s' .. key) end
        return run(name, '%(prefix)s' .. key, other, ...)
      end
      if shape == 1 then return run(name, prefixed_all(key, other, ...)) end
      if shape == 2 then return run(name, '%(prefix)s' .. key, '%(prefix)s' .. other, ...) end
      if shape == 3 then return run(name) end
      return scanned(run, name, key, other, ...)
    end
  end
  local names = {}
  for i = 1, #KEYS - 1 do names[i] = string.sub(KEYS[i], %(after)d) end
  return {
    call = with_prefix(redis.call), pcall = with_prefix(redis.pcall), error_reply = redis.error_reply, sha1hex = redis.sha1hex,
  }, names
end)(redis, KEYS)
"""

_pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)


def key_prefix(tag: str) -> str:
    """Return what stands before each key of a shard with this hash tag."""
    return f"{{{tag}}}:"


class KeyPrefix:
    """The prefix of the keys of one shard. Safe from any thread."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.encoded = text.encode()
        shapes = zip(("all", "two", "keyless"), (SCRIPTED_ALL, SCRIPTED_TWO, SCRIPTED_KEYLESS), strict=True)
        tables = {
            kind: ", ".join(f"{name} = {number}" for name in names) for number, (kind, names) in enumerate(shapes, 1)
        }
        self._prologue = (_PROLOGUE % {"prefix": text, "after": len(text) + 1, **tables}).encode()
        self._digests: dict[bytes, str] = {}
        """The digest of a script's source, and of the text that runs here."""

    def packed(self, packet: bytes) -> bytes:
        """Return the packed commands with the prefix. Raises DataError for a command that cannot have one."""
        reader = hiredis.Reader()
        reader.feed(packet)
        commands: list[bytes] = []
        while command := cast("list[bytes] | bool", reader.gets()):
            commands.append(_pack(tuple(self._with_prefix(cast("list[bytes]", command)))))
        return b"".join(commands)

    def without(self, key: bytes) -> bytes | None:
        """Return a key of the server without the prefix; ``None`` for a key of another shard."""
        return key.removeprefix(self.encoded) if key.startswith(self.encoded) else None

    def script(self, source: bytes) -> bytes:
        """Return the text of a script that runs with the prefix."""
        return self._prologue + source

    def _with_prefix(self, command: list[bytes]) -> Sequence[bytes]:
        name = command[0].upper()
        if name in _SCRIPTS:
            return self._script_call(command, name)
        if name in _WITH_SUBCOMMAND and len(command) > 1:
            name = b"%b|%b" % (name, command[1].upper())
        positions = _POSITIONS.get(name)
        if positions is not None:
            first, last, step = positions
            for at in range(first, min(last, len(command) - 1) + 1 if last > 0 else len(command) + last + 1, step):
                command[at] = self.encoded + command[at]
        elif name in _COUNTED:
            self._put_counted(command, _COUNTED[name], is_storing=name in _STORING)
        elif name in (b"SCAN", b"KEYS"):
            self._put_pattern(command)
        elif name == b"SCRIPT" and len(command) > 2 and command[1].upper() == b"LOAD":
            command[2] = self.script(command[2])
        elif name not in _KEYLESS:
            raise DataError(_unsupported(name.decode(errors="replace").replace("|", " ")))
        return command

    def _put_counted(self, command: list[bytes], at: int, *, is_storing: bool) -> None:
        places = [*([1] if is_storing else []), *range(at + 1, at + 1 + int(command[at]))]
        for place in places:
            command[place] = self.encoded + command[place]

    def _put_pattern(self, command: list[bytes]) -> None:
        if command[0].upper() == b"KEYS":
            command[1] = self.encoded + command[1]
            return
        at = next((at for at in range(2, len(command)) if command[at].upper() == b"MATCH"), None)
        if at is None:
            command += [b"MATCH", self.encoded + b"*"]
        else:
            command[at + 1] = self.encoded + command[at + 1]

    def _script_call(self, command: list[bytes], name: bytes) -> Sequence[bytes]:
        count = int(command[2])
        names = [self.encoded + key for key in command[3 : 3 + count]]
        return [
            command[0],
            self.script(command[1]) if name in _WITH_SOURCE else self._digest(command[1]).encode(),
            b"%d" % (count + 1),
            *names,
            self.encoded + _GUARD.encode(),
            *command[3 + count :],
        ]

    def _digest(self, digest: bytes) -> str:
        found = self._digests.get(digest)
        if found is None:
            source = source_of(digest.decode())
            # A script of the application: the server does not know it under this digest, and the application sends its text then.
            if source is None:
                return digest.decode()
            found = self._digests[digest] = hashlib.sha1(self.script(source), usedforsecurity=False).hexdigest()
        return found


def _unsupported(name: str) -> str:
    return (
        f"the command {name} is not supported on a shard of a cluster: it may concern the keys of other shards, or its keys are "
        "not known. Use another command, or a Redis without a cluster"
    )
