"""The supervisor seen from below: a process that has lost it ends, since nobody would restart it, or end it."""

import ctypes
import os
import signal
import sys

from framework.exit_codes import EXIT_FAILED

SUPERVISOR_VARIABLE = "FRAMEWORK_SUPERVISOR_PID"
"""Set by a supervisor to its own process id: whoever asks the system only later may be told of a stranger."""

_PR_SET_PDEATHSIG = 1


def bind_to_supervisor() -> int | None:
    """Return the process id of the supervisor that started us; ``None``: nobody did. To be called once, first of all.

    From then on Linux sends us TERM when it dies (to be exact: when its thread ends that started us, so that must be one that
    lives as long), which ends us even while an import hangs; later it has its deadline. If it is dead already, we end here.
    """
    told = os.environ.pop(SUPERVISOR_VARIABLE, "")
    if not told.isdecimal():
        return None
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(told):
        sys.exit(EXIT_FAILED)
    return int(told)
