"""Check every log line that a test causes against the schema, in the process of the test and in those that it starts."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs

from framework.telemetry.logs import LibraryLog, object_text
from framework.telemetry.writer import ConsoleWriter, LogWriter

SCHEMA = Path(__file__).resolve().parents[1] / "framework" / "telemetry" / "log_schema.json"
_HEAD = '{"severity":'
_validator = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()))
_invalid: list[str] = []


def check(line: str) -> None:
    """Note a line that the schema refuses; the end of the test fails."""
    if not line.startswith(_HEAD):
        # A test of the writer itself.
        return
    try:
        fields = json.loads(line)
        if _validator.is_valid(fields):
            return
        reasons = [f"{'.'.join(map(str, one.instance_path))}: {one.message[-300:]}" for one in _errors(fields)]
    except ValueError as error:
        reasons = [str(error)]
    _invalid.append(f"{'; '.join(reasons)}\n  {line.strip()[:2000]}")


def _errors(fields: Mapping[str, Any]) -> Iterable[Any]:
    return list(_validator.iter_errors(fields))[:5]


def check_output(data: bytes) -> None:
    """Check the complete lines in the output of a process."""
    for line in data[: data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines():
        check(line)


def raise_invalid(*, may_be_invented: bool) -> None:
    """Raise AssertionError for the lines that the schema has refused since the last call, unless the test has invented them."""
    found = _invalid[:]
    _invalid.clear()
    if found and not may_be_invented:
        advice = (
            "a new field needs a line in framework/telemetry/log_schema.json and a row in docs/reference/log_fields.md"
        )
        raise AssertionError(f"the log schema refuses ({advice}):\n" + "\n".join(found[:5]))


def watch() -> None:
    """Check the lines of this process from now on."""
    for owner in (LogWriter, ConsoleWriter, LibraryLog):
        _watch(owner)


def _watch(owner: Any) -> None:
    write = owner.write

    def checked(self: Any, line: Any) -> None:
        check(line if isinstance(line, str) else object_text(line))
        write(self, line)

    owner.write = checked
