"""The scripts of moves between shards. The rights of Redis users list them, so this file loads little."""

from framework.store.script import MIGRATE, UNPACK, Script

__all__ = ["MIGRATE", "PAGE", "RECEIVE", "RESTORE", "TAKE", "UNPACK"]

TAKE = Script("moves/take")
PAGE = Script("moves/page", "time", "lock")
RECEIVE = Script("moves/receive", "time", "turns", "lock")
RESTORE = Script("moves/restore", "turns")
