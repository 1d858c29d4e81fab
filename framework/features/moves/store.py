"""The scripts of moves between shards. The rights of Redis users list them, so this file loads little."""

from framework.store.script import LATE_RELEASE_PARTS, MIGRATE, UNPACK, Script

__all__ = ["MARK_LOCKS", "MIGRATE", "PAGE", "RECEIVE", "RESTORE", "TAKE", "TAKE_ASIDE", "TAKE_HELD", "UNPACK"]

TAKE = Script("moves/take")
TAKE_ASIDE = Script("moves/take_aside")
TAKE_HELD = Script("moves/take_held", "time", "lock", "lock_ticket")
PAGE = Script("moves/page", "time", "lock", late=LATE_RELEASE_PARTS)
MARK_LOCKS = Script("moves/mark_locks", "time", "lock")
RECEIVE = Script("moves/receive", "time", "turns", "lock", late=(*LATE_RELEASE_PARTS, "positions", "duplicate"))
RESTORE = Script("moves/restore", "turns")
