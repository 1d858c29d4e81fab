"""Find the flags by which operators drop or defer jobs of a class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.features.deferral.parked import REASON
from framework.features.flags.explain import flags_in_force
from framework.features.flags.flag import Flag, drop_flag, run_flag
from framework.fetch.deferred_blocks import count_packed
from framework.telemetry.counters import series_name
from framework.telemetry.job_events import SKIPPED_JOBS
from framework.text import Sentence, format_count, format_duration, format_times
from framework.wire import keys
from framework.wire.job import DEFERRED_BY, deferral_count
from framework.wire.json import stored_count


class FlagCauses(CauseReader):
    """Find the drop flags that are on, and the run flags that defer jobs."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "dropping": ("JobsSkippedTooLong", "ClassNotDequeued"),
        "deferring": ("JobsSkippedTooLong", "ClassNotDequeued"),
    }

    def causes(self) -> Iterator[Cause]:
        for name, flag in sorted(flags_in_force(self.facts).items()):
            if name.startswith(drop_flag("")) and flag.percentage > 0:
                yield self._dropping(name.removeprefix(drop_flag("")), flag)
            elif name.startswith(run_flag("")) and flag.percentage < 100:
                yield self._deferring(name.removeprefix(run_flag("")), flag)

    def _dropping(self, cls: str, flag: Flag) -> Cause:
        skipped = self._skipped(cls, "dropped")
        return Cause(
            code="dropping",
            shard=self.facts.shard,
            cause=Sentence("a flag drops {percentage:g} % of the jobs of {cls}", percentage=flag.percentage, cls=cls),
            evidence=[
                self._origin(flag),
                Sentence(
                    "{jobs} of it dropped so far (counter {counter})",
                    jobs=format_count(skipped, "job"),
                    counter=SKIPPED_JOBS,
                ),
            ],
            remedy=remedy_command("jobs", "flags", "clear", cls, loads_classes=True),
            effect=Sentence(
                "its jobs run again within 5 s; those that were dropped are gone, and must be pushed again"
            ),
            certainty=8.0,
            jobs=skipped,
            classes=frozenset({cls}),
        )

    def _deferring(self, cls: str, flag: Flag) -> Cause:
        facts, sample = self.facts, self.facts.scheduled
        deferred = [job for job in sample.jobs if job.cls == cls and job.payload.get(DEFERRED_BY) == REASON]
        packed = count_packed(facts.client, cls, REASON)
        about = sample.about(len(deferred)) + packed
        evidence: list[str] = [
            self._origin(flag),
            Sentence("{jobs} in the schedule set by it{note}", jobs=format_count(about, "job", "is"), note=sample.note),
        ]
        if packed:
            evidence.append(
                Sentence(
                    "{jobs} of these are in blocks, where Ruby does not see them", jobs=format_count(packed, "job")
                )
            )
        if deferred:
            most = max(deferral_count(job.payload, REASON) for job in deferred)
            next_s = max(0.0, deferred[0].score - facts.now)
            evidence.append(
                Sentence(
                    "deferred up to {times}; the next one is due in {time}",
                    times=format_times(most),
                    time=format_duration(next_s),
                )
            )
        at_once = remedy_command("jobs", "deferred", "run-now", cls)
        assumed = {"flags": {run_flag(cls): Flag(run_flag(cls), 100)}}
        return Cause(
            code="deferring",
            shard=facts.shard,
            cause=Sentence(
                "a flag lets {percentage:g} % of the jobs of {cls} run, and defers the others",
                percentage=flag.percentage,
                cls=cls,
            ),
            evidence=evidence,
            remedy=remedy_command("jobs", "flags", "clear", cls, loads_classes=True),
            effect=Sentence(
                "{effect}, each when it is due; at once: {at_once}",
                effect=facts.effect(cls, about, assumed),
                at_once=at_once,
            ),
            certainty=9.0 if deferred else 3.0,
            jobs=about,
            classes=frozenset({cls}),
            hides=frozenset({"deferred"}),
        )

    def _origin(self, flag: Flag) -> str:
        at = "" if flag.set_at is None else Sentence(" at {since}", since=self.facts.ago(flag.set_at))
        ends = (
            Sentence("without an end")
            if flag.expires_at is None
            else Sentence("ends in {time}", time=format_duration(flag.expires_at - self.facts.now))
        )
        return Sentence(
            "{flag} set{at} by {set_by}{reason}; {ends}",
            flag=flag.name,
            at=at,
            set_by=flag.set_by or Sentence("an operator"),
            reason=(Sentence(": {reason}", reason=flag.reason) if flag.reason else ""),
            ends=ends,
        )

    def _skipped(self, cls: str, action: str) -> int:
        series = series_name(SKIPPED_JOBS, {"worker": cls, "action": action, "reason": REASON})
        return stored_count(cast("Any", self.facts.client.hget(keys.COUNTERS, series)))
