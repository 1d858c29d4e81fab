"""Bind a worker process to its supervisor: it ends when the supervisor dies, as no other process restarts or ends it."""

import ctypes
import os
import signal
import sys

from framework.exit_codes import EXIT_FAILED

SUPERVISOR_VARIABLE = "FRAMEWORK_SUPERVISOR_PID"
"""Set by a supervisor to its own process id. ``getppid`` alone may already return another process's id."""

_PR_SET_PDEATHSIG = 1


def bind_to_supervisor() -> int | None:
    """Return the process id of the supervisor, or ``None`` without one. Call it once, before anything else.

    From then on Linux sends TERM to this process when the supervisor dies, even while an import hangs. (To be exact: when the
    supervisor's thread ends that started this process, so that thread must live as long as the supervisor.) A process
    whose supervisor has already died exits here.
    """
    supervisor = os.environ.pop(SUPERVISOR_VARIABLE, "")
    if not supervisor.isdecimal():
        return None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(supervisor):
        sys.exit(EXIT_FAILED)
    return int(supervisor)
