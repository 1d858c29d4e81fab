"""Compare the result of one round with the promises."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from framework.features.profiling.store import MAX_PROFILES
from tests.chaos.rounds.account import ACKNOWLEDGED_LATE, Account, percentile
from tests.chaos.rounds.call_load import Calls
from tests.chaos.rounds.class_load import Other
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.guard_load import Guards
from tests.chaos.rounds.impact import Impact
from tests.chaos.rounds.jobs import LOCK_LIMIT
from tests.chaos.rounds.limiter_load import Paced
from tests.chaos.rounds.policy_load import LIMIT, RUNNING, Found
from tests.chaos.rounds.round_shard import RoundShard
from tests.chaos.rounds.worker_processes import idle_s
from tests.proofs.prover import Verdict

RECOVERY_S = {"cluster": 2.0, "bare": 25.0}
"""The promised longest time from the death of a process to the next run of its jobs (docs/internals/redis.md, design
7).
"""

TURNS_S = 5.0
"""The time within which all suspects of a dead process have started (decision 30): isolated ones need theirs."""

TAKEOVER_S = 25.0
"""The same from the start of a freeze: a lease and a sweep, with or without a supervisor."""

RESUMED_S = 5.0
"""The promised longest time from the end of a fault of Redis to the next start of a job (issue 3)."""

NOTICED_S = {"black hole": 15.0, "hanging reply": 15.0, "drip": 15.0}
"""The same where no process learns that a connection is dead, except by its own deadline (reference F11)."""

_SHOWN = 5


class Check(NamedTuple):
    """One promise."""

    promise: str
    found: str
    allowed: str
    held: bool


@dataclass
class RoundResult:
    """The result of one round."""

    name: str
    mode: str
    supervision: str
    jobs: int
    slots: int
    seconds: float
    faulty: RoundShard
    control: RoundShard
    injections: Sequence[Injection]
    account: Account
    account_control: Account
    impact: Impact
    set_aside: dict[str, int]
    keys_left: list[str]
    refused: list[str]
    """Rights that a server refused to a process of a role."""
    histories: list[Verdict]
    """The results of the replay of the servers' files, where the files are complete."""
    policy_load: Found | None = None
    """The results of limits, locks and pauses, in a round that has them."""
    guards: Guards | None = None
    """The results of limiters, sealed and isolated jobs, in a round that has them."""
    calls: Calls | None = None
    """The results of called and profiled jobs, in a round that has them."""

    @property
    def title(self) -> str:
        """Return the round's name, and its mode."""
        return f"{self.name}, {self.mode}"

    @property
    def held(self) -> bool:
        """Return whether every promise was kept."""
        return all(check.held for check in self.checks)

    @property
    def checks(self) -> list[Check]:
        """Return the promises, and whether they held."""
        found = [*self._jobs(), *self._times(), *self._capacity(), *self._ends(), *self._control()]
        if self.guards:
            found += _guards(self.guards, self.slots * max(1, len(self.injections)))
        if self.calls:
            found += _calls(self.calls)
        return [*found, *_policy_load(self.policy_load, self.histories)] if self.policy_load else found

    def _jobs(self) -> list[Check]:
        found, producer, allowed = self.account, self.faulty.producer, self.slots + ACKNOWLEDGED_LATE
        witnessed = [serial for serial in found.forgotten if serial in producer.witnessed]
        return [
            Check("jobs accepted", f"{producer.accepted:,}", f"{self.jobs:,}", producer.done),
            _none("lost", found.lost),
            _none("forgotten, though accepted before the time that a server forgot", found.forgotten_early),
            _none("forgotten, though witnessed by a replica", witnessed),
            Check(
                "most extra runs by one injection at a process", f"{found.worst}", f"{allowed}", found.worst <= allowed
            ),
            _kept("extra runs by faults in which nothing was forgotten", found),
            _none("extra runs without a cause", found.unexplained),
            Check("set aside (retry, dead, interrupted)", _counts(self.set_aside), "0", not self.set_aside),
        ]

    def _times(self) -> list[Check]:
        found: list[Check] = []
        for kind, done in self.account.kinds.items():
            if done.recoveries:
                limit = TAKEOVER_S if kind == "freeze" else RECOVERY_S[self.supervision]
                # Suspects are tried one after the other, and isolated ones among them need a process each.
                limit += TURNS_S if self.guards is not None or self.calls is not None else 0.0
                found.append(_at_most(f"slowest recovery after {kind}", max(done.recoveries), limit))
            if done.undeclared:
                after = f"slowest recovery after {kind}, if a server may have forgotten the declared death"
                found.append(_at_most(after, max(done.undeclared), TAKEOVER_S))
            if done.resumed:
                limit = NOTICED_S.get(kind, RESUMED_S)
                found.append(_at_most(f"longest standstill after {kind}", max(done.resumed), limit))
        return found

    def _capacity(self) -> list[Check]:
        seen = [injection.fewest for injection in self.injections if injection.fewest is not None]
        least = self.faulty.workers.processes - 1
        promise = "fewest processes at work, at any sample during a rolling restart"
        return [Check(promise, f"{min(seen)} of {least + 1}", f"{least}", min(seen) >= least)] if seen else []

    def _ends(self) -> list[Check]:
        round_shards = (self.faulty, self.control)
        untyped = [error for round_shard in round_shards for error in round_shard.producer.untyped]
        return [
            _none("untyped errors at the producers", untyped),
            _none(
                "unexpected ends of processes",
                [end for round_shard in round_shards for end in round_shard.workers.unexpected],
            ),
            _none(
                "threads of the framework that died",
                [death for round_shard in round_shards for death in round_shard.workers.deaths],
            ),
            _none("keys left", self.keys_left),
            _none("rights that a role lacks", self.refused),
            _none(
                "instants at which a job was in no key, or two", [one for it in self.histories for one in it.violations]
            ),
            _none("runs outside of the worker processes", self._unknown_processes()),
            _none("processes left", [pid for round_shard in round_shards for pid in round_shard.workers.left()]),
        ]

    def _unknown_processes(self) -> list[int]:
        """Return the processes of runs that are no worker process of the round: no fault at one would explain an extra run."""
        return sorted(
            {effect.pid for one in (self.faulty, self.control) for effect in (*one.seen, *one.aside)}
            - {pid for one in (self.faulty, self.control) for pid in one.workers.lives}
        )

    def _control(self) -> list[Check]:
        found, other = self.account_control, self.impact
        rate = f"{other.throughput:.0%}, p99 {other.p99_during * 1000:.0f} ms ({other.slower:.1f}x)"
        compared = Check("the control shard: throughput, push-to-begin", rate, "not far off", other.near)
        return [
            _none("the control shard: lost", found.lost),
            _none("the control shard: extra runs", found.unexplained),
            *([compared] if self.injections else []),
        ]

    @property
    def facts(self) -> dict[str, Any]:
        """Return the figures without a promise, and those behind the checks."""
        found, producer = self.account, self.faulty.producer
        times = found.recoveries
        pushed: dict[str, Any] = (
            {
                "jobs with a limiter, sealed and isolated jobs": self.guards.pushes,
                "admitted by limiters": {one.kind: one.takes for one in self.guards.paced},
            }
            if self.guards
            else {}
        )
        if self.calls:
            pushed |= {"calls": self.calls.pushed, "ends of calls": dict(self.calls.ends), "profiles": self.calls.pages}
            pushed |= {"calls: refusals": dict(self.calls.refusals)}
        return (
            self._policy_facts
            | pushed
            | {
                "seconds": round(self.seconds, 1),
                "jobs": self.jobs,
                "runs": found.runs,
                "injections": dict(Counter(injection.kind for injection in self.injections)),
                "runs cut off": found.interrupted,
                "forgotten with their server": len(found.forgotten),
                "extra runs": dict(found.extra),
                "extra runs whose end a server forgot": found.ends_forgotten,
                "seconds without a process at work": round(idle_s(self.faulty.workers.lives.values()), 1),
                "recoveries": len(times),
                "recovery p50, p99, max (s)": [round(percentile(times, share), 3) for share in (0.5, 0.99, 1.0)],
                "instants replayed from the servers' files": sum(history.groups for history in self.histories),
                "producer: refusals": dict(producer.refusals),
                "producer: jobs maybe written twice": len(producer.doubtful),
                "producer: slowest push (s)": round(producer.slowest_s, 2),
                "producer: jobs witnessed by a replica": len(producer.witnessed),
                "control: jobs, throughput, p99 during and outside (s)": [
                    self.control.producer.accepted,
                    round(self.impact.throughput, 3),
                    round(self.impact.p99_during, 4),
                    round(self.impact.p99_outside, 4),
                ],
            }
        )

    @property
    def _policy_facts(self) -> dict[str, Any]:
        found = self.policy_load
        if found is None:
            return {}
        return {
            "limited jobs a second": round(found.per_second, 1),
            "pushes with keys": found.pushes,
            "of them dropped as duplicates": found.dropped,
            "most held jobs in a sample": found.held,
        }


