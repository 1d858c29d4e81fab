"""Test ``scripts/prove drain`` in short: ten million are run by hand (docs/internals/proofs.md)."""

import json
import os
import subprocess
import sys

import pytest

from tests.harness import ROOT
from tests.proofs.drain import broken
from tests.proofs.worker_pools import ClusterPool
from tests.tables import each_row


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("R4", "F1")
def test_drain_at_tiny_switch_interval_runs_every_job(short_path, record_property):
    argv = [sys.executable, str(ROOT / "scripts" / "prove"), "drain", "--jobs", "30000", "--kills"]
    env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every promise held." in done.stdout
    found = json.loads((short_path / "prove" / "drain" / "report.json").read_text())
    for name in ("jobs", "seed"):
        record_property(name, found.get(name))
    assert (found["component.died"], found["lost"], found["accepted"]) == (0, 0, 30_000)
    assert found["switch interval"] == 1e-6


SOUND = {
    "jobs": 5, "accepted": 5, "component.died": 0, "lost": 0, "second runs": 3, "second runs allowed": 3, "left in Redis": {},
    "unexpected ends and errors": [],
    "rights refused": [],
}  # fmt: skip


@each_row(
    "wrong",
    [
        {"accepted": 4}, {"component.died": 1}, {"lost": 1}, {"second runs": 4}, {"left in Redis": {"dead": 1}},
        {"unexpected ends and errors": ["x"]},
        {"rights refused": ["x"]},
    ],
    ids=str,
)  # fmt: skip
def test_drain_report_detects_each_broken_promise(wrong):
    assert broken(SOUND) == []
    assert len(broken({**SOUND, **wrong})) == 1


def test_pool_counts_dead_threads_from_the_log(tmp_path):
    pool = ClusterPool(tmp_path, tmp_path, processes=1, slots=1)
    (tmp_path / "workers.log").write_text(
        '{"severity":"ERROR","event_name":"component.died"}\n{"severity":"INFO","event_name":"process.ready"}\n'
    )
    pool.read_log()
    assert (pool.deaths, len(pool.unexpected)) == (1, 1)
