"""The scripts that divide a limit between shards."""

from framework.store.script import SLOT_PARTS, Script

READ_PORTIONS = Script("concurrency/read_portions", *SLOT_PARTS, "some_members")
DIVIDE = Script("concurrency/divide", "time")
USE_PORTION = Script("concurrency/use_portion", *SLOT_PARTS)
