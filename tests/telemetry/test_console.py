"""Test the log as text for a person: what a line shows, what it leaves out, and that no text can control the terminal."""

import json
import logging
import os
import pty
import re
import select
from contextvars import copy_context
from pathlib import Path

import pytest

from framework.telemetry import context, logs
from framework.telemetry.console import ConsoleWriter, uses_colors
from tests.harness import until
from tests.tables import each_row


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
