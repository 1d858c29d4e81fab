"""Messages between processes: in pieces, several at once, and bytes that are none."""

import json
import socket
import traceback

import pytest

from framework.errors import Discard, JobTimeoutError, RetryLater
from framework.features.isolation.channel import (
    ChannelError,
    MessageReader,
    described,
    encoded,
    encoded_object,
    rebuilt,
)
from framework.text import error_message


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield MessageReader(ours, 100), theirs


def test_messages_arrive_whole_however_they_are_cut(pair):
    reader, other = pair
    data = encoded_object({"a": 1}) + encoded_object({"b": "\ud800"})
    for byte in data[:10]:
        other.send(bytes((byte,)))
    assert reader.receive()
    other.sendall(data[10:])
    other.shutdown(socket.SHUT_WR)
    assert reader.receive_one() == {"a": 1}
    assert reader.receive_one() == {"b": "?"}
    assert reader.receive_one() is None


def test_bytes_that_are_no_message_are_refused(pair):
    reader, other = pair
    for data in (b"\xff" * 8, encoded(b"[1]"), encoded(b"{"), encoded(b" " * 101)):
        broken = MessageReader(reader._connection, 100)
        other.sendall(encoded(b"{}") + data)
        assert broken.receive_one() == {}
        with pytest.raises(ChannelError):
            list(broken.messages())


class PickyError(ValueError):
    """Needs two arguments, and keeps one value that JSON cannot hold."""

    def __init__(self, code, thing):
        self.code, self.thing = code, thing
        super().__init__(f"code {code}")


class RudeError(Exception):
    def __str__(self):
        raise SystemExit(1)


def sent(error):
    """Return the error as the other process builds it."""
    return rebuilt(json.loads(json.dumps(described(error))))


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as found:
        return found


def test_error_keeps_its_class_message_and_attributes():
    found = sent(raised(PickyError(7, object()), KeyError("x")))
    assert (type(found), str(found), found.code, found.thing) == (PickyError, "code 7", 7, None)
    assert (type(found.__cause__), str(found.__cause__)) == (KeyError, "'x'")
    *_, last = traceback.extract_tb(found.__traceback__)
    assert (last.name, last.line) == ("raised", "raise error from cause")
    assert sent(RetryLater(5, "soon")).delay_s == 5
    assert sent(Discard("why")).reason == "why"
    assert sent(JobTimeoutError().explain(2)).timeout_s == 2
    assert sent(FileNotFoundError(2, "no such file")).errno == 2


@pytest.mark.parametrize("cause", [None, KeyError("cause")])
def test_error_keeps_its_context_unless_it_was_hidden(cause):
    def fail(hide):
        try:
            raise KeyError("first")
        except KeyError:
            if hide:
                raise ValueError("second") from cause
            raise ValueError("second")  # noqa: B904 - on purpose

    for hide in (False, True):
        with pytest.raises(ValueError, match="second") as caught:
            fail(hide)
        assert repr(sent(caught.value).__context__) == ("None" if hide else "KeyError('first')")


def test_error_of_a_class_that_is_not_loaded_has_its_base():
    hidden = type("HiddenError", (PickyError,), {"__module__": "not.loaded"})
    found = sent(hidden(3, None))
    assert isinstance(found, PickyError)
    assert (type(found).__module__, type(found).__qualname__, str(found)) == ("not.loaded", "HiddenError", "code 3")


def test_error_that_cannot_be_shown_travels_all_the_same():
    assert "cannot be read" in error_message(sent(RudeError("x")), 100)
    assert str(sent(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"))) == str(
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")
    )


def test_description_that_names_no_error_is_refused():
    with pytest.raises(StopIteration):
        rebuilt({"kinds": [["os", "path"]], "message": "", "args": [], "attributes": {}, "frames": []})
