"""Make commands for PATH whose processes the fork server starts: shell scripts that forward signals and the exit status.

A start costs a hundredth of the half second in which Python starts and imports the framework. ``with WarmCommands(folder,
program)`` makes ``folder / program.name`` and those of ``ALSO_WARM``; a process has the arguments, folder, environment, input
and output of its script.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.fork_server import FORK_SERVER, Forked

_ALREADY_IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
ALSO_WARM = {"python": (), "python3": (), "pytest": ("-m", "pytest", "-W", _ALREADY_IMPORTED)}
"""Further commands, each with what Python is given before the arguments."""

SCRIPT = """#!/usr/bin/env bash
pid= early=
forward() {{ if [ "$pid" ]; then kill -"$1" "$pid" 2>/dev/null; else early="$early $1"; fi; }}
for signal in TERM INT HUP QUIT TSTP USR1 USR2; do trap "forward $signal" "$signal"; done
answers=$(mktemp -u "{folder}/answers.XXXXXX")
mkfifo "$answers"
exec 3<>"$answers"
(echo "$$ $answers" > "{requests}")  # in a subshell: a redirection here would replace the output that the server opens
until read -r -u 3 pid; do :; done
for signal in $early; do forward "$signal"; done
until read -r -u 3 status; do :; done
exit "$status"
"""
"""The process may log its first line before the script has read its number: a signal that comes by then is kept (``early``).

``read -u 3``, as a redirection would replace the input that the server opens.
"""


class WarmCommands:
    """Serve the requests of the scripts in threads, as long as the ``with`` block lasts."""

    def __init__(self, folder: Path, program: Path) -> None:
        self._program = program
        self._requests = folder / "requests"
        os.mkfifo(self._requests)
        for name in (program.name, *ALSO_WARM):
            script = folder / name
            script.write_text(SCRIPT.format(folder=folder, requests=self._requests))
            script.chmod(0o755)
        self._reader = os.fdopen(os.open(self._requests, os.O_RDWR), "r+b", buffering=0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._processes: list[Forked] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.write(b"\n")
        self._thread.join(10)
        self._reader.close()
        for process in self._processes:
            process.kill()

    def _serve(self) -> None:
        with open(self._reader.fileno(), "rb", closefd=False) as requests:
            while request := requests.readline().decode().split():
                shell, answers = request
                with suppress(OSError):  # the script was killed meanwhile
                    threading.Thread(target=self._start(int(shell), answers), daemon=True).start()

    def _start(self, shell: int, answers: str) -> Callable[[], None]:
        """Start the process of a script; return a function that waits for its end and sends its status to the script."""
        home = Path(f"/proc/{shell}")
        _, script, *arguments = (home / "cmdline").read_bytes().decode().split("\0")[:-1]  # the first is bash
        environment = dict(one.split("=", 1) for one in (home / "environ").read_bytes().decode().split("\0") if one)
        answer = os.fdopen(os.open(answers, os.O_RDWR), "wb", buffering=0)
        out, err = (os.fdopen(os.open(home / "fd" / number, os.O_WRONLY | os.O_APPEND), "wb") for number in "12")
        given = os.fdopen(os.open(home / "fd" / "0", os.O_RDONLY), "rb")
        with out, err, given:
            argv = [*ALSO_WARM.get(Path(script).name, [str(self._program)]), *arguments]
            process = FORK_SERVER.start(argv, (home / "cwd").readlink(), environment, out, err, given)
        self._processes.append(process)
        answer.write(b"%d\n" % process.pid)

        def wait() -> None:
            with answer:
                status = process.wait()
                answer.write(b"%d\n" % (status if status >= 0 else 128 - status))

        return wait
