"""Test ``worker --watch``: which files count, and what becomes of jobs, errors and signals at a restart."""

import os
import signal
import sys

import pytest

from framework.process import reload
from framework.process.reload import FileChanges, Reloader, WatchedFolder
from framework.process.signals import SignalQueue
from tests.harness import ROOT, enqueue, until


def test_changes_are_python_files_outside_of_hidden_folders(tmp_path):
    for name in ("a.py", "pkg/b.py", "pkg/c.txt", ".venv/d.py", "pkg/__pycache__/e.py", "lib/site-packages/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "broken.py").symlink_to(tmp_path / "absent")
    changes = FileChanges([WatchedFolder(tmp_path, (".py",)), WatchedFolder(tmp_path / "absent", (".yml",))])
    assert changes.check() == []
    for path in tmp_path.rglob("*.*"):
        if path.is_file():
            path.write_text("22")
    assert changes.check() == [str(tmp_path / "a.py"), str(tmp_path / "pkg/b.py")]
    (tmp_path / "a.py").unlink()
    (tmp_path / "pkg" / "new.py").write_text("")
    assert changes.check() == [str(tmp_path / "a.py"), str(tmp_path / "pkg/new.py")]
    assert changes.check() == []


class Told:
    """A reloader with a child that is a short script; its lines and its restarts are recorded."""

    def __init__(self, folder, monkeypatch, script):
        monkeypatch.setattr(reload, "_PERIOD_S", 0.02)
        self.file, self.started, self.lines = folder / "a.py", folder / "started", []
        self.file.write_text("")
        code = f"open({str(self.started)!r}, 'a').write('x'); {script}"
        self.signals = SignalQueue()
        changes = FileChanges([WatchedFolder(folder, (".py",))])
        self.reloader = Reloader([sys.executable, "-I", "-S", "-c", code], changes, self.signals, 0.1, self.tell)

    def tell(self, line):
        self.lines.append(line)
        if len(self.lines) == 1:
            self.file.write_text("changed")
        if len(self.lines) == 3:
            self.signals.put(signal.SIGTERM)

    def close(self):
        self.signals._reader.close(), self.signals._writer.close()


def test_failed_child_starts_again_only_at_a_change(tmp_path, monkeypatch):
    told = Told(tmp_path, monkeypatch, "raise SystemExit(78)")
    assert told.reloader.run() in (0, 78)
    told.close()
    assert told.lines == [
        "the worker has ended with status 78; it starts again when a file changes",
        f"the worker restarts: {os.path.relpath(told.file)} changed",
        "the worker has ended with status 78; it starts again when a file changes",
    ]
    assert told.started.read_text() == "xx"


def test_child_that_ends_without_error_ends_the_watch(tmp_path, monkeypatch):
    told = Told(tmp_path, monkeypatch, "")
    assert told.reloader.run() == 0
    told.close()
    assert (told.lines, told.started.read_text()) == ([], "x")


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGQUIT,)], ids=str)
def test_child_that_ignores_signals_is_killed_at_the_stop(tmp_path, monkeypatch, numbers):
    monkeypatch.setattr(reload, "_KILL_MARGIN_S", 0.1)
    ignore = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 3, 15)]; "
    told = Told(tmp_path, monkeypatch, f"{ignore}open({str(tmp_path / 'deaf')!r}, 'w'); time.sleep(600)")
    told.reloader._start()
    until((tmp_path / "deaf").exists)
    for number in numbers:
        told.signals.put(number)
    told.reloader._handle_signals(0)
    assert told.reloader._stop() == -signal.SIGKILL
    told.close()


def test_worker_restarts_with_new_code_and_returns_jobs(site, redis, proofs, release):
    jobs = site.folder / "jobs.py"
    enqueue(redis, "LongWorker", args=["one"])
    process = site.start(str(ROOT / "scripts" / "worker"), "-r", "jobs", "-q", "default", "-t", "0", "--watch")
    proofs("begun:one")
    jobs.write_text(jobs.read_text().replace('prove(f"begun:{name}"', 'prove(f"newly begun:{name}"'))
    assert proofs("newly begun:one")  # the job went back and runs again
    # The thread of the log may write later than the job runs.
    until(lambda: len(process.find(event_name="process.ready")) == 2)
    until(lambda: "the worker restarts: jobs.py changed" in process.errors.read_text())
    release("one")
    process.line(job_status="done")
    assert process.end() == 0
    first, second = (line["pid"] for line in process.find(event_name="process.stopped"))
    assert first != second


def test_watch_with_a_health_port_is_refused(site, redis):
    process = site.worker("-q", "default", "--watch", "--health-port", "0")
    assert process.wait() == 2
    assert "--watch serves no health checks" in process.errors.read_text()
