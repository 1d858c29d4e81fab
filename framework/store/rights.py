"""Define the rights of each kind of client in a Redis ACL; ``application-worker acl ROLE`` prints them (decision 175).

A right is a command or a key pattern. Redis also checks the commands inside a Lua script, so a role reads those from its scripts, and
lists only the commands outside of scripts. Redis 6.2 grants commands and keys separately (``%R~`` came with 7.0), so a role has
one set of each.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from framework.feature import Rights, RoleName, features
from framework.store import script
from framework.store.channel import open_channel
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.script import Script
from framework.wire import keys

_CALL = re.compile(rb"redis\.p?call\(\s*(?:\w+ and )?'([A-Z]+)'(?: or '([A-Z]+)')?")
_FUNCTION = re.compile(rb"^local function (\w+)\([^\n]*\n(.*?)^end$", re.DOTALL | re.MULTILINE)
_CALLED = re.compile(rb"\b(\w+)\(")
_HEX = "[0-9a-f]" * 12
_RECORDS = f"*:[1-9]*:{_HEX}*"
"""``host:pid:nonce`` with its suffixes: Sidekiq's keys of a process have no common prefix."""

_SCRIPTED = ("eval", "evalsha")


@dataclass(frozen=True, kw_only=True, eq=False)
class Role:
    """The keys, scripts and direct commands of one kind of client: its own, and those of the features.

    Where Redis refuses an ``optional`` command, everything else still works.
    """

    name: RoleName
    purpose: str
    own_keys: tuple[str, ...]
    own_scripts: tuple[Script, ...]
    own_commands: tuple[str, ...]
    base: "Role | None" = None
    """The role whose scripts and direct commands it has too."""
    optional: tuple[str, ...] = ()
    optional_keys: tuple[str, ...] = ()
    """Optional keys: without them no cancellation passes between Ruby and Python, and Sidekiq's Metrics page lacks the jobs.

    A worker that runs iterable jobs needs ``it-*``.
    """

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(sorted({*self.own_keys, *(key for rights in self._of_features() for key in rights.keys)}))

    @cached_property
    def scripts(self) -> tuple[Script, ...]:
        inherited = () if self.base is None else self.base.scripts
        found = (late.load() for rights in self._of_features() for late in rights.scripts)
        return tuple(dict.fromkeys((*inherited, *self.own_scripts, *found)))

    @property
    def direct(self) -> tuple[str, ...]:
        """Its commands outside of scripts."""
        inherited = () if self.base is None else self.base.direct
        return (*inherited, *self.own_commands, *(word for rights in self._of_features() for word in rights.commands))

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The required commands, sorted: ``name`` or ``name|subcommand``, in lower case."""
        found = set(self.direct)
        for one in self.scripts:
            found |= commands_in(one)
        if self.scripts:
            found.update(_SCRIPTED)
        return tuple(sorted(found))

    def _of_features(self) -> list[Rights]:
        return [one.rights[self.name] for one in features() if self.name in one.rights]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules for ``ACL SETUSER`` or an ACL file, for Redis from 6.2 on and Valkey."""
        return self.rules_for("")

    def rules_for(self, *prefixes: str) -> tuple[str, ...]:
        """Return the rules for the shards of one server whose keys have these prefixes: those of a cluster have one each."""
        granted = {*self.commands, *self.optional, *(_OF_CLUSTER if any(prefixes) else ())}
        return (
            *("on", "resetkeys", "resetchannels", "-@all"),
            *(f"~{prefix}{pattern}" for prefix in prefixes for pattern in (*self.keys, *self.optional_keys)),
            *(f"+{command}" for command in sorted(granted)),
        )


# Cached: three roles share most scripts, and each worker process reads them as it starts.
@cache
def commands_in(one: Script) -> frozenset[str]:
    """Return the commands that a script may call; of its parts, only those of the functions that it reaches."""
    code = re.sub(rb"--[^\n]*", b"", one.source)
    unread = dict(_FUNCTION.findall(code))
    texts, found = [_FUNCTION.sub(b"", code)], set[str]()
    while texts:
        text = texts.pop()
        found |= {name.decode().lower() for call in _CALL.findall(text) for name in call if name}
        texts += [unread.pop(name) for name in set(_CALLED.findall(text)) & unread.keys()]
    return frozenset(found)


_NAME = "client|setname"
_OF_CLUSTER = ("cluster|slots",)
"""Optional: without it a process knows only the nodes of the settings, and those that others name."""

