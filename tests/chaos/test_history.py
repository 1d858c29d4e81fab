"""Test real processes with kills and lost replies: no job is ever in no key, and Redis may die at any byte of it.

The long runs are ``scripts/prove history`` and ``scripts/prove prefixes`` (docs/internals/proofs.md).
"""

import json
import os
import random
import shutil
from collections import Counter

import pytest

from tests.fork_server import FORK_SERVER
from tests.harness import ROOT
from tests.proofs.aof import History
from tests.proofs.mixed_load import MixedLoadRun
from tests.proofs.prefixes import Account, check_recovery, cut_all
from tests.proofs.prover import prove

CUTS = 25
WAITING = {b"schedule", b"retry", b"dead", b"aw:limit:LimitedWorker:waiting:", b"aw:paused_jobs:PausedWorker"}
"""The sorted sets that a history must write to."""


def lines_of(folder, name, **wanted):
    """Return the lines of a process's log that have these fields."""
    text = (folder / f"{name}.log").read_bytes()
    lines = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return [line for line in lines if wanted.items() <= line.items()]


def is_whole(run, folder):
    """Return whether the history contains every event of the proof; how soon depends on chance and the load of the
    machine.
    """
    log = b"".join(path.read_bytes() for path in run.data.rglob("*.aof"))
    return (
        run.kills >= 2
        and lines_of(folder, "bare", job_status="recovered", cause="lost reply")
        and lines_of(folder, "cluster", job_status="recovered", cause="death")
        and all(b"ZADD\r\n$%d\r\n%s\r\n" % (len(key), key) in log for key in WAITING)
        and sum(len(lines_of(folder, name, job_status="done")) for name in ("bare", "cluster")) > 250
    )


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.proves("F1", "F44", "F48", "I1", "I2", "I3", "I9", "I10")
def test_mixed_load_history_and_its_prefixes_hold(short_path):
    run = MixedLoadRun(ROOT, short_path, seed=1)
    run.run(3.0, enough=lambda: is_whole(run, short_path))

    # It contained every event of the proof.
    assert run.kills >= 2
    assert lines_of(short_path, "bare", job_status="recovered", cause="lost reply")
    assert lines_of(short_path, "cluster", job_status="recovered", cause="death")
    commands = [command for group in History(run.data).groups() for command in group.commands]
    assert {command[1] for command in commands if command[0] == b"ZADD"} >= WAITING
    assert any(command[0] == b"HSET" and command[1].startswith(b"aw:lock:") for command in commands)

    verdict = prove(run.data)
    assert not [str(violation) for violation in verdict.violations]
    assert verdict.slots == {"aw:limit:LimitedWorker:running": 1, "aw:limit:KeyedWorker:running": 1}
    assert verdict.marked  # each acknowledgement came after the end of its job
    assert set(verdict.left) <= {"dead"}
    assert verdict.jobs == sum(verdict.ends.values()) + sum(verdict.left.values()) > 200
    assert verdict.ends["finished"] > 200

    account = Account()
    for _ in cut_all(run.data, short_path / "prefix", CUTS, random.Random(1), account):
        assert not account.problems
    assert set(account.cuts) == {"between groups", "any byte", "amid a group"}
    assert account.cuts.total() >= CUTS
    assert account.unfinished >= account.ran > 0  # the others had been interrupted too often


def test_prefix_check_finds_each_violation():
    expected = {b"waits": (b"queue:a",), b"held": (b"aw:working:x",)}
    known = {*expected, b"dead"}
    assert not list(check_recovery(expected, known, counted(b"waits", b"held"), counted(b"dead")))
    assert not list(check_recovery(expected, known, counted(b"waits"), counted(b"dead", b"held")))
    (lost,) = check_recovery(expected, known, counted(b"waits"), counted())
    assert lost == "job held was in aw:working:x, and never ran: lost"
    (twice,) = check_recovery(expected, known, counted(b"waits", b"held", b"held"), counted())
    assert twice == "job held ran or rests 2 times"
    (both,) = check_recovery(expected, known, counted(b"waits", b"held"), counted(b"held"))
    assert both == "job held ran or rests 2 times"
    (stray,) = check_recovery(expected, known, counted(b"waits", b"held", b"gone"), counted())
    assert stray == "job gone had ended or was never pushed, and appears"


def counted(*jids):
    return Counter(jids)


@pytest.fixture
def history(make_server, short_path):
    """Return the data folder of a server after a few commands."""

    def make(*commands):
        server = make_server()
        with server.open() as client:
            for command in commands:
                client.execute_command(*command)
        server.stop()
        return server.data_dir

    return make


def prove_command(short_path, *argv):
    env = {**os.environ, "FRAMEWORK_VAR_DIR": str(short_path)}
    return FORK_SERVER.run([str(ROOT / "scripts" / "prove"), *map(str, argv)], ROOT, env)


def test_history_command_reports_each_invariant(history, short_path):
    good = history(("LPUSH", "queue:a", '{"jid":"j1"}'), ("LMOVE", "queue:a", "aw:working:x", "RIGHT", "LEFT"))
    done = prove_command(short_path, "history", good)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "At none of 2 instants was an accepted, unfinished job in no key, or in two." in done.stdout

    bad = history(("LPUSH", "queue:a", '{"jid":"j1"}'), ("RPOP", "queue:a"))
    done = prove_command(short_path, "history", good, bad)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "I1: job j1 left queue:a by RPOP, and is in no key" in done.stdout
    assert "1 jobs broke an invariant." in done.stdout

    done = prove_command(short_path, "history", short_path)
    assert done.returncode == 2
    assert "no append-only file" in done.stdout


def test_prefixes_command_cuts_a_history(history, short_path):
    data = history(("LPUSH", "queue:a", '{"class":"J","args":[],"jid":"j1","queue":"a"}'), ("SADD", "queues", "a"))
    done = prove_command(short_path, "prefixes", data, "--cuts", "6", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cut between groups" in done.stdout
    (made,) = (short_path / "prove").glob("*")
    assert not list(made.rglob("appendonlydir"))
    shutil.rmtree(made)
