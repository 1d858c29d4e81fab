"""Counts in memory that other processes read: what a process has counted survives its death, once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framework.telemetry.shared_counts import (
    BLOCK_BYTES,
    SHARED_COUNTS_VARIABLE,
    FolderCounts,
    GroupCounts,
    SharedCounts,
    add_rows,
)
from tests.harness import ROOT

COUNTING = """
import os, signal, sys
from pathlib import Path
from framework.telemetry.shared_counts import SharedCounts
counts = SharedCounts.from_environment() or SharedCounts.in_folder(Path(sys.argv[1]))
row = counts.row(b"cjobs", 1)
gauge = counts.row(b"gbusy", 1)
for _ in range(1_000):
    row[0] += 1
gauge[0] = 7
print("counted", flush=True)
sys.stdin.read()
"""


def summed(counts):
    sums = {}
    add_rows(sums, counts.rows())
    return sums


def start(*arguments, **options):
    process = subprocess.Popen(
        [sys.executable, "-c", COUNTING, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, **options,
    )  # fmt: skip
    assert process.stdout.readline() == "counted\n"
    return process


def test_rows_of_one_key_are_summed_up():
    counts = SharedCounts()
    for value in (1.5, 2.5):
        counts.row(b"key", 2)[1] += value
    assert summed(counts) == {b"key": [0, 4]}


def test_counts_grow_by_blocks():
    reader, descriptor = SharedCounts.create()
    counts = SharedCounts(descriptor)
    numbers = BLOCK_BYTES // 8 // 4
    for at in range(10):
        counts.row(b"%d" % at, numbers)[numbers - 1] = at
    assert len(counts._blocks) > 1
    sums = {}
    add_rows(sums, reader.rows())
    assert {key: values[-1] for key, values in sums.items()} == {b"%d" % at: at for at in range(10)}
    assert sums == summed(counts)
    reader.close(), os.close(descriptor)


def test_killed_process_of_a_group_stays_counted_once():
    group = GroupCounts()
    reader, descriptor = group.open()
    process = start(env={**os.environ, SHARED_COUNTS_VARIABLE: str(descriptor)}, pass_fds=[descriptor])
    os.close(descriptor)
    assert group.sums() == {b"cjobs": [1_000], b"gbusy": [7]}
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for _ in range(2):
        group.end(reader)
        assert group.sums() == {b"cjobs": [1_000]}


def test_processes_of_a_folder_are_summed_and_ended_ones_merged(tmp_path):
    processes = [start(str(tmp_path)) for _ in range(3)]
    counts = FolderCounts(tmp_path)
    assert counts.sums() == {b"cjobs": [3_000], b"gbusy": [21]}
    for process in processes[:2]:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    for _ in range(2):
        assert counts.sums() == {b"cjobs": [3_000], b"gbusy": [7]}
    assert len(list(tmp_path.glob("*.counts"))) == 2  # that of the live one, and that of all ended ones
    processes[2].communicate("")
    assert counts.sums() == {b"cjobs": [3_000]}


def test_crash_between_merge_and_removal_counts_nothing_twice(tmp_path, monkeypatch):
    process = start(str(tmp_path))
    process.communicate("")

    def crash(self, missing_ok=False):
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", crash)
        with pytest.raises(OSError, match="killed"):
            FolderCounts(tmp_path).sums()
    assert len(list(tmp_path.glob("*.counts"))) == 2
    for _ in range(2):
        assert FolderCounts(tmp_path).sums() == {b"cjobs": [1_000]}


def test_descriptor_of_a_supervisor_is_read_once(monkeypatch):
    reader, descriptor = SharedCounts.create()
    monkeypatch.setenv(SHARED_COUNTS_VARIABLE, str(descriptor))
    counts = SharedCounts.from_environment()
    assert counts is not None
    assert SharedCounts.from_environment() is None
    monkeypatch.setenv(SHARED_COUNTS_VARIABLE, "9999")
    assert SharedCounts.from_environment() is None
    reader.close(), os.close(descriptor)
