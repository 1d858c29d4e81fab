"""Check which job requests the report, on real databases with real threads."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, func, select

from framework.errors import BusinessError
from tests.tables import each_row
from workers.code_index.analysis import Measured, Unparsable
from workers.code_index.database import open_engine
from workers.code_index.index import CodeIndex
from workers.code_index.run_statistics import read_run_statistics
from workers.code_index.source_files import SourceFile
from workers.code_index.tables import files, results
from workers.database import reading, writing

RUN = "run-1"
NUMBERS = Measured(size=100, lines=10, functions=2, classes=1, longest_name="f", longest_lines=4)


def found(count: int) -> list[SourceFile]:
    return [SourceFile(b"/src/\xe9/%d.py" % i, f"src/{i}.py", f"package{i % 3}") for i in range(1, count + 1)]


def begun(engine: Engine, count: int, run_id: str = RUN) -> CodeIndex:
    index = CodeIndex(engine)
    assert index.begin(run_id, ["/src"])
    index.record_files(run_id, found(count))
    return index


def record(index: CodeIndex, number: int, run_id: str = RUN, lines: int = 10) -> bool:
    finding = Measured(100, lines, 2, 1, "f", 4)
    return index.record_result(run_id, number, finding, cpu_s=0.01, duration_s=0.02)


def test_last_file_asks_for_the_report(engine: Engine) -> None:
    index = begun(engine, 3)
    assert [record(index, 1), record(index, 3)] == [False, False]
    assert index.pending(RUN) == [2]
    assert not index.complete(RUN)
    assert record(index, 2)
    assert index.complete(RUN)
    assert index.report_due(RUN)


def test_last_job_run_twice_asks_until_the_report_exists(engine: Engine) -> None:
    """The kill between commit and push: the job runs again and gets the same answer."""
    index = begun(engine, 2)
    record(index, 1)
    assert record(index, 2)
    assert record(index, 2)
    assert record(index, 1)
    index.finish(RUN, "/report.html")
    assert not record(index, 2)
    assert not index.report_due(RUN)


def test_result_run_twice_replaces_its_row(engine: Engine) -> None:
    index = begun(engine, 2)
    record(index, 1, lines=10)
    refused = Unparsable("syntax", "it changed", 5)
    index.record_result(RUN, 1, refused, cpu_s=0.0, duration_s=0.0)
    with reading(engine) as connection:
        row = connection.execute(select(results)).one()
    assert (row.kind, row.reason, row.size, row.lines) == ("syntax", "it changed", 5, None)
    state = index.state(RUN)
    assert state is not None
    assert (state.files_total, state.done, state.refused, state.finished) == (2, 1, 1, False)


def test_scan_run_twice_keeps_the_first_list(engine: Engine) -> None:
    index = begun(engine, 3)
    record(index, 2)
    assert not index.begin(RUN, ["/elsewhere"])
    index.record_files(RUN, found(99))
    assert index.pending(RUN) == [1, 3]
    assert index.key_path(RUN, 3) == b"/src/\xe9/3.py"


def test_run_of_no_files_is_complete(engine: Engine) -> None:
    index = CodeIndex(engine)
    assert index.begin(RUN, [])
    assert not index.report_due(RUN)  # not yet listed
    index.record_files(RUN, [])
    assert index.report_due(RUN)


def test_runs_are_separate(engine: Engine) -> None:
    first, second = begun(engine, 1, "a"), begun(engine, 2, "b")
    assert record(first, 1, "a")
    assert not record(second, 1, "b")


def together(count: int, work: Callable[[int], bool]) -> list[bool]:
    """Run ``work`` in as many threads, all let go at the same moment."""
    barrier = threading.Barrier(count)

    def go(position: int) -> bool:
        barrier.wait(30)
        return work(position)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(go, range(count)))


def test_files_that_finish_together_ask_exactly_once(engine: Engine) -> None:
    for turn in range(8):
        index = begun(engine, 8, f"r{turn}")
        asked = together(8, lambda position, i=index, r=f"r{turn}": record(i, position + 1, r))  # type: ignore[misc]
        assert sum(asked) == 1


def test_doubled_jobs_lose_and_double_nothing(engine: Engine) -> None:
    index = begun(engine, 6)
    asked = together(12, lambda position: record(index, position % 6 + 1))
    assert sum(asked) >= 1
    totals = read_run_statistics(engine, RUN).totals
    assert (totals.files, totals.measured, totals.lines, totals.functions) == (6, 6, 60, 12)


def test_schema_is_made_once_by_many_processes(database_url: URL) -> None:
    engines: list[Engine] = []

    def open_and_write(position: int) -> bool:
        engine = open_engine(database_url)
        engines.append(engine)
        return CodeIndex(engine).begin(f"r{position}", [])

    assert together(6, open_and_write) == [True] * 6
    for engine in engines:
        engine.dispose()


def test_transaction_that_fails_leaves_nothing(engine: Engine) -> None:
    index = begun(engine, 1)
    with pytest.raises(RuntimeError, match="killed"), writing(engine) as connection:
        connection.execute(files.update().values(pending=False))
        raise RuntimeError("killed")
    assert index.pending(RUN) == [1]


def test_readers_do_not_wait_for_a_writer(engine: Engine) -> None:
    index = begun(engine, 1)
    with writing(engine) as connection:
        connection.execute(files.update().values(pending=False))
        assert index.pending(RUN) == [1]


def test_unknown_runs_and_files_are_refused(engine: Engine) -> None:
    index = begun(engine, 1)
    with pytest.raises(BusinessError, match="no file number 7"):
        index.key_path(RUN, 7)
    with pytest.raises(BusinessError, match="no run 'gone'"):
        index.complete("gone")
    with pytest.raises(BusinessError, match="no run 'gone'"):
        read_run_statistics(engine, "gone")
    assert index.state("gone") is None


@each_row("run_id", ["", "../../etc/passwd", "a/b", "a b", "-rf", "x" * 65, "a\n", "ä"])
def test_run_ids_that_cannot_name_a_report_are_refused(tmp_path: Path, run_id: str) -> None:
    engine = open_engine(URL.create("sqlite", database=str(tmp_path / "x.sqlite3")))
    with pytest.raises(BusinessError, match="run id"):
        CodeIndex(engine).begin(run_id, [])
    engine.dispose()


def test_delete_run_leaves_nothing(engine: Engine) -> None:
    index = begun(engine, 2)
    record(index, 1)
    index.delete_run(RUN)
    assert index.state(RUN) is None
    with reading(engine) as connection:
        assert connection.scalar(select(func.count()).select_from(files)) == 0
        assert connection.scalar(select(func.count()).select_from(results)) == 0


def test_run_statistics_of_a_run(engine: Engine) -> None:
    index = begun(engine, 4)
    for number, lines in ((1, 5), (2, 500), (3, 20_000)):
        record(index, number, lines=lines)
    index.record_result(RUN, 4, Unparsable("syntax", "bad", 7), cpu_s=0.5, duration_s=0.5)
    figures = read_run_statistics(engine, RUN)
    assert figures.roots == ("/src",)
    assert (figures.totals.files, figures.totals.measured, figures.totals.refused) == (4, 3, 1)
    assert (figures.totals.size, figures.totals.lines) == (307, 20_505)
    assert figures.totals.jobs_per_second == pytest.approx(4 / figures.totals.span_s)
    assert [row.lines for row in figures.largest] == [20_000, 500, 5]
    assert [(row.name, row.files, row.lines, row.refused) for row in figures.packages] == [
        ("package0", 1, 20_000, 0),
        ("package2", 1, 500, 0),
        ("package1", 2, 5, 1),
    ]
    assert [(row.shown, row.kind, row.reason) for row in figures.refused] == [("src/4.py", "syntax", "bad")]
    assert {part.label: part.count for part in figures.sizes if part.count} == {"1+": 1, "300+": 1, "10k+": 1}
    assert sum(part.count for part in figures.completions) == 4
    assert len(figures.completions) <= 60
