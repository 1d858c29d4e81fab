"""Find paused classes whose jobs wait."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.held_jobs import HeldJobs
from framework.command_line import remedy_command
from framework.features.flags.explain import flags_in_force
from framework.features.flags.flag import Flag, pause_flag
from framework.features.pause.explain import PauseSource, pause_source
from framework.text import Sentence, format_count, format_duration
from framework.wire import keys


class PauseCauses(CauseReader):
    """Find the pauses that hold jobs, by operators and by strategies."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "paused": ("OldestHeldTooOld", "HeldJobsGrowing", "ClassNotDequeued", "JobsSkippedTooLong")
    }

    def causes(self) -> Iterator[Cause]:
        flags = flags_in_force(self.facts)
        for held in self.facts.held:
            if held.kind == "paused":
                strategy = self.facts.client.get(keys.pause_strategy(held.name))
                pause = pause_source(
                    flags.get(pause_flag(held.name)), strategy if isinstance(strategy, bytes) else None
                )
                if pause.by:
                    yield self._paused(held, pause, flags.get(pause_flag(held.name)))

    def _paused(self, held: HeldJobs, pause: PauseSource, flag: Flag | None) -> Cause:
        facts, cls = self.facts, held.name
        since = "" if flag is None or flag.set_at is None else Sentence(" at {since}", since=facts.ago(flag.set_at))
        ends = (
            Sentence("without an end")
            if pause.until is None
            else Sentence("ends by itself in {time}", time=format_duration(pause.until - facts.now))
        )
        assumed = {"flags": {pause_flag(cls): Flag(pause_flag(cls), 0)}}
        return Cause(
            code="paused",
            shard=facts.shard,
            cause=Sentence(
                "{cls} is paused by {by}{reason}",
                cls=cls,
                by=pause.by,
                reason=(Sentence(": {reason}", reason=pause.reason) if pause.reason else ""),
            ),
            evidence=[
                Sentence("paused by {by}{since}; {ends}", by=pause.by, since=since, ends=ends)
                if pause.manual
                else Sentence("by its strategy {by}, which decides about the end", by=pause.by),
                Sentence(
                    "{jobs} held, the oldest since {since}",
                    jobs=format_count(held.jobs, "job", "is"),
                    since=facts.ago(held.since),
                ),
            ],
            remedy=(
                remedy_command("jobs", "resume", cls, loads_classes=True)
                if pause.manual
                else remedy_command("jobs", "paused", "--history")
            ),
            effect=facts.effect(cls, held.jobs, assumed)
            if pause.manual
            else Sentence("shows its pauses; the strategy ends this one"),
            certainty=10.0,
            jobs=held.jobs,
            classes=frozenset({cls}),
            hides=frozenset({"limit_reached"}),
        )
