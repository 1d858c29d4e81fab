"""Declare what a feature says in ``jobs explain``: why jobs do not run, and what they hold."""

from typing import NamedTuple

from framework.admin.search import JobLocation
from framework.admin.snapshot import ShardSnapshot
from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionStage
from framework.types import Payload


class Blocker(NamedTuple):
    """A reason why a job does not run, with a ``code`` for programs, and the remedy: a command, an event or a time."""

    code: str
    why: str
    remedy: str


class HeldPosition(NamedTuple):
    """A job that waits outside of its queue: a description of the place, and what blocks the job there."""

    where: str
    blockers: list[Blocker]


class ShownLimit(NamedTuple):
    """The limit of the jobs of a class that run at a time: 0 or ``None`` is no limit."""

    limit: int | None
    usage: str
    running: int


class ExplainReader:
    """Read for one shard what a feature has to do with a job. Override what applies. Every method may raise redis errors."""

    def __init__(self, snapshot: ShardSnapshot) -> None:
        self.snapshot = snapshot

    def blockers(self, stage: AdmissionStage, worker: str, queue: str) -> list[Blocker]:
        """Return what blocks jobs of a class, at this stage of admission, that a process fetches from a queue."""
        del stage, worker, queue
        return []

    def held(self, location: JobLocation) -> HeldPosition | None:
        """Describe a job that this feature holds outside of its queue; ``None`` for a job at another place."""
        del location
        return None

    def resources(self, payload: Payload, identity: str) -> list[str]:
        """Return a text for each thing that a job holds; ``identity`` is the process that has it, empty for none."""
        del payload, identity
        return []

    def not_run(self, payload: Payload) -> list[Blocker]:
        """Return why a job of the retry set has not run; nothing for a job whose run has failed."""
        del payload
        return []

    def cause_of_deferral(self, payload: Payload, declaration: Declaration | None) -> str:
        """Return why this feature deferred a job; empty for a job of another feature, or if there is nothing to add."""
        del payload, declaration
        return ""

    def limit_of(self, worker: str) -> ShownLimit | None:
        """Return the limit of a class; ``None`` if this feature limits no class."""
        del worker
        return None
