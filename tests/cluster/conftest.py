import json
import os
import signal
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.harness import Process
from tests.process.conftest import proofs, release

__all__ = ["proofs", "release"]


def has_ended(pid):
    """Return whether a process has ended (its parent or init reaps it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def children(process, kind="started"):
    return [line["child_pid"] for line in process.find(event_name=f"child.{kind}")]


def read_health(process: Process, path: str, method: str = "GET") -> tuple[int, dict]:
    """Return the status and the body of the supervisor's health endpoint."""
    event = process.line(event_name="health.listening")
    connection = HTTPConnection(event["host"], event["port"], timeout=10)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        body = reply.read()
        return reply.status, json.loads(body) if body else {}
    finally:
        connection.close()


@pytest.fixture
def cluster(site):
    def start(*options, program=("-m", "framework"), **env):
        return site.start(*program, "cluster", "-r", "jobs", "--timeout", "1", *options, **env)

    yield start
    for process in site.processes:  # a failed test may leave a supervisor with children
        for line in process.lines:
            if "child_pid" in line and not has_ended(line["child_pid"]):
                os.kill(line["child_pid"], signal.SIGKILL)
