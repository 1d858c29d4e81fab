"""The scripts of pauses. The rights of Redis users list them, so this file loads little."""

from framework.store.script import LATE_RELEASE_PARTS, Script

HOLD_PAUSED = Script("pause/hold", "time", late=LATE_RELEASE_PARTS)
RELEASE_PAUSED = Script("pause/release", "time", "turns", "lock", "lock_ticket", "room")
