"""The groups of the attributes of a worker class."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

Group: TypeAlias = Literal["ownership", "queues", "versions", "retries", "running", "payload", "status", "flow_control"]

GROUPS: Mapping[str, str] = {
    "ownership": "the team that owns the job, and the resources that it needs",
    "queues": "the queue and the shard of the job, and the weight of the queue",
    "versions": "the names of the class, and the version of its arguments",
    "retries": "the fate of a job that fails or is interrupted",
    "running": "when the job is acknowledged, and limits of time",
    "payload": "the checks, size and log output of the arguments",
    "status": "how long the state of the job is kept",
    "flow_control": "the policies that hold, defer, limit or drop the job",
}
"""The groups of attributes; each has a page of its name under docs/reference/attributes."""
