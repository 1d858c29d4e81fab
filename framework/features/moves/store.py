"""The scripts of moves between shards. The rights of Redis users list them, so this file loads little."""

from framework.store.script import Script

TAKE = Script("moves/take")
PAGE = Script("moves/page", "lock")
RECEIVE = Script("moves/receive", "time", "turns", "lock")
RESTORE = Script("moves/restore", "turns")
