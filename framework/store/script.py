"""Lua scripts as files: called by digest, sent whole when the server does not know them."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, cast

import redis
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError


class Script:
    """One file of ``framework/store/scripts``; its header says keys, arguments, return, cost and crash story.

    ``parts`` are the files of ``scripts/parts`` whose functions it calls: what several moves do in the same step.
    """

    def __init__(self, name: str, *parts: str) -> None:
        folder = files("framework.store").joinpath("scripts")
        self.name = name
        self.source = b"".join(folder.joinpath("parts", f"{part}.lua").read_bytes() for part in parts)
        self.source += folder.joinpath(f"{name}.lua").read_bytes()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()

    def __call__(self, client: "redis.Redis", keys: list[str], arguments: list[Any]) -> Any:
        """Run the script and return its reply. NOSCRIPT (restart, failover, SCRIPT FLUSH) costs one more round trip."""
        execute = cast("Any", client.execute_command)
        try:
            return execute("EVALSHA", self.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return execute("EVAL", self.source, len(keys), *keys, *arguments)

    def each(self, client: "redis.Redis", calls: Sequence[tuple[list[str], list[Any]]]) -> list[Any]:
        """Run the script once for each (keys, arguments), every run a step of its own, in one round trip.

        Returns the replies; an error reply stands among them. Raises what the connection raises: some may have run.
        """
        pipeline: Any = client.pipeline(transaction=False)
        for keys, arguments in calls:
            pipeline.execute_command("EVALSHA", self.digest, len(keys), *keys, *arguments)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        return [
            self._reply(client, *call) if isinstance(reply, NoScriptError) else reply
            for call, reply in zip(calls, replies, strict=True)
        ]

    def _reply(self, client: "redis.Redis", keys: list[str], arguments: list[Any]) -> Any:
        try:
            return self(client, keys, arguments)
        except ResponseError as error:
            return error


def is_lasting(error: ResponseError) -> bool:
    """Whether asking again cannot help: a key is of another type, or may not be used."""
    return isinstance(error, NoPermissionError) or "WRONGTYPE" in str(error)


_LETS_GO = ("lock", "slots", "let_go")
_CLAIMS = ("lock", "positions", "claim")

ACQUIRE = Script("acquire", *_LETS_GO)
ADMIT = Script("admit", *_CLAIMS)
ADOPT = Script("adopt")
ANNOUNCE = Script("announce")
BEAT = Script("beat")
BURY = Script("bury", *_LETS_GO)
COMPLETE = Script("complete", *_LETS_GO)
DISCARD = Script("discard", *_LETS_GO)
DROP = Script("drop", *_LETS_GO)
DUE = Script("due")
ENTER = Script("enter", "lock", "positions")
EXAMINE = Script("examine")
EXTEND = Script("extend")
FETCH = Script("fetch")
FILL = Script("fill", "slots")
FORGET = Script("forget")
LAND = Script("land", *_CLAIMS)
MIGRATE = Script("migrate")
PARK = Script("park", *_LETS_GO)
POSTPONE = Script("postpone", *_LETS_GO)
PROMOTE = Script("promote", *_CLAIMS, "slots", "let_go")
RECLAIM = Script("reclaim", *_LETS_GO)
RENEW = Script("renew", "lock", "slots")
REPLACE = Script("replace")
REQUEUE = Script("requeue", *_LETS_GO)
RESTORE = Script("restore")
RESUME = Script("resume", "lock", "slots")
RETIRE = Script("retire")
STATE = Script("state")
THROTTLE = Script("throttle", "lock", "slots")
UNPARK = Script("unpark", "lock")
