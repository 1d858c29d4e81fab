"""The scripts of observability."""

from framework.store.script import FIGURES, Script

READ_FLEET = Script("observability/read_fleet", "time", "some_members", "entered_at", FIGURES)
REPORT = Script("observability/report")
