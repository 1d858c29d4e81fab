"""Lua scripts as files: called by digest, sent whole when the server does not know them."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
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

    @cached_property
    def code(self) -> bytes:
        """The source without its comments, for where it is sent whole each time."""
        return b"\n".join(line for line in self.source.splitlines() if not line.startswith(b"--"))

    def __call__(self, client: "redis.Redis", keys: Sequence[str | bytes], arguments: list[Any]) -> Any:
        """Run the script and return its reply. NOSCRIPT (restart, failover, SCRIPT FLUSH) costs one more round trip."""
        execute = cast("Any", client.execute_command)
        try:
            try:
                return execute("EVALSHA", self.digest, len(keys), *keys, *arguments)
            except NoScriptError:
                return execute("EVAL", self.source, len(keys), *keys, *arguments)
        except ResponseError as error:
            if is_right_refused(error) and not isinstance(error, NoPermissionError):
                raise NoPermissionError(str(error)) from error
            raise

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


_REFUSED_INSIDE = ("ACL failure in script", "The user executing the script can't")


def is_right_refused(error: ResponseError) -> bool:
    """Whether an ACL refuses the command or a key. What it refuses inside a script Redis tells by words alone, without its NOPERM."""
    return isinstance(error, NoPermissionError) or any(words in str(error) for words in _REFUSED_INSIDE)


def is_lasting(error: ResponseError) -> bool:
    """Whether asking again cannot help: a key is of another type, or may not be used."""
    return is_right_refused(error) or is_wrong_type(error)


def is_wrong_type(error: ResponseError) -> bool:
    """Whether a key holds something else than it should: a limit, pause or lock there cannot be known, and its jobs run."""
    return "WRONGTYPE" in str(error)


_LETS_GO = ("lock", "slots", "let_go")
_CLAIMS = ("lock", "positions", "claim")

ACQUIRE = Script("acquire", *_LETS_GO)
ADMIT = Script("admit", *_CLAIMS)
ADOPT = Script("adopt")
ANNOUNCE = Script("announce")
BEAT = Script("beat")
BURY = Script("bury", *_LETS_GO, "trim")
COMPLETE = Script("complete", *_LETS_GO, "count")
DELAY = Script("delay")
DISCARD = Script("discard", *_LETS_GO)
DROP = Script("drop", *_LETS_GO)
DUE = Script("due")
ENTER = Script("enter", "lock", "positions")
EXAMINE = Script("examine")
EXTEND = Script("extend")
FETCH = Script("fetch", "count")
FILL = Script("fill", "slots")
FORGET = Script("forget")
INTERRUPT = Script("interrupt", *_LETS_GO, "trim")
LAND = Script("land", *_CLAIMS)
MIGRATE = Script("migrate")
PARK = Script("park", *_LETS_GO)
POSTPONE = Script("postpone", *_LETS_GO)
PROMOTE = Script("promote", *_CLAIMS, "slots", "let_go", "trim")
PUSHED = Script("pushed")
RECLAIM = Script("reclaim", *_LETS_GO, "trim")
RENEW = Script("renew", "lock", "slots")
REPLACE = Script("replace")
REQUEUE = Script("requeue", *_LETS_GO)
RESTORE = Script("restore")
RESUME = Script("resume", "lock", "slots")
RETIRE = Script("retire")
SEARCH = Script("search")
STATE = Script("state")
THROTTLE = Script("throttle", "lock", "slots")
UNPARK = Script("unpark", "lock")
