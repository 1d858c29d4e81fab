"""Find classes whose jobs wait for replicas that are behind."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import SampledJob, error_of, failed_at
from framework.errors import JobReplicaNotUpToDate
from framework.text import Sentence, format_count, format_duration, join_names
from framework.typeguards import is_mapping
from framework.wire.resources import WAL_POSITIONS

_ERROR = f"{JobReplicaNotUpToDate.__module__}.{JobReplicaNotUpToDate.__qualname__}"
_NOW_S = 120.0
_SQL = "SELECT client_addr, state, replay_lag FROM pg_stat_replication"


class ReplicaCauses(CauseReader):
    """Find the jobs that were put back because no replica had the data of their push."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "replica_lag": ("ExecutionApdexBurn", "ExecutionErrorBurn", "QueueingApdexBurn")
    }

    def causes(self) -> Iterator[Cause]:
        by_class: dict[str, list[SampledJob]] = {}
        for job in self.facts.retries.jobs:
            if error_of(job) == _ERROR and self.facts.now - (failed_at(job) or 0.0) <= _NOW_S:
                by_class.setdefault(job.cls, []).append(job)
        for cls, jobs in sorted(by_class.items()):
            yield self._of_class(cls, jobs)

    def _of_class(self, cls: str, jobs: Sequence[SampledJob]) -> Cause:
        facts = self.facts
        about = facts.retries.about(len(jobs))
        databases = sorted({name for job in jobs for name in _positions(job)})
        first = min(failed_at(job) or facts.now for job in jobs)
        next_s = max(0.0, min(job.score for job in jobs) - facts.now)
        named = join_names(databases) or Sentence("its database")
        return Cause(
            code="replica_lag",
            shard=facts.shard,
            cause=Sentence(
                "the replicas of {named} lag behind, so jobs of {cls} wait once more for what their push has written",
                named=named,
                cls=cls,
            ),
            evidence=[
                (
                    Sentence(
                        "{jobs} in the retry set with JobReplicaNotUpToDate{note}, since {since}; the next one is due in {time}",
                        jobs=format_count(about, "job", "waits"),
                        note=facts.retries.note,
                        since=facts.ago(first),
                        time=format_duration(next_s),
                    )
                ),
                *(
                    Sentence("position {position} of {name} is not reached", position=position, name=name)
                    for name, position in sorted(_positions(jobs[-1]).items())
                ),
            ],
            remedy=f'psql "$PRIMARY_URL" -c "{_SQL}"',
            effect=(
                Sentence(
                    "shows the lag of each replica; {jobs} from the primary at the next try, and from the replica again when it "
                    "has caught up",
                    jobs=format_count(about, "job", "reads"),
                )
            ),
            certainty=10.0,
            jobs=about,
            classes=frozenset({cls}),
            hides=frozenset({"failing", "deep_retry_set"}),
        )


def _positions(job: SampledJob) -> Mapping[str, str]:
    found = job.payload.get(WAL_POSITIONS)
    return {str(name): str(position) for name, position in found.items()} if is_mapping(found) else {}
