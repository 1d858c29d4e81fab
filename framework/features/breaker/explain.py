"""Explain that the breaker of a class holds a job, and name the breakers that do."""

from collections.abc import Iterator

import redis

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.command_line import command
from framework.execute.admission import AdmissionStage
from framework.features.breaker.store import BreakerState, read_breaker, read_breakers
from framework.text import format_duration


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
            f"job {one.probe} runs as the probe"
            if one.state == "probing"
            else f"a probe runs in {format_duration(due_s)}"
        )
        return [Blocker("breaker", _sentence(one), f"{command(f'breakers close {worker}')}; {ends}")]


def notices(client: "redis.Redis") -> Iterator[str]:
    """Yield a sentence for each breaker that holds jobs. Raises redis errors."""
    for one in read_breakers(client):
        if one.state != "closed":
            yield _sentence(one)


def _sentence(one: BreakerState) -> str:
    return f"the breaker of {one.worker} is {one.state}: {one.reason}"
