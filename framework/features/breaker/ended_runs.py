"""The ended runs of one class, as the observer counts them and the scripts take them."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from framework.types import Jid

ProbeEnd: TypeAlias = Literal["succeeded", "failed", "undecided"]
"""``undecided``: the probe did not run, or an operator stopped it. Another job is the probe then."""


@dataclass(slots=True)
class EndedRuns:
    """The runs of a class that have ended in this process since the last call, and the end of a probe."""

    runs: int = 0
    failures: int = 0
    probe: Jid = ""
    probe_end: ProbeEnd = "succeeded"