def _policy_load(found: Found, histories: Sequence[Verdict]) -> list[Check]:
    keyed, limit = found.keyed, f"{LIMIT}"
    taken = max((history.slots.get(RUNNING, 0) for history in histories), default=0)
    return [
        Check("limited jobs that ran at a time, at any instant", f"{found.most_running}", limit, not found.over),
        _none("begins beyond the limit of that instant", found.over),
        Check("slots taken, at any sample", f"{found.most_taken}", limit, found.most_taken <= LIMIT),
        Check("slots taken, at any instant of the server's file", f"{taken}", limit, taken <= LIMIT),
        _none("jobs with keys: lost", keyed.lost),
        _none("jobs with keys: extra runs without a cause", keyed.unexplained),
        _none("jobs with keys: two of a key at once", found.equal_jobs),
        _none("jobs with keys: begun while their class was paused", found.paused),
        _none("pushes dropped for a job that is over", found.stale),
        _none("slots, locks and held jobs left", found.left),
    ]


def _guards(found: Guards, most_blobs: int) -> list[Check]:
    blocks = f"{found.most_blocks}"
    return [
        Check("blocks of the limiter at a time, at any instant", blocks, f"{LOCK_LIMIT}", not found.over),
        _none("blocks begun beyond the limit", found.over),
        _none("jobs with a limiter: lost", found.locked.lost),
        _none("jobs with a limiter: extra runs without a cause", found.locked.unexplained),
        _none("sealed jobs: lost", found.sealed.lost),
        _none("sealed jobs: extra runs without a cause", found.sealed.unexplained),
        _none("files of servers, logs and the payload store with the text of a sealed job", found.readable),
        Check(
            "blobs without a job, before the sweep",
            f"{found.blobs_left}",
            f"{most_blobs}",
            found.blobs_left <= most_blobs,
        ),
        Check("blobs without a job, after two sweeps", f"{found.blobs_kept}", "0", not found.blobs_kept),
        *(one for paced in found.paced for one in _paced(paced)),
        *(one for other in found.others.kinds for one in _other(other)),
        Check(
            "chain of runs under a lease: reached the end of the round",
            f"after {found.others.chain_runs} runs",
            "yes",
            found.others.chain_ended,
        ),
        _none("isolated jobs: lost", found.separate.lost),
        _none("isolated jobs: extra runs without a cause", found.separate.unexplained),
        _none("isolated jobs: two runs of a job at work at once", found.overlapping),
    ]


