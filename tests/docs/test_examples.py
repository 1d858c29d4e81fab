"""Run every example of the documentation, in its order, in one folder per page.

The word after the language of a fenced block is its kind:

    python file=NAME      (any language) a file NAME in the page's folder, for the blocks that follow
    python example        a script to run; bash example: run by bash -eu
    bash background       a command that runs until the page ends (then TERM must end it with status 0); the next block
                          follows when it has logged `ready`
    text output           the output of the example before; `...` stands for any text, within a line or for whole lines
    text log              lines that the background command must log
    bash by-hand          not run here: the command installs software, or takes minutes

The folder is that of an application outside of the checkout, with `application-worker`, `python` and `pytest` on its PATH.
Their processes are forked from a Python that has imported the framework (`tests/warm_command.py`), except those of
`COLD_PAGE`.
`REDIS_URL` points at an empty embedded server. On a page that names them, `PRIMARY_URL` and `REPLICA_URL` are those of an empty
database and of its streaming replica. The pages of `BARE_PAGES` begin without any configuration, as in a folder outside of the
checkout: the files of this one do not count there.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis

from tests import log_lines
from tests.fork_server import FORK_SERVER
from tests.postgres import Postgres, database_on, standby_of
from tests.tables import each_row
from tests.warm_command import ALSO_WARM, WarmCommands

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
COMMAND = "application-worker"
PAGES = sorted(path for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if path.exists())
CAPTIONED = re.compile(r"^\*\*`(\S+)`\*\*\n\n```\w+ file=(\S+)$", re.MULTILINE)
FENCE = re.compile(r"^```(\w+)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 120.0  # a cold start of pytest takes 30 s on a machine with five suites at once
OWN_PLUGINS = ("anyio", "hypothesispytest", "schemathesis", "time_machine", "timeout", "valkey", "xdist")
COLD_PAGE = ROOT / "README.md"
BARE_PAGES = (COLD_PAGE, ROOT / "docs" / "learn" / "getting_started.md")


class PageError(Exception):
    """The result differs from the page."""


class Block(NamedTuple):
    line: int
    language: str
    mark: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text.count("\n", 0, found.start()) + 1, found[1], found[2].strip(), found[3])
        for found in FENCE.finditer(text)
    ]


def pattern(expected: str) -> re.Pattern[str]:
    pieces = [
        ".*" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*?") for line in expected.splitlines()
    ]
    return re.compile(r"\s*\n".join(pieces), re.DOTALL)


class PageRunner:
    """Run the blocks of one page in their order."""

    def __init__(self, folder: Path, redis_url: str, commands: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(commands), str(BIN), os.environ["PATH"]])
        # Readers have none of these plugins, which take most of a start of pytest.
        without = {"PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in OWN_PLUGINS)}
        self.environment = {**os.environ, **without, "PATH": path, "REDIS_URL": redis_url, "PYTHONUNBUFFERED": "1"}
        self.stdout = ""
        self.background: list[subprocess.Popen[bytes]] = []
        self.log = folder / "background.log"

    def follow(self, block: Block) -> None:
        if block.mark.startswith("file="):
            target = self.folder / block.mark.removeprefix("file=")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text)
            return
        match (block.language, block.mark):
            case ("python", "example"):
                self.run_python(block.text)
            case ("bash", "example"):
                self.run(["bash", "-eu", "-c", block.text])
            case ("bash", "background"):
                self.start(block.text)
            case ("text", "output"):
                if not pattern(block.text.rstrip()).fullmatch(self.stdout.rstrip()):
                    raise PageError(f"the example printed\n{self.stdout}")
            case ("text", "log"):
                for line in block.text.splitlines():
                    self.wait_for(line)
            case ("bash", "by-hand") | ("text" | "json" | "yaml", _):
                pass
            case _:
                raise PageError(
                    f"a {block.language} block needs a mark (see {Path(__file__).name}), not {block.mark!r}"
                )

    def run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.stdout = done.stdout
        if done.returncode:
            raise PageError(f"status {done.returncode}\n{done.stdout}")

    def run_python(self, text: str) -> None:
        done = FORK_SERVER.run(
            ["-W", "error", "-c", text], self.folder, self.environment, timeout=TIMEOUT_S, together=True
        )
        self.stdout = done.stdout
        if done.returncode:
            raise PageError(f"status {done.returncode}\n{done.stdout}")

    def start(self, script: str) -> None:
        with self.log.open("ab") as log_file:
            process = subprocess.Popen(
                ["bash", "-eu", "-c", f"exec {script}"],
                cwd=self.folder,
                env=self.environment,
                stdout=log_file,
                stderr=log_file,
            )
        self.background.append(process)
        self.wait_for('..."message":"the process is ready"...')

    def wait_for(self, line: str) -> None:
        wanted = pattern(line.strip())
        deadline = time.monotonic() + TIMEOUT_S
        searched = 0
        while True:
            # Whole lines only: the next reading begins behind them.
            lines = self.log.read_text().rpartition("\n")[0].splitlines()
            if any(wanted.search(logged) for logged in lines[searched:]):
                return
            searched = len(lines)
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.background):
                raise PageError(f"not logged: {line}\n{self.log.read_text()}")
            time.sleep(0.05)

    def stop(self, *, gracefully: bool) -> None:
        for process in self.background:
            process.send_signal(signal.SIGTERM if gracefully else signal.SIGKILL)
        statuses = [process.wait(TIMEOUT_S) for process in self.background]
        if gracefully and any(statuses):
            raise PageError(f"the background command ended with {statuses}\n{self.log.read_text()}")


@pytest.fixture
def runner(tmp_path: Path, short_path: Path, redis: Redis, redis_url: str) -> Iterator[PageRunner]:
    # The clients of applications send the name of their library to Redis, and one sends PING.
    redis.execute_command("ACL", "SETUSER", "default", "+client|setinfo", "+ping")
    folder = tmp_path / "page"
    folder.mkdir()
    with WarmCommands(short_path, BIN / COMMAND):
        one = PageRunner(folder, redis_url, short_path)
        yield one
        one.stop(gracefully=False)


@pytest.fixture
def replicated(postgres: Postgres) -> Iterator[dict[str, str]]:
    with standby_of(postgres) as standby, database_on(postgres) as name:
        yield {"PRIMARY_URL": postgres.url(name), "REPLICA_URL": standby.url(name)}
        standby.resume_replay()


@pytest.mark.invented_lines
@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_page_examples_run_and_print_their_output(
    page: Path, runner: PageRunner, request: pytest.FixtureRequest
) -> None:
    if "$REPLICA_URL" in page.read_text():
        runner.environment.update(request.getfixturevalue("replicated"))
    if page == COLD_PAGE:
        for name in (COMMAND, *ALSO_WARM):  # this page starts them without the fork server
            (Path(runner.environment["PATH"].partition(os.pathsep)[0]) / name).unlink()
    if page in BARE_PAGES:
        (runner.folder / "config").mkdir()
        runner.environment["FRAMEWORK_CONFIG_DIR"] = "config"
    for block in blocks(page):
        try:
            runner.follow(block)
        except (PageError, subprocess.SubprocessError) as error:
            pytest.fail(f"{page.relative_to(ROOT)}:{block.line}: {error}", pytrace=False)
    runner.stop(gracefully=True)
    runner.background.clear()
    if runner.log.exists():
        log_lines.check_output(runner.log.read_bytes())


@each_row("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_page_links_have_existing_targets(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not broken


def test_every_page_is_reached_from_the_index() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", page.read_text())
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert not {path for path in PAGES if path.parent != ROOT} - reached


def test_file_of_an_example_has_its_name_above():
    """Neither the site nor a forge shows what stands behind the language of a block."""
    for page in PAGES:
        files = [one.mark.removeprefix("file=") for one in blocks(page) if one.mark.startswith("file=")]
        # The examples of a lint rule are named Bad and Good.
        files = [one for one in files if not one.startswith("examples/sew")]
        assert [(one, one) for one in files] == CAPTIONED.findall(page.read_text()), page
