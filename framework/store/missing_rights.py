"""Ask a server which rights of the role ``worker`` a user lacks, before a process starts (decision 175)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import NoPermissionError, ResponseError

from framework.store.channel import Channel
from framework.store.connect import COMMAND_TIMEOUT_S
from framework.store.rights import WORKER
from framework.wire import keys


@dataclass(frozen=True, slots=True)
class MissingRights:
    """The rights of a role that a user lacks."""

    commands: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def rules(self) -> str:
        """The missing rules for ``ACL SETUSER``."""
        return " ".join([*(f"~{pattern}" for pattern in self.keys), *(f"+{command}" for command in self.commands)])


def missing_worker_rights(client: "redis.Redis") -> MissingRights:
    """Return the rights of the role ``worker`` that the client's user lacks. Raises redis errors.

    Redis checks the rights when it queues a command of a transaction. This transaction is never executed: its connection is closed
    instead. So the check needs no right except MULTI, changes nothing, and works with Redis 6.2 (ACL DRYRUN came with 7.0). Where
    MULTI is unknown (a proxy), nothing is checked and no right counts as missing.
    """
    probed = [command for command in (*WORKER.commands, *WORKER.optional) if command not in (_BEGIN, *_NOT_PROBED)]
    probes = [*map(_probe, probed), *(("EVALSHA", "0" * 40, 1, _sample(pattern)) for pattern in WORKER.keys)]
    channel = Channel(client, read_timeout_s=COMMAND_TIMEOUT_S)
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
    "hmget": (_SAMPLE, "x"),
    "hscan": (_SAMPLE, 0),
    "hsetnx": (_SAMPLE, "x", "x"),
    "hset": (_SAMPLE, "x", "x"),
    "incrby": (_SAMPLE, 0),
    "lindex": (_SAMPLE, 0),
    "lmove": (_SAMPLE, _SAMPLE, "LEFT", "LEFT"),
    "lpos": (_SAMPLE, "x"),
    "lpush": (_SAMPLE, "x"),
    "ltrim": (_SAMPLE, 0, 0),
    "lrange": (_SAMPLE, 0, 0),
    "lrem": (_SAMPLE, 0, "x"),
    "pexpire": (_SAMPLE, 1),
    "rename": (_SAMPLE, _SAMPLE),
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
