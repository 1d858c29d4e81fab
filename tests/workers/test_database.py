import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from workers import database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A SQLite file that is not in WAL mode."""
    found = tmp_path / "x.sqlite3"
    with closing(sqlite3.connect(found)) as connection:
        connection.execute("CREATE TABLE t (x)")
    return found


def test_switch_to_wal_of_a_busy_file_tries_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
        closing(sqlite3.connect(path, timeout=0)) as switching,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        waits: list[float] = []

        def close_reader(seconds: float) -> None:
            waits.append(seconds)
            reader.execute("COMMIT")

        monkeypatch.setattr(database.time, "sleep", close_reader)
        database._switch_to_wal(switching)
        assert len(waits) == 1
        assert switching.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_switch_to_wal_of_a_read_only_file_raises_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(database.time, "sleep", waits.append)
    with (
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        database._switch_to_wal(connection)
    assert waits == []
