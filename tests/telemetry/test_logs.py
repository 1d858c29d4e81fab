import itertools
import json
import logging
import os
import select
import threading
import unicodedata

import pytest

from framework.telemetry import context, logs, writer
from framework.telemetry import logs as logs_module
from framework.telemetry.logs import LogRateLimit
from framework.text import visible_json
from tests.harness import forked, until

pytestmark = pytest.mark.invented_lines


@pytest.fixture
def lines():
    """Open a server log on a pipe; call the fixture to close it and get its lines, parsed."""
    reader, descriptor = os.pipe()
    root = logging.getLogger()
    before = root.handlers, root.level
    logs.open_server_log("info", {"pid": 1}, descriptor)
    written = []

    def read():
        with os.fdopen(reader, "rb") as pipe:
            written.append(pipe.read())

    thread = threading.Thread(target=read)
    thread.start()

    def collect(*, raw=False):
        logs.close_server_log()
        os.close(descriptor)
        thread.join()
        if raw:
            return written[0].decode()
        return [json.loads(line) for line in written[0].splitlines()]

    yield collect
    logs.close_server_log()
    logging.captureWarnings(False)
    root.handlers, root.level = before


def test_log_line_is_one_object_with_its_head_first(lines):
    with context.bound("c1"):
        logs.logger(shard="main").info("hello\nworld", answer=42)
    (line,) = lines()
    assert list(line)[:3] == ["severity", "time", "message"]
    assert line["severity"] == "INFO"
    assert line["message"] == "hello\nworld"
    assert line | {"pid": 1, "shard": "main", "answer": 42, "correlation_id": "c1"} == line


def test_standard_library_lines_have_the_same_form(lines):
    try:
        raise ValueError("lost")
    except ValueError:
        logging.getLogger("another.library").exception("it went %s", "wrong")
    (line,) = lines()
    assert line["message"] == "it went wrong"
    assert line["logger"] == "another.library"
    assert line["severity"] == "ERROR"
    assert line["exception.class"] == "ValueError"
    assert line["exception.message"] == "lost"


def test_log_lines_below_the_level_are_omitted(lines):
    logs.logger().debug("fine detail")
    logs.logger().info("news")
    assert [line["message"] for line in lines()] == ["news"]


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


class ExitingItems:
    def __str__(self):
        raise SystemExit


class OddText(str):
    __slots__ = ()

    def __getitem__(self, _):
        raise SystemExit


class TextSubclassFromStr:
    def __str__(self):
        return OddText("text")


def circular():
    value = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    "value",
    ["\ud800", float("nan"), object(), b"\xff", circular(), Unprintable(), ExitingItems(), TextSubclassFromStr()],
    ids=["surrogate", "nan", "object", "bytes", "circle", "unprintable", "exits", "odd text"],
)
def test_log_line_survives_any_field_value(lines, value):
    logs.logger().info("kept", odd=value)
    (line,) = lines()
    assert line["message"] == "kept"
    assert "odd" in line


@pytest.mark.proves("R26")
def test_log_error_with_failing_str_is_logged(lines):
    logs.logger().error("failed", error=Unprintable())
    (line,) = lines()
    assert line["exception.class"].endswith("Unprintable")
    assert "RuntimeError" in line["exception.message"]


def test_threads_never_mix_their_lines(lines):
    def write(name):
        for number in range(500):
            logs.logger().info(f"{name}-{number}", padding="x" * 200)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line["message"] for line in lines()) == sorted(f"{n}-{i}" for n in "abcd" for i in range(500))


def test_log_dropped_lines_are_counted_in_a_line(monkeypatch):
    monkeypatch.setattr(writer, "MAX_PENDING", 5)
    monkeypatch.setattr(writer, "_BATCH_BYTES", 2_000)
    reader, descriptor = os.pipe()
    log = logs.ServerLog(descriptor, "info", {"pid": 1})
    emitted = itertools.count()

    def emit():
        next(emitted)
        log.emit(20, "x" * 999, {})

    def fill():
        emit()
        return not select.select([], [descriptor], [], 0)[1]

    until(fill, "the pipe to be full")
    # At most five lines wait behind it.
    for _ in range(100):
        emit()
    thread = threading.Thread(target=log.writer.close, args=(60.0,))
    thread.start()
    with os.fdopen(reader, "rb") as pipe:
        thread_closes = threading.Thread(target=lambda: (thread.join(), os.close(descriptor)))
        thread_closes.start()
        lines = [json.loads(line) for line in pipe]
        thread_closes.join()
    gaps = [line for line in lines if line.get("event_name") == "log.dropped"]  # one, or more while the pipe filled
    assert {(gap["severity"], gap["pid"]) for gap in gaps} == {("WARN", 1)}
    assert sum(gap["count"] for gap in gaps) + len(lines) - len(gaps) == next(emitted)
    assert lines[-1]["message"] == "x" * 999


