"""Test the report of campaigns: what ran, how many, the seed, the broken promises; also of a run by name, and under xdist."""

import json
import subprocess
import sys

import pytest

from tests.campaign_report import promise_of
from tests.harness import ROOT

SOURCE = """
import pytest

def test_short(): ...

@pytest.mark.campaign
@pytest.mark.proves("F1", "I1")
@pytest.mark.parametrize("way", [1, 2])
def test_long(way, record_property):
    record_property("jobs", 100 * way)
    record_property("seed", 7)
    assert way == 1

@pytest.mark.campaign
@pytest.mark.proves("R1")
def test_other(): ...
"""


def report(tmp_path, *arguments):
    (tmp_path / "test_long.py").write_text(SOURCE)
    (tmp_path / "conftest.py").write_text(
        "pytest_plugins = ['tests.campaign_report']\nfrom tests.conftest import pytest_collection_modifyitems\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        # Their plugins take half of a start, and -c leaves out the project's own options.
        *(
            f"-pno:{name}"
            for name in ("cacheprovider", "schemathesis", "hypothesispytest", "anyio", "valkey", "time_machine")
        ),
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run(
        [*command, "--import-mode=importlib", "-o", "markers=campaign\nproves", *arguments],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    file = tmp_path / "var" / "campaigns" / "report.json"
    return done, json.loads(file.read_text()) if file.exists() else None


@pytest.mark.parametrize("workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.campaign)], ids=["alone", "xdist"])
def test_report_has_campaigns_figures_and_broken_promises(tmp_path, workers):
    done, found = report(tmp_path, "-m", "campaign", *workers)
    assert "report of 3 campaigns: " in done.stdout
    assert found["campaigns"] == {"passed": 2, "failed": 1, "skipped": 0}
    assert found["what"]["test_long.py::test_long[2]"]["figures"] == {"jobs": 200, "seed": 7}
    assert found["what"]["test_long.py::test_long[2]"]["outcome"] == "failed"
    assert found["what"]["test_long.py::test_other"]["promises"] == ["R1"]
    assert found["broken_promises"] == {"F1": promise_of("F1"), "I1": promise_of("I1")}
    assert promise_of("F1").startswith("`kill -9`")


def test_report_of_a_campaign_by_name(tmp_path):
    _, found = report(tmp_path, "test_long.py::test_other")
    assert list(found["what"]) == ["test_long.py::test_other"]
    assert found["broken_promises"] == {}


def test_run_without_campaigns_writes_no_report(tmp_path):
    done, found = report(tmp_path, "test_long.py::test_short")
    assert (done.returncode, found) == (0, None)
