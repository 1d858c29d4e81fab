"""Run the scenarios of docs/learn/scenarios.md: the page tells of large ones, most of these are small."""

import csv
import os
import re
import signal

import pytest

from tests.harness import until
from tests.postgres import database, postgres
from tests.scripts.demo_command import ROOT, Demo

__all__ = ["database", "postgres"]

PAGE = (ROOT / "docs" / "learn" / "scenarios.md").read_text()
RUNS = re.findall(r"```bash by-hand\nscripts/demo (--scenario [^\n]+)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
SMALL = {"enrol": "40", "import": "700", "export": "2000"}


def skeletons(output: str) -> set[str]:
    """Return the lines of a summary without their numbers: the figures, the classes, and the names of the files."""
    summary = output[output.index("\nDone: ") :]
    return {
        re.sub(r"[\d.,]+", "#", re.split(r" +\S*/demo/|  +\d", line, maxsplit=1)[0]).strip()
        for line in summary.splitlines()
        if re.match(r"(  )?\w[\w:]* +\S", line) and not re.match(r"  (line|A-|\.\.\.)", line)
    }


def figure(output: str, name: str) -> int:
    found = re.search(rf"^  {name} +([\d,]+) ", output, re.MULTILINE)
    assert found, output
    return int(found[1].replace(",", ""))


def check(demo: Demo, name: str, output: str) -> None:
    """Check the summary against the files that the run has made."""
    failed = figure(output, "failed")
    table = demo.folder / "failures.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == failed
    assert all(row["status"] == "failed" and row["reason"] in row["messages"] for row in rows)
    assert figure(output, "error") == 0
    assert figure(output, "memory") > 20
    if name == "enrol":
        assert figure(output, "enrolled") == figure(output, "finish")
    if name == "import":
        report = next((demo.folder / "reports").glob("product-import-*.csv"))
        with report.open(newline="") as file:
            lines = {row["line"] for row in csv.DictReader(file)}
        assert lines == {re.match(r"line (\d+): ", row["reason"])[1] for row in rows}
        assert figure(output, "rejected") == failed
    assert demo.left() == {}


@pytest.mark.campaign
@pytest.mark.parametrize(("command", "pasted"), RUNS, ids=[command.split()[1] for command, _ in RUNS])
def test_scenario_of_the_page_runs_small(demo: Demo, command: str, pasted: str) -> None:
    name = command.split()[1]
    done = demo.run(*command.split(), "--size", SMALL[name])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert skeletons(pasted) <= skeletons(done.stdout)
    check(demo, name, done.stdout)


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_scenario_interrupted_ends_with_130_and_runs_again(demo: Demo) -> None:
    demo.start("--scenario", "export", "--size", "200000")
    demo.read_until(r"\d+ of \d+ jobs")
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.finish() == 130
    assert "Traceback" not in "".join(demo.output)
    assert demo.left() == {}
    done = demo.run("--scenario", "export", "--size", "2000")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_scenario_with_a_killed_worker_is_whole(demo: Demo) -> None:
    demo.start("--scenario", "export", "--size", "500000", "--format", "xlsx")
    killed = int(demo.read_until(r"Workers .*\bmain-2 \(pid (\d+)\)")[1])
    demo.read_until(r"^Task")
    parts = demo.folder / "exports" / "orders-1.parts"
    until(lambda: parts.exists() and any(parts.iterdir()), "a part is written")
    os.kill(killed, signal.SIGKILL)
    assert demo.finish() == 0, "".join(demo.output)
    output = "".join(demo.output)
    assert f"(pid {killed}) was killed by signal 9" in output
    assert (figure(output, "rows"), figure(output, "finish"), figure(output, "error")) == (500_000, 51, 0)
    assert [path.name for path in (demo.folder / "exports").iterdir()] == ["orders-1.xlsx"]


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "more", "figures"),
    [
        ("enrol", (), {"enrolled": 175, "failed": 25}),
        ("import", (), {"created": 9_608, "rejected": 392}),
        ("export", (), {"rows": 500_000, "finish": 51}),
        ("export", ("--format", "xlsx"), {"rows": 500_000, "finish": 51}),
    ],
)
def test_scenario_of_full_size(demo: Demo, name: str, more: tuple[str, ...], figures: dict[str, int]) -> None:
    done = demo.run("--scenario", name, *more, timeout_s=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one: figure(done.stdout, one) for one in figures} == figures
    check(demo, name, done.stdout)


@pytest.mark.campaign
def test_scenario_keeps_its_events_in_postgresql(demo: Demo, database: str) -> None:
    done = demo.run("--scenario", "import", "--size", "700", "--postgres", database)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "aw_events in PostgreSQL" in done.stdout
    assert not (demo.folder / "tasks.db").exists()
    check(demo, "import", done.stdout)
