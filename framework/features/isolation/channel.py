"""Exchange messages between a worker process and the process of an isolated job: JSON objects with their length in front."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

from framework.errors import PayloadError
from framework.telemetry.logs import object_text
from framework.typeguards import is_mapping
from framework.wire.json import loads

_LENGTH = struct.Struct(">I")
_RECEIVED_BYTES = 1 << 16
MAX_REPORT_BYTES = 8 << 20
"""The longest message that a worker process accepts from a job's process."""


class ChannelError(Exception):
    """The other process sent bytes that are no message."""


def encoded(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return _LENGTH.pack(len(message)) + message


def encoded_object(fields: dict[str, Any]) -> bytes:
    """Return an object as it is sent; a value that JSON cannot hold becomes text."""
    return encoded(object_text(fields).encode())


class MessageReader:
    """Read messages of a socket, at most ``limit`` bytes each."""

    def __init__(self, connection: socket.socket, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self._buffer = bytearray()

    def receive(self) -> bool:
        """Wait for bytes; return false at the end. Raises OSError if the socket is closed, or its timeout has passed."""
        data = self._connection.recv(_RECEIVED_BYTES)
        self._buffer += data
        return bool(data)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the received messages that are complete. Raises ChannelError at bytes that are no message."""
        while (message := self._next()) is not None:
            yield message

    def receive_one(self) -> dict[str, Any] | None:
        """Wait for a message; return ``None`` at the end. Raises as the other two."""
        while (message := self._next()) is None:
            if not self.receive():
                return None
        return message

    def _next(self) -> dict[str, Any] | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if end > _LENGTH.size + self._limit:
            raise ChannelError(f"a message has {end:,} bytes")
        if len(self._buffer) < end:
            return None
        data = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message: Any = loads(data, None)
        except PayloadError as error:
            raise ChannelError(str(error)) from error
        if not is_mapping(message):
            raise ChannelError("a message is no object")
        return message
