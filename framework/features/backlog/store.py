"""The script of the backlog."""

from framework.store.script import Script

WATCH = Script("backlog/watch")
