"""Targets: the output of the framework for a malicious job: log lines, retry entries, JSON for other languages."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from framework.application_worker import ApplicationWorker
from framework.errors import PayloadError
from framework.execute.decoding import PayloadDecoder
from framework.execute.execution import Executor
from framework.execute.job_log import JobLog
from framework.execute.outcomes import UnknownClassDelays
from framework.execute.processor import Processor
from framework.execute.threads import FetchingThreads
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.endings import ending_of
from framework.finish.outcome import Failed, ForeignClass, RunOutcome, UnknownClass
from framework.finish.retry import MAX_BACKTRACE, MAX_MESSAGE, Kill, Retry, RetryDecision, RetryPolicy
from framework.push.argument_checks import StrictArgumentsCheck
from framework.telemetry import logs
from framework.wire.job import decode, rewrite
from framework.wire.json import dumps, loads
from tests.proofs.fuzz_inputs import hostile_error, hostile_value, json_value, text
from tests.proofs.fuzz_target import Target, expect
from tests.proofs.fuzz_wire import DECODED_LIMIT, INFLATED_LIMIT, PAYLOADS, make_payload

_LONGEST_LINE = 400_000
_KNOWN = frozenset({"severity", "time", "message", "class", "jid", "queue", "args", "job_status"})


_FEWEST_LINES: dict[type[RunOutcome], int] = {UnknownClass: 1, ForeignClass: 0}
"""A job without code is not started: it is deferred, with one line, or left to another application."""


class FuzzedWorker(ApplicationWorker):
    """The class of some of the payloads."""

    feature_category = "not_owned"
    wire_name = "Fuzz::NightlyWorker"
    loggable_arguments = ("name",)

    def perform(self, number: int, name: str, more: Any = None) -> None:
        self.logger.info(name, number=number, more=more)


def check_log(fields: Mapping[str, Any]) -> str:
    """Check a log line with arbitrary fields."""
    log = _log()
    log.lines.clear()
    log.server.emit(
        20,
        str(fields.get("message", "x"))[:100],
        {name: value for name, value in fields.items() if isinstance(name, str)},
    )
    logs.json_text(fields)
    return _one_line(log.lines)


def check_error(error: BaseException) -> str:
    """Check a job that failed with any error."""
    payload = {**loads(PAYLOADS[0]), "backtrace": True}
    log = _log()
    log.lines.clear()
    verdict = RetryPolicy().decide(payload, None, error)
    _check_verdict(PAYLOADS[0], verdict)
    log.server.emit(40, "x", logs.error_fields(error))
    _one_line(log.lines)
    return type(verdict).__name__


def check_run(data: bytes) -> str:
    """Check a fetched job, from its bytes to its outcome, without the moves in Redis."""
    log = _log()
    log.lines.clear()
    unit = UnitOfWork("default", data)
    run = _executor().begin(unit)
    name = type(run.outcome).__name__
    if run.outcome is None:
        return "awaits its turn"
    if run.payload is None:
        expect(not log.lines, "of what cannot be read there is no line")
        return name
    verdict: RetryDecision | None = None
    if isinstance(run.outcome, Failed):
        verdict = RetryPolicy().decide(decode(data), run.worker, run.outcome.error, run.payload["args"])
        _check_verdict(data, verdict)
    writer: Any = SimpleNamespace(_log=_job_log())
    Processor._write_end(writer, run, ending_of(run.outcome, verdict), verdict)
    expect(
        len(log.lines) >= _FEWEST_LINES.get(type(run.outcome), 2), "a run has a line at its start and one at its end"
    )
    for line in log.lines:
        found = _parsed(line)
        expect(line is log.lines[0] or found.keys() >= _KNOWN, "what every line has")
    return name


def check_ruby(value: Any) -> str:
    """Check that Ruby reads the framework's JSON, and that the framework reads Ruby's."""
    try:
        data = dumps(value)
    except PayloadError:
        return "PayloadError"
    expect(loads(data) == value, "what is written is read again")
    ruby = _ruby()
    if ruby is None:
        return "no Ruby here"
    answer = ruby.ask(data)
    expect(not answer.startswith(b"!"), f"Ruby reads it: {answer!r}")
    expect(_alike(json.loads(answer), value), "Ruby reads the same")
    return "the same"


def _check_verdict(data: bytes, verdict: RetryDecision) -> None:
    if not isinstance(verdict, Retry | Kill):
        return
    written = loads(rewrite(data, verdict.payload))
    expect(len(written["error_message"]) <= MAX_MESSAGE, "a message is cut")
    expect(len(written.get("error_backtrace") or "") <= MAX_BACKTRACE, "a backtrace is cut")
    expect(isinstance(written["error_class"], str), "an error has a class")
    if isinstance(verdict, Retry):
        expect(0 <= verdict.delay_s < 1e11, "a retry has a time")


def _one_line(lines: list[str]) -> str:
    expect(len(lines) == 1, "one event is one line")
    _parsed(lines[0])
    return "a line"


def _parsed(line: str) -> dict[str, Any]:
    expect(line.endswith("\n") and not any(mark < " " for mark in line[:-1]), "a line is one line")
    expect(len(line) < _LONGEST_LINE, "a line can be read")
    line.encode()  # no lone surrogates
    found = json.loads(line, parse_constant=_no_json, parse_int=float)
    expect(isinstance(found, dict), "a line is an object")
    return cast("dict[str, Any]", found)


def _no_json(word: str) -> Any:
    expect(False, f"{word} is no JSON")


def _alike(one: Any, other: Any) -> bool:
    """Compare numbers by value: Ruby writes 1e22 as 1e+22 or as digits."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


