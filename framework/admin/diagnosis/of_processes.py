"""Find causes in the processes of a shard: none for a queue, silent ones, and clocks that are wrong."""

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.admin.diagnosis.facts import LateProcess, QueueFacts, SampledJob
from framework.command_line import remedy_command
from framework.text import format_count, format_duration, join_names
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
            "its lease has expired" if one.lease_s is None else f"its lease expires in {format_duration(one.lease_s)}"
        )
        waiting = [queue for queue in facts.queues if queue.name in one.queues]
        queue = max(one.queues, key=lambda name: sum(q.size for q in waiting if q.name == name), default="default")
        host, _, rest = one.identity.partition(":")
        soon = "now" if one.lease_s is None else f"in about {format_duration(one.lease_s + 6.0)}"
        back = f"its {format_count(one.in_flight, 'job')} in flight are recovered {soon}, and " if one.in_flight else ""
        return Cause(
            code="process_silent",
            shard=facts.shard,
            cause=f"the process {one.identity} sends no heartbeat: it is dead, frozen, or cut off from Redis by the network",
            evidence=[
                f"last heartbeat at {facts.ago(one.beat)} (one each 3 s); {lease}",
                f"{format_count(one.in_flight, 'job')} in flight; on the host {host} it is the process {rest.partition(':')[0]}",
                *(f"queue {q.name}: {format_count(q.size, 'job', 'waits')}" for q in waiting[:_MOST_NAMES]),
            ],
            remedy=facts.worker_for(queue),
            effect=f"{back}a new process runs the jobs of {queue}; a frozen one goes on by itself later",
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
        evidence = [
            f"{format_count(queue.size, 'job', 'waits')}, the next one for {format_duration(queue.waits_s)}",
            f"classes: {join_names([name for name, _ in queue.classes.most_common(_MOST_NAMES)])}",
        ]
        if quiet:
            evidence.append(f"quiet, so without a fetch: {join_names(quiet, max_names=_MOST_NAMES)}")
        evidence.append(
            f"{format_count(len(others), 'running process', 'serves')} other queues of this shard"
            if others
            else "no process runs on this shard"
        )
        known = [one for name in queue.classes if (one := facts.installation.declaration(name)) is not None]
        mean = next((facts.history(name).mean_s for name, _ in queue.classes.most_common(1)), None)
        return Cause(
            code="unserved",
            shard=facts.shard,
            cause=f"no running process serves the queue {queue.name}",
            evidence=evidence,
            remedy=facts.worker_for(queue.name, modules=None if known else ()),
            effect=f"{format_count(queue.size, 'job', 'runs')}, {facts.drained(queue.size, 10, mean)}",
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
            f"{identity}: {_offset(skew)}" for identity, skew in sorted(wrong.items(), key=lambda one: -abs(one[1]))
        ]
        yield Cause(
            code="clock_skew",
            shard=self.facts.shard,
            cause=(
                "the clock of Redis's host is wrong: every process differs from it"
                if server
                else f"the clock of {join_names(hosts, max_names=_MOST_NAMES)} is wrong"
            ),
            evidence=[
                *named[:_MOST_NAMES],
                f"{format_count(agree, 'process', 'agrees')} with Redis",
            ],
            remedy="timedatectl set-ntp true"
            if server
            else shlex.join(["ssh", "--", hosts[0], "timedatectl", "set-ntp", "true"]),
            effect=(
                f"delays and the times in payloads are right again; until then jobs of perform_at come {format_duration(abs(most))} "
                f"{'too early' if most > 0 else 'too late'}, and queue times are wrong by as much"
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
            cause="Redis has lost data: it was flushed, or came back without its data or with older ones",
            evidence=[
                f"noticed at {facts.ago(last)} by {names}: its registration was gone or older",
                (
                    f"Redis runs for {format_duration(float(info.get('uptime_in_seconds', 0)))}, role {info.get('role', 'unknown')}, "
                    f"append-only file {'on' if info.get('aof_enabled') else 'off'}"
                ),
            ],
            remedy=remedy_command("ledger", "diff"),
            effect="lists the recorded jobs that are lost; push them again, after a look at why Redis lost them",
            certainty=25.0,
        )

    def _large(self) -> Iterator[Cause]:
        """Yield the running process with the most memory: what it runs, or has run, takes it."""
        largest = max(self.facts.running_processes, key=lambda one: one.rss_kb, default=None)
        if largest is None or not largest.rss_kb:
            return
        runs = [run for run in self.facts.runs_now if run.process == largest.identity]
        others = statistics.median(one.rss_kb for one in self.facts.running_processes)
        shown = f"{largest.rss_kb / 1_000:,.0f} MB, the middle process of the shard {others / 1_000:,.0f} MB"
        evidence = [f"{largest.identity}: {shown}"]
        if runs:
            classes = sorted({run.cls for run in runs})
            cause = f"jobs of {join_names(classes, max_names=_MOST_NAMES)} run in the process with the most memory"
            evidence += (f"{run.cls} {run.jid} runs for {format_duration(run.ran_s)}" for run in runs[:_MOST_NAMES])
        # A cluster replaces a large process, which puts its jobs back.
        elif back := self._interrupted():
            classes = sorted({job.cls for job in back})
            cause = (
                f"jobs of {join_names(classes, max_names=_MOST_NAMES)} were interrupted when their process was replaced"
            )
            evidence += (f"{job.cls} {job.payload.get('jid')} was interrupted by a stop" for job in back[:_MOST_NAMES])
        else:
            classes = []
            cause = (
                f"no job runs now in the process with the most memory, {largest.identity}: earlier ones have left it"
            )
        limit = ("jobs", "limits", "set", *classes[:1], "1", "--reason", "takes much memory", "--for", "1h")
        yield Cause(
            code="large_process",
            shard=self.facts.shard,
            cause=cause,
            evidence=evidence,
            remedy=remedy_command(*limit, loads_classes=True) if classes else remedy_command("jobs", "processes"),
            effect=f"one job of {classes[0]} runs at a time" if classes else "shows the memory of each process",
            certainty=4.0,
            jobs=len(runs),
            classes=frozenset(classes),
        )

    def _interrupted(self) -> list[SampledJob]:
        """Return jobs that the stop of a process has interrupted: they wait for another run, or run again."""
        return [job for job in self.facts.next_or_in_flight if count_of(job.payload, INTERRUPTED_COUNT)]


def _offset(skew_s: float) -> str:
    return f"{format_duration(abs(skew_s))} {'ahead of' if skew_s > 0 else 'behind'} Redis"
