"""The script of a start under a lock. The rights of Redis users list it, so this file loads little."""

from framework.store.script import Script

START_LOCKED = Script("deduplication/start_locked", "time", "lock", "positions", "start_lock")