class _Log(NamedTuple):
    server: Any
    lines: list[str]


@cache
def _log() -> _Log:
    """A server log that keeps its lines in a list: the writing thread does not change their text."""
    lines: list[str] = []
    server = logs.ServerLog.__new__(logs.ServerLog)
    server.writer = cast("Any", SimpleNamespace(write=lines.append))
    server.level, server.static = 10, {"shard": "main"}
    return _Log(server, lines)


@cache
def _job_log() -> JobLog:
    return JobLog(_log().server, jobs=True)


@cache
def _executor() -> Executor:
    nothing: Any = SimpleNamespace(write=lambda *_: None, begin=lambda *_: None, end=lambda *_: None)
    runs: Any = SimpleNamespace(
        interrupted=False,
        stopping=False,
        cancelled=frozenset[str](),
        logger=lambda job: logs.logger(jid=job.get("jid")),
    )
    return Executor(
        (),
        _job_log(),
        runs,
        PayloadDecoder(runs, INFLATED_LIMIT, DECODED_LIMIT),
        FetchingThreads(),
        nothing,
        StrictArgumentsCheck(),
        unknown=UnknownClassDelays(("Gone::*",)),
    )


class _Ruby:
    """One process that reads JSON, a line each."""

    _PROGRAM = (
        "STDOUT.sync = true; STDIN.binmode; "
        "while (line = STDIN.gets); begin; puts JSON.generate(JSON.parse(line, max_nesting: 100)); "
        "rescue StandardError => e; puts '!' + e.class.name + ' ' + e.message[0, 100].inspect; end; end"
    )

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(
            [program, "-rjson", "-e", self._PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, data: bytes) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018
        self._process.stdin.write(data + b"\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().rstrip(b"\n")

    def close(self) -> None:
        self._process.communicate()


@cache
def _ruby() -> _Ruby | None:
    program = shutil.which("ruby")
    return _Ruby(program) if program else None


def stop_ruby() -> None:
    """End the Ruby process of this process, if there is one."""
    if _ruby.cache_info().currsize and (ruby := _ruby()) is not None:
        ruby.close()
    _ruby.cache_clear()


def _fields(rng: Random) -> dict[Any, Any]:
    return {text(rng): hostile_value(rng) for _ in range(rng.randrange(4))}


TARGETS: tuple[Target, ...] = (
    Target("log", 10, _fields, check_log),
    Target("error", 6, hostile_error, check_error),
    Target("run", 8, make_payload, check_run),
    Target("ruby", 4, lambda rng: [json_value(rng) for _ in range(rng.randrange(3))], check_ruby),
)
