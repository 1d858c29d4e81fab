import errno
import json
import logging
import os
import pty
import re
import select
import subprocess
import sys
import threading
from contextvars import copy_context
from pathlib import Path

import pytest

from framework.telemetry import context, logs
from framework.telemetry.writer import MAX_BYTES, MAX_PENDING, ConsoleWriter, LogWriter, uses_colors
from tests.fork_server import FORK_SERVER
from tests.harness import ROOT, until
from tests.tables import each_row


def dropped_line(count):
    return f"lost {count}\n"


class Reader:
    """The reading end of a pipe: reads nothing before ``start``, then everything."""

    def __init__(self, blocking=True):
        self.descriptor, self.writing_end = os.pipe()
        os.set_blocking(self.writing_end, blocking)
        self.data = b""
        self.thread = threading.Thread(target=self._read)

    def _read(self):
        with os.fdopen(self.descriptor, "rb") as pipe:
            self.data = pipe.read()

    def start(self):
        self.thread.start()

    def lines(self):
        """Return all written lines; the writer must be closed."""
        os.close(self.writing_end)
        self.thread.join()
        assert self.data.endswith(b"\n")
        return self.data.decode().splitlines()


@pytest.mark.proves("F50")
@pytest.mark.parametrize("blocking", [True, False])
def test_log_writer_blocked_output_counts_dropped_lines(blocking):
    reader = Reader(blocking)
    writer = LogWriter(reader.writing_end, dropped_line)
    total = MAX_PENDING + 50_000
    for number in range(total):
        writer.write(f"{number:099}\n")  # no reader: this must not hang
    assert not writer.flush(timeout_s=0.05)
    reader.start()
    until(lambda: writer.flush(timeout_s=1.0), "the queued lines to be written")
    writer.write("after\n")
    writer.close()
    lines = reader.lines()
    gaps = [(place, int(line.split()[1])) for place, line in enumerate(lines) if line.startswith("lost")]
    kept = [int(line) for line in lines if line.isdigit()]
    assert len(gaps) == 1
    ((place, lost),) = gaps
    assert len(kept) + lost == total
    assert kept == sorted(kept)
    assert place == next(
        number for number in range(total) if kept[number] != number
    )  # in the place of the dropped lines
    assert kept[-1] == total - 1
    assert lines[-1] == "after"


LARGE_LINES = """
import os, resource, sys
from framework.telemetry import logs
total, size = 25_000, 10_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
log = logs.open_server_log("info", {})
for number in range(total):
    log.emit(20, "large", {"number": number, "text": f"{number}" + "x" * size})
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
os.write(2, f"{grown}\\n".encode())
assert log.writer.flush(60.0)
log.emit(20, "after", {})
logs.close_server_log()
"""


