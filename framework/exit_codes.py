"""The exit statuses of every command and process (sysexits.h from 64 on). A supervisor decides by them: keep the numbers."""

EXIT_OK = 0
"""Done; of a worker process: it stopped in order."""

EXIT_FAILED = 1
"""The command found something to complain about, or a part of the process died."""

EXIT_USAGE = 2
"""The arguments of the command are wrong (click's number)."""

EXIT_UNREACHABLE = 75
"""A Redis did not answer in time; a later try may succeed (EX_TEMPFAIL)."""

EXIT_CONFIGURATION = 78
"""The configuration does not allow the command to run (EX_CONFIG); a restart cannot help."""
