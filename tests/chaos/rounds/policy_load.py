"""Add limits, locks and pauses to a round: push equal jobs, change a limit, pause a class, observe; then check the
results.

Jobs record when they run (``effects``), so the number of running jobs is known for every instant, not only for those of
a reading.
"""

import bisect
import itertools
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from redis import Redis

from framework import ApplicationWorker
from framework.features.flags.flag import Flag, pause_flag
from framework.features.flags.redis_flags import set_flag, unset_flag
from framework.wire import keys
from tests.chaos.rounds.account import DYING_S, Account, Run, account, runs_of
from tests.chaos.rounds.effects import ASIDE, BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.producer import AcceptedPushes
from tests.chaos.rounds.shared_limit import write_limit
from tests.proofs.places import HELD, place_of

KEYS = 8
"""The number of keys of equal jobs."""

LIMIT, _LOWERED = 5, 3
RUNNING = keys.limit("LimitedWorker") + ":running"
_PUSH_PERIOD_S = 0.02
_PUSHES_AT_ONCE = 4
_POLL_S = 0.05
_APPLIED_S = 3.0
"""A lowered limit holds in all processes after a second and after the end of earlier jobs; plus time for a loaded
machine.
"""

_KNOWN_S = 9.0
"""Until each process knows of a pause: flags are read every 5 s, give or take a fifth; plus time for a loaded machine.
"""

_LEAST_S = 30.0
"""A shorter round has no pause: no process would know of it before its end."""

_SETTLED_S = 1.0
"""The time from the end of a job to the release of its lock: its acknowledgement, on a loaded machine."""


class Push(NamedTuple):
    """One push of a job with a key: its start and end; ``accepted``, or dropped as another job had the key."""

    key: int
    at: float
    until: float
    accepted: bool


@dataclass
class Found:
    """The results."""

    most_running: int
    """The most jobs of the limited class that ran at a time, by their records."""
    over: list[str]
    """The instants at which more ran than the limit allows."""
    most_taken: int
    """The most slots taken at a reading of Redis."""
    per_second: float
    """The limited jobs that ended per second, between the calm seconds at both ends."""
    keyed: Account
    """The results of the jobs with keys."""
    equal_jobs: list[str]
    """Two jobs of one key that existed at once."""
    paused: list[str]
    """Starts of jobs with keys while all processes knew that their class was paused."""
    stale: list[str]
    """Pushes that were dropped although no job of the key existed."""
    pushes: int
    dropped: int
    held: int
    """The most held jobs at a reading."""
    left: list[str]
    """The slots, locks and held jobs at the end."""


@dataclass
class PolicyLoad:
    """``step`` is called often during the round; jobs with keys are of the class ``keyed``, effects in ``folder``."""

    keyed: type[ApplicationWorker]
    client: Redis
    folder: Path
    seconds: float
    rng: random.Random
    pushes: list[Push] = field(default_factory=list[Push])
    accepted: list[Push] = field(default_factory=list[Push])
    """The accepted pushes, in the order of their serials."""
    _limits: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    _pauses: list[float] = field(default_factory=list[float])
    """The times of the pause and the resume of the class."""
    _started: float = 0.0
    _pushed_at: float = 0.0
    _sampled_at: float = 0.0
    _done: set[str] = field(default_factory=set[str])
    _most_taken: int = 0
    _most_held: int = 0

    def open(self) -> None:
        """Prepare before any process starts: processes read the limit at once."""
        self._set_limit(LIMIT)

    def begin(self, now: float) -> None:
        """Start with the round."""
        self._started = now

    def _set_limit(self, limit: int) -> None:
        """Allow so many running jobs of the limited class."""
        write_limit(self.folder, limit)
        self._limits.append((time.monotonic(), limit))

    def step(self, now: float) -> None:
        """Push equal jobs, make the planned changes, and read the state."""
        passed = (now - self._started) / self.seconds
        if passed > 1:
            self._finish()
            return
        for name, when, act in self._plan:
            if passed >= when and name not in self._done:
                self._done.add(name)
                act()
        if now - self._pushed_at > _PUSH_PERIOD_S:
            self._pushed_at = now
            self._push_equal_jobs()
        if now - self._sampled_at > _POLL_S:
            self._sampled_at = now
            self._sample()

    def _finish(self) -> None:
        """Resume every class at the end of the round."""
        if "pause" in self._done and "resume" not in self._done:
            self._done.add("resume")
            self._pause(on=False)

    @property
    def _plan(self) -> Sequence[tuple[str, float, Callable[[], object]]]:
        return (
            ("pause", 0.15, lambda: self._pause(on=True)),
            ("resume", 0.45, lambda: self._pause(on=False)),
            ("lower", 0.5, lambda: self._set_limit(_LOWERED)),
            ("raise", 0.65, lambda: self._set_limit(LIMIT)),
        )

    def _pause(self, *, on: bool) -> None:
        """Pause the class of the jobs with keys, or resume it, where every process has time to learn of it."""
        if self.seconds < _LEAST_S:
            return
        flag = pause_flag(self.keyed.declaration().wire_name)
        if on:
            set_flag(self.client, Flag(flag, 100.0, "chaos"), None)
        else:
            unset_flag(self.client, flag)
        self._pauses.append(time.monotonic())

    def _push_equal_jobs(self) -> None:
        for key in self.rng.choices(range(KEYS), k=_PUSHES_AT_ONCE):
            at = time.monotonic()
            jid = self.keyed.perform_async(ASIDE + len(self.accepted), round(self.rng.uniform(5, 60), 1), key)
            push = Push(key, at, time.monotonic(), jid is not None)
            self.pushes.append(push)
            if push.accepted:
                self.accepted.append(push)

    def _sample(self) -> None:
        self._most_taken = max(self._most_taken, int(self.client.zcard(RUNNING)))
        held = [key for key in _keys(self.client) if place_of(key) == HELD]
        self._most_held = max(self._most_held, sum(int(self.client.zcard(cast("Any", key))) for key in held))

    # --- at the end

    def found(
        self, effects: Sequence[Effect], aside: Sequence[Effect], injections: Sequence[Injection], calm_s: float
    ) -> Found:
        """Check the records of limited jobs (``effects``) and of those with keys (``aside``), given the injections at
        processes.
        """
        keyed = [effect._replace(serial=effect.serial - ASIDE) for effect in aside]
        lives = _lives(self.accepted, runs_of(keyed))
        most, over = most_running(_spans(runs_of(effects), injections), self._limits)
        since, until = self._started + calm_s, self._started + self.seconds - calm_s
        ended = {effect.serial: effect.at for effect in reversed(effects) if effect.kind == ENDED}
        pushes = AcceptedPushes([push.at for push in self.accepted], [push.until for push in self.accepted])
        return Found(
            most_running=most,
            over=over,
            most_taken=self._most_taken,
            per_second=sum(since <= at < until for at in ended.values()) / (until - since),
            keyed=account(pushes, keyed, injections, Counter()),
            equal_jobs=list(_equal_jobs(lives)),
            paused=[f"{effect.serial} at {effect.at:.3f}" for effect in keyed if self._is_paused(effect)],
            stale=[_shown(push, lives) for push in self.pushes if not push.accepted and not _lived(push, lives)],
            pushes=len(self.pushes),
            dropped=len(self.pushes) - len(self.accepted),
            held=self._most_held,
            left=self._left(),
        )

    def _is_paused(self, effect: Effect) -> bool:
        since, until = [*self._pauses, float("inf"), float("inf")][:2]
        return effect.kind == BEGUN and since + _KNOWN_S < effect.at < until

    def _left(self) -> list[str]:
        found = [f"{key.decode()} (lock)" for key in _keys(self.client) if key.startswith(b"aw:lock:")]
        for key in _keys(self.client):
            if place_of(key) == HELD or key.endswith(b":running"):
                members = cast("list[bytes]", self.client.zrange(cast("Any", key), 0, -1))
                found += [f"{member.decode(errors='replace')} in {key.decode()}" for member in members]
        return found


