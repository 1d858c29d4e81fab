"""The script of a changed priority. The rights of Redis users list it, so this file loads little."""

from framework.store.script import Script

CHANGE_PRIORITY = Script("fairness/change_priority", "turns")
