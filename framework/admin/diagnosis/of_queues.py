"""Find causes of waiting in queues: pauses, floods, slow classes, too few slots, and processes that do not fetch."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import QueueFacts, caller_of, enqueued_at, format_seconds
from framework.command_line import remedy_command
from framework.execute.job_log import TARGETS
from framework.text import Sentence, format_count, format_duration, join_names

_BUSY = 0.8
"""From this share of busy slots on, the slots are what the jobs wait for."""

_SEVERAL = 3.0
"""How much more than usual is a change."""

_MOST_OF = 0.5
_DRAINED_WITHIN_S = 300.0
_MOST_SLOTS = 500
_LONG_S = 10.0
"""From this duration on, runs of one class hold up the jobs of others."""
_WAITING = ("QueueingApdexBurn", "OldestJobTooOld", "SlotsSaturated")


class _SlowClass(NamedTuple):
    """The class that has most of the slots, and for how long its runs take."""

    cls: str
    slots: int
    mean_s: float
    usual_s: float | None


class QueueReader(CauseReader):
    """Find causes in the queues that have jobs."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "queue_paused": (
            "QueuePausedTooLong",
            "QueueNotProcessed",
            "OldestJobTooOld",
            "QueueingApdexBurn",
            "ClassNotDequeued",
            "NoProgress",
        ),
        "slow_class": (*_WAITING, "ExecutionApdexBurn", "ForcedShutdowns"),
        "flood": (*_WAITING, "RedisMemoryHigh", "RedisMemoryFull"),
        "few_slots": _WAITING,
        "not_fetching": ("NoProgress", "QueueNotProcessed", "ClassNotDequeued", *_WAITING[:2]),
    }

    def causes(self) -> Iterator[Cause]:
        for queue in self.facts.queues:
            if queue.state.paused:
                yield self._paused(queue)
            elif queue.serving and self._waits_long(queue):
                yield from self._waiting(queue)

    def _waits_long(self, queue: QueueFacts) -> bool:
        """Return whether the jobs are late: the next one is, or the last one will be with these slots."""
        asked = self.facts.scope.is_about(frozenset(queue.classes), frozenset({queue.name}))
        target_s = self.facts.target_s(list(queue.classes))
        if queue.waits_s > (1.0 if asked else target_s):
            return True
        mean_s = _mean(self.facts.history(name).mean_s for name in queue.classes)
        return mean_s is not None and queue.size * mean_s > queue.slots * target_s

    def _paused(self, queue: QueueFacts) -> Cause:
        facts = self.facts
        record = facts.queue_pauses.get(queue.name)
        since = (
            [Sentence("no operator of this framework paused it: Sidekiq's Web or API did, or its record is gone")]
            if record is None
            else [
                Sentence(
                    "paused by {by} at {since}{reason}",
                    by=record.by,
                    since=facts.ago(record.at),
                    reason=(Sentence(": {reason}", reason=record.reason) if record.reason else ""),
                )
            ]
        )
        mean = _mean(facts.history(name).mean_s for name, _ in queue.classes.most_common(2))
        return Cause(
            code="queue_paused",
            shard=facts.shard,
            cause=Sentence("the queue {queue} is paused", queue=queue.name),
            evidence=[
                *since,
                Sentence(
                    "{size:,} jobs wait, the next one for {time}", size=queue.size, time=format_duration(queue.waits_s)
                ),
            ],
            remedy=remedy_command("jobs", "unpause-queue", queue.name),
            effect=Sentence(
                "{jobs}, {drained}",
                jobs=format_count(queue.size, "job", "runs"),
                drained=facts.drained(queue.size, queue.slots, mean),
            ),
            certainty=10.0,
            jobs=queue.size,
            classes=frozenset(queue.classes),
            queues=frozenset({queue.name}),
            hides=frozenset({"unserved", "not_fetching", "few_slots", "flood", "slow_class"}),
        )

    def _waiting(self, queue: QueueFacts) -> Iterator[Cause]:
        if queue.busy < queue.slots * _BUSY and not self._is_busy_by_record(queue):
            yield self._not_fetching(queue)
            return
        slow = self._slow_class(queue)
        if slow is not None:
            yield self._slow(queue, slow)
        flooding = self._flooding_class(queue)
        # Without a usual rate, jobs that wait behind a slow class look like a flood.
        if flooding is not None and (slow is None or self.facts.history(flooding).base.processed):
            yield self._flood(queue, flooding, slow)
        elif slow is None:
            yield self._few_slots(queue)

    def _is_busy_by_record(self, queue: QueueFacts) -> bool:
        """Return whether short jobs keep the slots busy: the records show the jobs of one moment only."""
        ended = sum(self.facts.history(name).recent.processed for name in queue.classes)
        return ended > queue.slots * _SEVERAL

    # --- the classes that have the slots

    def _slow_class(self, queue: QueueFacts) -> _SlowClass | None:
        serving = {one.identity for one in queue.serving}
        runs = [run for run in self.facts.runs_now if run.process in serving]
        counted = Counter(run.cls for run in runs)
        if not counted or not queue.slots:
            return None
        cls, slots = counted.most_common(1)[0]
        if slots < queue.slots * _MOST_OF:
            return None
        history = self.facts.history(cls)
        ran = [run.ran_s for run in runs if run.cls == cls]
        # A run that has begun lasts twice its time in the mean.
        lasting = 2 * sum(ran) / len(ran)
        mean, usual = max(history.recent.mean_s or 0.0, lasting), history.base.mean_s
        if usual is not None and mean >= usual * _SEVERAL and mean >= 1.0:
            return _SlowClass(cls, slots, mean, usual)
        if usual is not None:
            return None
        declaration = self.facts.installation.declaration(cls)
        classes = queue.classes
        blocks_others = mean >= _LONG_S and classes[cls] < classes.total() * _MOST_OF
        _, target_s = TARGETS["low" if declaration is None else declaration.urgency]
        is_long = mean > target_s
        return _SlowClass(cls, slots, mean, None) if is_long or blocks_others else None

    def _slow(self, queue: QueueFacts, slow: _SlowClass) -> Cause:
        facts, cls = self.facts, slow.cls
        classes = queue.classes
        others = round(queue.size * (1 - classes[cls] / max(1, classes.total())))
        usual = (
            Sentence("what is usual is not known")
            if slow.usual_s is None
            else Sentence("usually {time} (mean of an hour)", time=format_seconds(slow.usual_s))
        )
        if others:
            limit = max(1, slow.slots // 4)
            mean = _mean(facts.history(name).mean_s for name, _ in classes.most_common(3) if name != cls)
            remedy = remedy_command(
                *("jobs", "limits", "set", cls, str(limit), "--reason", "its runs are slow", "--for", "1h"),
                loads_classes=True,
            )
            effect = Sentence(
                "{slots} of {all} slots are free for the other {others:,} waiting jobs, {drained}; jobs of {cls} wait at "
                "the limit",
                slots=slow.slots - limit,
                all=queue.slots,
                others=others,
                drained=facts.drained(others, queue.slots - limit, mean),
                cls=cls,
            )
        else:
            extra = self._slots_wanted(queue.size, slow.mean_s, queue.slots, 0.0)
            remedy = facts.worker_for(queue.name, extra)
            effect = Sentence(
                "{extra} more slots: {drained}",
                extra=extra,
                drained=facts.drained(queue.size, queue.slots + extra, slow.mean_s),
            )
        longest = max((run for run in facts.runs_now if run.cls == cls), key=lambda run: run.ran_s)
        return Cause(
            code="slow_class",
            shard=facts.shard,
            cause=Sentence("{cls} is slow, and has most of the slots of the queue {queue}", cls=cls, queue=queue.name),
            evidence=[
                Sentence("a run takes about {time} now; {usual}", time=format_seconds(slow.mean_s), usual=usual),
                (
                    Sentence(
                        "it has {slots} of {all} slots; {jid} runs since {time} in {process}",
                        slots=slow.slots,
                        all=queue.slots,
                        jid=longest.jid,
                        time=format_duration(longest.ran_s),
                        process=longest.process,
                    )
                ),
                self._waits(queue),
            ],
            remedy=remedy,
            effect=effect,
            certainty=8.0,
            jobs=queue.size,
            classes=frozenset({*classes, cls}),
            queues=frozenset({queue.name}),
            hides=frozenset({"few_slots", "not_fetching"}),
        )

    # --- what comes

    def _flooding_class(self, queue: QueueFacts) -> str | None:
        classes = Counter(one.cls for one in queue.newest.jobs)
        if not classes:
            return None
        cls, count = classes.most_common(1)[0]
        if count < len(queue.newest.jobs) * _MOST_OF or queue.size < queue.slots * _SEVERAL:
            return None
        history, target_s = self.facts.history(cls), self.facts.target_s([cls])
        # A burst that the slots end within the target is none.
        if history.mean_s is not None and queue.size * history.mean_s < queue.slots * target_s:
            return None
        arriving = self._arriving(queue) * count / len(queue.newest.jobs)
        return cls if arriving >= max(history.base_per_s * _SEVERAL, 1 / 60) else None

    def _arriving(self, queue: QueueFacts) -> float:
        """Return how many jobs came per second, while those came that wait: the last hundred, or all."""
        times = [at for one in (*queue.newest.jobs, *queue.oldest.jobs) if (at := enqueued_at(one)) is not None]
        if not times:
            return 0.0
        # By the times between the oldest and the newest job, which one flood may have pushed long ago.
        span = max(times) - min(times)
        return queue.size / max(span, 1.0)

    def _flood(self, queue: QueueFacts, cls: str, slow: _SlowClass | None) -> Cause:
        facts, history = self.facts, self.facts.history(cls)
        share = sum(one.cls == cls for one in queue.newest.jobs) / len(queue.newest.jobs)
        flooding = [one for one in queue.newest.jobs if one.cls == cls]
        usual = (
            Sentence("usually {base_per_s:,.1f} a minute (mean of an hour)", base_per_s=history.base_per_s * 60)
            if history.base.processed
            else Sentence("no run of it ended in the hour before")
        )
        times = [at for one in (*queue.oldest.jobs, *flooding) if (at := enqueued_at(one)) is not None]
        span = format_duration(max(1.0, max(times) - min(times))) if times else Sentence("an unknown time")
        since = Sentence(", from {since} on", since=facts.ago(min(times))) if times else ""
        extra = self._slots_wanted(queue.size, history.mean_s, queue.slots, 0.0)
        caller = caller_of(flooding)
        return Cause(
            code="flood",
            shard=facts.shard,
            cause=Sentence(
                "a flood of {cls}: far more jobs than usual came to the queue {queue}", cls=cls, queue=queue.name
            ),
            evidence=[
                Sentence("those that wait came within {span}{since}; {usual}", span=span, since=since, usual=usual),
                Sentence(
                    "{waits}; about {share:.0%} of them are of {cls}", waits=self._waits(queue), share=share, cls=cls
                ),
                *([caller] if caller else []),
            ],
            remedy=facts.worker_for(queue.name, extra),
            effect=(
                Sentence(
                    "{extra} more slots: {drained}, instead of {otherwise}",
                    extra=extra,
                    drained=facts.drained(queue.size, queue.slots + extra, history.mean_s),
                    otherwise=facts.drained(queue.size, queue.slots, history.mean_s),
                )
            ),
            certainty=5.0 if slow is not None else 7.0,
            jobs=queue.size,
            classes=frozenset(queue.classes),
            queues=frozenset({queue.name}),
            hides=frozenset({"few_slots", "not_fetching"}),
        )

    def _few_slots(self, queue: QueueFacts) -> Cause:
        facts = self.facts
        names = [name for name, _ in queue.classes.most_common(3)]
        mean = _mean(facts.history(name).mean_s for name in names)
        ending = sum(
            facts.history(name).recent.processed / facts.history(name).recent.minutes for name in queue.classes
        )
        # The jobs that wait have come since the oldest of them: the queue is in order.
        arriving = queue.size / max(1.0, queue.waits_s)
        extra = self._slots_wanted(queue.size, mean, queue.slots, arriving)
        serving = {one.identity for one in queue.serving}
        running = Counter(run.cls for run in facts.runs_now if run.process in serving)
        shown = ", ".join(f"{name} {count}" for name, count in running.most_common(3))
        others = sorted({name for one in queue.serving for name in one.queues} - {queue.name})
        return Cause(
            code="few_slots",
            shard=facts.shard,
            cause=Sentence("the processes of the queue {queue} have too few slots for what comes", queue=queue.name),
            evidence=[
                self._waits(queue),
                (
                    Sentence(
                        "{busy} of {slots} slots are busy in {processes}; about {arriving:,.0f} jobs a minute come, "
                        "{ending:,.0f} end",
                        busy=queue.busy,
                        slots=queue.slots,
                        processes=format_count(len(queue.serving), "process"),
                        arriving=arriving * 60,
                        ending=ending,
                    )
                ),
                *([Sentence("running jobs by class: {shown}", shown=shown)] if shown else []),
                *([Sentence("they serve {names} too", names=join_names(others, max_names=3))] if others else []),
            ],
            remedy=facts.worker_for(queue.name, extra),
            effect=Sentence(
                "{extra} more slots: {drained}",
                extra=extra,
                drained=facts.drained(queue.size, queue.slots + extra, mean, arriving),
            ),
            certainty=4.0,
            jobs=queue.size,
            classes=frozenset(queue.classes),
            queues=frozenset({queue.name}),
        )

    def _not_fetching(self, queue: QueueFacts) -> Cause:
        facts = self.facts
        named = [one.identity for one in queue.serving]
        return Cause(
            code="not_fetching",
            shard=facts.shard,
            cause=Sentence(
                "processes of the queue {queue} have free slots, but do not fetch its jobs", queue=queue.name
            ),
            evidence=[
                self._waits(queue),
                Sentence(
                    "{busy} of {slots} slots are busy in {names}",
                    busy=queue.busy,
                    slots=queue.slots,
                    names=join_names(named, max_names=3),
                ),
            ],
            remedy=remedy_command("jobs", "stack", named[0]),
            effect=Sentence(
                "shows the stacks of the process, and so what it waits for; `jobs stop` lets its supervisor replace it"
            ),
            certainty=4.0,
            jobs=queue.size,
            classes=frozenset(queue.classes),
            queues=frozenset({queue.name}),
        )

    def _waits(self, queue: QueueFacts) -> str:
        return Sentence(
            "{jobs} in {queue}, the next one for {time}",
            jobs=format_count(queue.size, "job", "waits"),
            queue=queue.name,
            time=format_duration(queue.waits_s),
        )

    def _slots_wanted(self, jobs: int, mean_s: float | None, slots: int, arriving: float) -> int:
        """Return how many more slots run the jobs in five minutes."""
        needed = jobs * (mean_s or 0.1) / _DRAINED_WITHIN_S + arriving * (mean_s or 0.1)
        return max(5, min(_MOST_SLOTS, math.ceil(needed - slots)))


def _mean(values: Iterator[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if known else None
