"""The exit codes of every command and process (sysexits.h from 64 on). Supervisors depend on the numbers: keep them."""

EXIT_OK = 0
"""The command has done its work; a worker process has stopped in order."""

EXIT_FAILED = 1
"""A check found problems, a step failed, or a part of the process died."""

EXIT_USAGE = 2
"""An option or argument of the command is wrong (click's number)."""

EXIT_UNREACHABLE = 75
"""Redis did not answer in time; a later try may succeed (EX_TEMPFAIL)."""

EXIT_CONFIGURATION = 78
"""The configuration is invalid (EX_CONFIG); a restart does not help."""
