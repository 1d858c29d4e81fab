"""Tell the memory of a shard by class and place for Prometheus: from the report that one of its processes writes."""

from collections.abc import Iterator
from typing import Any

from framework.admin.figures import Figure, FigureReader
from framework.shard.memory_report import read_report


class BacklogFigures(FigureReader):
    """Yield the bytes of the largest parts of the memory, and the budget."""

    def read(self, shard: str, reply: Any, now: float) -> Iterator[Figure]:
        del shard, now
        report = read_report(reply if isinstance(reply, bytes) else None)
        if report is None:
            return
        for one in report.parts:
            yield Figure("application_worker_redis_memory_bytes", {"class": one.cls, "place": one.place}, one.bytes)
        yield Figure("application_worker_redis_memory_budget_bytes", {}, report.budget)
