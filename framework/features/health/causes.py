"""Find classes whose jobs an unhealthy database defers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import SampledJob
from framework.command_line import remedy_command
from framework.features.health.admission import REASON
from framework.features.health.explain import describe_deferral
from framework.text import Sentence, format_count, format_duration, format_times
from framework.wire.job import DEFERRED_BY, deferral_count, timestamp


class HealthCauses(CauseReader):
    """Find the jobs that a health indicator deferred."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "unhealthy_database": ("JobsSkippedTooLong", "ClassNotDequeued", "ExecutionApdexBurn")
    }

    def causes(self) -> Iterator[Cause]:
        by_class: dict[str, list[SampledJob]] = {}
        for job in self.facts.scheduled.jobs:
            if job.payload.get(DEFERRED_BY) == REASON:
                by_class.setdefault(job.cls, []).append(job)
        for cls, jobs in sorted(by_class.items()):
            yield self._of_class(cls, jobs)

    def _of_class(self, cls: str, jobs: Sequence[SampledJob]) -> Cause:
        facts, sample = self.facts, self.facts.scheduled
        about = sample.about(len(jobs))
        most = max(deferral_count(job.payload, REASON) for job in jobs)
        created = min(
            (at for job in jobs if (at := timestamp(job.payload.get("created_at"))) is not None), default=facts.now
        )
        why = describe_deferral(jobs[0].payload, facts.installation.declaration(cls))
        next_s = max(0.0, min(job.score for job in jobs) - facts.now)
        return Cause(
            code="unhealthy_database",
            shard=facts.shard,
            cause=Sentence("jobs of {cls} are deferred: {why}", cls=cls, why=why),
            evidence=[
                (
                    Sentence(
                        "{jobs} deferred{note}, up to {times}, the oldest pushed at {since}",
                        jobs=format_count(about, "job", "is"),
                        note=sample.note,
                        times=format_times(most),
                        since=facts.ago(created),
                    )
                ),
                Sentence("the next one is due in {time}; each asks the indicator again", time=format_duration(next_s)),
            ],
            remedy=remedy_command("jobs", "deferred", "run-now", cls),
            effect=(
                Sentence(
                    "once the database is healthy: {effect}; while it is not, they are deferred again",
                    effect=facts.effect(cls, about, {}),
                )
            ),
            certainty=9.0,
            jobs=about,
            classes=frozenset({cls}),
            hides=frozenset({"deferred"}),
        )
