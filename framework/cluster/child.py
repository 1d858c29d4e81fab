"""Start, reap and restart one child of a supervisor, and watch its memory."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

from framework.command_line import child_environment
from framework.process.identity import NONCE_VARIABLE, draw_nonce, identity_of
from framework.process.record import resident_bytes
from framework.process.shared_state import SHARED_STATE_VARIABLE, ProcessState, SharedState
from framework.process.signals import SUPERVISOR_VARIABLE, TERMINAL_VARIABLE, at_terminal
from framework.telemetry.shared_counts import SHARED_COUNTS_VARIABLE, CountsReader, GroupCounts
from framework.timings import STANDARD, Timings, backoff_s

_FIRST_BACKOFF_S = 0.0
_GROWTH_FROM_S = 0.5
_LONGEST_BACKOFF_S = 30.0
LONGEST_START_BACKOFF_S = 5.0
"""The longest back-off while no process can be started (no memory, no file descriptor), since a try costs little."""

_STABLE_S = 30.0
"""A child that lived this long before it ended by itself restarts without back-off."""

_STABLE_BEFORE_KILL_S = 1.0
"""A child that lived this long before it was killed restarts without back-off."""

_TOLERATED_KILLS = 5
"""The number of early kills without back-off: by then a job that kills its process is quarantined, and other jobs must run."""


@dataclass(frozen=True)
class ChildSpec:
    """One worker process to keep running: its command line, its shard, and its log (``None``: the supervisor's stdout)."""

    name: str
    argv: Sequence[str]
    shard: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdout: Path | None = None
    queues: Sequence[str] = ()
    """The queues it serves. Health checks treat processes of one shard with the same queues as one group."""


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """An event of a child.

    Kinds: started, failed (could not be started; ``status`` is the errno), died, killed (at stop), stopped, stuck (killed after
    ``status`` seconds without a heartbeat), orphans_killed (processes that its jobs had left running were killed).

    Kinds during a rolling restart: replaced (its successor serves), overdue (its jobs have run for ``status`` seconds), drained
    (it has ended), not_ready (a successor ended before it served, or did not serve in time: ``status`` is ``None``).
    """

    kind: str
    name: str
    shard: str
    pid: int
    status: int | None = None


OnEvent: TypeAlias = Callable[[ChildEvent], None]


class Child:
    """One spec and its current process."""

    def __init__(self, spec: ChildSpec, counts: GroupCounts | None = None) -> None:
        """``counts`` keeps the counts of the processes; ``None`` if they have no reader."""
        self.spec = spec
        self.name = spec.name
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.identity = ""
        self.started_at = 0.0
        self.start_after = 0.0
        self.draining = False
        """Whether its successor serves and the process fetches no more jobs."""
        self.status: int | None = None
        """The exit status of its last process."""
        self.shared_state = SharedState()
        self._failures = 0
        self._group_counts = counts
        self._counts: CountsReader | None = None

    @property
    def pid(self) -> int:
        """The process id, 0 without a process."""
        return self.process.pid if self.process is not None else 0

    @property
    def ready(self) -> bool:
        return self.process is not None and self.shared_state.state is ProcessState.READY

    def serves(self, timings: Timings) -> bool:
        return self.process is not None and self.shared_state.fetches(timings)

    def start(self) -> None:
        """Start the process by exec, in its own session: Ctrl-C in a terminal reaches only the supervisor, which forwards it."""
        nonce = draw_nonce()
        output: IO[bytes] | None = None
        shared_state, descriptor = SharedState.create()
        variables = {SHARED_STATE_VARIABLE: str(descriptor)}
        descriptors = [descriptor]
        try:
            if self._group_counts is not None:
                self._counts, counted = self._group_counts.open()
                descriptors.append(counted)
                variables[SHARED_COUNTS_VARIABLE] = str(counted)
            if self.spec.stdout is not None:
                self.spec.stdout.parent.mkdir(parents=True, exist_ok=True)
                output = self.spec.stdout.open("ab")
            self.process = subprocess.Popen(
                list(self.spec.argv),
                env={
                    **os.environ,
                    **self.spec.env,
                    **child_environment(),
                    NONCE_VARIABLE: nonce,
                    SUPERVISOR_VARIABLE: str(os.getpid()),
                    **variables,
                    **({TERMINAL_VARIABLE: "1"} if at_terminal() else {}),
                },
                pass_fds=descriptors,
                stdout=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self._end_counts()
            raise
        finally:
            for one in descriptors:
                os.close(one)
            if output is not None:
                output.close()
        self.shared_state = shared_state
        self.identity = identity_of(self.process.pid, nonce)
        self.started_at = time.monotonic()

    def reap(self) -> int | None:
        """Return the status of a process that ended since the last call, and plan its restart; else ``None``."""
        if self.process is None or self.process.poll() is None:
            return None
        _, status = self.clear_process()
        killed = status < 0
        failed = time.monotonic() - self.started_at < (_STABLE_BEFORE_KILL_S if killed else _STABLE_S)
        self.plan_restart(failed=failed, tolerated=_TOLERATED_KILLS if killed else 0)
        return status

    def clear_process(self) -> tuple[int, int]:
        process, self.process = self.process, None
        if process is None or process.returncode is None:
            raise RuntimeError(f"{self.name} has no process that has ended")
        self.status = process.returncode
        self._end_counts()
        return process.pid, process.returncode

    def _end_counts(self) -> None:
        counts, self._counts = self._counts, None
        if counts is not None and self._group_counts is not None:
            self._group_counts.end(counts)

    def plan_restart(self, *, failed: bool, tolerated: int = 0, longest_s: float = _LONGEST_BACKOFF_S) -> None:
        """Set the earliest time of the next start: at once after the first failure, later with a growing back-off.

        The back-off starts to grow after ``tolerated`` failures.
        """
        self._failures = self._failures + 1 if failed else 1
        growing_s = backoff_s(self._failures - tolerated, _GROWTH_FROM_S, longest_s)
        pause_s = _FIRST_BACKOFF_S if self._failures == 1 else growing_s
        self.start_after = time.monotonic() + pause_s


GRACE_S = 900.0

MIN_AGE_S = 60.0
"""A younger process is not checked: with a limit below its memory at start it would restart forever."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits in bytes of resident memory per process; ``None`` is no limit."""

    soft_bytes: int | None = None
    hard_bytes: int | None = None
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True)
class MemoryExceeded:
    """A child that has exceeded a limit for too long."""

    child: Child
    hard: bool
    fields: dict[str, Any]


class MemoryWatch:
    """Find growing children, so that each is replaced before the system kills an arbitrary process.

    The rules and log fields are GitLab's: a process may exceed the soft limit for a grace period, and the hard limit not at all.
    The resident memory of a child counts whole, including shared pages.
    """

    def __init__(self, limits: MemoryLimits, timings: Timings = STANDARD) -> None:
        self._limits = limits
        self._period_s = timings.memory_check_period_s
        self._most_strikes = round(limits.grace_s / self._period_s)
        self._strikes: dict[int, int] = {}
        self._checked_at = 0.0

    def check(self, children: Sequence[Child]) -> Iterator[MemoryExceeded]:
        """Yield the children to replace, once per period."""
        now = time.monotonic()
        limits = self._limits
        if (limits.soft_bytes is None and limits.hard_bytes is None) or now - self._checked_at < self._period_s:
            return
        self._checked_at = now
        before, self._strikes = self._strikes, {}
        for child in children:
            if not child.pid or now - child.started_at < MIN_AGE_S:
                continue
            found = resident_bytes(child.pid)
            if limits.hard_bytes is not None and found > limits.hard_bytes:
                yield self._exceeded(child, found, limits.hard_bytes, hard=True)
            elif limits.soft_bytes is not None and found > limits.soft_bytes:
                self._strikes[child.pid] = before.get(child.pid, 0) + 1
                if self._strikes[child.pid] > self._most_strikes:
                    yield self._exceeded(child, found, limits.soft_bytes, hard=False)

    def _exceeded(self, child: Child, found: int, limit: int, *, hard: bool) -> MemoryExceeded:
        fields = {
            "memwd_rss_bytes": found,
            "memwd_max_rss_bytes": limit,
            "memwd_cur_strikes": self._strikes.get(child.pid, 0),
            "memwd_max_strikes": 0 if hard else self._most_strikes,
            "memwd_sleep_time_s": self._period_s,
        }
        return MemoryExceeded(child, hard, fields)
