"""Find the breakers that are open."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.features.breaker.store import BreakerState, read_breakers
from framework.text import format_count, format_duration


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
        since = "" if one.opened_at is None else f" since {facts.ago(one.opened_at)}"
        due_s = max(0.0, (one.probes_at or 0.0) - facts.now)
        probe = f"job {one.probe} runs as the probe" if one.state == "probing" else None
        return Cause(
            code="breaker_open",
            shard=facts.shard,
            cause=f"the breaker of {cls} is open: {one.reason}",
            evidence=[
                f"open{since}; it has opened {format_count(one.opens, 'time')}",
                probe or f"the next probe runs in {format_duration(due_s)}; its success closes the breaker",
                f"{format_count(jobs, 'job', 'is')} held",
            ],
            remedy=remedy_command("breakers", "close", cls),
            effect=f"{format_count(jobs, 'held job', 'is')} back in the queues; before a deploy that mends the class it opens again",
            # Jobs of a class that kills processes disturb all others.
            certainty=20.0 if one.cause == "deaths" else 10.0,
            jobs=jobs,
            classes=frozenset({cls}),
            hides=frozenset({"paused", "failing", "poison"}),
        )
