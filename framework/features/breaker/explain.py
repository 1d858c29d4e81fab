"""Explain that the breaker of a class holds a job."""

from framework.admin.explain_reader import Blocker, ExplainReader
from framework.command_line import command
from framework.execute.admission import AdmissionStage
from framework.features.breaker.store import read_breaker
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
        why = f"the breaker of {worker} is {one.state}: {one.reason}"
        due_s = max(0.0, (one.probes_at or 0.0) - self.snapshot.now)
        ends = (
            f"job {one.probe} runs as the probe"
            if one.state == "probing"
            else f"a probe runs in {format_duration(due_s)}"
        )
        return [Blocker("breaker", why, f"{command(f'breakers close {worker}')}; {ends}")]
