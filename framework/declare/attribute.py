"""Describe one attribute of a worker class, and name the groups of attributes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from framework.declare.validators import Validator

Group: TypeAlias = Literal[
    "ownership", "queues", "versions", "retries", "running", "payload", "status", "flow_control", "application"
]

GROUPS: Mapping[str, str] = {
    "ownership": "the team that owns the job, and the resources that it needs",
    "queues": "the queue and the shard of the job, and the weight of the queue",
    "versions": "the names of the class, and the version of its arguments",
    "retries": "what happens to a job that fails or is interrupted",
    "running": "when the job is acknowledged, and limits of time",
    "payload": "the checks, size and log output of the arguments",
    "status": "how long the state of the job is kept",
    "flow_control": "the policies that hold, defer, limit or drop the job",
}
"""The groups of attributes; each has a page of its name under docs/reference/attributes. ``application`` is none of them."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: the validator of its values, and a few sentences of documentation.

    ``meaning`` defines it, ``effect`` describes what it does today, ``trap`` names a frequent mistake and its remedy. The
    allowed values come from the validator, the default from ``ApplicationWorker``.
    """

    validator: Validator
    group: Group
    meaning: str
    effect: str
    trap: str

    @property
    def allowed(self) -> str:
        """The allowed values as the validator describes them."""
        return self.validator.allowed
