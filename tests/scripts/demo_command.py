"""Run scripts/demo in a var directory of its own, and find the processes that it leaves."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.scripts.page_reader import PageReader

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "scripts" / "demo"
PATIENCE_S = 90.0


class Demo:
    """The command with its own var directory; the name of that directory identifies its processes."""

    def __init__(self, var: Path) -> None:
        self.var = var
        self.process: subprocess.Popen[str] | None = None
        self.output: list[str] = []

    def environment(self) -> dict[str, str]:
        return os.environ | {"FRAMEWORK_VAR_DIR": str(self.var), "PYTHONUNBUFFERED": "1"}

    def run(
        self, *arguments: str | Path, python: str = sys.executable, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        command = [python, str(DEMO), *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=timeout_s, cwd="/", check=False
        )

    def start(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO), *map(str, arguments)],
            env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def read_until(self, pattern: str) -> "re.Match[str]":
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if found := re.search(pattern, line):
                return found
        pytest.fail(f"{pattern!r} is in no line of the output:\n{''.join(self.output)}")

    def finish(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        with self.process.stdout:
            self.output.extend(self.process.stdout)
        return self.process.wait(PATIENCE_S)

    @property
    def folder(self) -> Path:
        (folder,) = (path for path in (self.var / "demo").iterdir() if path.is_dir())
        return folder

    def held_keys(self) -> tuple[int, int | None]:
        """Return how many files are done, and of how many."""
        with closing(sqlite3.connect(f"file:{self.folder / 'code_index.sqlite3'}?mode=ro", uri=True)) as database:
            (total,) = database.execute("SELECT files_total FROM code_index_runs").fetchone() or (None,)
            (done,) = database.execute("SELECT count(*) FROM code_index_results").fetchone()
        return done, total

    def page(self) -> PageReader:
        (report,) = (self.folder / "reports").glob("code-index-*.html")
        text = report.read_text()
        assert len(text.encode()) < 80_000
        return PageReader(text)

    def lines(self, **fields: object) -> list[dict[str, object]]:
        """Return the lines of all logs that have these fields."""
        logs = (self.folder / "log").iterdir()
        entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
        return [entry for entry in entries if fields.items() <= entry.items()]

    def left(self) -> dict[int, str]:
        """Return the processes that work in the test's var directory, by their environment or command line."""
        mark, found = str(self.var).encode(), {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes() + command:
                    found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        return found
