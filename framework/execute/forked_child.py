"""End a child process that a job has forked, without the exit handlers of the job's own process."""

import os
import traceback
from contextlib import suppress
from typing import NoReturn

from framework.finish.outcome import Failed, RunOutcome
from framework.telemetry import logs
from framework.typeguards import has_type


def exit_forked_child(error: BaseException | None) -> NoReturn:
    """Exit with the status of a plain program that ended so."""
    status = 0
    with suppress(BaseException):
        if error is not None:
            status = 1
            if has_type(error, SystemExit):
                status = error.code if type(error.code) is int else int(error.code is not None)
            else:
                traceback.print_exception(error)
    logs.flush_output()
    # Not `sys.exit`: the parent's exit handlers, threads and connections must not end here.
    os._exit(status)


def exit_with_outcome(outcome: RunOutcome | None) -> NoReturn:
    """Exit as the run of a job has ended. Nothing is settled."""
    exit_forked_child(outcome.error if isinstance(outcome, Failed) else None)
