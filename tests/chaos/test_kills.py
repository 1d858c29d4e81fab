"""Test ``scripts/prove kills`` in short: the million is run by hand (docs/internals/proofs.md)."""

import json
import os
import subprocess
import sys

import pytest

from tests.harness import ROOT
from tests.proofs.kills_account import KillAccount
from tests.proofs.kills_jobs import JOURNAL, Journal, Recorder, create_marks
from tests.proofs.kills_report import broken
from tests.tables import each_row


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F1", "R18", "R24", "I1")
def test_kills_accounts_for_all_jobs_killed_in_flight(short_path, record_property):
    argv = [sys.executable, str(ROOT / "scripts" / "prove"), "kills", "--jobs", "3000", "--processes", "2"]
    env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
    done = subprocess.run(
        [*argv, "--concurrency", "1000"], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every promise held." in done.stdout
    found = json.loads((short_path / "prove" / "kills" / "report.json").read_text())
    for name in ("killed in flight", "kills", "seed"):
        record_property(name, found.get(name))
    assert (found["lost"], found["ended"], found["different jobs among them"]) == (0, 3000, 3000)
    assert found["kills"] >= 3
    assert found["runs"] == 3000 + found["killed in flight"] + found["ended and run again"]
    assert found["log lines about recovered jobs"] > 0


class KillRecords:
    """An account of five jobs, and processes with records of the test."""

    def __init__(self, folder):
        self.folder = folder
        create_marks(folder, 5)
        self.account = KillAccount(5)

    def process(self):
        recorder = Recorder(self.folder)
        known = {life.journal.path for life in self.account.lives}
        (path,) = {path for path in self.folder.glob(f"*{JOURNAL}") if path not in known}
        return recorder, self.account.open(Journal(path))


@pytest.fixture
def records(tmp_path):
    return KillRecords(tmp_path)


def test_kill_account_shows_jobs_in_flight_and_their_return(records):
    account = records.account
    first, life = records.process()
    assert [first.begin(serial) for serial in (0, 1, 2)] == [True] * 3
    first.end(2)
    account.read(life)
    account.mark_dead(life, killed_us=0)
    assert (account.killed, account.killed_jobs, account.awaited, account.ended) == (2, 2, 2, 1)
    second, other = records.process()
    for serial in (0, 2):
        assert not second.begin(serial)
        second.end(serial)
    account.read(other)
    assert (account.runs, account.ended, account.awaited, life.again, life.cut_off) == (5, 2, 1, 1, 2)
    assert len(account.recoveries_us) == 1
    assert account.lost() == [1, 3, 4]
    assert account.unexplained == []


@pytest.mark.parametrize("ended", [False, True])
def test_kill_account_finds_second_run_without_kill(records, ended):
    (first, life), (second, other) = records.process(), records.process()
    first.begin(4)
    if ended:
        first.end(4)
    records.account.read(life)
    second.begin(4)
    records.account.read(other)
    assert len(records.account.unexplained) == 1


SOUND = {
    "jobs": 5, "accepted": 5, "lost": 0, "second runs without a kill": [], "set aside": {}, "unexpected ends and errors": [],
    "keys left": [], "rights refused": [],
    "most second runs by one kill": 3, "second runs allowed by one kill": 3,
}  # fmt: skip


@each_row(
    "wrong",
    [
        {"accepted": 4}, {"lost": 1}, {"second runs without a kill": ["x"]}, {"set aside": {"dead": 1}},
        {"unexpected ends and errors": ["x"]},
        {"rights refused": ["x"]},
        {"keys left": ["x"]}, {"most second runs by one kill": 4},
    ],
    ids=str,
)  # fmt: skip
def test_kills_report_detects_each_broken_promise(wrong):
    assert broken(SOUND) == []
    assert len(broken({**SOUND, **wrong})) == 1