Life = tuple[Push, float]
"""An accepted push, and the time when its job ended for good; infinity when it never did."""


def _lives(accepted: Sequence[Push], runs: dict[int, list[Run]]) -> dict[int, list[Life]]:
    """Return the lives by key, in the order of their pushes."""
    found: dict[int, list[Life]] = defaultdict(list)
    for number, push in enumerate(accepted):
        ends = [run.ended for run in runs.get(number, ()) if run.ended is not None]
        found[push.key].append((push, max(ends, default=float("inf"))))
    return found


def _lived(push: Push, lives: dict[int, list[Life]]) -> bool:
    """Return whether a job of the key existed during the push, or had just ended."""
    return any(other.at <= push.until and end + _SETTLED_S >= push.at for other, end in lives[push.key])


def _equal_jobs(lives: dict[int, list[Life]]) -> Iterable[str]:
    for key, own in lives.items():
        for (_, end), (push, _) in itertools.pairwise(own):
            if end > push.until:
                yield f"key {key} at {push.at:.3f}: the one before lived for {end - push.until:.3f} s more"


def _shown(push: Push, lives: dict[int, list[Life]]) -> str:
    ends = [end for other, end in lives[push.key] if other.at <= push.at]
    return f"key {push.key} at {push.at:.3f}, {push.at - max(ends, default=0.0):.3f} s after the last job of it"


def _spans(runs: dict[int, list[Run]], injections: Sequence[Injection]) -> list[tuple[float, float]]:
    """Return the time of each run: to its end, or to the injection at its process."""
    died = {injection.pid: injection.at for injection in injections}
    spans: list[tuple[float, float]] = []
    for run in (run for own in runs.values() for run in own):
        at = died.get(run.pid, float("inf"))
        cut_off = max(run.begun, at) if at >= run.begun - DYING_S else float("inf")
        spans.append((run.begun, run.ended or cut_off))
    return spans


def most_running(spans: Iterable[tuple[float, float]], limits: Sequence[tuple[float, int]]) -> tuple[int, list[str]]:
    """Return the most that ran at a time, and each start of one too many: an end makes space for a start at the same
    instant.
    """
    steps = sorted(step for begun, ended in spans for step in ((begun, 1), (ended, -1)) if step[0] < float("inf"))
    times = [at for at, _ in limits]
    running = most = 0
    over: list[str] = []
    for at, change in steps:
        running += change
        most = max(most, running)
        known = limits[max(0, bisect.bisect_right(times, at - _APPLIED_S) - 1) : bisect.bisect_right(times, at)]
        allowed = max((limit for _, limit in known), default=0)
        if change > 0 and running > allowed:
            over.append(f"{running} at {at:.3f} with a limit of {allowed}")
    return most, over


def _keys(client: Redis) -> list[bytes]:
    return list(cast("Iterable[bytes]", client.scan_iter("aw:l*", count=1000))) + list(
        cast("Iterable[bytes]", client.scan_iter("aw:paused_jobs:*", count=1000))
    )