def _paced(found: Paced) -> list[Check]:
    return [
        Check(f"{found.kind} limiter: most used at a time", f"{found.most:.2f}", f"{found.limit:g}", not found.over),
        _none(f"{found.kind} limiter: jobs lost", found.account.lost),
        _none(f"{found.kind} limiter: extra runs without a cause", found.account.unexplained),
    ]


def _other(found: Other) -> list[Check]:
    return [
        _none(f"{found.kind} jobs: lost", found.account.lost),
        _none(f"{found.kind} jobs: extra runs without a cause", found.account.unexplained),
    ]


def _calls(found: Calls) -> list[Check]:
    return [
        _none("calls without an end", found.unanswered),
        _none("untyped errors at the callers", found.untyped),
        _none("calls whose end is not that of the last run of their job", found.wrong),
        _none("called jobs: began again after their caller had the answer", found.ran_again),
        *_repeated("called jobs", found.called),
        *_repeated("profiled jobs", found.profiled),
        Check("profiles that are kept", f"{found.pages}", "1 to 20", 1 <= found.pages <= MAX_PROFILES),
        _none("profiles that are no page of their job", found.bad_pages),
    ]


def _repeated(name: str, found: Account) -> list[Check]:
    return [
        _none(f"{name}: lost", found.lost),
        _none(f"{name}: extra runs without a cause", found.unexplained),
        _kept(f"{name}: extra runs by faults in which nothing was forgotten", found),
    ]


def some(found: Sequence[object]) -> str:
    """Return the number, and the first few."""
    if not found:
        return "0"
    shown = ", ".join(str(one) for one in found[:_SHOWN])
    return f"{len(found):,}: {shown}{', ...' if len(found) > _SHOWN else ''}"


def _none(promise: str, found: Sequence[object]) -> Check:
    return Check(promise, some(found), "0", not found)


def _kept(promise: str, found: Account) -> Check:
    return Check(promise, _counts(found.extra_kept), "0", not found.extra_kept)


def _at_most(promise: str, seconds: float, limit: float) -> Check:
    return Check(promise, f"{seconds:.2f} s", f"{limit:g} s", seconds <= limit)


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items()) or "0"