def test_logger_without_server_log_uses_the_standard_logger(caplog, capsys):
    with caplog.at_level(logging.INFO, "framework"):
        logs.logger(shard="main").warning("careful", jid="j1")
    assert "careful" in caplog.text
    assert "jid='j1'" in caplog.text
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1970-01-01T00:00:00.000Z"), (1_750_000_000.5, "2025-06-15T15:06:40.500Z"), (float("inf"), "inf")],
)
def test_times_are_iso_with_milliseconds(seconds, text):
    assert logs.iso_time(seconds) == text


def test_whole_milliseconds_are_shown_exactly():
    """The nearest float of a millisecond is below it in half of the cases."""
    for milliseconds in range(1_795_284_241_000, 1_795_284_243_000):
        assert logs.iso_time(milliseconds / 1000).endswith(f".{milliseconds % 1000:03d}Z")
    assert logs.iso_time(1_750_000_000.9999) == "2025-06-15T15:06:40.999Z"


HIDDEN = "a\x1b[2J\x9b31m\u202e\u2066\u200b\u061c\u2028\x7f\ufeff\U000e0041 語é\U0001f600"


@pytest.mark.parametrize(
    "write_line",
    [
        lambda: logs.logger(**{"class": HIDDEN}).info(HIDDEN, queue=HIDDEN, rows=[{HIDDEN: HIDDEN}]),
        lambda: logs.logger().error("failed", error=ValueError(HIDDEN)),
        lambda: logging.getLogger("redis").warning(HIDDEN),
    ],
    ids=["fields", "error", "standard library"],
)
def test_log_line_of_hostile_text_escapes_controls(lines, write_line):
    write_line()
    text = lines(raw=True)
    acting = {char for char in text if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert acting == {"\n"}
    assert "語é\U0001f600" in text
    (line,) = map(json.loads, text.splitlines())
    assert HIDDEN in (line["message"], line.get("exception.message"))


def test_producer_line_of_hostile_text_escapes_controls(caplog):
    logs.logger().warning(HIDDEN, queue=HIDDEN)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert "\\u202e" in record.getMessage()


def test_hidden_characters_are_complete():
    categories = {chr(number): unicodedata.category(chr(number)) for number in range(0x20, 0x110000)}
    wanted = {char for char, category in categories.items() if category in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    kept = {char for char in wanted if visible_json(char) == char}
    assert kept == set()
    changed = {char for char, category in categories.items() if category[0] in "LNPS" and visible_json(char) != char}
    assert changed == set()


def test_log_rate_limit_repeated_topic_counts_until_next_line(set_clock):
    limit, set_clock.monotonic = LogRateLimit(60.0), 0.0
    assert [limit.hit("a") for _ in range(4)] == [1, 0, 0, 0]
    assert limit.hit("b") == 1
    set_clock.monotonic = 59.9
    assert limit.hit("a") == 0
    set_clock.monotonic = 60.0
    assert [limit.hit("a"), limit.hit("a")] == [5, 0]
    set_clock.monotonic = 500.0
    assert limit.hit("a") == 2


def test_log_rate_limit_writes_line_with_count_and_fields(caplog, set_clock):
    limit, set_clock.monotonic = LogRateLimit(60.0), 0.0
    for _ in range(3):
        limit.warning("a", "the disk is full", "disk.full", disk="sda")
    set_clock.monotonic = 60.0
    limit.error("a", "the disk is full", "disk.full", disk="sda")
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert "event_name='disk.full' count=1 disk='sda'" in caplog.messages[0]
    assert "event_name='disk.full' count=3 disk='sda'" in caplog.messages[1]


def test_log_rate_limit_many_topics_stay_bounded(monkeypatch, set_clock):
    monkeypatch.setattr(logs_module, "_MAX_TOPICS", 3)
    limit = LogRateLimit(60.0)
    assert [limit.hit(str(number)) for number in range(10)] == [1] * 10
    assert len(limit._seen) <= 3
    assert limit.hit("9") == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_log_rate_limit_after_fork_replaces_held_lock():
    limit = LogRateLimit(60.0)
    with limit._lock:  # as a thread of the parent may hold it at the moment of the fork
        assert forked(lambda: limit.hit("a")) == 0
