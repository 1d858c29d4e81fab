"""Find shards whose memory is near their budget, or above it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, cast

from redis.exceptions import ResponseError

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.shard.memory_report import NEAR, MemoryPart, MemoryReport, budget_of, read_report
from framework.text import Sentence, format_bytes, format_count, join_names
from framework.wire import keys

_ALMOST_FULL = 0.85
"""The share of maxmemory from which the core names the full Redis, which says more than the budget."""
_MOST_PARTS = 3
_SETS = frozenset({"scheduled", "retry", "dead", "interrupted"})


class BudgetCauses(CauseReader):
    """Find the budget that is used up, and the classes that fill it: from the report that one process of the shard writes."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {"memory_budget": ("RedisMemoryHigh", "RedisMemoryFull")}

    def causes(self) -> Iterator[Cause]:
        settings = self.facts.installation.settings.shards.get(self.facts.shard)
        used, most, total = (
            int(self.facts.info.get(name, 0)) for name in ("used_memory", "maxmemory", "total_system_memory")
        )
        budget = 0 if settings is None else budget_of(settings.memory_budget, most, total)
        if budget and used >= budget * NEAR and not (most and used >= most * _ALMOST_FULL):
            yield self._full(used, budget)

    def _full(self, used: int, budget: int) -> Cause:
        report = self._report()
        held = sorted(report.held) if report else []
        parts = [one for one in report.parts if one.cls][:_MOST_PARTS] if report else []
        setting = f"shards.{self.facts.shard}.memory_budget"
        evidence: list[str] = [
            Sentence(
                "{size} of the budget of {budget} are used ({share:.0%}; {setting})",
                size=format_bytes(used),
                budget=format_bytes(budget),
                share=used / budget,
                setting=setting,
            ),
            *(
                Sentence(
                    "{cls} in {place}: {jobs:,} jobs, about {size}",
                    cls=one.cls,
                    place=one.place,
                    jobs=one.jobs,
                    size=format_bytes(one.bytes),
                )
                for one in parts
            ),
        ]
        state = Sentence("is full") if used >= budget else Sentence("is almost full")
        remedy, effect = self._remedy(parts)
        return Cause(
            code="memory_budget",
            shard=self.facts.shard,
            cause=Sentence("the memory budget of the shard {state}", state=state)
            + (
                Sentence(": pushes of {names} are held back", names=join_names(held, max_names=_MOST_PARTS))
                if held
                else ""
            ),
            evidence=evidence,
            remedy=remedy,
            effect=effect,
            certainty=15.0 if held else 6.0,
            jobs=parts[0].jobs if parts else 0,
            classes=frozenset(held or [one.cls for one in parts[:1]]),
        )

    def _remedy(self, parts: Sequence[MemoryPart]) -> tuple[str, str]:
        largest = next(iter(parts), None)
        if largest is None or largest.place not in _SETS:
            return (
                remedy_command("jobs", "memory", "--shard", self.facts.shard),
                Sentence("shows what fills it: run more processes, drop jobs that are not needed, or raise the budget"),
            )
        return (
            remedy_command("jobs", "delete", "--in", largest.place, "--class", largest.cls),
            Sentence(
                "{jobs} are deleted, about {size}",
                jobs=format_count(largest.jobs, "job"),
                size=format_bytes(largest.bytes),
            ),
        )

    def _report(self) -> MemoryReport | None:
        try:
            return read_report(cast("bytes | None", self.facts.client.get(keys.MEMORY)))
        except ResponseError:
            return None
