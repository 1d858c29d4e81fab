"""The faults of a migration, at each of its commands."""

import pytest

from tests.proofs.crash_points.wire import WAYS

EACH_WAY = [
    pytest.param(way, marks=() if way in ("die sent", "cut sent") else pytest.mark.campaign, id=way) for way in WAYS
]
"""Every suite has a death and a lost reply behind each command; the campaigns have all ways.

A process that dies before a command, or has read the reply of the one before, leaves what it leaves when it dies in between. To
a process that goes on, a reply that is torn is one that is lost.
"""
