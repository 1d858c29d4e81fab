"""Test the report of ``scripts/chaos run`` when a round fails with an error."""

import json
import re
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.chaos.rounds import run as program
from tests.chaos.rounds.account import Account
from tests.chaos.rounds.effects import BEGUN, Effect
from tests.chaos.rounds.impact import Impact
from tests.chaos.rounds.options import parse
from tests.chaos.rounds.round_result import RoundResult
from tests.chaos.rounds.worker_processes import Life, idle_s
from tests.proofs.aof import HistoryError
from tests.tables import each_row


def idle_shard():
    producer = SimpleNamespace(
        accepted=0, done=True, witnessed=set(), untyped=[], refusals={}, reasons={}, doubtful=Counter(), slowest_s=0.0
    )
    workers = SimpleNamespace(unexpected=[], deaths=[], left=list, line_counts=Counter(), processes=1, lives={})
    return SimpleNamespace(producer=producer, workers=workers, seen=[], aside=[])


def result(chosen):
    """Return the result of a round without a job, in which every promise held."""
    return RoundResult(
        chosen.name, chosen.mode, chosen.supervision, jobs=0, slots=1, seconds=1.0,
        faulty=idle_shard(), control=idle_shard(), injections=[], account=Account(), account_control=Account(),
        impact=Impact(0.0, 0.0, 0.0, 0.0), set_aside={}, keys_left=[], refused=[], histories=[],
    )  # fmt: skip


@pytest.fixture
def outcome_of(monkeypatch, tmp_path, capsys):
    """Run two rounds; the second one is given. Return the exit status, the report and the output."""

    def run(second):
        rounds = iter([result, second])
        monkeypatch.setattr(program, "_round", lambda *args: next(rounds)(args[2]))
        monkeypatch.setattr(program, "clear_environment", lambda: None)
        (tmp_path / "chaos" / "run").mkdir(parents=True)
        monkeypatch.setattr(program, "RunFolder", lambda parent: SimpleNamespace(path=parent / "run"))
        monkeypatch.setattr(program, "LONGEST_SOCKET_PATH", 4096)
        monkeypatch.setattr(sys, "argv", ["chaos", "run", "--round", "kill", "--seed", "1"])
        monkeypatch.setenv("FRAMEWORK_VAR_DIR", str(tmp_path))
        status = program.run(tmp_path, parse(None), SimpleNamespace(asked=False))
        return status, json.loads((tmp_path / "chaos" / "report.json").read_text()), capsys.readouterr()

    return run


@each_row(
    ("lives", "idle"),
    [
        ([], 0.0),
        ([Life(1.0)], 0.0),
        ([Life(1.0, 2.0), Life(2.5)], 0.5),
        ([Life(4.0), Life(1.0, 3.0), Life(1.5, 2.0)], 1.0),
        ([Life(1.0, 2.0), Life(3.0, 4.0), Life(6.0, 7.0)], 3.0),
        ([Life(1.0), Life(2.0, 3.0), Life(5.0)], 0.0),
    ],
)
def test_time_without_a_process_lies_between_the_lives(lives, idle):
    assert idle_s(lives) == idle


def fails(_):
    raise HistoryError("this history is not whole")


def test_run_reports_the_rounds_before_a_failed_one(outcome_of):
    status, report, output = outcome_of(fails)
    assert (status, report["held"], report["failed"]) == (1, False, ["kill, cluster"])
    assert [(one["round"], one["mode"], one["held"]) for one in report["rounds"]] == [("kill", "bare", True)]
    assert "### Round kill, bare" in output.out
    assert "Round kill, cluster failed with an error, and has no account." in output.out
    assert "Every promise held." not in output.out
    assert "HistoryError: this history is not whole" in output.err


def test_run_without_a_failed_round_holds(outcome_of):
    status, report, output = outcome_of(result)
    assert (status, report["held"], report["failed"], len(report["rounds"])) == (0, True, [], 2)
    assert "Every promise held." in output.out


def test_run_in_a_process_that_is_no_worker_breaks_a_promise(outcome_of):
    def strays(chosen):
        found = result(chosen)
        found.faulty.workers.lives[7] = Life(0.5)
        found.faulty.seen.append(Effect(BEGUN, 1, 7, 1.0))
        found.faulty.aside.append(Effect(BEGUN, 2, 8, 1.0))
        return found

    status, report, output = outcome_of(strays)
    assert (status, report["held"]) == (1, False)
    assert re.search(r"runs outside of the worker processes +\| 1: 8 ", output.out)
