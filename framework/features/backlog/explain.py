"""Explain the backlog of a class: how many of its jobs count, and whether its pushes are held back."""

from typing import cast

import redis
from redis.exceptions import ResponseError

from framework.admin.explain_reader import ExplainReader, ShownFacts
from framework.declare import registry
from framework.features.backlog.attributes import MaxWaiting
from framework.shard.memory_report import read_report
from framework.text import Sentence, format_bytes, format_count
from framework.wire import keys


class BacklogReader(ExplainReader):
    """Tell the counted jobs of a class, and whether the shard holds its pushes back."""

    def of_class(self, worker: str) -> ShownFacts:
        jobs, size = read_accepted(self.snapshot.client, worker)
        known = registry.find(worker)
        most: MaxWaiting | None = None if known is None else known.declaration().facts["max_waiting"]
        held = self._is_held(worker)
        lines: list[tuple[str, str]] = []
        if jobs or most is not None:
            allowed = "" if most is None else Sentence(" of {described}", described=_described(most))
            text = Sentence(
                "{jobs}{allowed} accepted and not ended ({size})",
                jobs=format_count(jobs, "job"),
                allowed=allowed,
                size=format_bytes(size),
            )
            lines.append(("backlog", text))
        if held:
            text = Sentence(
                "its pushes are held back: it has more than a fair share of the memory, which is above the budget"
            )
            lines.append(("backlog", text))
        return ShownFacts(lines, {"accepted_jobs": jobs, "accepted_bytes": size, "held_back": held})

    def _is_held(self, worker: str) -> bool:
        try:
            report = read_report(cast("bytes | None", self.snapshot.client.get(keys.MEMORY)))
        except ResponseError:
            return False
        return report is not None and worker in report.held


def read_accepted(client: "redis.Redis", worker: str) -> tuple[int, int]:
    """Return the counted jobs of a class, and their bytes; 0 where another program wrote the keys."""
    try:
        found = [client.hget(key, worker) for key in (keys.ACCEPTED_JOBS, keys.ACCEPTED_BYTES)]
        jobs, size = (int(one or 0) for one in found)
    except (ResponseError, ValueError):
        return 0, 0
    return jobs, size


def _described(most: MaxWaiting) -> str:
    jobs = None if most.jobs is None else f"{most.jobs:,}"
    size = None if most.bytes is None else format_bytes(most.bytes)
    return Sentence("{jobs} and {size}", jobs=jobs, size=size) if jobs and size else jobs or size or ""
