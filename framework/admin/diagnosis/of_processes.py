"""Find causes in the processes of a shard: none for a queue, silent ones, and clocks that are wrong."""

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import LateProcess, QueueFacts, SampledJob
from framework.command_line import remedy_command
from framework.text import Sentence, format_count, format_duration, join_names
from framework.wire.job import INTERRUPTED_COUNT, count_of

_MOST_NAMES = 3
_NEW_S = 5.0
"""For so long a job may wait for a process that is about to start."""

_SKEW_S = 2.0
_LOST_WITHIN_S = 3_600.0


_SILENCE = frozenset({"unserved", "not_fetching", "few_slots", "flood", "scheduler_stalled", "cron_no_leader"})


class ProcessReader(CauseReader):
    """Find causes in the worker processes."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "unserved": (
            "QueueNotProcessed",
            "NoProgress",
            "ClassNotDequeued",
            "OldestJobTooOld",
            "QueueingApdexBurn",
            "UnknownClass",
        ),
        "process_silent": (
            *(
                "HeartbeatLate",
                "NoProgress",
                "RecoveredSpike",
                "ProcessesFlapping",
                "ForcedShutdowns",
                "MemoryLimitExceeded",
            ),
            *("QueueNotProcessed", "OldestJobTooOld", "SchedulerStalled", "CronMissed", "LeakedSlots"),
        ),
        "clock_skew": ("ClockSkew", "SchedulerStalled", "CronMissed"),
        "data_lost": ("DataLossSuspected",),
        "large_process": ("MemoryLimitExceeded",),
    }

    def causes(self) -> Iterator[Cause]:
        silent = self.facts.late_processes
        for one in silent:
            yield self._silent(one)
        served = {name for one in silent for name in one.queues}
        for queue in self.facts.queues:
            is_served = queue.serving or queue.name in served or queue.state.paused
            # A quiet process has a successor in a moment.
            is_new = queue.waits_s < _NEW_S and any(queue.name in one.queues for one in self.facts.running_processes)
            if not is_served and not is_new:
                yield self._unserved(queue)
        yield from self._clocks()
        yield from self._lost_data()
        if self.facts.scope.alert in self.alerts["large_process"]:
            yield from self._large()

    def _silent(self, one: LateProcess) -> Cause:
        facts = self.facts
        lease = (
            Sentence("its lease has expired")
            if one.lease_s is None
            else Sentence("its lease expires in {time}", time=format_duration(one.lease_s))
        )
        waiting = [queue for queue in facts.queues if queue.name in one.queues]
        queue = max(one.queues, key=lambda name: sum(q.size for q in waiting if q.name == name), default="default")
        host, _, rest = one.identity.partition(":")
        soon = "now" if one.lease_s is None else Sentence("in about {time}", time=format_duration(one.lease_s + 6.0))
        back = (
            Sentence(
                "its {jobs} in flight are recovered {soon}, and ", jobs=format_count(one.in_flight, "job"), soon=soon
            )
            if one.in_flight
            else ""
        )
        return Cause(
            code="process_silent",
            shard=facts.shard,
            cause=Sentence(
                "the process {identity} sends no heartbeat: it is dead, frozen, or cut off from Redis by the network",
                identity=one.identity,
            ),
            evidence=[
                Sentence("last heartbeat at {since} (one each 3 s); {lease}", since=facts.ago(one.beat), lease=lease),
                Sentence(
                    "{jobs} in flight; on the host {host} it is the process {process}",
                    jobs=format_count(one.in_flight, "job"),
                    host=host,
                    process=rest.partition(":")[0],
                ),
                *(
                    Sentence("queue {queue}: {jobs}", queue=q.name, jobs=format_count(q.size, "job", "waits"))
                    for q in waiting[:_MOST_NAMES]
                ),
            ],
            remedy=facts.worker_for(queue),
            effect=Sentence(
                "{back}a new process runs the jobs of {queue}; a frozen one goes on by itself later",
                back=back,
                queue=queue,
            ),
            certainty=14.0,
            jobs=one.in_flight + sum(q.size for q in waiting),
            queues=one.queues,
            # Without its record it is not known what it has served.
            hides=_SILENCE if one.queues else frozenset(),
        )

    def _unserved(self, queue: QueueFacts) -> Cause:
        facts = self.facts
        quiet = [one.identity for one in facts.running_processes if queue.name in one.queues and one.is_quiet]
        others = [one for one in facts.running_processes if queue.name not in one.queues]
        evidence: list[str] = [
            Sentence(
                "{jobs}, the next one for {time}",
                jobs=format_count(queue.size, "job", "waits"),
                time=format_duration(queue.waits_s),
            ),
            Sentence(
                "classes: {names}", names=join_names([name for name, _ in queue.classes.most_common(_MOST_NAMES)])
            ),
        ]
        if quiet:
            evidence.append(
                Sentence("quiet, so without a fetch: {names}", names=join_names(quiet, max_names=_MOST_NAMES))
            )
        evidence.append(
            Sentence(
                "{processes} other queues of this shard",
                processes=format_count(len(others), "running process", "serves"),
            )
            if others
            else Sentence("no process runs on this shard")
        )
        known = [one for name in queue.classes if (one := facts.installation.declaration(name)) is not None]
        mean = next((facts.history(name).mean_s for name, _ in queue.classes.most_common(1)), None)
        return Cause(
            code="unserved",
            shard=facts.shard,
            cause=Sentence("no running process serves the queue {queue}", queue=queue.name),
            evidence=evidence,
            remedy=facts.worker_for(queue.name, modules=None if known else ()),
            effect=Sentence(
                "{jobs}, {drained}",
                jobs=format_count(queue.size, "job", "runs"),
                drained=facts.drained(queue.size, 10, mean),
            ),
            certainty=12.0,
            jobs=queue.size,
            classes=frozenset(queue.classes),
            queues=frozenset({queue.name}),
            hides=frozenset({"not_fetching", "few_slots", "flood", "slow_class"}),
        )

    def _clocks(self) -> Iterator[Cause]:
        wrong = {
            one.identity: one.clock_s
            for one in self.facts.running_processes
            if one.clock_s is not None and abs(one.clock_s) >= _SKEW_S
        }
        if not wrong:
            return
        hosts = sorted({identity.partition(":")[0] for identity in wrong})
        most = max(wrong.values(), key=abs)
        agree = sum(one.clock_s is not None and abs(one.clock_s) < _SKEW_S for one in self.facts.running_processes)
        server = len(wrong) > 1 and not agree
        named = [
            Sentence("{identity}: {offset}", identity=identity, offset=_offset(skew))
            for identity, skew in sorted(wrong.items(), key=lambda one: -abs(one[1]))
        ]
        yield Cause(
            code="clock_skew",
            shard=self.facts.shard,
            cause=(
                Sentence("the clock of Redis's host is wrong: every process differs from it")
                if server
                else Sentence("the clock of {names} is wrong", names=join_names(hosts, max_names=_MOST_NAMES))
            ),
            evidence=[
                *named[:_MOST_NAMES],
                Sentence("{processes} with Redis", processes=format_count(agree, "process", "agrees")),
            ],
            remedy="timedatectl set-ntp true"
            if server
            else shlex.join(["ssh", "--", hosts[0], "timedatectl", "set-ntp", "true"]),
            effect=(
                Sentence(
                    "delays and the times in payloads are right again; until then jobs of perform_at come {time} {direction}, and "
                    "queue times are wrong by as much",
                    time=format_duration(abs(most)),
                    direction=(Sentence("too early") if most > 0 else Sentence("too late")),
                )
            ),
            certainty=9.0,
            jobs=len(wrong),
            hides=frozenset({"flood", "few_slots", "slow_class"}),
        )

    def _lost_data(self) -> Iterator[Cause]:
        facts = self.facts
        found = {
            one.identity: one.lost_at
            for one in facts.running_processes
            if one.lost_at and facts.now - one.lost_at < _LOST_WITHIN_S
        }
        if not found:
            return
        last, info, names = max(found.values()), facts.info, join_names(sorted(found), max_names=_MOST_NAMES)
        yield Cause(
            code="data_lost",
            shard=facts.shard,
            cause=Sentence("Redis has lost data: it was flushed, or came back without its data or with older ones"),
            evidence=[
                Sentence(
                    "noticed at {since} by {names}: its registration was gone or older",
                    since=facts.ago(last),
                    names=names,
                ),
                (
                    Sentence(
                        "Redis runs for {time}, role {role}, append-only file {state}",
                        time=format_duration(float(info.get("uptime_in_seconds", 0))),
                        role=info.get("role", "unknown"),
                        state=(Sentence("on") if info.get("aof_enabled") else Sentence("off")),
                    )
                ),
            ],
            remedy=remedy_command("ledger", "diff"),
            effect=Sentence(
                "lists the recorded jobs that are lost; push them again, after a look at why Redis lost them"
            ),
            certainty=25.0,
        )

    def _large(self) -> Iterator[Cause]:
        """Yield the running process with the most memory: what it runs, or has run, takes it."""
        largest = max(self.facts.running_processes, key=lambda one: one.rss_kb, default=None)
        if largest is None or not largest.rss_kb:
            return
        runs = [run for run in self.facts.runs_now if run.process == largest.identity]
        others = statistics.median(one.rss_kb for one in self.facts.running_processes)
        shown = Sentence(
            "{used:,.0f} MB, the middle process of the shard {others:,.0f} MB",
            used=largest.rss_kb / 1_000,
            others=others / 1_000,
        )
        evidence: list[str] = [Sentence("{identity}: {shown}", identity=largest.identity, shown=shown)]
        if runs:
            classes = sorted({run.cls for run in runs})
            cause = Sentence(
                "jobs of {names} run in the process with the most memory",
                names=join_names(classes, max_names=_MOST_NAMES),
            )
            evidence += (
                Sentence("{cls} {jid} runs for {time}", cls=run.cls, jid=run.jid, time=format_duration(run.ran_s))
                for run in runs[:_MOST_NAMES]
            )
        # A cluster replaces a large process, which puts its jobs back.
        elif back := self._interrupted():
            classes = sorted({job.cls for job in back})
            cause = Sentence(
                "jobs of {names} were interrupted when their process was replaced",
                names=join_names(classes, max_names=_MOST_NAMES),
            )
            evidence += (
                Sentence("{cls} {jid} was interrupted by a stop", cls=job.cls, jid=job.payload.get("jid"))
                for job in back[:_MOST_NAMES]
            )
        else:
            classes = []
            cause = Sentence(
                "no job runs now in the process with the most memory, {identity}: earlier ones have left it",
                identity=largest.identity,
            )
        limit = ("jobs", "limits", "set", *classes[:1], "1", "--reason", "takes much memory", "--for", "1h")
        yield Cause(
            code="large_process",
            shard=self.facts.shard,
            cause=cause,
            evidence=evidence,
            remedy=remedy_command(*limit, loads_classes=True) if classes else remedy_command("jobs", "processes"),
            effect=Sentence("one job of {classes} runs at a time", classes=classes[0])
            if classes
            else Sentence("shows the memory of each process"),
            certainty=4.0,
            jobs=len(runs),
            classes=frozenset(classes),
        )

    def _interrupted(self) -> list[SampledJob]:
        """Return jobs that the stop of a process has interrupted: they wait for another run, or run again."""
        return [job for job in self.facts.next_or_in_flight if count_of(job.payload, INTERRUPTED_COUNT)]


def _offset(skew_s: float) -> str:
    return Sentence(
        "{time} {direction} Redis",
        time=format_duration(abs(skew_s)),
        direction=(Sentence("ahead of") if skew_s > 0 else Sentence("behind")),
    )