_PUSH_KEYS = (keys.QUEUES, keys.queue("*"), keys.SCHEDULE)
_READ_KEYS = (
    *_PUSH_KEYS,
    *(keys.RETRY, keys.DEAD, keys.INTERRUPTED, keys.PROCESSES, keys.PAUSED),
    *("aw:*", _RECORDS),
)

_METRICS = "j|*"
"""The runs of each class by minute."""

_MARKS = "[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]-marks"
"""The marks of deploys by day."""

_HISTOGRAMS = ("h|*", "*-[0-9][0-9]-[0-9][0-9]:*")

_DASHBOARD_KEYS = (keys.iteration("*"), _METRICS, *_HISTOGRAMS, _MARKS)
"""Keys of Sidekiq's cancellations and Metrics page; the keys of version 7 begin with the name of a class."""

_REFUSALS = ("acl|log",)
"""What ``diagnose`` asks for: the rights that Redis refused."""

PRODUCER = Role(
    name="producer",
    purpose="push and cancel jobs and batches, read states and results of jobs, read and set flags, use rate limiters and leases",
    own_keys=(
        *_PUSH_KEYS,
        keys.status("*"),
        keys.pushed("*"),
        keys.lock("*"),
        keys.limit("*"),
        keys.turns("*"),
        keys.levels("*"),
        *(keys.LIMITS, keys.COUNTERS, keys.FLAGS, keys.CANCELLED, keys.ACCEPTED_JOBS, keys.ACCEPTED_BYTES),
        keys.TASK_EVENTS,
    ),
    own_scripts=(
        *(
            script.PUSH_UNIQUE,
            script.FIND_OWNERS,
            script.PUSH_FAIR,
            script.PUSH_WINDOW,
            script.PUSH_DELAYED,
            script.PUSH_DELAYED_COUNTED,
            script.PUSH_SCHEDULED_COUNTED,
            script.PUSH_FAIR_COUNTED,
            script.PUSH_FAIR_IN_RESERVE,
            script.PUSH_UNIQUE_IN_RESERVE,
            script.PUSH_UNIQUE_COUNTED,
            script.PUSH_WINDOW_COUNTED,
            script.PUSH_UP_TO,
            script.NOTE_PUSHED,
        ),
        script.MARK_CANCELLED,
        script.WRITE,
    ),
    # SET also runs inside push_unique, where the command comes as a value: the status of a tracked job.
    # WATCH, PEXPIRE, MULTI, RPUSH, LMOVE, EXEC: a chunk of a bulk push; TYPE, LLEN, UNLINK: before a chunk is repeated.
    own_commands=(
        *(
            "exec",
            "hdel",
            "hgetall",
            "hscan",
            "hset",
            "llen",
            "lmove",
            "lpush",
            "mget",
            "multi",
            "pexpire",
            "pttl",
            "rpush",
            "sadd",
        ),
        *("scard", "select", "set", "sscan", "time", "ttl", "type", "unlink", "watch", "zadd"),
    ),
    # INFO: how full the memory is, so that a fast flood is held back before the shard is measured. LPOS: whether a kept push
    # is in its queue already. SCAN: `reset` of a rate limiter with all of its keys.
    optional=(_NAME, "info", "lpos", "scan"),
    optional_keys=(keys.iteration("*"), _MARKS),
)

WORKER = Role(
    name="worker",
    purpose="run jobs, push jobs, recover the jobs of dead processes",
    base=PRODUCER,
    own_keys=(*_READ_KEYS, "stat:*"),
    own_scripts=(
        *(
            script.ADMIT,
            script.TAKE_SLOT,
            script.REGISTER_ORPHAN,
            script.END_PAUSES,
            script.NOTE_START,
            script.HEARTBEAT,
            script.KILL,
            script.FINISH,
            script.FINISH_UNLESS_DUPLICATED,
            script.DROP_RETIRED,
        ),
        *(
            script.READ_DUE,
            script.INSPECT_DEAD,
            script.RENEW_CHILDREN,
            script.FETCH,
            script.RING,
            script.UNREGISTER,
            script.INTERRUPT,
        ),
        *(
            script.RECEIVE_TRANSFER,
            script.SCHEDULE,
            script.ENQUEUE_DUE,
            script.RECLAIM,
            script.RENEW_SLOTS,
            script.REQUEUE,
            script.YIELD_JOB,
        ),
        *(
            script.RESTORE,
            script.RELEASE_WAITING,
            script.MARK_DEAD,
            script.SET_STATUS,
            script.UNPACK,
            script.UNPACK_HELD,
            script.UNPACK_DEFERRED,
            script.RETURN_BLOCK,
            # The leader writes the runs of each hour to the database.
            script.READ_HASHES,
            # The leader compares the events of recorded jobs with their places.
            script.SEARCH,
        ),
    ),
    own_commands=(
        *("blmove", "client|id", "client|unblock", "del", "exists", "expire", "hget", "hincrby", "hmget"),
        *(
            "hset",
            "incrby",
            "lrange",
            "multi",
            "renamenx",
            "rpop",
            "smembers",
            "srem",
            "zcard",
            "zrange",
            "zrangebyscore",
        ),
        *("zrank", "zrem", "zscan", "zscore"),
    ),
    # What fills the memory: without these commands no class is held back by the memory budget.
    optional=(_NAME, "bitfield", "info", "scan", "hstrlen", "memory|usage", "randomkey"),
    optional_keys=_DASHBOARD_KEYS,
)

