import errno
import json
import os
import subprocess
import sys
import threading

import pytest

from framework.telemetry.writer import MAX_BYTES, MAX_PENDING, LogWriter
from tests.harness import until


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
total, size = 60_000, 10_000
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
    """A real process writes 600 MB into a pipe without a reader."""
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
    assert len(kept) + sum(dropped) == 60_000
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
    children = [
        subprocess.Popen([sys.executable, "-c", PROCESS, letter], stdout=descriptor, stdin=subprocess.DEVNULL)
        for letter in "abc"
    ]
    os.close(descriptor)
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
    child = subprocess.Popen([sys.executable, "-c", HANGING], stdout=descriptor, stdin=subprocess.DEVNULL)
    os.close(descriptor)
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
