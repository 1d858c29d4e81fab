"""Show one job as one value: each place that has it, its payload, why it does not run, and what is kept of it after its end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from framework.admin import port
from framework.admin.access import ask, check_jid
from framework.admin.explain import Explainer, Explanation, KnownClasses
from framework.admin.explain_reader import KeptFact, ShardSnapshot
from framework.admin.job_record import JobRecord
from framework.admin.search import search
from framework.admin.statistics import ignore_progress
from framework.async_twin import async_twin
from framework.declare import registry
from framework.errors import ShardUnavailableError
from framework.shard.shard import Shard
from framework.types import Jid


class JobPlace(NamedTuple):
    """A place that has the job."""

    record: JobRecord
    explanation: Explanation
    """Where it is, since when, what it holds, and why it does not run, with the remedy of each reason."""


@dataclass(frozen=True, slots=True)
class WholeJob:
    """All that the shards know of one job. A job that moves meanwhile may be at two places, or at none."""

    jid: Jid
    places: list[JobPlace] = field(default_factory=list[JobPlace])
    states: dict[str, str] = field(default_factory=dict[str, str])
    """The state of a tracked job, by shard, also after its end."""
    kept: dict[str, dict[str, KeptFact]] = field(default_factory=dict[str, dict[str, KeptFact]])
    """What features keep of it by name and shard: its result, its progress."""
    unanswered: Mapping[str, ShardUnavailableError] = field(default_factory=dict[str, ShardUnavailableError])

    @property
    def is_known(self) -> bool:
        """Whether any shard that answered knows the job."""
        return bool(self.places or self.states or any(self.kept.values()))


class _ShardStory(NamedTuple):
    places: list[JobPlace]
    state: str | None
    kept: Mapping[str, KeptFact | None]


def job_story(jid: Jid, shard: str | None = None) -> WholeJob:
    """Return what the shards know of the job. Every key that may hold it is scanned, in bounded steps.

    Former names and limits of classes are known where the process has imported them. ``framework.tasks.story`` has the events and
    messages of a recorded job.

    Raises:
        TypeError, ValueError: ``jid`` cannot be a job's id.
        ShardUnavailableError: no shard answers.
        UnknownShardError: the configuration has no such shard.
    """
    check_jid(jid)
    classes = known_classes()
    answers = ask(shard, lambda one: _read(one, jid, classes))
    story = WholeJob(jid, unanswered=answers.unanswered)
    for name, found in answers.by_shard.items():
        story.places.extend(found.places)
        if found.state is not None:
            story.states[name] = found.state
        for field_name, fact in found.kept.items():
            by_shard = story.kept.setdefault(field_name, {})
            if fact is not None:
                by_shard[name] = fact
    return story


ajob_story = async_twin(job_story)


def known_classes() -> KnownClasses:
    """Return the worker classes that this process has imported, with their former names."""
    return KnownClasses.of((worker.declaration() for worker in registry.workers()), port.current().settings)


def _read(shard: Shard, jid: Jid, classes: KnownClasses) -> _ShardStory:
    snapshot = ShardSnapshot(shard.client, shard.name)
    explainer = Explainer(snapshot, classes)
    sizes = port.current().settings.size_limit
    places = [
        JobPlace(JobRecord(shard.name, found.data, sizes), explainer.explain(found))
        for found in search(shard.client, jid, ignore_progress)
    ]
    return _ShardStory(places, snapshot.status(jid), explainer.kept(jid))