READ_ONLY = Role(
    name="read-only",
    purpose="read jobs, limits, locks, pauses, processes and figures",
    own_keys=(*_READ_KEYS, "stat:*", _METRICS),
    own_scripts=(script.SEARCH, script.READ_HASHES, script.READ_PROCESSES, script.READ_QUEUES),
    own_commands=(
        *(
            "exec",
            "exists",
            "get",
            "hget",
            "hgetall",
            "hmget",
            "hscan",
            "hvals",
            "lindex",
            "llen",
            "lrange",
            "mget",
            "multi",
            "pttl",
        ),
        *(
            "scan",
            "scard",
            "select",
            "smembers",
            "sscan",
            "time",
            "ttl",
            "xrevrange",
            "zcard",
            "zmscore",
            "zrandmember",
            "zrange",
            "zrangebyscore",
            "zrank",
            "zscan",
            "zscore",
        ),
    ),
    optional=(_NAME, *_REFUSALS),
    optional_keys=(keys.iteration("*"), _MARKS, *_HISTOGRAMS),
)

OPERATOR = Role(
    name="operator",
    purpose="the rights of read-only; pause, retry, drop, release and move jobs; quiet and stop processes",
    base=READ_ONLY,
    own_keys=READ_ONLY.own_keys,
    own_scripts=(
        script.HEARTBEAT,
        script.ACT_ON_ENTRIES,
        script.UNDO_DELETE,
        script.DROP_HELD,
        script.DROP_QUEUED,
        script.RING,
        script.MARK_CANCELLED,
        script.UNREGISTER,
        script.MIGRATE,
        script.UNPACK,
        script.UNPACK_HELD,
        script.UNPACK_DEFERRED,
        script.SPLIT_BLOCK,
        script.REPLACE,
        script.RELEASE_WAITING,
        script.MARK_DEAD,
        script.SEARCH,
        script.WRITE,
        script.RECORD_ACTION,
    ),
    own_commands=(
        *(
            "del",
            "expire",
            "hdel",
            "hset",
            "lpush",
            "renamenx",
            "sadd",
            "srem",
            "type",
            "unlink",
            "unwatch",
            "watch",
            "zadd",
        ),
        "zcount",
    ),
    optional=(_NAME, *_REFUSALS),
    optional_keys=(keys.iteration("*"), _MARKS, *_HISTOGRAMS),
)

# Decision 175: four roles define the rights of a Redis user.
ROLES: dict[str, Role] = {role.name: role for role in (PRODUCER, WORKER, OPERATOR, READ_ONLY)}


@dataclass(frozen=True, slots=True)
class MissingRights:
    """The rights of a role that a user lacks."""

    commands: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def rules(self, prefix: str) -> str:
        """Return the missing rules for ``ACL SETUSER``; ``prefix``: that of the shard's keys on a cluster, else empty."""
        return " ".join(
            [*(f"~{prefix}{pattern}" for pattern in self.keys), *(f"+{command}" for command in self.commands)]
        )


def missing_worker_rights(client: "redis.Redis") -> MissingRights:
    """Return the rights of the role ``worker`` that the client's user lacks. Raises redis errors.

    Redis checks the rights when it queues a command of a transaction. This transaction is never executed: its connection is closed
    instead. So the check needs no right except MULTI, changes nothing, and works with Redis 6.2 (ACL DRYRUN came with 7.0). Where
    MULTI is unknown (a proxy), nothing is checked and no right counts as missing.
    """
    probed = [command for command in (*WORKER.commands, *WORKER.optional) if command not in (_BEGIN, *_NOT_PROBED)]
    probes = [*map(_probe, probed), *(("EVALSHA", "0" * 40, 1, _sample(pattern)) for pattern in WORKER.keys)]
    channel = open_channel(client, read_timeout_s=COMMAND_TIMEOUT_S)
    try:
        channel.call(_BEGIN)
        channel.send(*probes)
        replies = channel.replies(len(probes))
    except NoPermissionError:
        return MissingRights(commands=(_BEGIN,))
    except ResponseError as error:
        if "unknown command" in str(error):
            return MissingRights()
        raise
    finally:
        channel.close()
    return _missing_rights(probed, replies)


