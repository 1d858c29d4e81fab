"""Run child processes: started on their cores, ended with all their children."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench.errors import RunFailed, Stopped
from tests.bench.machine import on_cores, session_members

STOP_S = 5.0
LAST_BYTES = 2000


class BenchProcess:
    """A process that leads a session of its own; after the ``with`` block no process of that session is left."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        log: Path,
        cores: frozenset[int],
        grace_s: float = STOP_S,
    ) -> None:
        self._grace_s = grace_s
        self.log = log
        self.errors = log.with_suffix(".err")
        with on_cores(cores), log.open("wb") as out, self.errors.open("wb") as err:
            self._popen = subprocess.Popen(
                argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pids(self) -> list[int]:
        """Return the processes of the session, the first one and its children."""
        return session_members(self._popen.pid)

    def check(self) -> None:
        """Raise RunFailed when the process has ended by itself."""
        status = self._popen.poll()
        if status is not None:
            raise RunFailed(f"the process ended with status {status}; {self.output()}")

    def wait_for_end(self, longest_s: float, stopped: Callable[[], bool]) -> None:
        """Return when the process has ended with status 0; raise RunFailed for another, Stopped when the bench is asked
        to end.
        """
        deadline = time.monotonic() + longest_s
        while (status := self._popen.poll()) is None:
            if stopped():
                raise Stopped
            if time.monotonic() > deadline:
                raise RunFailed(f"a client did not finish within {longest_s:g} s; {self.output()}")
            time.sleep(0.01)
        if status:
            raise RunFailed(f"a client ended with status {status}; {self.output()}")

    def end(self) -> None:
        """Send TERM, where there is a grace period, then KILL to the rest of the session."""
        if self._grace_s and self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(self._grace_s)
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()

    def output(self) -> str:
        """Return the paths of the logs and their last bytes."""
        ends = b"".join(file.read_bytes()[-LAST_BYTES:] for file in (self.log, self.errors))
        return f"logs {self.log} and .err end with:\n{ends.decode(errors='replace').strip()}"


def clean_environment() -> dict[str, str]:
    """Return this process's environment without variables for other installations of the contestants."""
    foreign = ("REDIS_URL", "REDIS_PROVIDER", "FRAMEWORK_", "PYTHONPATH", "PYTHONHOME", "CELERY_", "RQ_", "BENCH_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
