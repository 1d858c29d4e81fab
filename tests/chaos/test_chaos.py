"""Test ``scripts/chaos`` in short rounds: the long ones are run by hand (docs/internals/chaos.md)."""

import json
import os
import signal
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from tests.chaos.rounds.round_result import RECOVERY_S
from tests.harness import ROOT, until

CHAOS = [sys.executable, str(ROOT / "scripts" / "chaos")]
TIMED = ("slowest", "longest", "throughput")
"""The promises about times: on a loaded machine the program may find them broken, and reports that."""

SLACK_S = 5.0
"""The time beyond a promise that a loaded machine may take."""


@pytest.fixture
def chaos(short_path, record_property):
    """Run the program to its end; return it, its report and the pictures."""

    def run(*argv):
        env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
        done = subprocess.run([*CHAOS, *argv], env=env, capture_output=True, text=True, timeout=100, check=False)
        report = short_path / "chaos" / "report.json"
        assert report.exists(), done.stdout + done.stderr
        found = json.loads(report.read_text())
        record_property("jobs", found["options"].get("jobs"))
        record_property("seed", found["options"]["seed"])
        return done, found

    return run


def broken(found):
    return {check["promise"]: check["found"] for check in found["checks"] if not check["held"]}


def round_that_held(done, report):
    """Return the only round of a run. Check that it broke no promise, except for times on a loaded machine, and its exit status."""
    assert done.returncode == (0 if report["held"] else 1), done.stdout
    (found,) = report["rounds"]
    assert not [promise for promise in broken(found) if not promise.startswith(TIMED)], done.stdout
    return found


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F1")
def test_kill_round_keeps_every_promise(chaos):
    size = ["--processes", "2", "--jobs", "9000", "--seconds", "7", "--every", "2.2", "--settle", "0"]
    done, report = chaos("kill", "--round", "kill", "--mode", "cluster", *size)
    found = round_that_held(done, report)
    # A loaded machine takes long to start a process, and without one no job can run again.
    allowed_s = RECOVERY_S["cluster"] + found["seconds without a process at work"] + SLACK_S
    assert found["recovery p50, p99, max (s)"][-1] <= allowed_s, done.stdout
    assert (found["round"], found["mode"], found["lost"], found["jobs"]) == ("kill", "cluster", [], 9000)
    assert found["injections"]["kill"] >= 2
    assert found["runs cut off"] > 0
    assert found["recoveries"] >= found["runs cut off"]
    assert ("Every promise held." in done.stdout) == report["held"]


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F21", "F52", "I1", "I2", "I3", "I17", "I18", "I24")
def test_mixed_round_leaves_the_other_shard_unaffected(chaos, short_path):
    out = short_path / "out.json"
    size = ["--processes", "1", "--jobs", "2400", "--other-jobs", "480", "--seconds", "6.5", "--settle", "0"]
    done, report = chaos("run", "--round", "mixed", "--mode", "single", *size, "--seed", "11", "--out", str(out))
    assert json.loads(out.read_text()) == report
    found = round_that_held(done, report)
    assert found["lost"] == []
    assert sum(found["injections"].values()) >= 2
    assert found["control: jobs, throughput, p99 during and outside (s)"][0] == 480
    assert found["instants replayed from the servers' files"] > 480
    (picture,) = short_path.glob("chaos/*/*/timeline.svg")
    words = "".join(ET.fromstring(picture.read_text()).itertext())
    assert all(f"{kind} ({count})" in words for kind, count in found["injections"].items())
    assert f"{found['lost'] or 0} lost" in words
    assert "| mixed, single" in done.stdout


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F44", "F45", "I9", "I10", "R38", "R42", "R44")
def test_policy_round_with_kills_keeps_every_promise(chaos):
    size = [
        "--processes",
        "2",
        "--jobs",
        "500",
        "--other-jobs",
        "50",
        "--seconds",
        "5",
        "--every",
        "1.5",
        "--settle",
        "0",
    ]
    done, report = chaos("run", "--round", "limits", "--mode", "kills", *size)
    found = round_that_held(done, report)
    assert (found["lost"], found["jobs"]) == ([], 500)
    assert found["injections"]["kill"] >= 1
    assert found["limited jobs a second"] > 0
    assert found["pushes with keys"] > found["of them dropped as duplicates"] > 0
    assert found["most held jobs in a sample"] > 0
    assert "| limits, kills |" in done.stdout


@pytest.mark.campaign
@pytest.mark.slow
def test_guard_round_with_kills_keeps_every_promise(chaos):
    # A process is ended only while another is at work: of three, two can be ended before a successor has started.
    size = ["--processes", "3", "--jobs", "500", "--other-jobs", "50", "--seconds", "8", "--every", "1.5"]
    done, report = chaos("run", "--round", "guards", *size, "--settle", "0")
    found = round_that_held(done, report)
    assert (found["lost"], found["jobs"]) == ([], 500)
    assert sum(found["injections"].values()) >= 2
    assert found["jobs with a limiter, sealed and isolated jobs"] > 30


@pytest.mark.campaign
@pytest.mark.slow
def test_call_round_with_restarts_keeps_every_promise(chaos):
    size = ["--processes", "2", "--jobs", "500", "--other-jobs", "50", "--seconds", "10", "--every", "1.5"]
    done, report = chaos("run", "--round", "calls", *size, "--settle", "0")
    found = round_that_held(done, report)
    assert sum(found["ends of calls"].values()) == found["calls"] > 20
    assert len(found["ends of calls"]) == 3
    assert found["profiles"] >= 1


@pytest.mark.campaign
def test_chaos_on_ctrl_c_ends_every_process(short_path):
    env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
    argv = [*CHAOS, "kill", "--round", "kill", "--mode", "bare", "--processes", "1", "--jobs", "1000000"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: list(short_path.glob("chaos/*/*/*/effects/*.effects")), "jobs are running")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(40) == 130