_BEGIN = "multi"
_NOT_PROBED = ("exec", "watch")
"""Never probed: EXEC would execute the probes, and newer servers refuse WATCH in a transaction for every user."""
_SAMPLE = keys.QUEUES
_PROBES: dict[str, tuple[Any, ...]] = {
    "blmove": (_SAMPLE, _SAMPLE, "RIGHT", "LEFT", 0),
    "eval": ("return 0", 1, _SAMPLE),
    "evalsha": ("0" * 40, 1, _SAMPLE),
    "blpop": (_SAMPLE, 0),
    "client|id": (),
    "client|setname": ("x",),
    "client|unblock": (0,),
    "info": (),
    "scan": (0,),
    "select": (0,),
    "time": (),
    "expire": (_SAMPLE, 1),
    "hdel": (_SAMPLE, "x"),
    "hexists": (_SAMPLE, "x"),
    "hget": (_SAMPLE, "x"),
    "hincrby": (_SAMPLE, "x", 0),
    "hincrbyfloat": (_SAMPLE, "x", 0),
    "hmget": (_SAMPLE, "x"),
    "hscan": (_SAMPLE, 0),
    "hsetnx": (_SAMPLE, "x", "x"),
    "hset": (_SAMPLE, "x", "x"),
    "hstrlen": (_SAMPLE, "x"),
    "incrby": (_SAMPLE, 0),
    "lindex": (_SAMPLE, 0),
    "lmove": (_SAMPLE, _SAMPLE, "LEFT", "LEFT"),
    "lpos": (_SAMPLE, "x"),
    "lpush": (_SAMPLE, "x"),
    "ltrim": (_SAMPLE, 0, 0),
    "lrange": (_SAMPLE, 0, 0),
    "lset": (_SAMPLE, 0, "x"),
    "lrem": (_SAMPLE, 0, "x"),
    "pexpire": (_SAMPLE, 1),
    "randomkey": (),
    "rename": (_SAMPLE, _SAMPLE),
    "renamenx": (_SAMPLE, _SAMPLE),
    "rpush": (_SAMPLE, "x"),
    "sadd": (_SAMPLE, "x"),
    "set": (_SAMPLE, "x"),
    "sismember": (_SAMPLE, "x"),
    "smove": (_SAMPLE, _SAMPLE, "x"),
    "sscan": (_SAMPLE, 0),
    "srem": (_SAMPLE, "x"),
    "zadd": (_SAMPLE, 0, "x"),
    "zcount": (_SAMPLE, 0, 0),
    "zmscore": (_SAMPLE, "x"),
    "zrange": (_SAMPLE, 0, 0),
    "zrangebyscore": (_SAMPLE, 0, 0),
    "zrank": (_SAMPLE, "x"),
    "zrem": (_SAMPLE, "x"),
    "zremrangebyrank": (_SAMPLE, 0, 0),
    "zscan": (_SAMPLE, 0),
    "zremrangebyscore": (_SAMPLE, 0, 0),
    "zrevrange": (_SAMPLE, 0, 0),
    "zrevrangebyscore": (_SAMPLE, 0, 0),
    "zscore": (_SAMPLE, "x"),
}
"""The arguments of a probe unless they are one key: Redis checks their number before the rights."""


def _probe(command: str) -> tuple[Any, ...]:
    return (*command.upper().split("|"), *_PROBES.get(command, (_SAMPLE,)))


def _sample(pattern: str) -> str:
    """Return a key that the pattern matches and that does not exist."""
    return pattern.replace("[0-9a-f]", "0").replace("[1-9]", "1").replace("*", "x")


def _missing_rights(probed: Sequence[str], replies: Sequence[Any]) -> MissingRights:
    commands = [command for command, answer in zip(probed, replies, strict=False) if _is_refused(answer)]
    patterns = zip(WORKER.keys, replies[len(probed) :], strict=True)
    return MissingRights(
        tuple(command for command in commands if command not in WORKER.optional),
        tuple(pattern for pattern, answer in patterns if _is_refused(answer, key=True)),
        tuple(command for command in commands if command in WORKER.optional),
    )


def _is_refused(answer: Any, *, key: bool = False) -> bool:
    """Return whether Redis refused the command or, with ``key``, one of its keys; Redis checks the command first."""
    return isinstance(answer, NoPermissionError) and ("access" in str(answer)) == key
