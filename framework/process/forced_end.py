"""End a process whose main thread hangs after the death of another thread, which may have left a lock taken."""

import faulthandler
from contextlib import suppress

_STDERR = 2

DEATH_LIMIT_S = 5.0
"""The seconds from the death of a thread to the end of a worker process."""


def force_end_after(seconds: float) -> None:
    """End this process with status 1 in ``seconds``, unless it has ended by then. The stacks of its threads go to stderr.

    A thread without Python does it, so it waits neither for the interpreter nor for a lock. Jobs in flight stay in the working
    list, from where another process recovers them.
    """
    # Without memory, or without another thread: then the process has only its own way to end.
    with suppress(RuntimeError, MemoryError):
        # By number, because a job may have replaced `sys.stderr`.
        faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
