"""The scripts of the backlog."""

from framework.store.script import RELEASE_PARTS, Script

WATCH = Script("backlog/watch")
SET_ASIDE = Script("backlog/set_aside", *RELEASE_PARTS)
RETURN_ASIDE = Script("backlog/return_aside")
READ_WAITING = Script("backlog/read_waiting")
