"""Declare what a feature says in ``jobs explain``: why jobs do not run, and what they hold."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from framework.admin.search import JobLocation
from framework.admin.snapshot import ShardSnapshot
from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionStage
from framework.types import Jid, Payload


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


class ShownFacts(NamedTuple):
    """What a command shows of a job or a class: headings with their texts, and the fields of the JSON, which are always there."""

    lines: Sequence[tuple[str, str]] = ()
    fields: Mapping[str, Any] = {}


def joined_facts(found: Iterable[ShownFacts]) -> ShownFacts:
    """Return the facts of several features as one."""
    parts = list(found)
    fields = {name: value for part in parts for name, value in part.fields.items()}
    return ShownFacts([line for part in parts for line in part.lines], fields)


class KeptFact(NamedTuple):
    """What a shard keeps of a job, also after its end: a text that begins with "its", and the value for the JSON."""

    text: str
    value: Mapping[str, Any]


class ShownCancellation(NamedTuple):
    """The cancellation of what a job belongs to, such as "its batch"; ``since`` is in epoch seconds."""

    what: str
    since: float


class ExplainReader:
    """Read for one shard what a feature has to do with a job, or with one class. Override what applies.

    Every method may raise redis errors.
    """

    kept_name = ""
    """The field of the JSON for what ``kept`` finds; empty for a feature that keeps nothing of a job."""

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

    def scheduled(self, payload: Payload) -> list[Blocker]:
        """Return why a job of the schedule set has to wait there, other than by a deferral."""
        del payload
        return []

    def deferral(self, payload: Payload, times: str, remedy: str) -> Blocker | None:
        """Return the blocker of a deferred job that needs more than its time; ``None`` for a job of another feature.

        ``times`` is a text, how often it was deferred; ``remedy`` says how it runs sooner.
        """
        del payload, times, remedy
        return None

    def cause_of_deferral(self, payload: Payload, declaration: Declaration | None) -> str:
        """Return why this feature deferred a job; empty for a job of another feature, or if there is nothing to add."""
        del payload, declaration
        return ""

    def limit_of(self, worker: str) -> ShownLimit | None:
        """Return the limit of a class; ``None`` if this feature limits no class."""
        del worker
        return None

    def cancellation(self, payload: Payload) -> ShownCancellation | None:
        """Return the cancellation of what a job belongs to, ``None`` if it was not cancelled."""
        del payload
        return None

    def place_of_run(self, declaration: Declaration) -> str:
        """Return where the jobs of a class run; empty for the worker process."""
        del declaration
        return ""

    def origin(self, payload: Payload) -> ShownFacts:
        """Return what has made a job."""
        del payload
        return ShownFacts()

    def wishes(self, payload: Payload) -> ShownFacts:
        """Return what the push of a job has asked for."""
        del payload
        return ShownFacts()

    def progress(self, payload: Payload) -> ShownFacts:
        """Return what the runs of a job have done."""
        del payload
        return ShownFacts()

    def kept(self, jid: Jid) -> KeptFact | None:
        """Return what the shard keeps of a job for others; ``None`` for nothing."""
        del jid
        return None

    def count(self, payload: Payload) -> None:
        """Count a job of the class that is explained, for ``of_class``."""

    def of_class(self, worker: str) -> ShownFacts:
        """Return the facts of a class, after all its jobs on the shard were counted."""
        del worker
        return ShownFacts()
