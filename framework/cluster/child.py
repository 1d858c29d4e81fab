"""One child of a supervisor: what is to run, the process that runs it now, and when the next may be started."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

from framework.command_line import child_environment
from framework.fetch.identity import NONCE_VARIABLE, draw_nonce, identity_of
from framework.process.shared_state import SHARED_STATE_VARIABLE, ProcessState, SharedState
from framework.process.supervisor_link import SUPERVISOR_VARIABLE

_FIRST_BACKOFF_S = 0.0
_LONGEST_BACKOFF_S = 30.0
LONGEST_START_BACKOFF_S = 5.0
"""While not even a process can be started (no memory, no file descriptor): a try costs nothing, and the trouble is ours alone."""

_STABLE_S = 30.0
"""A child that lived this long before it ended by itself starts anew without back-off."""

_STABLE_BEFORE_KILL_S = 1.0
"""So does one that lived this long before it was killed."""

_TOLERATED_KILLS = 5
"""And of those killed earlier, about so many: a job that kills is quarantined by then, and the other jobs must go on."""


@dataclass(frozen=True)
class ChildSpec:
    """One worker process to keep running: its command line, its shard, where its log goes (``None``: our stdout)."""

    name: str
    argv: Sequence[str]
    shard: str
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdout: Path | None = None
    queues: Sequence[str] = ()
    """What it serves, for those who ask how its group does: processes of one shard and the same queues stand in for each other."""


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """What happened to a child: started, failed (could not be started; status = errno), died, killed (at stop), stopped,
    stuck (killed because it had not beaten for ``status`` seconds), strays (what its jobs had left running was killed).

    In a replacement: replaced (its successor serves), overdue (its jobs have had ``status`` seconds), drained (it has ended),
    refused (a successor ended before it served, or did not serve in time: ``None``).
    """

    kind: str
    name: str
    shard: str
    pid: int
    status: int | None = None


OnEvent: TypeAlias = Callable[[ChildEvent], None]


class Child:
    """One spec and the process that serves it now."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.identity = ""
        self.started_at = 0.0
        self.start_after = 0.0
        self.draining = False
        """Whether its successor serves: it takes no more jobs."""
        self.status: int | None = None
        """With which its last process has ended."""
        self.shared_state = SharedState()
        self._failures = 0

    @property
    def pid(self) -> int:
        """The process id, 0 while there is none."""
        return self.process.pid if self.process is not None else 0

    @property
    def ready(self) -> bool:
        """Whether the process has said that it takes jobs, and nothing else since."""
        return self.process is not None and self.shared_state.state is ProcessState.READY

    def start(self) -> None:
        """Start the process by exec, in a session of its own: a terminal's Ctrl-C reaches the parent only, which forwards."""
        nonce = draw_nonce()
        output: IO[bytes] | None = None
        board, descriptor = SharedState.create()
        try:
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
                    SHARED_STATE_VARIABLE: str(descriptor),
                },
                pass_fds=[descriptor],
                stdout=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
            if output is not None:
                output.close()
        self.shared_state = board
        self.identity = identity_of(self.process.pid, nonce)
        self.started_at = time.monotonic()

    def reap(self) -> int | None:
        """Return the status of a process that ended since the last call and plan its successor, else ``None``."""
        if self.process is None or self.process.poll() is None:
            return None
        _, status = self.clear_process()
        killed = status < 0
        failed = time.monotonic() - self.started_at < (_STABLE_BEFORE_KILL_S if killed else _STABLE_S)
        self.plan_restart(failed=failed, tolerated=_TOLERATED_KILLS if killed else 0)
        return status

    def clear_process(self) -> tuple[int, int]:
        """Forget the process, which has ended; return its id and its status."""
        process, self.process = self.process, None
        if process is None or process.returncode is None:
            raise RuntimeError(f"{self.name} has no process that has ended")
        self.status = process.returncode
        return process.pid, process.returncode

    def plan_restart(self, *, failed: bool, tolerated: int = 0, longest_s: float = _LONGEST_BACKOFF_S) -> None:
        """Decide when the next start may be: at once after the first failure, then later and later, ``tolerated`` failures late."""
        self._failures = self._failures + 1 if failed else 1
        growth = 0.25 * 2.0 ** (self._failures - tolerated)
        pause_s = _FIRST_BACKOFF_S if self._failures == 1 else min(longest_s, growth)
        self.start_after = time.monotonic() + pause_s
