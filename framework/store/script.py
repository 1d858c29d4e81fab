"""Lua scripts as files: called by digest, sent whole when the server does not know them."""

import hashlib
from importlib.resources import files
from typing import Any, cast

import redis
from redis.exceptions import NoScriptError


class Script:
    """One file of ``framework/store/scripts``; its header says keys, arguments, return, cost and crash story."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = files("framework.store").joinpath("scripts", f"{name}.lua").read_bytes()
        self.digest = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()

    def __call__(self, client: "redis.Redis", keys: list[str], arguments: list[Any]) -> Any:
        """Run the script and return its reply. NOSCRIPT (restart, failover, SCRIPT FLUSH) costs one more round trip."""
        execute = cast("Any", client.execute_command)
        try:
            return execute("EVALSHA", self.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return execute("EVAL", self.source, len(keys), *keys, *arguments)


ANNOUNCE = Script("announce")
BEAT = Script("beat")
BURY = Script("bury")
DROP = Script("drop")
DUE = Script("due")
EXAMINE = Script("examine")
EXTEND = Script("extend")
FETCH = Script("fetch")
FORGET = Script("forget")
LAND = Script("land")
POSTPONE = Script("postpone")
PROMOTE = Script("promote")
RECLAIM = Script("reclaim")
REQUEUE = Script("requeue")
RETIRE = Script("retire")
STATE = Script("state")
