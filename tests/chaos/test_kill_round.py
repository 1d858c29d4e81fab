"""``scripts/chaos`` itself, short: the long rounds are run by hand (docs/guide/chaos.md)."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.harness import ROOT, until

CHAOS = [sys.executable, str(ROOT / "scripts" / "chaos")]


@pytest.fixture
def chaos(short_path):
    """Run the program to its end; return it and its report."""

    def run(*argv):
        env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
        done = subprocess.run([*CHAOS, *argv], env=env, capture_output=True, text=True, timeout=100, check=False)
        report = short_path / "chaos" / "report.json"
        assert report.exists(), done.stdout + done.stderr
        return done, json.loads(report.read_text())

    return run


@pytest.mark.slow
def test_a_short_round_of_kills_keeps_every_promise(chaos):
    size = ["--processes", "2", "--jobs", "3000", "--seconds", "8", "--every", "2.5", "--settle", "0"]
    done, report = chaos("kill", "--round", "kill", "--mode", "cluster", *size)
    assert done.returncode == 0, done.stdout
    assert report["held"]
    (found,) = report["rounds"]
    assert (found["round"], found["mode"], found["lost"], found["jobs"]) == ("kill", "cluster", [], 3000)
    assert found["blows"]["kill"] >= 2
    assert found["runs cut off"] > 0
    assert found["recoveries"] == found["runs cut off"]
    assert "Every promise held." in done.stdout


def test_ctrl_c_ends_everything(short_path):
    env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
    argv = [*CHAOS, "kill", "--round", "kill", "--mode", "bare", "--processes", "1", "--jobs", "1000000"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: list(short_path.glob("chaos/*/*/effects/*.effects")), "jobs are running")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(40) == 130