@pytest.mark.proves("F50")
def test_writer_hanging_output_uses_bounded_memory():
    """A real process writes 250 MB into a pipe without a reader."""
    child = subprocess.Popen(
        [sys.executable, "-c", LARGE_LINES], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with child:
        grown_kb = int(child.stderr.readline())  # nothing of stdout has been read
        lines = [json.loads(line) for line in child.stdout]
    assert child.returncode == 0
    assert grown_kb * 1024 < 2 * MAX_BYTES
    dropped = [line["count"] for line in lines if line.get("event_name") == "log.dropped"]
    kept = [line["number"] for line in lines if line["message"] == "large"]
    assert len(kept) + sum(dropped) == 25_000
    assert len(dropped) >= 1
    assert kept == sorted(kept)
    assert len(kept) * 10_000 > MAX_BYTES / 2
    assert lines[-1]["message"] == "after"


@pytest.mark.proves("F50")
def test_log_writer_line_beyond_the_buffer_is_dropped_counted():
    reader = Reader()
    writer = LogWriter(reader.writing_end, dropped_line)
    for number in range(50):
        writer.write(f"{number} " + "x" * 20_000 + "\n")  # more than the pipe takes
    writer.write("y" * (MAX_BYTES + 1) + "\n")
    reader.start()
    until(lambda: writer.flush(timeout_s=1.0), "the queued lines to be written")
    writer.write("after\n")
    writer.close()
    lines = reader.lines()
    lost = sum(int(line.split()[1]) for line in lines if line.startswith("lost"))
    assert lost + sum(line[0] in "0123456789" for line in lines) == 51
    assert lost >= 1
    assert not any(line.startswith("y") for line in lines)
    assert lines[-1] == "after"


def test_log_writer_many_threads_lose_and_mix_nothing():
    reader = Reader()
    reader.start()
    writer = LogWriter(reader.writing_end, dropped_line)

    def write(name):
        for number in range(5_000):
            writer.write(f"{name}-{number}-{'x' * 600}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcdefghij"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    lines = reader.lines()
    for name in "abcdefghij":  # each thread's lines whole, all, and in its order
        assert [line for line in lines if line[0] == name] == [f"{name}-{i}-{'x' * 600}" for i in range(5_000)]
    assert len(lines) == 50_000


PROCESS = """
import sys
from framework.telemetry.writer import LogWriter
writer = LogWriter(1, str)
for number in range(3_000):
    writer.write(sys.argv[1] * 999 + "\\n")
writer.close(60.0)
"""


def test_processes_that_share_a_pipe_do_not_mix_their_lines():
    reader, descriptor = os.pipe()
    with os.fdopen(descriptor, "wb") as out:
        children = [FORK_SERVER.start(["-c", PROCESS, letter], ROOT, os.environ, out, out) for letter in "abc"]
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        data = b""
        while piece := pipe.read(8_192):  # in small reads: the pipe stays full
            data += piece
    assert [child.wait() for child in children] == [0, 0, 0]
    lines = data.decode().splitlines()
    assert sorted(lines) == sorted(letter * 999 for letter in "abc" for _ in range(3_000))


@pytest.mark.proves("F50")
def test_writer_closed_reader_raises_nothing():
    reader, descriptor = os.pipe()
    os.close(reader)
    writer = LogWriter(descriptor, dropped_line)
    writer.write("never read\n")
    assert writer.flush()
    writer.close()
    os.close(descriptor)


def test_log_writer_new_reader_sees_the_dropped_count(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    old = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    descriptor = os.open(path, os.O_WRONLY)
    writer = LogWriter(descriptor, dropped_line)
    os.close(old)
    for _ in range(3):
        writer.write("never read\n")
    assert writer.flush()
    new = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer.write("hello\n")
    assert writer.flush()
    assert os.read(new, 100) == b"lost 3\nhello\n"
    writer.close()
    os.close(descriptor)
    os.close(new)


@pytest.mark.proves("F20")
def test_writer_after_a_full_disk_writes_every_line(monkeypatch, tmp_path):
    refusals = iter(range(3))
    taken = []

    def write(descriptor, data):
        if next(refusals, None) is not None:
            raise OSError(errno.ENOSPC, "no space")
        taken.append(bytes(data[:7]))
        return len(taken[-1])

    monkeypatch.setattr(os, "write", write)
    with (tmp_path / "log").open("wb") as file:
        writer = LogWriter(file.fileno(), dropped_line)
        writer.write("first line\n")
        writer.write("second line\n")
        assert writer.flush(timeout_s=10.0)
        writer.close()
    assert b"".join(taken) == b"first line\nsecond line\n"


HANGING = """
from framework.telemetry import logs
logs.open_server_log("info", {})
for number in range(1_000):
    logs.logger().info("x" * 999)
logs.close_server_log()
"""


@pytest.mark.proves("F50")
def test_writer_hanging_reader_delays_no_exit():
    reader, descriptor = os.pipe()
    with os.fdopen(descriptor, "wb") as out:
        child = FORK_SERVER.start(["-c", HANGING], ROOT, os.environ, out, out)
    assert child.wait(60) == 0  # no byte was read
    os.close(reader)


def test_writer_wakes_at_a_new_line():
    reader, descriptor = os.pipe()
    writer = LogWriter(descriptor, dropped_line)
    for number in range(20):
        until(lambda: writer._waiting, "the writer to have nothing to do")
        writer.write(f"{number:04}\n")
        assert os.read(reader, 100) == f"{number:04}\n".encode()
    writer.close()
    os.close(descriptor)
    os.close(reader)


def test_writer_close_writes_queued_lines():
    reader = Reader()
    writer = LogWriter(reader.writing_end, dropped_line)
    for number in range(10):
        writer.write(f"{number}\n")
    writer.close()
    reader.start()
    assert reader.lines() == [str(number) for number in range(10)]


@pytest.fixture
def text_of():
    """Return a function that shows a line, with its time replaced."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    writer = ConsoleWriter(descriptor, lambda count: f'{{"severity":"WARN","message":"{count}"}}\n', colors=False)

    def show(**fields):
        line = {"severity": "INFO", "time": "2026-11-25T13:00:00.250Z", "message": "hello", "pid": 1, "shard": "main"}
        return re.sub(r"^\d\d:\d\d:\d\d\.250 ", "", writer.text_of(json.dumps(line | fields)))

    yield show
    writer.close()
    os.close(descriptor)


def test_console_line_shows_message_and_its_own_fields(text_of):
    assert text_of(event_name="process.ready", queues=["a", "b"]) == (
        "[info     ] hello                          event_name=process.ready queues=['a', 'b']\n"
    )


def test_console_line_of_a_job_leaves_out_what_each_job_has(text_of):
    job = {"message": "A JID-j1: done: 1 sec", "class": "A", "jid": "j1", "queue": "q", "args": ["5"], "urgency": "low"}
    assert text_of(**job, job_status="done", duration_s=1.0, **{"extra.a.rows": 3}) == (
        "[info     ] A JID-j1: done: 1 sec          extra.a.rows=3\n"
    )
    started = text_of(**job, job_status="start")
    assert started == "[info     ] A JID-j1: done: 1 sec          queue=q args=['5']\n"
    said = text_of(**{**job, "message": "half way"}, job_status="running")
    assert "class=A jid=j1" in said  # a line of the job's own logger


def test_console_line_of_an_error_has_its_backtrace_below(text_of):
    error = {"exception.class": "OSError", "exception.message": "no", "exception.backtrace": ["a.py:1:f", "b.py:2:g"]}
    head, *frames = text_of(severity="WARN", **error).splitlines()
    assert head.endswith("exception.class=OSError exception.message=no")
    assert head.startswith("[warning  ] hello")
    assert frames == ["    a.py:1:f", "    b.py:2:g"]


@each_row(
    "fields",
    [
        {"message": "a\x1b[2Jb\nc"},
        {"name": "a\x1b[2Jb\nc"},
        {"meta.\x1b[2J\n": "x"},
        {"args": ["\x1b[2J\n"]},
        {"exception.backtrace": ["\x1b[2J\n"]},
        {"time": "\x1b[2J\n"},
    ],
    ids=str,
)
def test_console_line_escapes_foreign_text(text_of, fields):
    shown = text_of(**fields)
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if line.startswith(("c", "'"))] == []


@each_row(
    ("environment", "colors"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colors_need_a_terminal_that_shows_them(environment, colors):
    reader, terminal = pty.openpty()
    try:
        assert uses_colors(terminal, environment) is colors
    finally:
        os.close(reader), os.close(terminal)
    with Path(os.devnull).open() as file:
        assert not uses_colors(file.fileno(), {})


@pytest.mark.invented_lines
@each_row(
    ("form", "terminal", "text"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("json", True, False),
        ("console", False, True),
        ("console", True, True),
    ],
)
def test_format_of_the_log_is_text_or_json(form, terminal, text):
    reader, descriptor = pty.openpty() if terminal else os.pipe()
    try:
        log = logs.open_server_log("info", {}, descriptor, form)
        log.show("a banner\n")
        logs.logger().info("hello")
        logs.close_server_log()
        until(lambda: select.select([reader], [], [], 0)[0])
        written = os.read(reader, 4096).decode()
    finally:
        logs.close_server_log()
        os.close(reader), os.close(descriptor)
    assert written.startswith("{") is not text
    assert ("a banner" in written) is (terminal and text)  # never in a log
    assert ("\x1b" in written) is (terminal and text)


def test_lines_of_libraries_in_a_job_have_its_class_and_jid():
    reader, descriptor = os.pipe()
    logs.open_server_log("info", {}, descriptor)

    def job():
        context.enter_job({"class": "A", "jid": "j1", "correlation_id": "c1"})
        logging.getLogger("a.library").warning("in the job")
        with context.bound(user="u1"):
            logging.getLogger("a.library").warning("in a block")

    copy_context().run(job)
    logging.getLogger("a.library").warning("outside")
    logs.close_server_log()
    os.close(descriptor)
    with os.fdopen(reader) as pipe:
        lines = [json.loads(line) for line in pipe]
    assert [(line.get("class"), line.get("jid"), line.get("correlation_id")) for line in lines] == [
        ("A", "j1", "c1"),
        ("A", "j1", "c1"),
        (None, None, None),
    ]
