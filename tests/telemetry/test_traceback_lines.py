"""The lines of a traceback: the application's calls first, with their source, and the errors that led to the raised one."""

import json

import pytest

from framework.telemetry.logs import error_fields
from framework.telemetry.traceback_lines import traceback_lines
from framework.wire.json import loads

VALUE = "{-secret-"


def parse(secret):
    json.loads(secret)


def failed(raise_):
    try:
        raise_()
    except Exception as error:
        return error


def with_cause():
    try:
        parse(VALUE)
    except ValueError as error:
        raise LookupError("no account\nof this name") from error


def with_context():
    try:
        parse(VALUE)
    except ValueError:
        raise LookupError("no account")  # noqa: B904 - on purpose


def in_group():
    raise ExceptionGroup("two", [failed(with_cause), OSError("second")])


@pytest.mark.parametrize(("raise_", "label"), [(with_cause, "caused by"), (with_context, "raised while handling")])
def test_led_to_errors_have_their_messages_and_places(raise_, label):
    lines = traceback_lines(failed(raise_))
    assert lines[0].startswith(f"{__file__}:")
    assert f":in `{raise_.__name__}': raise LookupError(" in lines[0]
    at = lines.index(next(line for line in lines if line.startswith(label)))
    assert "json.decoder.JSONDecodeError: Expecting property name" in lines[at]
    # The call of the application comes before those of the library, in which the error was raised.
    assert lines[at + 1].endswith(":in `parse': json.loads(secret)")
    assert lines[at + 3].startswith("raised in ")
    assert lines[at + 4] == "... 2 more calls of Python"
    assert "-secret-" not in "".join(lines)
    assert not any("\n" in line for line in lines)


def test_errors_of_a_group_are_shown_below_it():
    heads = [line for line in traceback_lines(failed(in_group)) if not line.startswith(("/", "raised in", "..."))]
    assert heads[0] == "with LookupError: no account of this name"
    assert heads[1] == "with OSError: second"
    assert heads[2].startswith("caused by json.decoder.JSONDecodeError: ")


def test_error_of_the_framework_alone_shows_its_calls():
    error = failed(lambda: loads(b"{"))
    error.__traceback__ = error.__traceback__.tb_next.tb_next
    assert "framework/wire/json.py" in traceback_lines(error)[0]


def test_line_of_a_log_has_the_causes():
    fields = error_fields(failed(with_cause))
    assert fields["exception.message"] == "no account\nof this name"
    assert any(line.startswith("caused by json.decoder.JSONDecodeError") for line in fields["exception.backtrace"])


def test_error_in_a_circle_of_causes_ends():
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert traceback_lines(first) == ["caused by OSError: second"]
