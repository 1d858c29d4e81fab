"""Find concurrency limits that are too low for the jobs that wait at them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from framework import timings
from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import format_seconds
from framework.admin.held_jobs import HeldJobs
from framework.command_line import remedy_command
from framework.features.concurrency.figures import UNRENEWED_S
from framework.features.concurrency.limit_state import LimitState, SlotHolder, read_limit_states, read_slot_holders
from framework.features.concurrency.limits import QUEUE_PREFIX
from framework.text import Sentence, format_count, format_duration, join_names
from framework.wire import keys

_DRAINED_WITHIN_S = 300.0
_MOST_HOLDERS = 3
_STUCK_S = 60.0
_MOST_LIMITS = 50
_MOST_SLOTS = 100


class LimitCauses(CauseReader):
    """Find the limits whose jobs have waited for longer than the target of their class."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "limit_reached": ("OldestHeldTooOld", "HeldJobsGrowing", "ClassNotDequeued"),
        "limit_paused": ("OldestHeldTooOld", "HeldJobsGrowing", "ClassNotDequeued"),
        "slots_leaked": ("LeakedSlots", "OldestHeldTooOld", "HeldJobsGrowing"),
        "limit_free": ("OldestHeldTooOld", "HeldJobsGrowing", "NoProgress"),
    }

    def causes(self) -> Iterator[Cause]:
        held = [one for one in self.facts.held if one.kind == "waiting"][:_MOST_LIMITS]
        states = read_limit_states(self.facts.client, self.facts.now, [one.name for one in held])
        for one, limit in zip(held, states, strict=True):
            # An alert may see that jobs are held before the first one is late.
            asked = self.facts.scope.is_about(frozenset({one.name}), frozenset()) or (
                self.facts.scope.alert in self.alerts["limit_reached"][:2]
            )
            waits_s = self.facts.now - one.since
            if limit.limit is not None and limit.limit < 0:
                yield self._of(
                    one,
                    limit,
                    "limit_paused",
                    Sentence("the limit {name} is {limit}: no job of it runs", name=one.name, limit=limit.limit),
                )
            elif limit.is_full and (leaked := self._leaked(one.name)):
                yield self._slots_leaked(one, limit, leaked)
            elif limit.is_full and (asked or self._is_late(one, limit, waits_s)):
                yield self._of(
                    one,
                    limit,
                    "limit_reached",
                    Sentence("the limit {name} is too low for its jobs ({usage})", name=one.name, usage=limit.usage),
                )
            elif not limit.is_full and waits_s > _STUCK_S and not self.facts.running_processes:
                yield self._free(one, limit)

    def _is_late(self, held: HeldJobs, limit: LimitState, waits_s: float) -> bool:
        """Return whether the first job has waited too long, or the last one will have by this limit."""
        target_s = self.facts.target_s([held.name])
        mean_s = self.facts.history(held.name).mean_s
        will_wait_s = 0.0 if mean_s is None else held.jobs * mean_s / max(1, limit.limit or 1)
        return max(waits_s, will_wait_s) > target_s

    def _leaked(self, name: str) -> list[SlotHolder]:
        """Return the slots, of at most a hundred, whose processes have neither renewed them nor a lease."""
        unrenewed_s = timings.current().slot_ttl_s - UNRENEWED_S
        holders = read_slot_holders(self.facts.client, name, self.facts.now)[:_MOST_SLOTS]
        old = [one for one in holders if one.identity and one.left_s < unrenewed_s]
        pipeline: Any = self.facts.client.pipeline(transaction=False)
        for one in old:
            pipeline.exists(keys.lease(one.identity))
        return [one for one, lease in zip(old, pipeline.execute(), strict=True) if not lease]

    def _slots_leaked(self, held: HeldJobs, limit: LimitState, leaked: Sequence[SlotHolder]) -> Cause:
        last_s = max(0.0, *(one.left_s for one in leaked))
        return Cause(
            code="slots_leaked",
            shard=self.facts.shard,
            cause=Sentence(
                "{slots} of the limit {held} ({usage}) belong to processes that are gone",
                slots=format_count(len(leaked), "slot"),
                held=held.name,
                usage=limit.usage,
            ),
            evidence=[
                Sentence(
                    "without a lease: {names}",
                    names=join_names(sorted({one.identity for one in leaked}), max_names=_MOST_HOLDERS),
                ),
                Sentence(
                    "{jobs:,} jobs are held, the oldest since {since}", jobs=held.jobs, since=self.facts.ago(held.since)
                ),
            ],
            remedy=remedy_command("jobs", "limits", "sweep", held.name, loads_classes=True),
            effect=Sentence(
                "frees the slots that have expired, the last one in {time}; running processes do the same",
                time=format_duration(last_s),
            ),
            certainty=10.0,
            jobs=held.jobs,
            classes=frozenset({held.name}),
        )

    def _of(self, held: HeldJobs, limit: LimitState, code: CauseCode, text: str) -> Cause:
        facts, base = self.facts, held.name
        of_queue = base.startswith(QUEUE_PREFIX)
        queue = base.removeprefix(QUEUE_PREFIX) if of_queue else facts.queue_of(base)
        serving = facts.serving(queue)
        slots, busy = sum(one.slots for one in serving), sum(one.busy for one in serving)
        mean = None if of_queue else facts.history(base).mean_s
        wanted = self._wanted(held.jobs, limit, mean, slots)
        holders = read_slot_holders(facts.client, base, facts.now)[:_MOST_HOLDERS]
        evidence: list[str] = [
            Sentence(
                "{jobs} held, the oldest since {since}",
                jobs=format_count(held.jobs, "job", "is"),
                since=facts.ago(held.since),
            ),
            Sentence(
                "{usage} slots of the limit, {origin}; {busy} of {slots} slots of the processes are busy",
                usage=limit.usage,
                origin=self._origin(limit),
                busy=busy,
                slots=slots,
            ),
        ]
        takes = "" if mean is None else Sentence("; a run takes {time}", time=format_seconds(mean))
        if holders:
            evidence.append(
                Sentence("its slots have {names}{takes}", names=join_names([one.jid for one in holders]), takes=takes)
            )
        is_override = limit.source == "operators" and (
            limit.application is None or _is_more(limit.application, limit.limit)
        )
        if is_override:
            remedy = remedy_command("jobs", "limits", "clear", base, loads_classes=True)
            wanted = limit.application or 0
        else:
            words = ("jobs", "limits", "set", base, str(wanted), "--reason", "jobs wait", "--for", "1h")
            remedy = remedy_command(*words, loads_classes=True)
        effect: str
        if of_queue:
            effect = Sentence(
                "{jobs} resume, {drained}",
                jobs=format_count(held.jobs, "job"),
                drained=facts.drained(held.jobs, min(slots, wanted or slots), mean),
            )
        else:
            effect = facts.effect(base, held.jobs, {"concurrency": {base: wanted}}, wanted)
        return Cause(
            code=code,
            shard=facts.shard,
            cause=text,
            evidence=evidence,
            remedy=remedy,
            effect=Sentence("limit {wanted}: {effect}", wanted=wanted or Sentence("none"), effect=effect),
            certainty=9.0 if busy < slots or code == "limit_paused" else 5.0,
            jobs=held.jobs,
            classes=frozenset() if of_queue else frozenset({base}),
            queues=frozenset({queue}) if queue else frozenset(),
        )

    def _free(self, held: HeldJobs, limit: LimitState) -> Cause:
        facts = self.facts
        return Cause(
            code="limit_free",
            shard=facts.shard,
            cause=Sentence(
                "the limit {held} has free slots ({usage}), but no process runs that releases its jobs",
                held=held.name,
                usage=limit.usage,
            ),
            evidence=[
                Sentence(
                    "{jobs:,} jobs are held, the oldest since {since}", jobs=held.jobs, since=facts.ago(held.since)
                )
            ],
            remedy=facts.worker_for(facts.queue_of(held.name) or "default"),
            effect=Sentence(
                "a process releases {jobs} within seconds, as far as the limit allows",
                jobs=format_count(held.jobs, "job"),
            ),
            certainty=8.0,
            jobs=held.jobs,
            classes=frozenset({held.name}),
        )

    def _wanted(self, jobs: int, limit: LimitState, mean_s: float | None, slots: int) -> int:
        """Return the limit that runs the jobs in five minutes: at least twice the one in force, at most all slots."""
        now = max(1, limit.limit or 1)
        needed = now + math.ceil(jobs * (mean_s or 1.0) / _DRAINED_WITHIN_S)
        return max(now + 1, min(max(slots, now + 1), max(2 * now, needed)))

    def _origin(self, limit: LimitState) -> str:
        if limit.source == "operators" and limit.override is not None:
            ends = (
                ""
                if limit.until is None
                else Sentence(", until {time} from now", time=format_duration(limit.until - self.facts.now))
            )
            return Sentence(
                "set by {by}: {reason}{ends}", by=limit.override.by, reason=limit.override.reason, ends=ends
            )
        if limit.source == "throttled":
            return Sentence("throttled; the application allows {application}", application=limit.application)
        return Sentence("set by the application")


def _is_more(application: int, limit: int | None) -> bool:
    return application == 0 or (limit is not None and application > limit)
