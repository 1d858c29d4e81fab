"""Test commands that write files: a refused or failed run leaves every file unchanged, byte for byte."""

import os
import resource
from pathlib import Path

import pytest

from framework.terminal.output import write_all
from tests.fork_server import FORK_SERVER

ROOT = Path(__file__).resolve().parent.parent.parent
WORKERS = """
from framework import ApplicationWorker


class MailWorker(ApplicationWorker):
    feature_category = "not_owned"
    urgency = "high"

    def perform(self) -> None: ...
"""
PAGE = "# Page\n\n<!-- attributes: retry -->\nstale\n<!-- /attributes -->\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project with stale generated files and stale pages."""
    for folder in ("config", "workers", "docs/inner"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "config" / "redis.yml").write_text("shards: {main: {url: embedded}}")
    (tmp_path / "config" / "queues.yml").write_text("queues: [[old, 1]]")
    (tmp_path / "workers" / "all_queues.yml").write_text("- {name: old}\n")
    (tmp_path / "shop.py").write_text(WORKERS)
    (tmp_path / "docs" / "a.md").write_text(PAGE)
    (tmp_path / "docs" / "inner" / "b.md").write_text(PAGE)
    return tmp_path


LIMITED = """
import resource, runpy, sys

largest = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
runpy.run_module("framework", run_name="__main__", alter_sys=True)
"""


def run(cwd: Path, command: str, *arguments: str, largest: int = resource.RLIM_INFINITY):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return FORK_SERVER.run(["-c", LIMITED, str(largest), command, *arguments], cwd, environment)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


GENERATE = ("generate-queues", "-r", "shop")
PAGES = ("attributes", "--write", "--docs", "docs")


def break_routing(project: Path) -> None:
    (project / "config" / "routing.yml").write_text("routing_rules: [['urgency=hihg', urgent]]")


def break_worker(project: Path) -> None:
    (project / "shop.py").write_text(WORKERS.replace("high", "hihg"))


def share_a_queue(project: Path) -> None:
    (project / "shop.py").write_text(WORKERS + WORKERS.replace("MailWorker", "Mail"))


def put_a_folder_in_the_way(project: Path) -> None:
    (project / "workers" / "all_queues.schema.json").mkdir()


def break_marker(project: Path) -> None:
    (project / "docs" / "inner" / "b.md").write_text(PAGE.replace("retry", "retyr"))


def write_no_utf8(project: Path) -> None:
    (project / "docs" / "inner" / "b.md").write_bytes(b"\xff\n")


@pytest.mark.parametrize(
    ("command", "break_project", "status", "words"),
    [
        (GENERATE, break_routing, 78, "did you mean 'high'"),
        (GENERATE, break_worker, 78, "did you mean 'high'"),
        (GENERATE, share_a_queue, 1, "have the same generated queue mail"),
        (
            GENERATE,
            put_a_folder_in_the_way,
            1,
            "all_queues.schema.json cannot be written: it is a folder",
        ),
        (PAGES, break_marker, 1, "did you mean 'retry'?"),
        (PAGES, write_no_utf8, 1, "b.md:'utf-8' codec can't decode"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_commands_refused_run_changes_no_file(project, command, break_project, status, words):
    break_project(project)
    before = contents(project)
    done = run(project, *command)
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(project) == before


@pytest.mark.parametrize(
    ("command", "written"),
    [
        (GENERATE, ["workers/all_queues.yml", "workers/all_queues.schema.json", "config/queues.yml"]),
        (PAGES, ["docs/a.md", "docs/inner/b.md"]),
    ],
)
def test_write_all_full_disk_keeps_old_files(project, command, written):
    """A limit on the size of files replaces a full disk: the first file fits, a later one does not."""
    whole = run(project, *command)
    assert whole.stdout.splitlines() == [f"wrote {name}" for name in written]
    sizes = {name: (project / name).stat().st_size for name in written}
    (project / written[0]).write_text("- {name: old}\n" if command is GENERATE else PAGE)
    if command is PAGES:
        (project / "docs" / "inner" / "b.md").write_text(PAGE + "x" * sizes[written[0]])
    before = contents(project)
    done = run(project, *command, largest=sizes[written[0]] + 10)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{written[1]} cannot be written: File too large. Nothing was changed.\n"
    assert contents(project) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize(("command", "folder"), [(GENERATE, "config"), (PAGES, "docs/inner")])
def test_write_all_read_only_folder_keeps_old_files(project, command, folder):
    (project / folder).chmod(0o500)
    before = contents(project)
    try:
        done = run(project, *command)
    finally:
        (project / folder).chmod(0o700)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be written: Permission denied. Nothing was changed." in done.stderr
    assert contents(project) == before


def test_commands_check_or_explain_writes_no_file(project):
    before = contents(project)
    for command in (
        (*GENERATE, "--check"),
        ("attributes", "--check", "--docs", "docs"),
        (*GENERATE, "--explain", "MailWorker"),
    ):
        assert run(project, *command).returncode in (0, 1)
    assert contents(project) == before


def test_write_all_leaves_no_temporary_file(tmp_path):
    write_all({tmp_path / "new" / "a": "1", tmp_path / "b": "ü"})
    assert contents(tmp_path) == {"b": "ü".encode(), "new": None, "new/a": b"1"}
