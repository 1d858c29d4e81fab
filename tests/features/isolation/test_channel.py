"""Messages between processes: in pieces, several at once, and bytes that are none."""

import socket

import pytest

from framework.features.isolation.channel import ChannelError, MessageReader, encoded, encoded_object


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
