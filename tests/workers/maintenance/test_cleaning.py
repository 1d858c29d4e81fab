"""Clean a var directory by the workflow of two steps."""

import os
import sqlite3
from contextlib import closing

from framework import testing
from workers.maintenance.cleaning import clean_var_directory


def test_cleaning_prunes_folders_and_then_vacuums(tmp_path, monkeypatch):
    monkeypatch.setattr("workers.maintenance.cleaning.var_dir", lambda: tmp_path)
    monkeypatch.setattr("workers.maintenance.prune_folder_worker.var_dir", lambda: tmp_path)
    monkeypatch.setattr("workers.maintenance.vacuum_database_worker.var_dir", lambda: tmp_path)
    for folder in ("reports", "uploads"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "old").touch()
        os.utime(tmp_path / folder / "old", (1, 1))
    with testing.fake() as jobs:
        run = clean_var_directory()
        # A database that is made later is vacuumed too: the names are computed when the step starts.
        with closing(sqlite3.connect(tmp_path / "late.sqlite3")) as database:
            database.execute("PRAGMA auto_vacuum=INCREMENTAL")
            database.execute("CREATE TABLE t (x)")
        jobs.drain()
        steps = {one.name: (one.state, one.jobs) for one in run.status.steps}
    assert steps == {"prune": ("succeeded", 2), "vacuum": ("succeeded", 1)}
    assert run.id.startswith("wf-")
    assert not list(tmp_path.glob("*/old"))
