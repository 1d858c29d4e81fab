"""Find the breakers that are open."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.features.breaker.store import BreakerState, read_breakers
from framework.text import Sentence, format_count, format_duration


class BreakerCauses(CauseReader):
    """Find the classes that kill processes, or fail, so often that their breaker holds their jobs."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "breaker_open": (
            *("ClassNotDequeued", "ExecutionErrorBurn", "HeldJobsGrowing", "JobsSkippedTooLong", "OldestHeldTooOld"),
            *("ProcessesFlapping", "RecoveredSpike"),
        )
    }

    def causes(self) -> Iterator[Cause]:
        held = {one.name: one.jobs for one in self.facts.held if one.kind == "paused"}
        for one in read_breakers(self.facts.client):
            if one.state != "closed":
                yield self._of(one, held.get(one.worker, 0))

    def _of(self, one: BreakerState, jobs: int) -> Cause:
        facts, cls = self.facts, one.worker
        since = "" if one.opened_at is None else Sentence(" since {since}", since=facts.ago(one.opened_at))
        due_s = max(0.0, (one.probes_at or 0.0) - facts.now)
        probe = Sentence("job {probe} runs as the probe", probe=one.probe) if one.state == "probing" else None
        return Cause(
            code="breaker_open",
            shard=facts.shard,
            cause=Sentence("the breaker of {cls} is open: {reason}", cls=cls, reason=one.reason),
            evidence=[
                Sentence("open{since}; it has opened {times}", since=since, times=format_count(one.opens, "time")),
                probe
                or Sentence(
                    "the next probe runs in {time}; its success closes the breaker", time=format_duration(due_s)
                ),
                Sentence("{jobs} held", jobs=format_count(jobs, "job", "is")),
            ],
            remedy=remedy_command("breakers", "close", cls),
            effect=Sentence(
                "{jobs} back in the queues; before a deploy that mends the class it opens again",
                jobs=format_count(jobs, "held job", "is"),
            ),
            # Jobs of a class that kills processes disturb all others.
            certainty=20.0 if one.cause == "deaths" else 10.0,
            jobs=jobs,
            classes=frozenset({cls}),
            hides=frozenset({"paused", "failing", "poison"}),
        )
