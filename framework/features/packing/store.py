"""The scripts of packing. The rights of Redis users list it, so this file loads little."""

from framework.store.script import Script

PACK = Script("packing/pack")
PACK_HELD = Script("packing/pack_held")
PACK_DEFERRED = Script("packing/pack_deferred")
