"""Find causes of failed jobs: a deploy, wrong arguments, unknown classes, jobs that kill their processes; deep and late sets."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, cast

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import SampledJob, caller_of, error_of, failed_at, format_seconds
from framework.command_line import remedy_command
from framework.errors import ArgumentsError, ArgumentsMismatchError
from framework.text import Sentence, format_count, format_duration, format_times, join_names, joined
from framework.wire import keys
from framework.wire.job import (
    DEATH_COUNT,
    DEFERRED,
    DEFERRED_BY,
    INTERRUPTED_COUNT,
    MALFORMED,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    count_of,
    timestamp,
    version_of,
)
from framework.wire.sub_queues import parent_of

_FAILING = 0.5
"""The share of failed runs from which a class counts as failing."""

_HOLDING = frozenset({"paused", "breaker"})
_FEW_FAILURES = 5
_NOW_S = 300.0
_POISON_S = 3_600.0
_JUST_NOW_S = 60.0
_OF_POISON = frozenset({"process_silent", "failing", "not_fetching"})
_DEPLOYED_S = 300.0
_LATE_S = 30.0
_DEEP = 1_000
_DEEP_SHARE = 0.01
_MOST_NAMES = 3
_MINUTE_S = 60.0
_ARGUMENTS = frozenset(f"{one.__module__}.{one.__qualname__}" for one in (ArgumentsError, ArgumentsMismatchError))
_MOST_TEXT = 160


class FailureReader(CauseReader):
    """Find causes of failed jobs, and of jobs that are late because of sets."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "failing": ("ExecutionErrorBurn", "DeadSetGrowing", "NoProgress"),
        "arguments": ("ExecutionErrorBurn", "DeadSetGrowing"),
        "unknown_class": ("UnknownClass", "JobsQuarantined", "ClassNotDequeued", "NoProgress"),
        "newer_version": ("UnknownClass", "ClassNotDequeued", "NoProgress"),
        "poison": ("JobsQuarantined", "RecoveredSpike", "ProcessesFlapping", "MemoryLimitExceeded"),
        "process_died": ("RecoveredSpike", "ProcessesFlapping"),
        "deep_retry_set": ("ExecutionErrorBurn", "DeadSetGrowing", "RedisMemoryHigh", "RedisMemoryFull"),
        "scheduler_stalled": ("SchedulerStalled", "NoProgress"),
        "malformed": ("JobsQuarantined", "DeadSetGrowing"),
        "cut_off": ("ForcedShutdowns", "JobsQuarantined"),
        "deferred": ("JobsSkippedTooLong", "ClassNotDequeued"),
    }

    def causes(self) -> Iterator[Cause]:
        yield from self._poison()
        yield from self._unknown()
        yield from self._failing()
        yield from self._deep()
        yield from self._late()
        yield from self._malformed()
        yield from self._cut_off()
        yield from self._deferred()

    # --- failing classes

    def _failing(self) -> Iterator[Cause]:
        failed = [*self.facts.retries.jobs, *self.facts.dead.jobs]
        by_class: dict[str, list[SampledJob]] = {}
        for job in failed:
            by_class.setdefault(job.cls, []).append(job)
        for cls, jobs in by_class.items():
            now = [job for job in jobs if self.facts.now - (failed_at(job) or 0.0) <= _NOW_S]
            recent = self.facts.history(cls).recent
            least = 1 if self.facts.scope.cls == cls else _FEW_FAILURES
            if recent.processed:
                is_failing = recent.failed >= least and recent.failed >= recent.processed * _FAILING
            else:
                is_failing = len(now) >= 2 * least
            if now and is_failing:
                yield self._failing_class(cls, jobs, now)

    def _failing_class(self, cls: str, jobs: Sequence[SampledJob], now: Sequence[SampledJob]) -> Cause:
        facts = self.facts
        recent = facts.history(cls).recent
        errors = Counter(error_of(job) for job in now)
        error, count = errors.most_common(1)[0]
        newest = max((job for job in now if error_of(job) == error), key=lambda job: failed_at(job) or 0.0)
        since = self._failing_since(cls, [job for job in jobs if error_of(job) == error])
        evidence: list[str] = [
            Sentence(
                "{failed:,} of the {processed:,} runs in {time} failed",
                failed=recent.failed,
                processed=recent.processed,
                time=format_duration(recent.minutes * _MINUTE_S),
            )
            if recent.processed
            else Sentence("{number:,} jobs of it failed in {time}", number=len(now), time=format_duration(_NOW_S)),
            Sentence(
                "{count} % with {error}: {message}",
                count=count * 100 // len(now),
                error=error,
                message=_message(newest),
            ),
        ]
        if since is not None:
            evidence.append(Sentence("since {since}{deployed}", since=facts.ago(since), deployed=self._deployed(since)))
        left = facts.retries.about(sum(job.cls == cls for job in facts.retries.jobs))
        waiting = sum(queue.size * queue.classes[cls] // max(1, queue.classes.total()) for queue in facts.queues)
        wrong = error in _ARGUMENTS
        if wrong and (caller := caller_of(now)):
            evidence.append(caller)
        evidence.append(
            Sentence(
                "{left:,} jobs of it wait for another try{note}, {waiting:,} in queues",
                left=left,
                note=facts.retries.note,
                waiting=waiting,
            )
        )
        remedy, effect = self._hold(
            cls,
            f"fails with {error.rpartition('.')[2]}",
            Sentence(
                "{jobs} held instead of using up tries, until a release without the error; `jobs resume` then runs them in "
                "their order",
                jobs=format_count(waiting + left, "job", "is"),
            ),
        )
        return Cause(
            code="arguments" if wrong else "failing",
            shard=facts.shard,
            cause=(
                Sentence(
                    "a producer pushes {cls} with arguments that perform does not take: their releases do not fit",
                    cls=cls,
                )
                if wrong
                else Sentence("jobs of {cls} fail with {error}", cls=cls, error=error)
            ),
            evidence=evidence,
            remedy=remedy,
            effect=effect,
            certainty=11.0 if wrong else 9.0,
            jobs=max(recent.failed, left),
            classes=frozenset({cls}),
            queues=frozenset({queue}) if (queue := facts.queue_of(cls)) else frozenset(),
            hides=frozenset({"deep_retry_set"}),
        )

    def _hold(self, cls: str, reason: str, effect: str) -> tuple[str, str]:
        """Return the command that holds the jobs of a class, and its effect; or what holds them already."""
        for one in self.facts.blockers(cls, self.facts.queue_of(cls), {}):
            if one.code in _HOLDING:
                return remedy_command("jobs", "explain", cls, loads_classes=True), Sentence(
                    "{why}: shows how its jobs continue", why=one.why
                )
        return remedy_command("jobs", "pause", cls, "--reason", reason, "--for", "1h", loads_classes=True), effect

    def _failing_since(self, cls: str, jobs: Sequence[SampledJob]) -> float | None:
        """Return when the failures began: the first one of this error, unless earlier minutes say that the class always fails so."""
        times = [at for job in jobs if (at := timestamp(job.payload.get("failed_at"))) is not None]
        minutes = self.facts.history(cls).minutes
        begun = None
        for back, row in enumerate(minutes):
            if row.processed and row.failed < row.processed * _FAILING:
                break
            if row.processed:
                begun = self.facts.now - self.facts.now % _MINUTE_S - back * _MINUTE_S
        if begun is None:
            return min(times, default=None)
        later = [at for at in times if at >= begun]
        return min(later, default=begun)

    def _deployed(self, since: float) -> str:
        """Return which processes started shortly before, as a text."""
        new = [
            one.identity
            for one in self.facts.running_processes
            if one.started_at is not None and 0 <= since - one.started_at <= _DEPLOYED_S
        ]
        return (
            Sentence("; shortly before, {names} started (a deploy?)", names=join_names(new, max_names=_MOST_NAMES))
            if new
            else ""
        )

    # --- unknown classes

    def _unknown(self) -> Iterator[Cause]:
        waiting = [job for job in self.facts.scheduled.jobs if count_of(job.payload, UNKNOWN_COUNT)]
        waiting += [
            job for queue in self.facts.queues for job in queue.oldest.jobs if count_of(job.payload, UNKNOWN_COUNT)
        ]
        # A job that was given up after a day.
        waiting += [
            job
            for job in self.facts.interrupted.jobs
            if count_of(job.payload, UNKNOWN_COUNT) and self.facts.now - job.score <= _POISON_S
        ]
        for cls in sorted({job.cls for job in waiting}):
            yield self._unknown_class(cls, [job for job in waiting if job.cls == cls])

    def _unknown_class(self, cls: str, jobs: Sequence[SampledJob]) -> Cause:
        facts = self.facts
        declaration = facts.installation.declaration(cls)
        newest = max(version_of(job.payload) for job in jobs)
        since = min(
            (at for job in jobs if (at := timestamp(job.payload.get(UNKNOWN_SINCE))) is not None), default=facts.now
        )
        tries = max(count_of(job.payload, UNKNOWN_COUNT) for job in jobs)
        queue = parent_of(str(jobs[0].payload.get("queue")))
        about = facts.scheduled.about(len(jobs))
        ran = bool(facts.history(cls).recent.processed or facts.history(cls).base.processed)
        is_newer = newest > 0 and (ran or (declaration is not None and declaration.version < newest))
        running = [one.identity for one in facts.serving(queue)]
        evidence: list[str] = [
            (
                Sentence(
                    "{jobs} deferred{note}, {times} at most, since {since}",
                    jobs=format_count(about, "job", "is"),
                    note=facts.scheduled.note,
                    times=format_times(tries),
                    since=facts.ago(since),
                )
            ),
            Sentence(
                "pushed with version {newest}; processes of {queue}: {names}",
                newest=newest,
                queue=queue,
                names=join_names(running, max_names=_MOST_NAMES) or Sentence("none"),
            ),
        ]
        if caller := caller_of(jobs):
            evidence.append(caller)
        if declaration is not None and declaration.version >= newest:
            remedy = facts.worker_for(queue)
            effect = Sentence(
                "a process of this release knows {cls} in version {version}: its {about:,} jobs run within a minute",
                cls=cls,
                version=declaration.version,
                about=about,
            )
        else:
            remedy = remedy_command("jobs", "kill", "--in", "scheduled", "--class", cls)
            effect = Sentence(
                "its {about:,} jobs go to the dead set, and `jobs retry --class` brings them back after its deploy; without "
                "it they wait, and are given up after a day",
                about=about,
            )
        return Cause(
            code="newer_version" if is_newer else "unknown_class",
            shard=facts.shard,
            cause=(
                Sentence(
                    "the running processes have an older version of {cls} than its producers: a deploy is not complete",
                    cls=cls,
                )
                if is_newer
                else Sentence(
                    "no running process of the queue {queue} knows the class {cls}: it is not deployed there, or was renamed",
                    queue=queue,
                    cls=cls,
                )
            ),
            evidence=evidence,
            remedy=remedy,
            effect=effect,
            certainty=11.0,
            jobs=about,
            classes=frozenset({cls}),
            queues=frozenset({queue}),
        )

    # --- poison

    def _poison(self) -> Iterator[Cause]:
        facts = self.facts
        killed = [
            job
            for job in facts.interrupted.jobs
            if facts.now - job.score <= _POISON_S and count_of(job.payload, DEATH_COUNT)
        ]
        back = [job for job in facts.next_or_in_flight if count_of(job.payload, DEATH_COUNT) >= 2]
        for cls in sorted({job.cls for job in (*killed, *back)}):
            ours = [job for job in killed if job.cls == cls]
            again = {str(job.payload.get("jid")): job for job in back if job.cls == cls}
            named = [str(job.payload.get("jid")) for job in ours] + list(again)
            deaths = sum(count_of(job.payload, DEATH_COUNT) for job in (*ours, *again.values()))
            last = max((job.score for job in ours), default=None)
            shown = join_names(named, max_names=_MOST_NAMES)
            waiting = sum(queue.size * queue.classes[cls] // max(1, queue.classes.total()) for queue in facts.queues)
            remedy, effect = self._hold(
                cls,
                "kills its processes",
                Sentence(
                    "{jobs} held, so no further process dies; `jobs show {jid}` has the arguments",
                    jobs=format_count(waiting + len(again), "waiting job", "is"),
                    jid=named[0],
                ),
            )
            yield Cause(
                code="poison",
                shard=facts.shard,
                cause=Sentence("jobs of {cls} kill their processes", cls=cls),
                evidence=[
                    Sentence(
                        "{deaths} by {jobs}: {shown}",
                        deaths=format_count(deaths, "process death"),
                        jobs=format_count(len(named), "job"),
                        shown=shown,
                    ),
                    (
                        Sentence(
                            "{number:,} quarantined (interrupted set){since}; {again:,} will be tried again",
                            number=len(ours),
                            since=("" if last is None else Sentence(", last at {since}", since=facts.ago(last))),
                            again=len(again),
                        )
                    ),
                ],
                remedy=remedy,
                effect=effect,
                certainty=13.0,
                jobs=max(len(named), deaths),
                classes=frozenset({cls}),
                # An hour later a silent process has another cause.
                hides=_OF_POISON if again or facts.now - (last or 0.0) <= _JUST_NOW_S else frozenset(),
            )

        if facts.scope.alert in self.alerts["process_died"]:
            yield from self._deaths(back)

    def _deaths(self, again: Sequence[SampledJob]) -> Iterator[Cause]:
        """Yield the classes whose jobs ran in processes that died, once: a job that kills its process does so twice."""
        facts = self.facts
        poison = {job.cls for job in again}
        jobs = [job for job in facts.next_or_in_flight if count_of(job.payload, DEATH_COUNT) and job.cls not in poison]
        if not jobs:
            return
        classes = Counter(job.cls for job in jobs)
        shown = joined(
            (
                Sentence("{count:,} of {name}", count=count, name=name)
                for name, count in classes.most_common(_MOST_NAMES)
            ),
            ", ",
        )
        yield Cause(
            code="process_died",
            shard=facts.shard,
            cause=Sentence("a process died while it ran jobs, which run again: it was killed, or crashed"),
            evidence=[
                Sentence("{jobs} of dead processes: {shown}", jobs=format_count(len(jobs), "job"), shown=shown),
                Sentence("none of them has met two deaths"),
            ],
            remedy="journalctl --dmesg --since -1h --grep 'out of memory|killed process'",
            effect=Sentence(
                "shows on its host whether the kernel killed it; else the log of its supervisor has the status (child.died)"
            ),
            certainty=6.0,
            jobs=len(jobs),
            classes=frozenset(classes),
        )

    # --- sets

    def _deep(self) -> Iterator[Cause]:
        facts, sample = self.facts, self.facts.retries
        if sample.size < _DEEP or sample.size < self._runs_of_two_days() * _DEEP_SHARE:
            return
        reasons = Counter((job.cls, error_of(job)) for job in sample.jobs)
        (cls, error), count = reasons.most_common(1)[0]
        soon = sample.about(sum(job.score <= facts.now + _POISON_S for job in sample.jobs))
        first = min(
            (at for job in sample.jobs if (at := timestamp(job.payload.get("failed_at"))) is not None), default=None
        )
        last = max((at for job in sample.jobs if (at := failed_at(job)) is not None), default=None)
        about, queue = sample.about(count), facts.queue_of(cls)
        drained = facts.drained(about, sum(one.slots for one in facts.serving(queue)), facts.history(cls).mean_s)
        evidence: list[str] = [
            Sentence(
                "{size:,} jobs wait for another try, about {soon:,} of them within the hour",
                size=sample.size,
                soon=soon,
            )
        ]
        evidence += [
            Sentence("about {about:,} of {name} with {text}", about=sample.about(number), name=name, text=text)
            for (name, text), number in reasons.most_common(_MOST_NAMES)
        ]
        if first is not None and last is not None:
            evidence.append(
                Sentence(
                    "the first failed at {since}, the last at {last}{note}",
                    since=facts.ago(first),
                    last=facts.ago(last),
                    note=sample.note,
                )
            )
        yield Cause(
            code="deep_retry_set",
            shard=facts.shard,
            cause=Sentence(
                "the retry set is deep: most of it are jobs of {cls} that failed with {error}", cls=cls, error=error
            ),
            evidence=evidence,
            remedy=remedy_command(
                "jobs", "requeue", "--in", "retry", "--class", cls, "--error", error.rpartition(".")[2]
            ),
            effect=Sentence(
                "about {about:,} jobs go to {queue} now, {drained}; do it when the error is gone",
                about=about,
                queue=queue or Sentence("their queue"),
                drained=drained,
            ),
            certainty=4.0,
            jobs=sample.size,
            classes=frozenset({cls}),
        )

    def _runs_of_two_days(self) -> int:
        days = [time.strftime("%Y-%m-%d", time.gmtime(self.facts.now - back * 86_400)) for back in range(2)]
        found = cast("list[bytes | None]", self.facts.client.mget([f"{keys.STAT_PROCESSED}:{day}" for day in days]))
        return sum(int(one) for one in found if one is not None and one.isdigit())

    def _late(self) -> Iterator[Cause]:
        facts = self.facts
        for name, sample in ((keys.SCHEDULE, facts.scheduled), (keys.RETRY, facts.retries)):
            due = min((job.score for job in sample.jobs), default=facts.now)
            if facts.now - due < _LATE_S:
                continue
            late = sample.about(sum(job.score < facts.now for job in sample.jobs))
            first = min(sample.jobs, key=lambda job: job.score)
            running = facts.running_processes
            yield Cause(
                code="scheduler_stalled",
                shard=facts.shard,
                cause=Sentence("due jobs stay in the set {name}: no process moves them to their queues", name=name),
                evidence=[
                    (
                        Sentence(
                            "about {late:,} jobs are due{note}, the first since {since} ({cls})",
                            late=late,
                            note=sample.note,
                            since=facts.ago(due),
                            cls=first.cls,
                        )
                    ),
                    Sentence("{processes} on this shard", processes=format_count(len(running), "process", "runs")),
                ],
                remedy=facts.worker_for(parent_of(str(first.payload.get("queue")))),
                effect=Sentence(
                    "a process moves about {late:,} jobs to their queues within seconds of its start", late=late
                ),
                certainty=6.0,
                jobs=late,
            )

    # --- jobs that were set aside

    def _malformed(self) -> Iterator[Cause]:
        facts = self.facts
        found = [job for job in facts.dead.jobs if job.cls == MALFORMED and facts.now - job.score <= _POISON_S]
        if not found:
            return
        queues = sorted({str(job.payload.get("queue")) for job in found})
        yield Cause(
            code="malformed",
            shard=facts.shard,
            cause=Sentence("a program writes payloads that are no jobs"),
            evidence=[
                Sentence(
                    "{payloads} in the dead set within the hour, the last since {since}",
                    payloads=format_count(len(found), "payload"),
                    since=facts.ago(found[0].score),
                ),
                Sentence(
                    "from the queues {names}; {message}",
                    names=join_names(queues, max_names=_MOST_NAMES),
                    message=_message(found[0]),
                ),
            ],
            remedy=remedy_command("jobs", "list", "dead", "--class", MALFORMED),
            effect=Sentence("shows what was written; it stays there, byte for byte, until the program is found"),
            certainty=6.0,
            jobs=len(found),
            queues=frozenset(queues),
        )

    def _cut_off(self) -> Iterator[Cause]:
        facts = self.facts
        ended = [job for job in facts.interrupted.jobs if facts.now - job.score <= _POISON_S]
        # Another process may already run them.
        again = facts.next_or_in_flight
        # A deploy interrupts jobs: once is no cause, unless it is asked for.
        least = 1 if facts.scope.alert in self.alerts["cut_off"] else 2
        jobs = [job for job in (*ended, *again) if not count_of(job.payload, DEATH_COUNT)]
        by_class = Counter(job.cls for job in jobs if count_of(job.payload, INTERRUPTED_COUNT) >= least)
        for cls, count in sorted(by_class.items()):
            gone = sum(job.cls == cls for job in ended)
            yield Cause(
                code="cut_off",
                shard=facts.shard,
                cause=Sentence("jobs of {cls} run longer than the time that a process has to stop", cls=cls),
                evidence=[
                    Sentence(
                        "{jobs} of it interrupted by stops; {gone:,} in the interrupted set within the hour",
                        jobs=format_count(count, "job"),
                        gone=gone,
                    ),
                    Sentence(
                        "a run takes {time} in the mean of the hour",
                        time=format_seconds(facts.history(cls).mean_s or 0.0),
                    ),
                ],
                remedy=remedy_command("jobs", "requeue", "--class", cls)
                if gone
                else facts.worker_for(facts.queue_of(cls)),
                effect=(
                    Sentence(
                        "{jobs} once more from the beginning; give processes a longer `--timeout`, or make the job iterable",
                        jobs=format_count(gone, "job", "runs"),
                    )
                ),
                certainty=6.0,
                jobs=count,
                classes=frozenset({cls}),
            )

    def _deferred(self) -> Iterator[Cause]:
        facts, sample = self.facts, self.facts.scheduled
        found: dict[tuple[str, str], list[SampledJob]] = {}
        for job in sample.jobs:
            by = job.payload.get(DEFERRED_BY)
            if job.payload.get(DEFERRED) and isinstance(by, str) and not count_of(job.payload, UNKNOWN_COUNT):
                found.setdefault((job.cls, by), []).append(job)
        for (cls, by), jobs in sorted(found.items()):
            about = sample.about(len(jobs))
            next_s = max(0.0, min(job.score for job in jobs) - facts.now)
            yield Cause(
                code="deferred",
                shard=facts.shard,
                cause=Sentence("jobs of {cls} are deferred by {by}", cls=cls, by=by),
                evidence=[
                    Sentence(
                        "{jobs} deferred{note}, the next one is due in {time}",
                        jobs=format_count(about, "job", "is"),
                        note=sample.note,
                        time=format_duration(next_s),
                    ),
                ],
                remedy=remedy_command("jobs", "explain", str(jobs[0].payload.get("jid"))),
                effect=Sentence("explains one of them: what defers it, and what lets it run"),
                certainty=4.0,
                jobs=about,
                classes=frozenset({cls}),
            )


def _message(job: SampledJob) -> str:
    message = job.payload.get("error_message")
    text = message if isinstance(message, str) else ""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
