"""Run the three jobs with pushes in a fake; kill them and run them again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.errors import BulkPushError, BusinessError, Discard, ShardUnavailableError
from framework.testing import FakeJobs
from workers.code_index import index_file_worker
from workers.code_index.build_report_worker import BuildReportWorker
from workers.code_index.database import process_engine
from workers.code_index.index import this_process_index
from workers.code_index.index_file_worker import IndexFileWorker
from workers.code_index.run_statistics import read_run_statistics
from workers.code_index.scan_tree_worker import ScanTreeWorker

RUN = "run-1"


@pytest.fixture
def pushes(application_worker: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJobs]:
    monkeypatch.setenv("FRAMEWORK_VAR_DIR", str(tmp_path / "var"))
    monkeypatch.delenv("CODE_INDEX_DATABASE_URL", raising=False)
    yield application_worker
    process_engine().dispose()


def take(jobs: FakeJobs) -> list[tuple[str, list[Any]]]:
    """Remove the waiting jobs; return the class (without its feature) and the arguments of each."""
    found = [(job.worker.rpartition("::")[2], job.args) for job in jobs.enqueued()]
    jobs.clear()
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "good.py").write_text("def f():\n    return 1\n")
    (root / "bad.py").write_text("def f(:\n")
    return root


def test_scan_indexes_every_file_and_writes_a_report(pushes: FakeJobs, tree: Path, tmp_path: Path) -> None:
    ScanTreeWorker.perform_async(RUN, [str(tree)])
    pushes.perform_one(ScanTreeWorker)
    pushes.assert_enqueued(IndexFileWorker, count=2)
    assert pushes.drain(IndexFileWorker) == 2
    pushes.assert_enqueued(BuildReportWorker, RUN)
    assert pushes.drain() == 1
    state = this_process_index().state(RUN)
    assert state is not None
    assert state.finished
    assert state.report == str(tmp_path / "var" / "reports" / f"code-index-{RUN}.html")
    page = Path(state.report).read_text()
    assert "tree/<wbr>" in page
    assert "good.<wbr>py" in page
    totals = read_run_statistics(process_engine(), RUN).totals
    assert (totals.files, totals.refused, totals.functions) == (2, 1, 1)


def test_kill_during_the_fan_out_loses_nothing(pushes: FakeJobs, tree: Path) -> None:
    with pushes.unavailable(), pytest.raises(BulkPushError):
        ScanTreeWorker().perform(RUN, [str(tree)])
    IndexFileWorker().perform(RUN, 1)  # one job was pushed before the failure
    (tree / "new.py").write_text("")  # the tree changed meanwhile: the run keeps its list
    ScanTreeWorker().perform(RUN, [str(tree)])
    assert take(pushes) == [("IndexFileWorker", [RUN, 2])]


def test_kill_between_commit_and_push_loses_nothing(pushes: FakeJobs, tree: Path) -> None:
    ScanTreeWorker().perform(RUN, [str(tree)])
    IndexFileWorker().perform(RUN, 1)
    take(pushes)
    with pushes.unavailable(), pytest.raises(ShardUnavailableError):
        IndexFileWorker().perform(RUN, 2)
    IndexFileWorker().perform(RUN, 2)
    assert take(pushes) == [("BuildReportWorker", [RUN])]


def test_scan_run_after_the_last_file_asks_for_the_report(pushes: FakeJobs, tree: Path) -> None:
    ScanTreeWorker().perform(RUN, [str(tree)])
    IndexFileWorker().perform(RUN, 1)
    IndexFileWorker().perform(RUN, 2)
    BuildReportWorker().perform(RUN)
    take(pushes)
    ScanTreeWorker().perform(RUN, [str(tree)])
    assert take(pushes) == []


def test_empty_tree_has_a_report(pushes: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    ScanTreeWorker().perform(RUN, [str(tmp_path / "empty")])
    assert take(pushes) == [("BuildReportWorker", [RUN])]
    BuildReportWorker().perform(RUN)
    state = this_process_index().state(RUN)
    assert state is not None
    assert state.report is not None
    assert "No Python file was found" in Path(state.report).read_text()


def test_report_of_an_unfinished_run_is_not_built(pushes: FakeJobs, tree: Path) -> None:
    ScanTreeWorker().perform(RUN, [str(tree)])
    with pytest.raises(Discard, match="not done yet"):
        BuildReportWorker().perform(RUN)
    with pytest.raises(BusinessError, match="no run"):
        BuildReportWorker().perform("other")


def test_missing_file_is_a_finding(pushes: FakeJobs, tree: Path) -> None:
    ScanTreeWorker().perform(RUN, [str(tree)])
    (tree / "good.py").unlink()
    for number in (1, 2):
        IndexFileWorker().perform(RUN, number)
    rows = read_run_statistics(process_engine(), RUN).refused
    assert sorted(row.kind for row in rows) == ["syntax", "unreadable"]


def test_failed_file_does_not_hold_up_the_report(pushes: FakeJobs, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    ScanTreeWorker().perform(RUN, [str(tree)])
    take(pushes)
    monkeypatch.setattr(index_file_worker, "analyse", fail)
    with pytest.raises(OSError, match="Input/output") as caught:
        IndexFileWorker().perform(RUN, 1)
    IndexFileWorker.retries_exhausted({"args": [RUN, 1]}, caught.value)
    IndexFileWorker.interruptions_exhausted({"args": [RUN, 2]})
    assert take(pushes) == [("BuildReportWorker", [RUN])]
    rows = read_run_statistics(process_engine(), RUN).refused
    assert [(row.kind, row.reason) for row in rows] == [
        ("gave_up", "OSError: [Errno 5] Input/output error"),
        ("gave_up", "the process died on it again and again"),
    ]


def test_job_classes_have_their_wire_names() -> None:
    names = [worker.declaration().wire_name for worker in (ScanTreeWorker, IndexFileWorker, BuildReportWorker)]
    assert names == ["CodeIndex::ScanTreeWorker", "CodeIndex::IndexFileWorker", "CodeIndex::BuildReportWorker"]
