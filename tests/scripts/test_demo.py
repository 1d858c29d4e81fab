"""Test scripts/demo with real runs: two stores, two worker processes, and none of them left after any end."""

import ast
import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.scripts.demo_command import DEMO, PATIENCE_S, ROOT, Demo

SAMPLES = ROOT / "workers" / "code_index" / "samples"
SOURCE = (ROOT / "framework" / "declare" / "worker.py").read_text() * 3

pytestmark = pytest.mark.slow


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Ten files, nine of them broken."""
    tree = tmp_path / "small"
    shutil.copytree(SAMPLES, tree)
    (tree / "fine.py").write_text("class C:\n    def f(self):\n        return 1\n")
    return tree


@pytest.fixture
def large(tmp_path: Path) -> tuple[Path, int]:
    """Create so many files that a test can act during the run."""
    tree = tmp_path / "large"
    tree.mkdir()
    for number in range(500):
        (tree / f"module_{number}.py").write_text(SOURCE)
    return tree, 500


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.01)


def test_demo_of_a_small_tree_reports_and_keeps_dashboard(demo: Demo, small: Path, tmp_path: Path, monkeypatch) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    demo.start(small, "--open", "--keep")
    address = demo.read_until(r"The dashboard stays at (\S+) until Ctrl-C")[1]
    assert (tmp_path / "opened").read_text().strip() == address
    with urllib.request.urlopen(f"{address}api/shards") as answer:
        shards = json.load(answer)["shards"]
    assert [(one["shard"], one["error"], one["is_store"]) for one in shards] == [
        ("main", "", True),
        ("queues_shard_a", "", True),
    ]
    assert demo.process is not None
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
    assert demo.finish() == 0
    output = "".join(demo.output)
    assert "Done: 10 files" in output
    assert f"Dashboard  {address}" in output
    assert re.search(r"do not parse +9 ", output)
    assert re.search(r"extra runs +0 ", output)
    assert re.search(r"restarts +0 ", output)
    assert "Traceback" not in output
    assert "10 files, 3 lines; 9 do not parse" in demo.page().text
    check_the_page(demo, restarts=0)
    for shard in ("main", "queues_shard_a"):
        assert '"job_status":"done"' in (demo.folder / "log" / f"{shard}.log").read_text().replace(" ", "")
    assert demo.left() == {}


def check_the_page(demo: Demo, *, restarts: int) -> None:
    """Check that each number on the page is that of the lines in the logs."""
    page = demo.page()
    begun, done, failed = (demo.lines(job_status=status) for status in ("start", "done", "fail"))
    jobs = {entry["jid"] for entry in begun}
    assert page.tiles["Jobs"] == f"{len(jobs):,}"
    assert page.tiles["Failures"] == f"{len(failed):,}"
    assert int(page.tiles["Extra runs"]) + int(page.tiles["Retries"]) == len(begun) - len(jobs)
    assert page.tiles["Restarts"] == f"{restarts}"
    started = demo.lines(event_name="child.started")
    assert len(started) == 2 + restarts
    rows = {int(row["Process"].rpartition(" ")[2]): row for row in page.tables["Worker processes"]}
    assert rows.keys() == {entry["child_pid"] for entry in started}
    for pid, row in rows.items():
        assert row["Runs"] == f"{sum(entry['pid'] == pid for entry in begun):,}"
        assert row["Done"] == f"{sum(entry['pid'] == pid for entry in done):,}"
    for caption, count in (("Jobs per second", len(done)), ("Waits", len(begun)), ("Run times", len(done + failed))):
        column = "Done" if caption == "Jobs per second" else "Runs"
        assert sum(int(row[column].replace(",", "")) for row in page.tables[caption]) == count, caption
    classes = {row["Class"]: row["Runs"] for row in page.tables["Classes"]}
    assert classes == {
        name: f"{sum(entry['class'] == name for entry in begun):,}" for name in {entry["class"] for entry in begun}
    }
    assert not page.names & {"script", "img", "link", "iframe"}


@pytest.mark.campaign
def test_demo_that_is_killed_leaves_nothing(demo: Demo, small: Path) -> None:
    demo.start(small / "fine.py", "--keep")
    demo.read_until("The dashboard stays at")
    assert demo.process is not None
    assert any("framework dashboard" in one for one in demo.left().values())
    demo.process.kill()
    demo.finish()
    eventually(lambda: demo.left() == {}, "no process is left")


@pytest.mark.campaign
def test_demo_files_are_for_the_user_alone(demo: Demo, small: Path) -> None:
    old = os.umask(0o022)
    try:
        assert demo.run(small).returncode == 0
    finally:
        os.umask(old)
    made = list(demo.var.rglob("*"))
    assert any(one.name.endswith(".sqlite3") for one in made)
    assert any(one.name.endswith(".html") for one in made)
    assert [str(one) for one in made if one.lstat().st_mode & 0o077] == []


@pytest.mark.campaign
def test_demo_run_twice_is_clean(demo: Demo, small: Path) -> None:
    assert demo.run(small).returncode == 0
    first = demo.folder
    done = demo.run(small / "fine.py", python=str(getattr(sys, "_base_executable", sys.executable)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Done: 1 file in" in done.stdout
    assert demo.folder != first
    assert demo.left() == {}


@pytest.mark.campaign
def test_demo_on_a_terminal_has_a_live_display(demo: Demo, small: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(DEMO), str(small)],
        env=demo.environment() | {"TERM": "xterm-256color"}, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    output = b""
    while select.select([ours], [], [], PATIENCE_S)[0]:
        try:
            output += os.read(ours, 65536)
        except OSError:  # on Linux: the other side is closed
            break
    os.close(ours)
    assert process.wait(PATIENCE_S) == 0, output
    assert b"Scanning" in output
    assert b"\x1b[?25l" in output  # the cursor is hidden while the bar is drawn
    assert b"Done: 10 files" in output


@pytest.mark.campaign
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_demo_interrupted_ends_with_130(demo: Demo, large: tuple[Path, int], number: signal.Signals) -> None:
    tree, _ = large
    demo.start(tree)
    demo.read_until(r"\d+ of 500 files")
    assert demo.process is not None
    assert len(demo.left()) >= 5  # the demo, two stores, two workers
    if number is signal.SIGINT:
        os.killpg(demo.process.pid, number)  # as a terminal does
    else:
        os.kill(demo.process.pid, number)
    assert demo.finish() == 130
    assert "Interrupted" in "".join(demo.output)
    assert "Traceback" not in "".join(demo.output)
    assert demo.left() == {}


@pytest.mark.campaign
def test_demo_interrupted_at_start_ends_with_130(demo: Demo, small: Path) -> None:
    demo.start(small)
    demo.read_until("^Input")
    assert demo.process is not None
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.finish() == 130
    assert "Traceback" not in "".join(demo.output)
    assert demo.left() == {}


@pytest.mark.campaign
def test_demo_with_a_killed_worker_is_complete(make_demo: Callable[[str], Demo], large: tuple[Path, int]) -> None:
    """In two demos at the same time a worker of each shard is killed: each waits for the lease of its dead process."""
    tree, count = large
    demos = {shard: make_demo(shard) for shard in ("main", "queues_shard_a")}
    killed = {}
    for shard, demo in demos.items():
        demo.start(tree)
        killed[shard] = int(demo.read_until(rf"Workers .*\b{shard} \(pid (\d+)\)")[1])
        demo.read_until(rf"\d+ of {count} files")
        eventually(lambda demo=demo: demo.held_keys()[0] > 0, "a file is done")
        os.kill(killed[shard], signal.SIGKILL)
        done, total = demo.held_keys()
        assert total == count, shard
        assert 0 < done < count, shard
    for shard, demo in demos.items():
        check_the_survivor(demo, killed[shard], count)


def check_the_survivor(demo: Demo, killed: int, count: int) -> None:
    assert demo.finish() == 0, "".join(demo.output)
    output = "".join(demo.output)
    assert f"(pid {killed}) was killed by signal 9" in output
    assert f"Done: {count} files" in output
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(ast.parse(SOURCE)))
    assert re.search(rf"functions +{functions * count:,}$", output, re.MULTILINE)
    assert re.search(r"restarts +1 ", output)
    check_the_page(demo, restarts=1)
    page = demo.page()
    assert re.search(rf"extra runs +{page.tiles['Extra runs']} ", output)
    (row,) = (row for row in page.tables["Worker processes"] if row["Process"].endswith(f" {killed}"))
    assert row["End"].startswith("killed by signal 9 at ")
    assert f"No job was lost: the index holds a result for each of the {count} files" in page.text
    with closing(sqlite3.connect(demo.folder / "code_index.sqlite3")) as database:
        rows = database.execute(
            "SELECT count(*), count(DISTINCT number), count(DISTINCT functions) FROM code_index_results"
        )
        assert rows.fetchone() == (count, count, 1)
    assert demo.left() == {}


@pytest.mark.campaign
def test_demo_without_progress_names_the_logs(demo: Demo, small: Path) -> None:
    done = demo.run(small, "--patience", "0.001")
    assert done.returncode == 1
    assert "nothing has happened for 0.001 s" in done.stderr
    for shard in ("main", "queues_shard_a"):
        assert f"{shard}.log" in done.stderr
    assert demo.left() == {}


def test_demo_of_a_missing_path_is_a_usage_error(demo: Demo, tmp_path: Path) -> None:
    done = demo.run(tmp_path / "nowhere")
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr
    assert not demo.var.exists()


@pytest.mark.campaign
def test_demo_of_an_empty_folder(demo: Demo, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = demo.run(tmp_path / "empty")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Done: 0 files" in done.stdout
    assert demo.page().tiles["Jobs"] == "2"  # the scan and the report
    check_the_page(demo, restarts=0)


@pytest.mark.campaign
def test_demo_ignores_settings_of_the_environment(demo: Demo, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("FRAMEWORK_LOGGING__JOBS", "false")
    done = demo.run(small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"extra runs +0 ", done.stdout)


@pytest.mark.campaign
def test_demo_all_runs_every_example_worker(demo: Demo) -> None:
    done = demo.run("--all")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {found[1]: int(found[2]) for found in re.finditer(r"^  (\w+::\w+Worker) +(\d+)", done.stdout, re.MULTILINE)}
    listed = yaml.safe_load((ROOT / "workers" / "all_queues.yml").read_text())
    assert ran.keys() == {entry["worker_name"] for entry in listed}
    assert ran["ProductImport::ImportProductsWorker"] == 10
    for text in (
        r"products\.csv +4,950 created, 50 rejected; every price calculated",
        r"letter\.csv +letter\.csv has no column sku",
        r"busy +tried again in \d+ s: the receiver answered 429",
        r"meta-data +failed: 169\.254\.169\.254 leads to .* no public address",
        r"database +product_import\.sqlite3 has given back",
    ):
        assert re.search(rf"^  {text}", done.stdout, re.MULTILINE), text
    assert demo.left() == {}
    classes = {row["Class"]: row for row in demo.page().tables["Classes"]}
    assert {name: int(row["Done"]) for name, row in classes.items()} == ran
    assert demo.page().tiles["Failures"] == f"{len(demo.lines(job_status='fail'))}" != "0"
    refused = demo.run("--all", ".")
    assert (refused.returncode, "--all takes no PATH" in refused.stderr) == (2, True)


def test_demo_packages_option_has_no_other_input(demo: Demo) -> None:
    refused = demo.run("--packages", "--all")
    assert refused.returncode == 2
    assert "--packages goes with PATH or alone" in refused.stderr
