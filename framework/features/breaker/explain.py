"""Explain that the breaker of a class holds a job, and name the breakers that do."""

from collections.abc import Iterator

import redis

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.command_line import command
from framework.execute.admission import AdmissionStage
from framework.features.breaker.store import BreakerState, read_breaker, read_breakers
from framework.text import Sentence, format_duration


class BreakerReader(ExplainReader):
    """Find the open breaker of a class."""

    def blockers(self, stage: AdmissionStage, worker: str, queue: str) -> list[Blocker]:
        del queue
        if stage != "hold":
            return []
        one = read_breaker(self.snapshot.client, worker)
        if one.state == "closed":
            return []
        due_s = max(0.0, (one.probes_at or 0.0) - self.snapshot.now)
        ends = (
            Sentence("job {probe} runs as the probe", probe=one.probe)
            if one.state == "probing"
            else Sentence("a probe runs in {time}", time=format_duration(due_s))
        )
        return [
            Blocker(
                "breaker",
                _sentence(one),
                Sentence("{command}; {ends}", command=command(f"breakers close {worker}"), ends=ends),
            )
        ]


def notices(client: "redis.Redis") -> Iterator[str]:
    """Yield a sentence for each breaker that holds jobs. Raises redis errors."""
    for one in read_breakers(client):
        if one.state != "closed":
            yield _sentence(one)


def _sentence(one: BreakerState) -> str:
    return Sentence(
        "the breaker of {worker} is {state}: {reason}", worker=one.worker, state=one.state, reason=one.reason
    )
